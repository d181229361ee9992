"""Long sums in stages.

A sum that one number collects loses what it adds once that is below its last place: f32 squares of
33 million elements came out 5 % short. Sums of more than :data:`LONG` elements are sums of partial
sums, each of at most :data:`STAGE` where the sizes allow it, as PyTorch's are; which also gives
processors something to share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.generator.lowering.structured import Structured
from mlirules.generator.lowering.values import Affine, Local, Val
from mlirules.language.values import Dim, DType, Tensor

__all__ = ["LONG", "STAGE", "Staged"]

#: What one number collects at the most.
LONG = 1 << 15
STAGE = 1 << 12

#: A stage of fewer elements is not worth its pass over the others.
_LEAST = 32


def innermost(sizes: Sequence[int]) -> int:
    """How many of the last loops are one stage; 0: the last alone is longer than that."""
    count = 0
    while count < len(sizes) and math.prod(sizes[-count - 1 :]) <= STAGE:
        count += 1
    return count


def divisor(size: int) -> int:
    """The largest divisor of a loop's size that is a stage; 0 where there is none."""
    found = (d for d in range(STAGE, _LEAST - 1, -1) if size % d == 0)
    return next(found, 0)


@dataclass
class Staged(Structured):
    """Builds the ``linalg`` ops of an equation: one, or the stages of a long sum."""

    def emit(
        self,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
    ) -> Local:
        """A line at function level."""
        made = self.in_stages(value, element, out_type, operands)
        return made or super().emit(value, element, out_type, operands)

    def in_stages(
        self,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
    ) -> Local | None:
        """A long sum as a sum of partial sums (:mod:`stages`); None where it is none."""
        parallel = self.parallel
        over = [n for n in self.loops if n not in parallel]
        sizes = [self.ranges[n] for n in over]
        if self.equation.op != "+=" or not element.is_float or element.width > 32:
            return None
        if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) <= LONG:
            return None
        if self.is_product(self.equation.value) and len({o.ssa for o, _ in operands}) == 2:
            return None  # a contraction: the compiler has its own tiles for those
        count = innermost(sizes)
        if not count:
            count = 1
            if divisor(sizes[-1]):
                two = self.parted(over[-1], operands)
                if two is not None:
                    operands = two
                    over = [n for n in self.loops if n not in parallel]
            elif len(over) == 1:
                return self.with_rest(over[-1], value, element, out_type, operands)
        if count == len(over):
            return None
        self.parallel = [n for n in self.loops if n not in over[-count:]]
        partial = Tensor(
            out_type.name, tuple(self.ranges[n] for n in self.parallel), element, False
        )
        made = self.generic(value, element, partial, operands, self.zeros(partial, element))
        self.parallel = parallel
        return self.summed(made, element, out_type)

    def with_rest(
        self,
        name: str,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
    ) -> Local | None:
        """A long sum of a size that nothing divides: of whole stages, and of what is left."""
        size = self.ranges[name]
        whole = size // STAGE * STAGE
        if whole <= LONG or not self.divisible(name, operands):
            return None
        lines, loops = list(self.lines), list(self.loops)
        held: Local | None = None
        for first, count in ((0, whole), (whole, size - whole)):
            part = [
                (self.part_of(source, items, name, first, count), items)
                for source, items in operands
            ]
            self.ranges[name], self.lines, self.loops = count, list(lines), list(loops)
            if held is None:
                held = self.in_stages(value, element, out_type, part)
                assert held is not None
            else:
                held = self.generic(value, element, out_type, part, held.ssa)
        self.ranges[name] = size
        return held

    def part_of(
        self, source: Local, items: list[Affine], name: str, first: int, count: int
    ) -> Local:
        """An operand where it is read by ``count`` steps of a loop from the ``first`` on."""
        if all(i.plain != name for i in items):
            return source
        sizes = list(source.tensor.dims or ())
        offsets = [first if i.plain == name else 0 for i in items]
        sizes = [count if i.plain == name else d for i, d in zip(items, sizes, strict=True)]
        return self.low.slice(source, offsets, sizes, [1] * len(sizes), [])

    def divisible(self, name: str, operands: list[tuple[Local, list[Affine]]]) -> bool:
        """Whether a loop can be made several: nothing reads its index, or computes with it."""
        read = [i for _, items in operands for i in items if name in dict(i.terms)]
        return bool(read) and not self.index_values and all(i.plain == name for i in read)

    def parted(
        self, name: str, operands: list[tuple[Local, list[Affine]]]
    ) -> list[tuple[Local, list[Affine]]] | None:
        """The operands with a long loop made two; None where that cannot be."""
        part = divisor(self.ranges[name])
        if not part or not self.divisible(name, operands):
            return None
        outer, inner = f"{name}.outer", f"{name}.inner"
        self.ranges |= {outer: self.ranges[name] // part, inner: part}
        at = self.loops.index(name)
        self.loops[at : at + 1] = [outer, inner]
        out = []
        for held, items in operands:
            dims: list[Dim] = []
            places: list[Affine] = []
            for item, dim in zip(items, held.tensor.dims or (), strict=True):
                names = [outer, inner] if item.plain == name else []
                dims += [self.ranges[n] for n in names] or [dim]
                places += [Affine(((n, 1),)) for n in names] or [item]
            changed = len(dims) != len(items)
            out.append((self.low.reshape(held, dims, "x") if changed else held, places))
        return out

    def summed(self, held: Local, element: DType, out_type: Tensor) -> Local:
        """Partial sums along the last dims, added up to the target's."""
        low, kept = self.low, len(self.parallel)
        while True:
            dims: list[Any] = list(held.tensor.dims or ())
            count = innermost(dims[kept:])
            if not count:
                part = divisor(dims[-1])
                if part:
                    held = low.reshape(held, [*dims[:-1], dims[-1] // part, part], "x")
                    continue
                count = 1
            last = len(dims) - count == kept
            type_ = Tensor(out_type.name, tuple(dims[:-count]), element, False)
            init = self.initial(element, out_type) if last else self.zeros(type_, element)
            names = [f"d{i}" for i in range(len(dims))]
            maps = ", ".join(
                f"affine_map<({', '.join(names)}) -> ({', '.join(names[:end])})>"
                for end in (len(dims), len(dims) - count)
            )
            kinds = ", ".join(['"parallel"'] * (len(dims) - count) + ['"reduction"'] * count)
            out, x, acc, total = (low.fresh(stem) for stem in ("g", "x", "acc", "s"))
            low.emit(
                f"{out} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
                f"ins({held.ssa} : {held.tensor.builtin_type()}) outs({init} : "
                f"{type_.builtin_type()}) {{"
            )
            low.emit(f"^bb0({x}: {element.mlir}, {acc}: {element.mlir}):")
            low.emit(f"  {total} = arith.addf {acc}, {x} : {element.mlir}")
            low.emit(f"  linalg.yield {total} : {element.mlir}")
            low.emit(f"}} -> {type_.builtin_type()}")
            if last:
                return Local(out_type, out)
            held = Local(type_, out)
