"""A rule that has been read, parsed and checked: what generator and drivers work with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlirules.language.faults import Span
from mlirules.language.notation import ast
from mlirules.language.source import SourceFile, Text

if TYPE_CHECKING:  # rules that were read before need no model to be read with
    from mlirules.language.kernel import KernelVariant
    from mlirules.language.model import RuleDoc, Test

# The ops that an index equation in `match` may find.
STRUCTURED_OPS = tuple(
    f"linalg.{name}"
    for name in (
        "generic",
        "matmul",
        "batch_matmul",
        "matvec",
        "batch_matvec",
        "vecmat",
        "batch_vecmat",
        "dot",
        "contract",
        "elementwise",
        "map",
        "reduce",
        "transpose",
        "broadcast",
        "mmt4d",
        "batch_mmt4d",
        "conv_1d",
        "conv_2d",
        "conv_3d",
        "conv_1d_ncw_fcw",
        "conv_1d_nwc_wcf",
        "conv_2d_nchw_fchw",
        "conv_2d_nhwc_hwcf",
        "conv_2d_ngchw_fgchw",
        "conv_2d_ngchw_gfchw",
        "conv_3d_ncdhw_fcdhw",
        "conv_3d_ndhwc_dhwcf",
        "depthwise_conv_2d_nchw_chw",
        "depthwise_conv_2d_nhwc_hwc",
        "pooling_nchw_sum",
        "pooling_nchw_max",
        "pooling_nhwc_sum",
        "pooling_nhwc_max",
    )
)


#: Behind the name of an op's variable: the symbol that holds the matched op's attributes, as MLIR
#: has them, and what it holds of an op that cannot be written again.
WRITTEN, REGIONS = "{}", "\0regions"


@dataclass(frozen=True)
class Line:
    """One line of a rule: where it stands, and its text."""

    section: str  # match, types, where, let, rewrite
    key: str | int
    text: Text

    @property
    def span(self) -> Span:
        """The whole line's place."""
        return self.text.span()

    def __str__(self) -> str:
        return self.text.value


@dataclass(frozen=True)
class OpPattern:
    """One op of the pattern: its results' names and its operands' patterns."""

    line: Line
    equation: ast.OpEquation

    @property
    def op(self) -> str:
        """The op's name."""
        return self.equation.call.fn


@dataclass(frozen=True)
class OneOf:
    """A condition `Op in [...]`: the ops that a variable of the match may stand for."""

    line: Line
    expr: ast.Expr
    ops: tuple[str, ...]


@dataclass(frozen=True)
class BodyText:
    """A `body:` of a rewrite."""

    text: str


@dataclass(frozen=True)
class Reordered:
    """An input that lies in another order for the kernel: when, its view, the order of its dims.

    ``along`` holds the matrices that its numbers are multiplied by, each along a dim of the view;
    ``pad`` how many zeros follow along its own dims, none where it is empty.
    """

    when: tuple[Line, ast.Expr] | bool
    view: list[tuple[Line, ast.Expr]]
    permute: list[int]
    along: dict[int, list[list[float]]] = field(default_factory=dict)
    pad: list[tuple[Line, ast.Expr]] = field(default_factory=list)


@dataclass(frozen=True)
class Before:
    """A tensor that a dispatch before the kernel's own writes, and that dispatch."""

    element: str
    body: Line
    dims: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    grid: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    workgroup: list[tuple[Line, ast.Expr]] = field(default_factory=list)


@dataclass(frozen=True)
class Variant:
    """A kernel's variant, parsed. ``let`` holds an expression or a value for each name."""

    doc: KernelVariant
    let: list[tuple[str, Line, ast.Expr | None, object]] = field(default_factory=list)
    where: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    grid: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    workgroup: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    body: Line | None = None
    #: The tile registers: the rows and the bytes a row of each.
    tiles: list[tuple[tuple[Line, ast.Expr], tuple[Line, ast.Expr]]] = field(default_factory=list)
    #: The products by libxsmm: where each stands, and its sizes in their order.
    xsmm: dict[str, tuple[Line, list[tuple[Line, ast.Expr]]]] = field(default_factory=dict)
    reorder: dict[str, Reordered] = field(default_factory=dict)
    first: dict[str, Before] = field(default_factory=dict)


class InFile:
    """A checked rule of any kind, and the file that it stands in."""

    doc: Any
    source: SourceFile
    origin: str  # the path below the rule library, without suffix
    order: int  # its place in the rule set

    @property
    def name(self) -> str:
        """The rule's name; of a config rule also the marker that its entry leaves on the op."""
        return str(self.doc.rule)

    @property
    def path(self) -> str:
        """The rule file's path."""
        return self.source.path

    @property
    def kind(self) -> str:
        """What kind of rule it is."""
        return str(self.doc.kind)

    @property
    def tags(self) -> Sequence[str]:
        """The words to select it by."""
        found: list[str] = self.doc.tags
        return found

    @cached_property
    def span(self) -> Span:
        """Where the rule's name stands."""
        return self.source.span_at(("rule",))


@dataclass
class Rule(InFile):
    """A checked rewrite rule."""

    doc: RuleDoc
    source: SourceFile
    types: dict[str, tuple[Line, ast.TypeDecl]]
    match: list[OpPattern]
    index_match: list[tuple[Line, ast.IndexEquation]]
    let: list[tuple[str, Line, ast.Expr | None, object]]
    where: list[tuple[Line, ast.Expr]]
    rewrite: list[tuple[Line, ast.Statement | BodyText]]
    #: What a kernel rule has instead of a rewrite.
    variants: list[Variant] = field(default_factory=list)
    origin: str = ""
    order: int = 0
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def benefit(self) -> int:
        """Of several rules that match, the one with the highest benefit goes first."""
        return self.doc.benefit

    @property
    def commutative(self) -> Sequence[str]:
        """The ops whose first two operands may stand in either order."""
        return self.doc.commutative

    @property
    def kernel_inputs(self) -> Sequence[str]:
        """The tensors of the match that a kernel reads, in order."""
        doc: Any = self.doc
        found: list[str] = doc.kernel.inputs
        return found

    @property
    def tests(self) -> list[Test]:
        """The inline tests."""
        return self.doc.tests

    @property
    def made_by(self) -> Line:
        """The first line of what the rule makes."""
        if self.rewrite:
            return self.rewrite[0][0]
        body = self.variants[0].body
        assert body is not None
        return body

    @property
    def root(self) -> OpPattern:
        """The op whose results the rule replaces: the last of `match`."""
        return self.match[-1]

    @cached_property
    def other_roots(self) -> list[int]:
        """The places in `match` of further ops whose results the rule replaces, in order.

        No other op of the match uses their results, and the rewrite defines one of them.
        """
        used = {name for p in self.match for name in _operand_names(p.equation.call)}
        made = {name for _, statement in self.rewrite for name in defined_names(statement)}
        return [
            n
            for n, p in enumerate(self.match[:-1])
            if not used & (names := {r for r in p.equation.results if r}) and names & made
        ]

    @property
    def equation(self) -> tuple[Line, ast.IndexEquation] | None:
        """The index equation of the root, for rules that match by meaning."""
        return self.index_match[-1] if self.index_match and not self.match else None

    @property
    def root_ops(self) -> tuple[str, ...]:
        """The op names that the root may have."""
        if not self.match:
            return STRUCTURED_OPS
        one_of = self.one_of.get(self.root.op)
        return one_of.ops if one_of is not None else (self.root.op,)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the match that stand for ops (``Op`` of ``y = Op(x)``)."""
        calls = (c for p in self.match for c in nested_calls(p.equation.call))
        return frozenset(c.fn for c in calls if "." not in c.fn)

    @cached_property
    def one_of(self) -> dict[str, OneOf]:
        """For variables of the match, the condition that says which ops they may be."""
        lists = {name: expr for name, _, expr, _ in self.let}
        found: dict[str, OneOf] = {}
        for line, expr in self.where:
            listed: ast.Expr | None
            match expr:
                case ast.Binary(op="in", left=ast.Name(id=name), right=ast.Name(id=word)):
                    listed = lists.get(word)
                case ast.Binary(op="in", left=ast.Name(id=name), right=right):
                    listed = right
                case ast.Binary(op="==", left=ast.Name(id=name), right=right):
                    listed = ast.ListExpr(right.pos, right.end, (right,))
                case _:
                    continue
            if name in self.variables and isinstance(listed, ast.ListExpr):
                ops = [_op_name(item) for item in listed.items]
                if all(ops):
                    found.setdefault(
                        name, OneOf(line, expr, tuple(dict.fromkeys(filter(None, ops))))
                    )
        return found

    def may_be(self, fn: str, op: str) -> bool:
        """Whether an op of the program may be what a call of the match names."""
        if "." in fn:
            return op == fn
        one_of = self.one_of.get(fn)
        return one_of is None or op in one_of.ops

    def looks_at(self, op: str, because: str | None) -> bool:
        """Whether a test's program that holds an op shows what the rule does, or why it does not.

        Where the reason is that the root may be certain ops only, any other one shows that.
        """
        one_of = self.one_of.get(self.root.op) if self.match else None
        if one_of is not None and " ".join((because or "").split()) == " ".join(
            str(one_of.line).split()
        ):
            return True
        return op in self.root_ops

    def spelt(self, fn: str) -> str:
        """What a call of the match looks for, in words."""
        if "." in fn:
            return fn
        one_of = self.one_of.get(fn)
        if one_of is None:
            return "any op"
        shown = ", ".join(one_of.ops[:3]) + (", ..." if len(one_of.ops) > 3 else "")
        return one_of.ops[0] if len(one_of.ops) == 1 else f"one of {shown}"

    @property
    def root_results(self) -> list[str | None]:
        """The names of the root's results."""
        if self.match:
            return list(self.root.equation.results)
        return [self.index_match[-1][1].target]

    @cached_property
    def op_names(self) -> frozenset[str]:
        """Every op name in the pattern."""
        return frozenset(
            p for pattern in self.match for p in _calls(pattern.equation.call) if "." in p
        )

    @cached_property
    def produced_ops(self) -> frozenset[str]:
        """Every op name that the rewrite writes out."""
        out: set[str] = set()
        for _, statement in self.rewrite:
            if isinstance(statement, ast.OpEquation):
                # What a variable stands for, the program had.
                out.update(op for op in _calls(statement.call) if "." in op)
            elif isinstance(statement, BodyText):
                out.update(_body_ops(statement.text))
        return frozenset(out)


_ASSIGNED = re.compile(r"^\s*((?:%[\w.]+(?::\d+)?\s*,\s*)*%[\w.]+(?::\d+)?)\s*=", re.MULTILINE)


def defined_names(statement: ast.Statement | BodyText) -> set[str]:
    """The names that a statement of a rewrite gives values to."""
    match statement:
        case BodyText(text=text):
            out: set[str] = set()
            for found in _ASSIGNED.finditer(text):
                out |= {p.strip().lstrip("%").split(":")[0] for p in found.group(1).split(",")}
            return out
        case ast.OpEquation(results=results):
            return {r for r in results if r}
        case ast.Erase():
            return set()
        case _:
            return {statement.target}


def _op_name(item: ast.Expr) -> str:
    """The op that an item of `Op in [...]` names, else nothing."""
    if isinstance(item, ast.Name):
        return item.id if "." in item.id else ""
    return item.value if isinstance(item, ast.Literal) and isinstance(item.value, str) else ""


def list_item(node: ast.Expr) -> tuple[str, str] | None:
    """The list and the index of an item of it: ``xs[i]``."""
    match node:
        case ast.Access(base=ast.Name(id=name), items=(ast.Name(id=index),)):
            return name, index
    return None


def _operand_names(call: ast.Call) -> Iterator[str]:
    for inner in nested_calls(call):
        for arg in inner.args:
            for item in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                if isinstance(item, (ast.Name, ast.Pack)) and item.id:
                    yield item.id
                elif (listed := list_item(item)) is not None:
                    yield listed[0]


def nested_calls(call: ast.Call) -> list[ast.Call]:
    """A call and the calls among its arguments, lists' items included, outermost first."""
    out = [call]
    for arg in call.args:
        for inner in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
            if isinstance(inner, ast.Call):
                out.extend(nested_calls(inner))
    return out


def _calls(call: ast.Call) -> Iterator[str]:
    yield call.fn
    for arg in call.args:
        if isinstance(arg, ast.Call) and "." in arg.fn:
            yield from _calls(arg)
        elif isinstance(arg, ast.ListExpr):
            for item in arg.items:
                if isinstance(item, ast.Call) and "." in item.fn:
                    yield from _calls(item)


def _body_ops(text: str) -> Iterator[str]:
    for found in re.finditer(r"(?:^|=|\{)\s*\"?([a-z_]+(?:\.[A-Za-z_0-9]+)+)", text, re.MULTILINE):
        yield found.group(1)
