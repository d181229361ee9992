"""A rule that has been read, parsed and checked: what generator and drivers work with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mlirules.language.faults import Span
from mlirules.language.kernel import KernelVariant
from mlirules.language.model import RuleDoc, Test
from mlirules.language.notation import ast
from mlirules.language.source import SourceFile, Text

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
class BodyText:
    """A `body:` of a rewrite."""

    text: str


@dataclass(frozen=True)
class Variant:
    """A kernel's variant, parsed. ``let`` holds an expression or a value for each name."""

    doc: KernelVariant
    let: list[tuple[str, Line, ast.Expr | None, object]] = field(default_factory=list)
    where: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    grid: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    workgroup: list[tuple[Line, ast.Expr]] = field(default_factory=list)
    body: Line | None = None


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
        return (self.root.op,) if self.match else STRUCTURED_OPS

    @property
    def root_results(self) -> list[str | None]:
        """The names of the root's results."""
        if self.match:
            return list(self.root.equation.results)
        return [self.index_match[-1][1].target]

    @cached_property
    def op_names(self) -> frozenset[str]:
        """Every op name in the pattern."""
        return frozenset(p for pattern in self.match for p in _calls(pattern.equation.call))

    @cached_property
    def produced_ops(self) -> frozenset[str]:
        """Every op name that the rewrite writes out."""
        out: set[str] = set()
        for _, statement in self.rewrite:
            if isinstance(statement, ast.OpEquation):
                out.update(_calls(statement.call))
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


def _operand_names(call: ast.Call) -> Iterator[str]:
    for inner in nested_calls(call):
        for arg in inner.args:
            for item in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                if isinstance(item, (ast.Name, ast.Pack)) and item.id:
                    yield item.id


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
