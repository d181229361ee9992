"""Functions of whole tensors, mostly said by index equations of their own."""

from __future__ import annotations

import re
from typing import Any

from mlirules.generator.lowering.scatter import Scatter
from mlirules.generator.lowering.shapes import Shapes
from mlirules.generator.lowering.values import (
    Local,
    LoweringError,
    Val,
    wide,
)
from mlirules.language.functions import TENSOR
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_statement
from mlirules.language.operands import Refused, describe, dtype, integer, sequence
from mlirules.language.values import DType, Dyn, Opaque, Tensor


class Functions(Shapes):
    """Index equations, and the functions of the notation that give tensors."""

    def index_equation(self, equation: ast.IndexEquation) -> None:
        """Lower one equation; its target is a local from here on."""
        body = Scatter(low=self, equation=equation)
        try:
            self.body = body
            body.build()
        finally:
            self.body = None
        self.locals[equation.target] = body.finish()

    def tensor_function(self, call: ast.Call, target: str) -> Any:
        """Lower a function of the notation that gives a tensor."""
        low, high, _ = TENSOR[call.fn]
        if not low <= len(call.args) <= high:
            raise Refused(f"{call.fn} takes {low} to {high} values", call)
        args = self.items(call.args)
        match call.fn:
            case "reshape":
                shape = sequence(args[1]) if len(args) > 1 else self.target_dims(target)
                return self.reshape(self.local(args[0]), shape, target)
            case "pad":
                return self.pad(self.local(args[0]), *args[1:], target=target)
            case "concatenate":
                return self.concatenate(sequence(args[0]), integer(args[1]), target)
            case "window":
                held, axis, *window = self.local(args[0]), integer(args[1]), *args[2:]
                dims = list(held.tensor.dims or ())
                start, size, step = window
                if isinstance(size, Val):
                    size = Dyn("local", (self.index(size),))
                offsets, strides = [0] * len(dims), [1] * len(dims)
                offsets[axis], strides[axis], dims[axis] = start, integer(step), size
                return self.slice(held, offsets, dims, strides)
            case "stack":
                axis = integer(args[1])
                parts = [self.local(v) for v in sequence(args[0])]
                lifted: list[object] = []
                for part in parts:
                    dims = list(part.tensor.dims or ())
                    lifted.append(self.reshape(part, [*dims[:axis], 1, *dims[axis:]], target))
                return self.concatenate(lifted, axis, target)
            case "converted":
                return [self.converted(self.local(v), dtype(args[1])) for v in sequence(args[0])]
            case "spread":
                shape = sequence(args[1])
                return [self.spread(self.local(v), shape) for v in sequence(args[0])]
            case "meshgrid":
                return self.meshgrid([self.local(v) for v in sequence(args[0])], args[1] is True)
            case "split":
                return self.split(self.local(args[0]), sequence(args[1]), integer(args[2]))
            case "unstack":
                source, axis = self.local(args[0]), integer(args[1])
                count = integer(source.tensor.dims[axis] if source.tensor.dims else 0)
                return self.split(source, [1] * count, axis, drop=[axis])
            case "einsum":
                return self.einsum(args[0], sequence(args[1]), target)
            case "cumsum" | "cumprod":
                return self.scan(call.fn, self.local(args[0]), integer(args[1]), target)
            case "literal":
                return self.literal(call, target)
            case "wide":
                return wide(dtype(args[0]))
        raise LoweringError(self.line, f"unknown function {call.fn}", call)

    def converted(self, source: Local, element: DType) -> Local:
        """``source`` cast to an element type, by an index equation."""
        if source.tensor.dtype == element:
            return source
        return self.mapped(source, f"made[...] = cast(part[...], {element.name})")

    def spread(self, source: Local, shape: list[Any]) -> Local:
        """``source`` broadcast to ``shape``."""
        dims = list(source.tensor.dims or ())
        source = self.reshape(source, [1] * (len(shape) - len(dims)) + dims, source.tensor.name)
        self.locals["sizes"] = shape
        try:
            return self.mapped(source, "made[...] = part[...] for ... < sizes")
        finally:
            del self.locals["sizes"]

    def mapped(self, source: Local, text: str) -> Local:
        """The tensor ``made`` by an index equation over the tensor ``part``."""
        self.locals["part"] = source
        try:
            return self.equated(text)
        finally:
            del self.locals["part"]

    def equated(self, text: str) -> Local:
        """The tensor ``made`` by an index equation over what is there."""
        equation = parse_statement(text)
        assert isinstance(equation, ast.IndexEquation)
        self.index_equation(equation)
        made = self.locals.pop("made")
        assert isinstance(made, Local)
        return made

    def scan(self, what: str, source: Local, axis: int, target: str) -> Local:
        """Running sums or products along an axis, each with its own element."""
        element, dims = source.tensor.dtype, list(source.tensor.dims or ())
        assert element is not None
        if not 0 <= axis < len(dims):
            raise Refused(f"axis {axis} is outside a rank-{len(dims)} tensor")
        if element.is_bool or element.is_complex:
            raise Refused(f"{what} takes numbers, not {element.name}: cast first")
        start = 0 if what == "cumsum" else 1
        sums = self.filled(dims, start, element)
        last = self.filled(dims[:axis] + dims[axis + 1 :], start, element)
        result = Tensor(target, tuple(dims), element, False)
        types = f"{result.builtin_type()}, {last.tensor.builtin_type()}"
        op = f"arith.{'add' if what == 'cumsum' else 'mul'}{'f' if element.is_float else 'i'}"
        out, rest, a, b, r = (self.fresh(hint) for hint in ("s", "l", "a", "b", "r"))
        self.emit(
            f"{out}, {rest} = iree_linalg_ext.scan dimension({axis}) inclusive(true) "
            f"ins({source.ssa} : {source.tensor.builtin_type()}) "
            f"outs({sums.ssa}, {last.ssa} : {types}) {{"
        )
        self.emit(f"^bb0({a}: {element.mlir}, {b}: {element.mlir}):")
        self.emit(f"  {r} = {op} {a}, {b} : {element.mlir}")
        self.emit(f"  iree_linalg_ext.yield {r} : {element.mlir}")
        self.emit(f"}} -> {types}")
        return Local(result, out)

    def filled(self, dims: list[Any], value: int, element: DType) -> Local:
        """A tensor that holds one number everywhere."""
        self.locals["sizes"] = dims
        try:
            return self.equated(f"made[I...] = cast({value}, {element.name}) for I... < sizes")
        finally:
            del self.locals["sizes"]

    def meshgrid(self, parts: list[Local], columns_first: bool) -> list[Local]:
        """Vectors spread over the grid that they span."""
        order = list(range(len(parts)))
        if columns_first and len(parts) > 1:
            order[:2] = [1, 0]
        sizes: list[object] = []
        for i in order:
            if parts[i].tensor.rank > 1:
                raise Refused("meshgrid takes vectors")
            sizes.append((parts[i].tensor.dims or (1,))[0])
        out = []
        for i, part in enumerate(parts):
            shape: list[object] = [1] * len(parts)
            shape[order.index(i)] = (part.tensor.dims or (1,))[0]
            out.append(self.spread(self.reshape(part, shape, "part"), sizes))
        return out

    def einsum(self, text: object, items: list[Any], target: str) -> Any:
        """PyTorch's einsum as the index equation that it is."""
        if not isinstance(text, str):
            raise Refused(f"{describe(text)} is not an equation")
        parts = [self.local(v) for v in items]
        left, arrow, right = text.replace(" ", "").partition("->")
        labels = [re.findall(r"\.\.\.|[A-Za-z]", part) for part in left.split(",")]
        if len(labels) != len(parts):
            raise Refused(f"{text!r} takes {len(labels)} tensors, not {len(parts)}")
        every = [c for part in labels for c in part]
        # Without an arrow: what stands once, in the alphabet's order, after the ellipsis.
        once = sorted(c for c in set(every) if every.count(c) == 1 and c != "...")
        out = (
            re.findall(r"\.\.\.|[A-Za-z]", right) if arrow else (["..."] * ("..." in every) + once)
        )
        sizes: dict[str, object] = {}
        placed: list[list[tuple[str, object]]] = []
        for part, source in zip(labels, parts, strict=True):
            dims = list(source.tensor.dims or ())
            rest = len(dims) - len(part) + ("..." in part)
            if rest < 0 or ("..." not in part and rest):
                raise Refused(f"{''.join(part)} does not name {len(dims)} dims")
            at = part.index("...") if "..." in part else len(part)
            after = dims[at + rest :] if "..." in part else []
            placed.append(
                [
                    *zip(part[:at], dims[:at], strict=True),
                    *([("...", None)] if "..." in part else []),
                    *zip(part[at + 1 :], after, strict=True),
                ]
            )
            for label, dim in placed[-1]:
                if sizes.get(label, 1) == 1:
                    sizes[label] = dim

        def index(label: str, dim: object = None) -> ast.Expr:
            if label == "...":
                return ast.Pack(0, 0, None)
            if dim == 1 and sizes[label] != 1:
                return ast.Literal(0, 0, 0)  # broadcast, as PyTorch does
            return ast.Name(0, 0, f"{label}'")

        value: ast.Expr | None = None
        operands = list(enumerate(zip(parts, placed, strict=True)))
        if len(operands) > 2:
            # IREE does not vectorise a contraction whose last factor is the smaller one.
            operands.sort(key=lambda item: len(item[1][1]))
        for n, (source, places) in operands:
            name = f"{target}'{n}"
            self.locals[name] = source
            read: ast.Expr = ast.Access(
                0, 0, ast.Name(0, 0, name), tuple(index(c, d) for c, d in places)
            )
            assert source.tensor.dtype is not None
            read = ast.Call(0, 0, wide(source.tensor.dtype).name, (read,))
            value = read if value is None else ast.Binary(0, 0, "*", value, read)
        assert value is not None
        op = "+=" if set(every) - set(out) else "="
        self.index_equation(
            ast.IndexEquation(0, 0, target, tuple(index(c) for c in out), op, value)
        )
        return self.locals[target]

    def literal(self, call: ast.Call, target: str) -> Local:
        """A constant tensor that takes its elements from an attribute of the match."""
        value = self.result_names.get(target, (None, ""))[0]
        if not isinstance(value, Tensor) or not isinstance(call.args[0], ast.Name):
            raise Refused("literal(v) defines a result from an attribute of the match")
        given = self.env.get(call.args[0].id)
        if not isinstance(given, Opaque) or given.type != "attribute":
            raise Refused(
                f"{call.args[0].id} is {describe(given)}, not an attribute that holds elements"
            )
        builtin = Tensor(target, value.dims, value.dtype, False)
        assert builtin.dtype is not None
        out, slot = self.fresh("l"), f"slot{len(self.slots)}"
        zero = (
            "false"
            if builtin.dtype.is_bool
            else (
                "0.0"
                if builtin.dtype.is_float
                else "(0.0, 0.0)"
                if builtin.dtype.is_complex
                else "0"
            )
        )
        self.emit(
            f'{out} = arith.constant {{mlirules.slot = "{slot}"}} dense<{zero}> : '
            f"{builtin.builtin_type()}"
        )
        self.slots.append((slot, call.args[0].id))
        return Local(builtin, out)
