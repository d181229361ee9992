"""Tensors in other shapes: reshapes, slices, padding, concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlirules.generator.lowering.arith import Arith
from mlirules.generator.lowering.dims import cancel, one_product, reassociate, same_dims
from mlirules.generator.lowering.spelling import groups_text
from mlirules.generator.lowering.values import (
    Local,
    Val,
)
from mlirules.language.builtins.lists import extremum
from mlirules.language.operands import Refused, arith, describe, sequence
from mlirules.language.values import Dim, Dyn, Tensor


class Shapes(Arith):
    """Ops that move elements and compute none."""

    def reshape(self, source: Local, shape: list[Any], name: str) -> Local:
        """``source`` in another shape; row-major order is kept."""
        assert source.tensor.dims is not None
        have: list[Any] = list(source.tensor.dims)
        shape = [
            v
            if isinstance(v, (int, Dyn))
            else Dyn("local", (self.index(v),))
            if isinstance(v, Val)
            else self.not_a_dim(v)
            for v in shape
        ]
        if -1 in shape:
            at = shape.index(-1)
            rest: Any = 1
            for i, v in enumerate(shape):
                if i != at:
                    rest = arith("*", rest, v)
            total: Any = 1
            for v in have:
                total = arith("*", total, v)
            if rest == 0:
                raise Refused("cannot infer a dim beside an empty one")
            shape[at] = (
                total
                if rest == 1
                else (
                    total // rest
                    if isinstance(total, int) and isinstance(rest, int)
                    else cancel(have, [v for i, v in enumerate(shape) if i != at])
                    or arith("//", total, rest)
                )
            )
        result = Tensor(name, tuple(shape), source.tensor.dtype, False)
        if same_dims(have, shape):
            return Local(result, self.cast_shape(source, shape))
        both_static = all(isinstance(v, int) for v in [*have, *shape])
        if both_static and math.prod(have) != math.prod(shape):
            raise Refused(f"{math.prod(have)} elements cannot be reshaped to {describe(shape)}")
        if not have or not shape:
            return self.reshape_scalar(source, shape, result)
        groups = reassociate(have, shape)
        if groups is not None and all(len(a) == 1 for a, _ in groups):
            return Local(result, self.expand(source, shape, [b for _, b in groups], result))
        if groups is not None and all(len(b) == 1 for _, b in groups):
            return Local(result, self.collapse(source, [a for a, _ in groups], result))
        if groups is not None and both_static:
            middle = [math.prod(have[i] for i in a) for a, _ in groups]
        else:
            middle = [one_product(have)]
            groups = [(list(range(len(have))), list(range(len(shape))))]
        flat = Tensor(name, tuple(middle), source.tensor.dtype, False)
        held = source
        if len(have) != len(middle):
            held = Local(flat, self.collapse(source, [a for a, _ in groups], flat))
        if len(shape) != len(middle):
            return Local(result, self.expand(held, shape, [b for _, b in groups], result))
        return Local(result, self.cast_shape(held, shape))

    def reshape_scalar(self, source: Local, shape: list[Dim], result: Tensor) -> Local:
        """Between rank 0 and dims that are all 1."""
        assert source.tensor.dims is not None
        ones = Tensor(result.name, (1,) * max(len(shape), source.tensor.rank), result.dtype, False)
        out = self.fresh("s")
        if shape:
            self.emit(
                f"{out} = tensor.expand_shape {source.ssa} [] output_shape {list(ones.dims or ())} "
                f": {source.tensor.builtin_type()} into {ones.builtin_type()}"
            )
            return Local(result, self.cast_shape(Local(ones, out), shape))
        held = self.cast_shape(source, ones.dims or ())
        self.emit(
            f"{out} = tensor.collapse_shape {held} [] : {ones.builtin_type()} into "
            f"{result.builtin_type()}"
        )
        return Local(result, out)

    def not_a_dim(self, value: object) -> Any:
        """Refuse what cannot be a dim."""
        raise Refused(f"{describe(value)} is not a dim")

    def collapse(self, source: Local, groups: list[list[int]], result: Tensor) -> str:
        """Groups of dims made one each."""
        out = self.fresh("s")
        if not source.tensor.dims:
            return source.ssa
        collapsed = []
        for group, dim in zip(groups, result.dims or (), strict=True):
            inner: list[Any] = [source.tensor.dims[i] for i in group]
            collapsed.append(
                math.prod(inner)
                if all(isinstance(v, int) for v in inner)
                else dim
                if isinstance(dim, Dyn)
                else Dyn("?", ())
            )
        exact = Tensor(result.name, tuple(collapsed), result.dtype, False)
        self.emit(
            f"{out} = tensor.collapse_shape {source.ssa} {groups_text(groups)} : "
            f"{source.tensor.builtin_type()} into {exact.builtin_type()}"
        )
        if exact.builtin_type() != result.builtin_type():
            return self.cast_shape(Local(exact, out), result.dims or ())
        return out

    def expand(
        self, source: Local, shape: list[Any], groups: list[list[int]], result: Tensor
    ) -> str:
        """Dims made groups of dims."""
        assert source.tensor.dims is not None
        wanted = []
        for dim, group in zip(source.tensor.dims, groups, strict=True):
            sizes = [shape[i] for i in group]
            wanted.append(
                math.prod(sizes)
                if all(isinstance(v, int) for v in sizes)
                else dim
                if isinstance(dim, Dyn)
                else Dyn("?", ())
            )
        ssa = self.cast_shape(source, wanted)
        held = Tensor(source.tensor.name, tuple(wanted), source.tensor.dtype, False)
        sizes_text = ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in shape)
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.expand_shape {ssa} {groups_text(groups)} output_shape "
            f"[{sizes_text}] : {held.builtin_type()} into {result.builtin_type()}"
        )
        return out

    def pad(self, source: Local, low: object, high: object, value: object, *, target: str) -> Local:
        """A tensor with a border; amounts below 0 cut."""
        assert source.tensor.dims is not None and source.tensor.dtype is not None
        rank = len(source.tensor.dims)
        lows, highs = sequence(low), sequence(high)
        if len(lows) != rank or len(highs) != rank:
            raise Refused(f"pad needs {rank} amounts before and {rank} after")
        # An amount below 0 cuts; of one known only at run time, both are done.
        cut_low = [extremum("max", (0, arith("-", 0, v))) for v in lows]
        cut_high = [extremum("max", (0, arith("-", 0, v))) for v in highs]
        lows = [extremum("max", (0, v)) for v in lows]
        highs = [extremum("max", (0, v)) for v in highs]
        if any(cut_low) or any(cut_high):
            sizes = [
                arith("-", arith("-", d, a), b)
                for d, a, b in zip(source.tensor.dims, cut_low, cut_high, strict=True)
            ]
            source = self.slice(source, cut_low, sizes, [1] * rank)
        assert source.tensor.dims is not None and source.tensor.dtype is not None
        if not any(lows) and not any(highs):
            return source
        dims = tuple(
            arith("+", arith("+", d, a), b)
            for d, a, b in zip(source.tensor.dims, lows, highs, strict=True)
        )
        result = Tensor(target, dims, source.tensor.dtype, False)
        fill = self.to_val(value, source.tensor.dtype)
        low_text, high_text = (
            "[" + ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in side) + "]"
            for side in (lows, highs)
        )
        if source.tensor.dtype.mlir.startswith("complex"):
            # IREE 3.13 crashes on tensor.pad of a complex constant, which arith cannot hold.
            return self.framed(source, result, low_text, fill)
        out = self.fresh("p")
        args = ", ".join(f"%x{i}: index" for i in range(rank))
        self.emit(f"{out} = tensor.pad {source.ssa} low{low_text} high{high_text} {{")
        self.emit(f"^bb0({args}):")
        self.emit(f"  tensor.yield {fill.ssa} : {source.tensor.dtype.mlir}")
        self.emit(f"}} : {source.tensor.builtin_type()} to {result.builtin_type()}")
        return Local(result, out)

    def framed(self, source: Local, result: Tensor, low_text: str, fill: Val) -> Local:
        """A tensor put into a larger one that is filled."""
        assert source.tensor.dims is not None and result.dims is not None
        empty, filled, out = self.fresh("e"), self.fresh("f"), self.fresh("p")
        kind = result.builtin_type()
        dynamic = ", ".join(self.index(d) for d in result.dims if not isinstance(d, int))
        self.emit(f"{empty} = tensor.empty({dynamic}) : {kind}")
        self.emit(
            f"{filled} = linalg.fill ins({fill.ssa} : {fill.dtype.mlir}) "
            f"outs({empty} : {kind}) -> {kind}"
        )
        sizes = [str(d) if isinstance(d, int) else self.index(d) for d in source.tensor.dims]
        self.emit(
            f"{out} = tensor.insert_slice {source.ssa} into {filled}{low_text}"
            f"[{', '.join(sizes)}][{', '.join('1' * len(sizes))}] : "
            f"{source.tensor.builtin_type()} into {kind}"
        )
        return Local(result, out)

    def slice(
        self,
        source: Local,
        offsets: list[Any],
        sizes: list[Any],
        strides: list[int],
        drop: Sequence[int] = (),
    ) -> Local:
        """A strided window of a tensor; the axes in ``drop`` (of size 1) disappear."""
        dims = tuple(s for i, s in enumerate(sizes) if i not in drop)
        have = source.tensor
        result = Tensor(have.name, dims, have.dtype, False)
        if any(isinstance(s, int) and s == 0 for s in sizes):
            # Where nothing is taken there is no place to start from in a tensor without elements.
            out = self.fresh("e")
            dynamic = ", ".join(self.index(s) for s in dims if not isinstance(s, int))
            self.emit(f"{out} = tensor.empty({dynamic}) : {result.builtin_type()}")
            return Local(result, out)
        # An empty window may start anywhere, but its start must lie inside the tensor.
        offsets = [
            0 if s == 0 and isinstance(s, int) else o for o, s in zip(offsets, sizes, strict=True)
        ]
        text = [
            "[" + ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in values) + "]"
            for values in (offsets, sizes, strides)
        ]
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.extract_slice {source.ssa}{text[0]} {text[1]} {text[2]} : "
            f"{have.builtin_type()} to {result.builtin_type()}"
        )
        return Local(result, out)

    def split(
        self, source: Local, sizes: list[Dim], axis: int, drop: Sequence[int] = ()
    ) -> list[Local]:
        """Windows of ``sizes`` that follow each other along ``axis``."""
        dims = list(source.tensor.dims or ())
        if not 0 <= axis < len(dims):
            raise Refused(f"axis {axis} is outside a rank-{len(dims)} tensor")
        parts: list[Local] = []
        start: Dim = 0
        for size in sizes:
            window = [*dims[:axis], size, *dims[axis + 1 :]]
            offsets = [0] * axis + [start] + [0] * (len(dims) - axis - 1)
            parts.append(self.slice(source, offsets, window, [1] * len(dims), drop))
            start = arith("+", start, size)
        total = dims[axis]
        if isinstance(total, int) and isinstance(start, int) and start != total:
            raise Refused(f"parts of {start} in all do not make up a dim of {total}")
        return parts

    def concatenate(self, items: list[Any], axis: int, target: str) -> Local:
        """Tensors one after the other along an axis; shape ``[0]`` joins any rank."""
        parts = [self.local(v) for v in items]
        if not parts:
            raise Refused("nothing to concatenate")
        parts = [part for part in parts if part.tensor.dims != (0,)] or parts[:1]
        rank = parts[0].tensor.rank
        if not rank:
            raise Refused("tensors of rank 0 cannot be concatenated")
        axis %= rank
        dims: list[Dim] = list(parts[0].tensor.dims or ())
        for part in parts[1:]:
            if part.tensor.rank != rank:
                raise Refused("tensors of different ranks")
            if part.tensor.dtype != parts[0].tensor.dtype:
                raise Refused("tensors of different element types")
            for i, d in enumerate(part.tensor.dims or ()):
                if i == axis:
                    dims[i] = arith("+", dims[i], d)
                elif isinstance(dims[i], Dyn) and isinstance(d, int):
                    dims[i] = d
        held = []
        for part in parts:
            wanted = [d if i == axis else dims[i] for i, d in enumerate(part.tensor.dims or ())]
            held.append(
                (
                    self.cast_shape(part, wanted),
                    Tensor("", tuple(wanted), part.tensor.dtype, False).builtin_type(),
                )
            )
        result = Tensor(target, tuple(dims), parts[0].tensor.dtype, False)
        if len(held) == 1:
            return Local(result, held[0][0])
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.concat dim({axis}) {', '.join(s for s, _ in held)} : "
            f"({', '.join(t for _, t in held)}) -> {result.builtin_type()}"
        )
        return Local(result, out)
