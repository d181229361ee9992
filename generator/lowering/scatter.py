"""Equations that write at computed places of what their target holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlirules.generator.lowering.builder import Part
from mlirules.generator.lowering.dims import one_product
from mlirules.generator.lowering.stages import Staged
from mlirules.generator.lowering.values import (
    INDEX,
    Affine,
    Local,
    LoweringError,
    Val,
)
from mlirules.language.notation import ast
from mlirules.language.operands import Refused
from mlirules.language.values import DType, Dyn, Scalar, Tensor


@dataclass
class Scatter(Staged):
    """An index equation, finished: a structured op, an inserted window or a scatter."""

    def finish(self) -> Local:
        """The tensor that the equation defines."""
        low, eq = self.low, self.equation
        low.body = None
        if self.coordinates is not None:
            self.reads = [*self.coordinates.reads, *self.reads]
        self.find_ranges()
        if self.coordinates is not None:
            self.reads = self.reads[len(self.coordinates.reads) :]
        target = self.target_tensor()
        low.body = self
        hint = target.dtype if target is not None else None
        value = self.value
        if isinstance(value, Scalar):
            value = low.to_val(value, None)
        if not isinstance(value, Val) or (value.dtype == INDEX and hint is not None):
            if isinstance(value, (Affine, Dyn)) and (hint is None or hint.is_int):
                value = low.convert(value, hint or DType("si64"))
            else:
                value = low.to_val(value, hint)
        assert isinstance(value, Val)
        element = value.dtype
        if hint is not None and hint != element:
            raise LoweringError(
                low.line, f"{eq.target} holds {hint}, but the equation gives {element}: cast it"
            )
        if self.coordinates is not None and not self.covers():
            return self.scatter(value, element)
        low.body = None
        kept = [a for a in self.target_items if a.terms]
        dims = [self.ranges[a.terms[0][0]] for a in kept]
        out_type = Tensor(eq.target, tuple(dims), element, False)
        operands = [self.operand(r) for r in self.reads]
        result = self.emit(value, element, out_type, operands)
        if len(kept) != len(self.target_items):
            full = [self.ranges[a.terms[0][0]] if a.terms else 1 for a in self.target_items]
            return low.reshape(result, full, eq.target)
        return result

    def covers(self) -> bool:
        """Whether the places are simply the whole target, each once."""
        held = self.target_tensor()
        places = [p if isinstance(p, Affine) else Affine((), 1) for p in self.places]
        names = [p.plain for p in places if p.plain is not None]
        if held is None or len(names) != len(places) or len(set(names)) != len(names):
            return False
        ranges = [self.ranges[n] for n in names]
        if ranges != list(held.dims or ()) or set(names) != set(self.loops):
            return False
        self.target_items, self.parallel, self.loops = places, names, names
        return True

    def scatter(self, value: Val, element: DType) -> Local:
        """Values written at computed places of what the target holds, in the loops' order."""
        low, eq = self.low, self.equation
        low.body = None
        held = low.name(ast.Name(0, 0, eq.target))
        if not isinstance(held, Local) or held.tensor.dims is None:
            raise LoweringError(low.line, f"{eq.target} is not a tensor")
        places = [p if isinstance(p, (Affine, Val)) else Affine((), p) for p in self.places]
        if len(places) != len(held.tensor.dims):
            raise Refused(f"{eq.target} has rank {held.tensor.rank}, but {len(places)} indices")
        if eq.op == "=" and (window := self.window(places)) is not None:
            return self.insert(held, value, element, window)
        slices = self.whole_slices(held, places)
        self.loops = [n for n in self.loops if n not in slices] + slices
        # IREE puts a fill of unknown size on the stack of the scatter's dispatch: a constant is
        # said in the scatter's region then, and what the updates hold does not matter.
        constant = (
            not (self.reads or self.index_values)
            and self.only_constant()
            and any(not isinstance(self.ranges[n], int) for n in self.loops)
        )
        updates = None if constant else self.loop_tensor(self.loops, value, element, "=")
        assert self.coordinates is not None
        spelled = self.take_part()
        self.put_part(self.coordinates)
        batch = self.loops[: len(self.loops) - len(slices)]
        depth = len(places) - len(slices)
        dims = list(held.tensor.dims)
        low.body = self
        place: Any = 0
        for item, dim in zip(places[:depth], dims[:depth], strict=True):
            scaled = low.binary("*", place, dim) if place != 0 else 0
            at = low.to_val(item, INDEX) if isinstance(item, Val) else item
            place = at if scaled == 0 else low.binary("+", scaled, at)
        linear = low.convert(low.to_val(place, INDEX), DType("si64"))
        where = self.loop_tensor(batch, linear, DType("si64"), "=")
        if updates is None:
            low.body = self
            updates = self.loop_tensor(self.loops, low.convert(linear, element), element, "=")
        low.body = None
        batch_dims = [self.ranges[n] for n in batch]
        slice_dims = [self.ranges[n] for n in slices]
        if not batch:
            batch_dims = [1]
            updates = low.reshape(updates, [1, *slice_dims], "updates")
        where = low.reshape(where, [*batch_dims, 1], "where")
        flat = low.reshape(held, [one_product(dims[:depth]), *slice_dims], eq.target)
        update_type = updates.tensor.builtin_type()
        where_type, flat_type = where.tensor.builtin_type(), flat.tensor.builtin_type()
        new, old = Val(low.fresh("new"), element), Val(low.fresh("old"), element)
        self.put_part(spelled if constant else Part())
        low.body = self
        given = value if constant else new
        final = given if eq.op == "=" else self.combine(eq.op, old, given)
        low.body = None
        out = low.fresh("sc")
        low.emit(
            f"{out} = iree_linalg_ext.scatter dimension_map = [0] unique_indices(false) "
            f"ins({updates.ssa}, {where.ssa} : {update_type}, {where_type}) "
            f"outs({flat.ssa} : {flat_type}) {{"
        )
        low.emit(f"^bb0({new.ssa}: {element.mlir}, {old.ssa}: {element.mlir}):")
        for line in [*self.head, *self.lines]:
            low.emit("  " + line)
        low.emit(f"  iree_linalg_ext.yield {final.ssa} : {element.mlir}")
        low.emit(f"}} -> {flat_type}")
        return low.reshape(Local(flat.tensor, out), dims, eq.target)

    def loop_tensor(self, loops: list[str], value: Val, element: DType, op: str) -> Local:
        """The body so far as a tensor over ``loops``."""
        low, eq, parallel = self.low, self.equation, self.parallel
        all_loops = self.loops
        low.body = None
        self.equation = replace(eq, op=op)
        self.loops, self.parallel = loops, loops
        shape = Tensor("v", tuple(self.ranges[n] for n in loops), element, False)
        try:
            return self.emit(value, element, shape, [self.operand(r) for r in self.reads])
        finally:
            self.equation, self.parallel, self.loops = eq, parallel, all_loops

    def whole_slices(self, held: Local, places: list[Affine | Val]) -> list[str]:
        """The last loops that run over whole dims of the target and choose no place elsewhere."""
        assert self.coordinates is not None and held.tensor.dims is not None
        used = set(self.coordinates.index_values)
        for read in self.coordinates.reads:
            used |= {n for item in read.items for n, _ in item.terms}
        counts: dict[str, int] = {}
        for item in places:
            for n, _ in item.terms if isinstance(item, Affine) else ():
                counts[n] = counts.get(n, 0) + 1
        out: list[str] = []
        for item, dim in reversed(list(zip(places, held.tensor.dims, strict=True))):
            name = item.plain if isinstance(item, Affine) else None
            if name is None or name in used or counts[name] > 1 or self.ranges[name] != dim:
                break
            out.insert(0, name)
        # Something must choose the place.
        return out if len(out) < len(places) else out[1:]

    def window(self, places: list[Affine | Val]) -> list[Affine] | None:
        """The places as a strided window of the target, or None when they are not one."""
        linear = [p for p in places if isinstance(p, Affine)]
        names = [n for p in linear for n, _ in p.terms]
        if len(linear) != len(places) or sorted(names) != sorted(self.loops):
            return None
        if any(len(p.terms) > 1 or any(c < 1 for _, c in p.terms) for p in linear):
            return None
        return linear

    def insert(self, held: Local, value: Val, element: DType, window: list[Affine]) -> Local:
        """A strided window of the target replaced."""
        low = self.low
        self.loops = [n for p in window for n, _ in p.terms]
        if any(self.ranges[n] == 0 for n in self.loops):
            # An empty window may start beyond the end, which tensor.insert_slice does not allow.
            return held
        source = self.loop_tensor(self.loops, value, element, "=")
        rows = [
            (p.offset, self.ranges[p.terms[0][0]], p.terms[0][1]) if p.terms else (p.offset, 1, 1)
            for p in window
        ]
        text = " ".join(
            "[" + ", ".join(str(v) if isinstance(v, int) else low.index(v) for v in column) + "]"
            for column in zip(*rows, strict=True)
        )
        out = low.fresh("ins")
        type_ = held.tensor.builtin_type()
        low.emit(
            f"{out} = tensor.insert_slice {source.ssa} into {held.ssa}{text} : "
            f"{source.tensor.builtin_type()} into {type_}"
        )
        return Local(Tensor(self.equation.target, held.tensor.dims, element, False), out)
