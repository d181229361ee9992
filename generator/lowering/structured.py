"""An index equation as one ``linalg`` op: a named one where there is one, else a generic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlirules.generator.lowering.builder import Read
from mlirules.generator.lowering.loops import Loops
from mlirules.generator.lowering.values import (
    Affine,
    Local,
    LoweringError,
    Val,
)
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.operands import Refused
from mlirules.language.values import DType, Dyn, Tensor, dtype_named


@dataclass
class Structured(Loops):
    """Builds one ``linalg`` op over the loops of an equation."""

    def operand(self, read: Read) -> tuple[Local, list[Affine]]:
        """A read as an operand: sliced where the access has steps, offsets or constants."""
        low = self.low
        source = read.source
        assert source.tensor.dims is not None
        counts: dict[str, int] = {}
        for item in read.items:
            for n, _ in item.terms:
                counts[n] = counts.get(n, 0) + 1
        offsets: list[object] = []
        sizes: list[object] = []
        strides: list[int] = []
        drop: list[int] = []
        items: list[Affine] = []
        changed = False

        def take(offset: object, size: object, stride: int) -> None:
            offsets.append(offset)
            sizes.append(size)
            strides.append(stride)

        for at, (item, dim) in enumerate(zip(read.items, source.tensor.dims, strict=True)):
            if not item.terms:
                if dim == 1 and item.offset == 0:
                    take(0, 1, 1)
                    items.append(item)
                    continue
                take(item.offset, 1, 1)
                drop.append(at)
                changed = True
                continue
            whole = self.single_window(item)
            if whole is not None and isinstance(dim, int) and whole < dim:
                # IREE 3.13 drops the loops of one step, and then wants no more than is read.
                take(0, whole, 1)
                items.append(item)
                changed = True
                continue
            if len(item.terms) == 1 and item.plain is None:
                name, step = item.terms[0]
                take(item.offset, self.ranges[name], step)
                items.append(Affine(((name, 1),)))
                changed = True
                continue
            if (
                item.plain in self.bounded
                and self.ranges[item.plain] != dim
                and (isinstance(dim, Dyn))
            ):
                # The tensor may be larger than the range that the rule gives.
                take(0, self.ranges[item.plain], 1)
                items.append(item)
                changed = True
                continue
            if item.plain is not None and isinstance(dim, int):
                wanted = self.ranges[item.plain]
                if isinstance(wanted, int) and wanted < dim:
                    # The loop stops before the tensor ends.
                    take(0, wanted, 1)
                    items.append(item)
                    changed = True
                    continue
                if isinstance(wanted, int) and wanted > dim:
                    raise NoMatch(
                        low.line,
                        f"{source.tensor.name} has {dim} where {wanted} are read",
                        expected=str(wanted),
                        found=str(dim),
                    )
                if isinstance(wanted, Dyn):
                    take(0, wanted, 1)
                    items.append(item)
                    changed = True
                    continue
            take(0, dim, 1)
            items.append(item)
        if changed:
            source = low.slice(source, offsets, sizes, strides, drop)
        assert source.tensor.dims is not None
        wanted_dims = [
            self.ranges[i.plain] if i.plain is not None else d
            for i, d in zip(items, source.tensor.dims, strict=True)
        ]
        # A dim that is dynamic here but static elsewhere takes the static size.
        refined = [
            w if isinstance(w, int) else d
            for w, d in zip(wanted_dims, source.tensor.dims, strict=True)
        ]
        ssa = low.cast_shape(source, refined)
        tensor = Tensor(source.tensor.name, tuple(refined), source.tensor.dtype, False)
        return Local(tensor, ssa), items

    def single_window(self, item: Affine) -> int | None:
        """How far one loop reads where the other loops of the access take a single step."""
        if len(item.terms) < 2 or item.offset != 0:
            return None
        moving = [(name, step) for name, step in item.terms if self.ranges[name] != 1]
        if len(moving) != 1 or moving[0][1] != 1:
            return None
        size = self.ranges[moving[0][0]]
        return size if isinstance(size, int) else None

    def emit(
        self,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
    ) -> Local:
        """A line at function level."""
        low, eq = self.low, self.equation
        identity = [Affine(((n, 1),)) for n in self.loops]
        if (
            eq.op == "="
            and len(operands) == 1
            and not self.lines
            and value.ssa == self.reads[0].arg
            and operands[0][1] == identity
        ):
            held = operands[0][0]
            return Local(Tensor(eq.target, held.tensor.dims, element, False), held.ssa)
        reducing = eq.op != "="
        if reducing:
            init = self.initial(element, out_type)
            if any(self.ranges[n] == 0 for n in self.loops if n not in self.parallel):
                # Nothing is combined; IREE's tiling divides by the extent of such a loop.
                return Local(out_type, init)
        elif eq.op == "=" and not operands and not self.index_values and self.only_constant():
            low.lines.extend(self.head)
            empty = self.empty(out_type)
            out = low.fresh("f")
            low.emit(
                f"{out} = linalg.fill ins({value.ssa} : {element.mlir}) outs({empty} : "
                f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
            )
            return Local(out_type, out)
        else:
            init = self.empty(out_type)
        named = self.named(value, operands) if reducing else None
        if named is not None:
            out = low.fresh("m")
            ins = ", ".join(o.ssa for o, _ in operands)
            types = ", ".join(o.tensor.builtin_type() for o, _ in operands)
            low.emit(
                f"{out} = {named} ins({ins} : {types}) outs({init} : "
                f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
            )
            return Local(out_type, out)
        return self.generic(value, element, out_type, operands, init)

    def generic(
        self,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
        init: str,
    ) -> Local:
        """The line as a generic op that starts from ``init``."""
        low, eq = self.low, self.equation
        covered = {i.plain for _, items in operands for i in items if i.plain is not None} | set(
            self.parallel
        )
        missing = [n for n in self.loops if n not in covered]
        shape_only: list[tuple[Local, list[Affine]]] = []
        if missing:
            window = Tensor("window", tuple(self.ranges[n] for n in missing), element, False)
            shape_only.append(
                (Local(window, self.empty(window)), [Affine(((n, 1),)) for n in missing])
            )
        out_arg = low.fresh("acc")
        lines = [*self.preamble(), *self.lines]
        final = value
        if eq.op != "=":
            low.body = self
            final = self.combine(eq.op, Val(out_arg, element), value)
            low.body = None
            lines = [*self.preamble(), *self.lines]
        all_in = operands + shape_only
        maps = [self.map_text(items) for _, items in all_in]
        maps.append(self.map_text([Affine(((n, 1),)) for n in self.parallel]))
        iterators = ['"parallel"' if n in self.parallel else '"reduction"' for n in self.loops]
        args = [
            f"{r.arg}: {r.source.tensor.dtype.mlir}" for r in self.reads if r.source.tensor.dtype
        ]
        args += [f"%window_{i}: {element.mlir}" for i in range(len(shape_only))]
        args.append(f"{out_arg}: {element.mlir}")
        ins_text = ""
        if all_in:
            ins = ", ".join(o.ssa for o, _ in all_in)
            types = ", ".join(o.tensor.builtin_type() for o, _ in all_in)
            ins_text = f"ins({ins} : {types}) "
        out = low.fresh("g")
        low.emit(
            f"{out} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = "
            f"[{', '.join(iterators)}]}} {ins_text}outs({init} : {out_type.builtin_type()}) {{"
        )
        low.emit(f"^bb0({', '.join(args)}):")
        for line in lines:
            low.emit("  " + line)
        low.emit(f"  linalg.yield {final.ssa} : {element.mlir}")
        low.emit(f"}} -> {out_type.builtin_type()}")
        return Local(out_type, out)

    def zeros(self, type_: Tensor, element: DType) -> str:
        """A tensor of zeros."""
        low = self.low
        zero = low.const(0, element)
        out = low.fresh("f")
        low.emit(
            f"{out} = linalg.fill ins({zero} : {element.mlir}) outs({self.empty(type_)} : "
            f"{type_.builtin_type()}) -> {type_.builtin_type()}"
        )
        return out

    def only_constant(self) -> bool:
        """Whether the body computes nothing but a constant."""
        return not self.lines and all("arith.constant" in h for h in self.head)

    def combine(self, op: str, acc: Val, value: Val) -> Val:
        """What a reduction does with two values."""
        low = self.low
        t = acc.dtype
        match op:
            case "+=":
                if t.is_bool:
                    raise Refused("+= on bool: use or=, or cast")
                return low.runtime_binary("+", acc, value)
            case "*=":
                return low.runtime_binary("*", acc, value)
            case "max=":
                return low.simple("max", [acc, value])
            case "min=":
                return low.simple("min", [acc, value])
            case "and=":
                return low.simple("bitand", [acc, value])
            case "or=":
                return low.simple("bitor", [acc, value])
            case _:
                return low.simple("bitxor", [acc, value])

    def initial(self, element: DType, out_type: Tensor) -> str:
        """The tensor that a reduction starts from: what is there, or the op's identity."""
        low, eq = self.low, self.equation
        made = low.locals.get(eq.target)
        if made is not None:
            have = low.name(ast.Name(0, 0, eq.target))
            if not isinstance(have, Local):
                raise LoweringError(low.line, f"{eq.target} is not a tensor")
            if len(self.target_items) != len([a for a in self.target_items if a.terms]):
                assert have.tensor.dims is not None
                have = low.reshape(have, list(out_type.dims or ()), eq.target)
            return low.cast_shape(have, out_type.dims or ())
        identity: Any = {
            "+=": 0,
            "*=": 1,
            "max=": element.lowest,
            "min=": element.highest,
            "and=": -1 if element.is_int else True,
            "or=": 0,
            "xor=": 0,
        }[eq.op]
        if element.is_bool:
            identity = bool(identity)
        if element.is_unsigned and identity == -1:
            identity = element.highest
        fill = low.const(identity, element)
        empty = self.empty(out_type)
        out = low.fresh("f")
        low.emit(
            f"{out} = linalg.fill ins({fill} : {element.mlir}) outs({empty} : "
            f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
        )
        return out

    def empty(self, type_: Tensor) -> str:
        """A tensor whose elements are still to be written."""
        low = self.low
        dynamic = [low.index(d) for d in type_.dims or () if not isinstance(d, int)]
        key = ("empty", type_.builtin_type(), tuple(dynamic))
        if key not in low.memo:
            out = low.fresh("e")
            low.emit(f"{out} = tensor.empty({', '.join(dynamic)}) : {type_.builtin_type()}")
            low.memo[key] = out
        return low.memo[key]

    def map_text(self, items: list[Affine]) -> str:
        """Indices as an affine map over the loops."""
        dims = ", ".join(f"d{i}" for i in range(len(self.loops)))
        return f"affine_map<({dims}) -> ({', '.join(self.expr_text(i) for i in items)})>"

    def expr_text(self, item: Affine) -> str:
        """One index as an affine expression."""
        parts = []
        for name, c in item.terms:
            d = f"d{self.loops.index(name)}"
            parts.append(d if c == 1 else f"{d} * {c}")
        return " + ".join(parts) or "0"

    def named(self, value: Val, operands: list[tuple[Local, list[Affine]]]) -> str | None:
        """The named op that this is, where one exists and says the same."""
        eq = self.equation
        if eq.op != "+=" or len(operands) != 2 or not self.is_product(eq.value):
            return None
        if self.index_values or any(d == Affine(()) for _, items in operands for d in items):
            return None
        names = [[i.plain for i in items] for _, items in operands]
        a, b = operands[0][0].tensor, operands[1][0].tensor
        if a.dtype is None or b.dtype is None:
            return None
        if value.dtype.is_unsigned or a.dtype.is_unsigned or b.dtype.is_unsigned:
            return None
        out = list(self.parallel)
        red = [n for n in self.loops if n not in self.parallel]
        if all(n is not None for part in names for n in part):
            if len(red) == 1:
                k = red[0]
                if len(out) == 2 and names == [[out[0], k], [k, out[1]]]:
                    return "linalg.matmul"
                if len(out) == 3 and names == [[out[0], out[1], k], [out[0], k, out[2]]]:
                    return "linalg.batch_matmul"
                if len(out) == 1 and names == [[out[0], k], [k]]:
                    return "linalg.matvec"
                if len(out) == 1 and names == [[k], [k, out[0]]]:
                    return "linalg.vecmat"
                if not out and names == [[k], [k]]:
                    return "linalg.dot"
            return None
        return self.named_convolution(out, red, operands)

    def named_convolution(
        self, out: list[str], red: list[str], operands: list[tuple[Local, list[Affine]]]
    ) -> str | None:
        """The named convolution that this is, where one exists."""
        (_, xi), (_, wi) = operands
        if len(out) == 4 and len(red) == 2 and len(xi) == 4 and len(wi) == 3:
            # Depthwise: the channel is a parallel index of both operands.
            name, n, c = "depthwise_conv_2d_nchw_chw", out[0], out[1]
            u, v, filters = red[0], red[1], [out[1], *red]
        elif len(out) == 4 and len(red) == 3 and len(xi) == 4 and len(wi) == 4:
            name, n = "conv_2d_nchw_fchw", out[0]
            c, u, v = red
            filters = [out[1], c, u, v]
        else:
            return None
        i, j = out[2:]
        if [p.plain for p in wi] != filters or [p.plain for p in xi[:2]] != [n, c]:
            return None
        strides, dilations = [], []
        for item, o, k in ((xi[2], i, u), (xi[3], j, v)):
            terms = dict(item.terms)
            if set(terms) != {o, k} or item.offset != 0:
                return None
            strides.append(terms[o])
            dilations.append(terms[k])
        return (
            f"linalg.{name} {{dilations = dense<"
            f"{dilations}> : tensor<2xi64>, strides = dense<{strides}> : tensor<2xi64>}}"
        )

    def is_product(self, value: ast.Expr) -> bool:
        """Whether an expression is a product of two reads, each perhaps cast."""

        def leaf(node: ast.Expr) -> bool:
            if isinstance(node, ast.Call) and (
                node.fn == "cast"
                or dtype_named(node.fn) is not None
                or isinstance(self.low.names.get(node.fn), DType)
            ):
                node = node.args[0]
            return isinstance(node, ast.Access)

        return (
            isinstance(value, ast.Binary)
            and value.op == "*"
            and leaf(value.left)
            and leaf(value.right)
        )
