"""A config rule in memory: the op it is for, with its loops, operands and their indices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from mlirules.language.config.model import (
    PRODUCT_LOOP,
    ConfigDoc,
    ConfigTest,
    DimRange,
    Match,
    Settings,
)
from mlirules.language.notation import ast
from mlirules.language.rule import InFile
from mlirules.language.signs import Said
from mlirules.language.source import SourceFile

#: Element types at the point where configurations are chosen: signless, without torch's.
ELEMENTS = (
    "f16",
    "bf16",
    "f32",
    "f64",
    "f8E4M3FN",
    "f8E5M2",
    "f8E4M3FNUZ",
    "f8E5M2FNUZ",
    "i1",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
)
#: What says the sign of integers as well, where an op is matched by what it computes.
SIGNED_ELEMENTS = tuple(f"{sign}{width}" for width in (4, 8, 16, 32, 64) for sign in ("si", "ui"))


@dataclass(frozen=True)
class TargetFacts:
    """What a target can do, as the compiler tells. Zero or empty: it does not tell."""

    name: str
    mma_kinds: frozenset[str] = frozenset()
    subgroup_sizes: tuple[int, ...] = ()
    max_threads: int = 0  # in a workgroup
    max_workgroup: tuple[int, ...] = ()  # along x, y, z
    shared_bytes: int = 0
    vector_bytes: int = 0  # cpu: of one native vector


#: The facts of a target by its name. Raises MlirulesError for one that does not exist.
TargetOracle = Callable[[str], TargetFacts]


@dataclass(frozen=True)
class Operand:
    """An operand of the matched op: its name, its indices over the loops, its element type."""

    name: str
    indices: tuple[ast.Expr, ...]
    element: str = ""
    #: The element type as the rule spells it: ``si8`` where ``element`` is ``i8``.
    said: str = ""


@dataclass
class ConfigRule(InFile):
    """A checked config rule."""

    doc: ConfigDoc
    source: SourceFile
    #: Loop names, outermost first: the columns of every tile list.
    loops: tuple[str, ...]
    #: Loops that the result is not indexed by.
    reductions: frozenset[str] = frozenset()
    #: Inputs in order, the result last; empty for ``op: operation``.
    operands: tuple[Operand, ...] = ()
    equation: ast.IndexEquation | None = None
    origin: str = ""
    order: int = field(default=0)

    @property
    def match(self) -> Match:
        """What the rule matches."""
        return self.doc.match

    @property
    def settings(self) -> Settings:
        """What it sets."""
        return self.doc.set

    @cached_property
    def said(self) -> Said:
        """What the rule says of the operands' element types."""
        return Said({o.name: o.said or o.element for o in self.operands})

    @property
    def as_product(self) -> bool:
        """Whether it is a convolution that is computed as a matrix product."""
        options = self.settings.pipeline_options
        return self.match.op == "convolution" and bool(options and options.use_igemm_convolution)

    @property
    def tile_loops(self) -> tuple[str, ...]:
        """What tile lists run over: the loops, or those of the product that a convolution is.

        There the loops of the result stay, and one loop takes the place of all sums.
        """
        if not self.as_product:
            return self.loops
        return (*(n for n in self.loops if n not in self.reductions), PRODUCT_LOOP)

    @property
    def tile_reductions(self) -> frozenset[str]:
        """Those of :attr:`tile_loops` that are summed over."""
        return frozenset({PRODUCT_LOOP}) if self.as_product else self.reductions

    @property
    def tests(self) -> list[ConfigTest]:
        """The inline tests."""
        return self.doc.tests

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its targets: cpu, cuda, hip, vulkan."""
        return frozenset(t.partition(":")[0] for t in self.doc.targets)

    def fits(self, target: str) -> bool:
        """Whether the rule is for a target; one without architecture stands for all of its kind."""
        return target in self.doc.targets or target.partition(":")[0] in self.doc.targets

    @cached_property
    def dims(self) -> dict[str, DimRange]:
        """The limits of each dim; an exact size is a range of one."""
        return {
            name: size if isinstance(size, DimRange) else DimRange(min=size, max=size)
            for name, size in self.match.dims.items()
        }

    def exact(self, loop: str) -> int | None:
        """The size of a dim where the rule gives one size only."""
        limits = self.dims.get(loop)
        if limits is None or limits.min is None or limits.min != limits.max:
            return None
        return limits.min

    @cached_property
    def entry(self) -> str:
        """The matcher's name in a spec: op, shape and types."""
        match self.match.op:
            case "operation":
                stem = (self.match.name or "op").rpartition(".")[2]
            case "contraction":
                stem = _contraction_name(self)
            case other:
                stem = {"convolution": "conv"}.get(other, other)
        sizes = "x".join(str(self.exact(d) or ("R" if d in self.dims else "D")) for d in self.loops)
        types = "_".join(dict.fromkeys(o.element for o in self.operands))
        parts = [p for p in (stem, sizes if self.operands else "", types) if p]
        return "match_" + "_".join([*parts, self.name.replace("-", "_")])


def _contraction_name(rule: ConfigRule) -> str:
    batch = [i for i in rule.operands[-1].indices if all(i_in(o, i) for o in rule.operands)]
    kinds = [o.indices[-1] for o in rule.operands[:-1] if o.indices]
    transposed = len(kinds) == 2 and all(
        isinstance(k, ast.Name) and k.id in rule.reductions for k in kinds
    )
    return ("batch_" if batch else "") + ("mmt" if transposed else "matmul")


def i_in(operand: Operand, index: ast.Expr) -> bool:
    """Whether an operand is read by this very loop."""
    return isinstance(index, ast.Name) and any(
        isinstance(i, ast.Name) and i.id == index.id for i in operand.indices
    )


def element_bits(element: str) -> int:
    """The width of an element type in bits."""
    found = re.search(r"\d+", element)
    return int(found[0]) if found else 64


# ---- indices -----------------------------------------------------------------------------


def accesses(node: ast.Expr) -> Iterator[ast.Access]:
    """The operands that an expression reads, in order."""
    return (part for part in ast.walk_expression(node) if isinstance(part, ast.Access))


def index_names(node: ast.Expr) -> Iterator[str]:
    """The loops of an index, in the order in which they stand."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Binary(left=left, right=right):
            yield from index_names(left)
            yield from index_names(right)


def linear(node: ast.Expr) -> bool:
    """Whether an index is a sum of loops and of loops times numbers."""
    match node:
        case ast.Name() | ast.Literal():
            return True
        case ast.Binary(op="+", left=left, right=right):
            return linear(left) and linear(right)
        case ast.Binary(op="*", left=left, right=right):
            pair = (left, right)
            return any(isinstance(p, ast.Literal) for p in pair) and all(map(linear, pair))
    return False


def extent(node: ast.Expr, sizes: dict[str, int]) -> int:
    """How many elements an index reaches when each loop runs over its tile."""
    match node:
        case ast.Name(id=name):
            return max(1, sizes.get(name, 1))
        case ast.Literal(value=int()):
            return 1
        case ast.Binary(op="+", left=left, right=right):
            return extent(left, sizes) + extent(right, sizes) - 1
        case ast.Binary(op="*", left=left, right=ast.Literal(value=int() as factor)):
            return (extent(left, sizes) - 1) * factor + 1
        case ast.Binary(op="*", left=ast.Literal(value=int() as factor), right=right):
            return (extent(right, sizes) - 1) * factor + 1
    return 1


def plain_names(operand: Operand) -> list[str]:
    """The loops that an operand is indexed by alone."""
    return [i.id for i in operand.indices if isinstance(i, ast.Name)]


def affine_map(rule: ConfigRule, operand: Operand) -> str:
    """An operand's indexing map over the rule's loops, as the compiler spells it."""
    results = ", ".join(render(i) for i in operand.indices)
    return f"affine_map<({', '.join(rule.loops)}) -> ({results})>"


def render(node: ast.Expr, names: dict[str, str] | None = None) -> str:
    """An index as text; ``names`` renames the loops."""
    match node:
        case ast.Name(id=name):
            return (names or {}).get(name, name)
        case ast.Literal(value=value):
            return str(value)
        case ast.Binary(op=op, left=left, right=right):
            return f"{render(left, names)} {op} {render(right, names)}"
    return "?"
