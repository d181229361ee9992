"""Run-time scalars: arithmetic, comparisons, conversions, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlirules.generator.lowering.builder import Builder
from mlirules.generator.lowering.spelling import float_text
from mlirules.generator.lowering.values import (
    INDEX,
    TORCH_SCALARS,
    Affine,
    Local,
    Val,
    wide,
)
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.builtins.lists import extremum
from mlirules.language.builtins.shapes import advanced, aligned
from mlirules.language.functions import SIMPLE, SPECIAL, TENSOR
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, arith, describe, dtype, sequence
from mlirules.language.values import Arithmetic, DType, Dyn, Scalar, Tensor, dtype_named


class Arith(Builder):
    """Expressions whose value is known only at run time, as ops on scalars."""

    def argument_of(self, value: object) -> Any:
        """What a compile-time function is given for a value: of a local, its type."""
        return value.tensor if isinstance(value, Local) else value

    def call(self, node: ast.Call) -> Any:
        """A function of the notation: at compile time where it can be, else an op on scalars."""
        fn = node.fn
        if fn in TENSOR:
            if fn == "wide":
                return wide(dtype(self.eval(node.args[0])))
            raise Refused(f"{fn} gives a tensor: define it in an equation of its own", node)
        target = self.names.get(fn) if fn not in SIMPLE else None
        if isinstance(target, Arithmetic):
            return self.arithmetic(target, self.items(node.args), node)
        as_type = target if isinstance(target, DType) else dtype_named(fn)
        if as_type is not None:
            if len(node.args) != 1:
                raise Refused(f"{fn}(x) converts one value", node)
            return self.convert(self.eval(node.args[0]), as_type)
        if fn == "indexed":
            return self.indexed(*self.items_of(node))
        if fn in ("max", "min", "sum", "product"):
            args = self.items(node.args)
            if len(args) > 1 and any(isinstance(a, list) for a in args):
                return self.itemwise(fn, args)
            if fn in ("sum", "product") and len(args) == 1 and isinstance(args[0], list):
                out: Any = int(fn == "product")
                for value in args[0]:
                    out = (
                        value
                        if out == int(fn == "product")
                        else self.binary("+" if fn == "sum" else "*", out, value)
                    )
                return out
        if fn == "cast":
            return self.convert(self.eval(node.args[0]), dtype(self.eval(node.args[1])))
        if fn in SPECIAL or fn in SIMPLE:
            args = self.items(node.args)
            if any(isinstance(a, (Val, Affine, Scalar)) for a in args) or fn not in FUNCTIONS:
                if fn in SIMPLE and len(args) != SIMPLE[fn].arity:
                    if fn in ("max", "min") and len(args) > 2:
                        out = args[0]
                        for other in args[1:]:
                            out = self.simple(fn, [out, other])
                        return out
                    raise Refused(f"{fn} takes {SIMPLE[fn].arity} values", node)
                return self.special(fn, args) if fn in SPECIAL else self.simple(fn, args)
        return super().call(node)

    def arithmetic(self, function: Arithmetic, args: list[object], node: ast.Call) -> Val:
        """A function that was found in the body of an op, of other values."""
        if len(args) != len(function.inputs):
            raise Refused(f"{node.fn} takes {len(function.inputs)} values", node)
        values = [self.to_val(a, None).ssa if not isinstance(a, Val) else a.ssa for a in args]
        for value, wanted in zip(args, function.inputs, strict=True):
            if isinstance(value, Val) and value.dtype.mlir != wanted:
                raise Refused(f"{node.fn} is of {wanted}, not of {value.dtype.mlir}", node)
        for text, numbers in function.steps:
            values.append(self.fresh())
            self.scalar_emit(text.format(*(values[n] for n in numbers)))
        made = dtype_named(function.result) or dtype_named("s" + function.result)
        if made is None:
            raise Refused(f"{node.fn} gives {function.result}", node)
        return Val(values[-1], made)

    def itemwise(self, fn: str, args: list[object]) -> list[Any]:
        """``max`` or ``min`` of lists, item by item; what is not a list goes with every item."""
        lengths = {len(a) for a in args if isinstance(a, list)}
        if len(lengths) > 1:
            raise Refused(f"{fn} of lists of {' and '.join(map(str, sorted(lengths)))} items")
        out = []
        for i in range(lengths.pop()):
            values = [a[i] if isinstance(a, list) else a for a in args]
            if any(isinstance(v, (Val, Affine, Scalar)) for v in values):
                item = values[0]
                for other in values[1:]:
                    item = self.simple(fn, [item, other])
                out.append(item)
            else:
                out.append(extremum(fn, values))
        return out

    def items_of(self, node: ast.Call) -> list[Any]:
        """The values of a special function's call, their number checked."""
        low, high, _ = SPECIAL[node.fn]
        if not low <= len(node.args) <= high:
            raise Refused(f"{node.fn} takes {low} values", node)
        return [self.eval(a) for a in node.args]

    def indexed(self, loops: object, indices: object, source: object) -> list[Any]:
        """The indices that PyTorch's x[indices] reads for loops over its result."""
        if self.body is None or not isinstance(source, (Tensor, Local)):
            raise Refused("indexed(I, indices, x) stands among the indices of a tensor")
        body = self.body
        self.body = None
        held, tensors = (
            self.local(source),
            [None if v is None else self.local(v) for v in sequence(indices)],
        )
        self.body = body
        dims = list(held.tensor.dims or ())
        at, rank = advanced([t.tensor if t is not None else None for t in tensors], len(dims))
        items = sequence(loops)
        own, rest = items[at : at + rank], items[:at] + items[at + rank :]
        out: list[object] = []
        for axis, dim in enumerate(dims):
            index = tensors[axis] if axis < len(tensors) else None
            if index is None:
                if not rest:
                    raise Refused(f"{len(items)} indices are too few for {describe(indices)}")
                out.append(rest.pop(0))
                continue
            read = body.read_at(index, aligned(own, index.tensor))
            below = self.compare("<", read, self.to_val(0, read.dtype))
            size = self.convert(dim, read.dtype)
            wrapped = self.runtime_binary("+", read, size)
            out.append(self.to_val(self.special("select", [below, wrapped, read]), INDEX))
        return out

    def access(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Any:
        """A name followed by indices: an element of a tensor, or of a list."""
        if isinstance(base, (Tensor, Local)):
            if self.body is None:
                return self.extract(self.local(base), self.items(items))
            return self.body.read(node, base, items)
        return super().access(node, base, items)

    def extract(self, source: Local, where: list[object]) -> Val:
        """An element of a tensor, read by `tensor.extract`."""
        assert source.tensor.dtype is not None and source.tensor.dims is not None
        if len(where) != len(source.tensor.dims):
            raise Refused(
                f"{source.tensor.name} has rank {len(source.tensor.dims)}, not {len(where)}"
            )
        at = ", ".join(self.to_val(v, INDEX).ssa for v in where)
        out = self.fresh("e")
        self.scalar_emit(
            f"{out} = tensor.extract {source.ssa}[{at}] : {source.tensor.builtin_type()}"
        )
        return Val(out, source.tensor.dtype)

    def unary(self, op: str, value: object) -> Any:
        """`-x` and `not x`."""
        if isinstance(value, Affine):
            if op == "-":
                return self.affine("*", value, -1)
            value = self.to_val(value, INDEX)
        if isinstance(value, Scalar):
            value = self.to_val(value, None)
        if not isinstance(value, Val):
            return super().unary(op, value)
        out = self.fresh()
        if op == "not":
            if not value.dtype.is_bool:
                raise Refused(f"'not' takes a truth value, not {value.dtype}")
            one = self.const(True, DType("i1"))
            self.scalar_emit(f"{out} = arith.xori {value.ssa}, {one} : i1")
            return Val(out, value.dtype)
        if value.dtype.is_float:
            self.scalar_emit(f"{out} = arith.negf {value.ssa} : {value.dtype.mlir}")
        elif value.dtype.is_complex:
            self.scalar_emit(f"{out} = complex.neg {value.ssa} : {value.dtype.mlir}")
        else:
            zero = self.const(0, value.dtype)
            self.scalar_emit(f"{out} = arith.subi {zero}, {value.ssa} : {value.dtype.mlir}")
        return Val(out, value.dtype)

    def logical(self, op: str, left: ast.Expr, right: ast.Expr) -> Any:
        """`and` and `or`, folded where one side is known."""

        def join(a: object, b: object) -> Any:
            both = [self.to_val(a, DType("i1")), self.to_val(b, DType("i1"))]
            return self.simple("bitand" if op == "and" else "bitor", both)

        return self.joined(left, right, over=op == "or", join=join)

    def conditional(self, condition: object, then: ast.Expr, otherwise: ast.Expr) -> Any:
        """`a if c else b`: chosen now, or selected at run time."""
        if isinstance(condition, bool):
            return self.eval(then if condition else otherwise)
        return self.special("select", [condition, self.eval(then), self.eval(otherwise)])

    def binary(self, op: str, a: object, b: object) -> Any:
        """An operator: folded, kept linear in loop indices, or an op on scalars."""
        if isinstance(a, list) or isinstance(b, list) or op in ("in", "not in"):
            return super().binary(op, a, b)
        some_symbolic = isinstance(a, (Affine, Dyn)) or isinstance(b, (Affine, Dyn))
        if some_symbolic and all(isinstance(v, (Affine, int, Dyn)) for v in (a, b)):
            linear = self.affine(op, a, b)
            if linear is not None:
                return linear
        runtime = (Val, Affine, Scalar)
        if isinstance(a, runtime) or isinstance(b, runtime):
            return self.runtime_binary(op, a, b)
        return super().binary(op, a, b)

    def affine(self, op: str, a: Any, b: Any) -> Any:
        """A linear combination of loop indices, or None when the result is not linear."""
        if not isinstance(a, Affine) and not isinstance(b, Affine):
            return super().binary(op, a, b)
        if op == "*":
            if isinstance(a, Affine) and isinstance(b, Affine):
                return None
            linear, factor = (a, b) if isinstance(a, Affine) else (b, a)
            if not isinstance(factor, int):
                return None
            terms = tuple((n, c * factor) for n, c in linear.terms if factor)
            return Affine(terms, arith("*", linear.offset, factor))
        if op not in ("+", "-"):
            return None
        sign = 1 if op == "+" else -1
        first = a if isinstance(a, Affine) else Affine((), a)
        second = b if isinstance(b, Affine) else Affine((), b)
        sums = dict(first.terms)
        for name, c in second.terms:
            sums[name] = sums.get(name, 0) + sign * c
        return Affine(
            tuple((n, c) for n, c in sums.items() if c),
            arith(op, first.offset, second.offset),
        )

    def runtime_binary(self, op: str, a: object, b: object) -> Val:
        """An operator between run-time scalars of one type."""
        a, b = self.paired(a, b)
        t = a.dtype
        if op in ("==", "!=", "<", "<=", ">", ">="):
            return self.compare(op, a, b)
        out = self.fresh()
        if t.is_complex:
            name = {"+": "add", "-": "sub", "*": "mul", "/": "div"}.get(op)
            if name is None:
                raise Refused(f"{op} is not defined on {t}")
            self.scalar_emit(f"{out} = complex.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op in ("+", "-", "*"):
            if t.is_bool:
                raise Refused(f"{op} is not defined on bool: cast it")
            name = {"+": "add", "-": "sub", "*": "mul"}[op] + ("f" if t.is_float else "i")
            self.scalar_emit(f"{out} = arith.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "/":
            if not t.is_float:
                raise Refused(f"/ on {t}: cast to a float type, or use // or truncdiv")
            self.scalar_emit(f"{out} = arith.divf {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "//":
            if t.is_float:
                q = self.runtime_binary("/", a, b)
                return self.simple("floor", [q])
            name = "divui" if t.is_unsigned else "floordivsi"
            self.scalar_emit(f"{out} = arith.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "%":
            return self.modulo(a, b)
        raise Refused(f"unknown operator {op}")

    def modulo(self, a: Val, b: Val) -> Val:
        """The remainder with the sign of the divisor, as PyTorch's remainder and Python's %."""
        r = self.simple("rem", [a, b])
        if a.dtype.is_unsigned:
            return r
        zero = Val(self.const(0, a.dtype), a.dtype)
        nonzero = self.compare("!=", r, zero)
        differ = self.simple("bitxor", [self.compare("<", r, zero), self.compare("<", b, zero)])
        fixed = self.runtime_binary("+", r, b)
        return self.special("select", [self.simple("bitand", [nonzero, differ]), fixed, r])

    def compare(self, op: str, a: Val, b: Val) -> Val:
        """A comparison of run-time scalars of one type."""
        t, out = a.dtype, self.fresh()
        bool_ = DType("i1")
        if t.is_complex:
            if op not in ("==", "!="):
                raise Refused(f"{op} is not defined on {t}")
            name = "eq" if op == "==" else "neq"
            self.scalar_emit(f"{out} = complex.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, bool_)
        if t.is_float:
            name = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}[op]
            self.scalar_emit(f"{out} = arith.cmpf {name}, {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, bool_)
        sign = "u" if t.is_unsigned else "s"
        name = {
            "==": "eq",
            "!=": "ne",
            "<": sign + "lt",
            "<=": sign + "le",
            ">": sign + "gt",
            ">=": sign + "ge",
        }[op]
        self.scalar_emit(f"{out} = arith.cmpi {name}, {a.ssa}, {b.ssa} : {t.mlir}")
        return Val(out, bool_)

    def paired(self, a: object, b: object) -> tuple[Val, Val]:
        """Two operands as run-time scalars of one type; constants take the other's type."""
        if isinstance(a, Scalar):
            a = self.to_val(a, None)
        if isinstance(b, Scalar):
            b = self.to_val(b, None)
        ta = a.dtype if isinstance(a, Val) else INDEX if isinstance(a, (Affine, Dyn)) else None
        tb = b.dtype if isinstance(b, Val) else INDEX if isinstance(b, (Affine, Dyn)) else None
        if ta is None and tb is None:
            raise Refused(f"{describe(a)} and {describe(b)} are not run-time values")
        if ta is None:
            ta = tb
        elif tb is None:
            tb = ta
        elif ta != tb:
            if ta == INDEX and tb.is_int:
                ta = tb
            elif tb == INDEX and ta.is_int:
                tb = ta
            else:
                raise Refused(f"{ta} and {tb} do not mix: cast one of them")
        return self.to_val(a, ta), self.to_val(b, tb)

    def simple(self, fn: str, given: list[Any]) -> Val:
        """A function of one or two scalars that is one op, by their type."""
        function = SIMPLE[fn]
        args: list[Val] = (
            list(self.paired(*given)) if function.arity == 2 else [self.to_val(given[0], None)]
        )
        t = args[0].dtype
        if function.to_bool:
            return self.classify(fn, args[0])
        if fn == "pow" and t.is_int:
            return self.integer_power(args[0], args[1])
        if fn == "rem" and t.name == "f64":
            return self.remainder_f64(args[0], args[1])
        if t.is_float:
            op = function.float_op
        elif t.is_bool:
            op = function.bool_op or function.unsigned_op
        elif t.is_unsigned:
            op = function.unsigned_op
            if fn == "abs":
                return args[0]
        elif t.is_complex:
            op = {
                "exp": "complex.exp",
                "log": "complex.log",
                "sqrt": "complex.sqrt",
                "sin": "complex.sin",
                "cos": "complex.cos",
                "tanh": "complex.tanh",
                "pow": "complex.pow",
            }.get(fn, "")
            if fn == "abs":
                out = self.fresh()
                self.scalar_emit(f"{out} = complex.abs {args[0].ssa} : {t.mlir}")
                return Val(out, DType(f"f{t.width // 2}"))
        else:
            op = function.signed_op
            if fn in ("floor", "ceil", "round", "trunc"):
                return args[0]
        if not op:
            raise Refused(f"{fn} is not defined on {t}")
        out = self.fresh()
        self.scalar_emit(f"{out} = {op} {', '.join(a.ssa for a in args)} : {t.mlir}")
        return Val(out, t)

    def integer_power(self, base: Val, exponent: Val) -> Val:
        """A power of integers, wrapping as products do; IREE cannot lower ``math.ipowi``.

        Squares and multiplies as often as the exponent has bits. Below an exponent of 0 only 1
        and -1 have whole powers, and the others give 0.
        """
        t, m = base.dtype, base.dtype.mlir
        one, zero = Val(self.const(1, t), t), Val(self.const(0, t), t)
        w, e, b, r = (self.fresh(stem) for stem in ("while", "e", "b", "r"))
        more, odd, bit, product, power, square, rest = (self.fresh() for _ in range(7))
        for line in (
            f"{w}:3 = scf.while ({e} = {exponent.ssa}, {b} = {base.ssa}, {r} = {one.ssa}) : "
            f"({m}, {m}, {m}) -> ({m}, {m}, {m}) {{",
            f"  {more} = arith.cmpi {'ugt' if t.is_unsigned else 'sgt'}, {e}, {zero.ssa} : {m}",
            f"  scf.condition({more}) {e}, {b}, {r} : {m}, {m}, {m}",
            "} do {",
            f"^bb0({e}: {m}, {b}: {m}, {r}: {m}):",
            f"  {bit} = arith.andi {e}, {one.ssa} : {m}",
            f"  {odd} = arith.cmpi ne, {bit}, {zero.ssa} : {m}",
            f"  {product} = arith.muli {r}, {b} : {m}",
            f"  {power} = arith.select {odd}, {product}, {r} : {m}",
            f"  {square} = arith.muli {b}, {b} : {m}",
            f"  {rest} = arith.shrui {e}, {one.ssa} : {m}",
            f"  scf.yield {rest}, {square}, {power} : {m}, {m}, {m}",
            "}",
        ):
            self.scalar_emit(line)
        found = Val(f"{w}#2", t)
        if t.is_unsigned:
            return found
        minus = Val(self.const(-1, t), t)
        parity = self.compare("==", self.simple("bitand", [exponent, one]), zero)
        unit = self.special(
            "select",
            [
                self.compare("==", base, one),
                one,
                self.special(
                    "select",
                    [
                        self.compare("==", base, minus),
                        self.special("select", [parity, one, minus]),
                        zero,
                    ],
                ),
            ],
        )
        return self.special("select", [self.compare("<", exponent, zero), unit, found])

    def remainder_f64(self, x: Val, y: Val) -> Val:
        """``fmod`` of f64 without the runtime's, which CPU lacks: exact while |x / y| < 2**104.

        One fma takes the whole quotient away exactly; a second one what a quotient of more than
        53 bits leaves; the last step mends a quotient that was rounded away from zero.
        """
        r = x
        for _ in range(2):
            q = self.simple("trunc", [self.runtime_binary("/", r, y)])
            r = self.special("fma", [self.unary("-", q), y, r])
        below = self.compare(
            "<",
            self.runtime_binary("*", r, self.simple("copysign", [1.0, x])),
            Val(self.const(0.0, x.dtype), x.dtype),
        )
        up = self.simple("copysign", [self.simple("abs", [y]), x])
        r = self.special("select", [below, self.runtime_binary("+", r, up), r])
        whole = self.simple("bitand", [self.simple("isinf", [y]), self.simple("isfinite", [x])])
        return self.simple("copysign", [self.special("select", [whole, x, r]), x])

    def classify(self, fn: str, x: Val) -> Val:
        """`isnan`, `isinf` and `isfinite`; constants for what is no float."""
        if not x.dtype.is_float:
            return Val(self.const(fn == "isfinite", DType("i1")), DType("i1"))
        out = self.fresh()
        if fn == "isnan":
            self.scalar_emit(f"{out} = arith.cmpf uno, {x.ssa}, {x.ssa} : {x.dtype.mlir}")
            return Val(out, DType("i1"))
        magnitude = self.simple("abs", [x])
        inf = self.const(math.inf, x.dtype)
        op = "oeq" if fn == "isinf" else "olt"
        self.scalar_emit(f"{out} = arith.cmpf {op}, {magnitude.ssa}, {inf} : {x.dtype.mlir}")
        return Val(out, DType("i1"))

    def special(self, fn: str, args: list[object]) -> Val:
        """A function of scalars that needs more than one op or has rules of its own."""
        low, high, _ = SPECIAL[fn]
        if not low <= len(args) <= high:
            raise Refused(f"{fn} takes {low} values")
        out = self.fresh()
        if fn == "select":
            if isinstance(args[0], bool):
                return self.to_val(args[1] if args[0] else args[2], None)
            c = self.to_val(args[0], DType("i1"))
            if not any(isinstance(v, (Val, Affine, Scalar, Dyn)) for v in args[1:]):
                raise Refused("select between two constants: cast one of them")
            a, b = self.paired(args[1], args[2])
            self.scalar_emit(f"{out} = arith.select {c.ssa}, {a.ssa}, {b.ssa} : {a.dtype.mlir}")
            return Val(out, a.dtype)
        if fn == "sign":
            x = self.to_val(args[0], None)
            zero, one = self.const(0, x.dtype), self.const(1, x.dtype)
            if x.dtype.is_unsigned:
                return self.special(
                    "select",
                    [self.compare("!=", x, Val(zero, x.dtype)), Val(one, x.dtype), x],
                )
            minus = self.const(-1, x.dtype)
            above = self.compare(">", x, Val(zero, x.dtype))
            below = self.compare("<", x, Val(zero, x.dtype))
            inner = self.special("select", [below, Val(minus, x.dtype), x])
            return self.special("select", [above, Val(one, x.dtype), inner])
        if fn == "bitcast":
            x, t = self.to_val(args[0], None), dtype(args[1])
            if x.dtype.mlir == t.mlir:
                return Val(x.ssa, t)
            self.scalar_emit(f"{out} = arith.bitcast {x.ssa} : {x.dtype.mlir} to {t.mlir}")
            return Val(out, t)
        if fn in ("real", "imag"):
            x = self.to_val(args[0], None)
            op = {"real": "re", "imag": "im"}[fn]
            if not x.dtype.is_complex:
                raise Refused(f"{fn} takes a complex number, not {x.dtype}")
            self.scalar_emit(f"{out} = complex.{op} {x.ssa} : {x.dtype.mlir}")
            return Val(out, DType(f"f{x.dtype.width // 2}"))
        if fn == "fma":
            a, b = self.paired(args[0], args[1])
            c = self.to_val(args[2], a.dtype)
            if not a.dtype.is_float:
                raise Refused(f"fma is not defined on {a.dtype}")
            self.scalar_emit(f"{out} = math.fma {a.ssa}, {b.ssa}, {c.ssa} : {a.dtype.mlir}")
            return Val(out, a.dtype)
        if fn == "complex":
            re_, im = self.paired(args[0], args[1])
            t = DType(f"complex{2 * re_.dtype.width}")
            self.scalar_emit(f"{out} = complex.create {re_.ssa}, {im.ssa} : {t.mlir}")
            return Val(out, t)
        raise Refused(f"{fn} cannot stand here")

    def const(self, value: int | float | bool, t: DType) -> str:
        """A scalar constant of type ``t``."""
        if t.is_float:
            text = float_text(float(value), t)
        elif t.is_bool:
            text = "true" if value else "false"
        elif t.is_complex:
            part = DType(f"f{t.width // 2}")
            out = self.fresh("k")
            self.scalar_emit(
                f"{out} = complex.constant [{float_text(float(value), part)} : {part.mlir}, "
                f"0.0 : {part.mlir}] : {t.mlir}"
            )
            return out
        else:
            if isinstance(value, float) and not value.is_integer():
                raise Refused(f"{value} is not a {t}: cast it")
            number = int(value)
            if t != INDEX:
                low, high = int(t.lowest), int(t.highest)
                if not low <= number <= high:
                    raise Refused(f"{number} does not fit in {t}")
                if t.is_unsigned and number >= 1 << (t.width - 1):
                    number -= 1 << t.width
            text = str(number)
        holder = self.body.constants if self.body is not None else self.memo
        key = ("const", text, t.mlir)
        if key not in holder:
            out = self.fresh("k")
            line = f"{out} = arith.constant {text} : {t.mlir}"
            if t.is_bool:
                line = f"{out} = arith.constant {text}"
            if self.body is not None:
                self.body.head.append(line)
            else:
                self.lines.append(line)
            holder[key] = out
        return holder[key]

    def to_val(self, value: object, t: DType | None) -> Val:
        """A value as a run-time scalar, of type ``t`` where given (constants convert)."""
        if isinstance(value, bool):
            if t is None:
                t = DType("i1")
            return Val(self.const(value, t), t)
        if isinstance(value, (int, float)):
            if t is None:
                raise Refused(f"the type of {value} is not known here: cast it")
            return Val(self.const(value, t), t)
        if isinstance(value, Scalar):
            builtin = TORCH_SCALARS[value.kind][0]
            ssa = self.argument(value.name, builtin, builtin)
            held = Val(ssa, DType({"i64": "si64"}.get(builtin, builtin)))
            return held if t is None or t == held.dtype else self.convert(held, t)
        if isinstance(value, Dyn):
            ssa = self.index(value)
            value = Val(ssa, INDEX)
        if isinstance(value, Affine):
            value = Val(self.affine_ssa(value), INDEX)
        if isinstance(value, Val):
            if t is None or value.dtype == t:
                return value
            if INDEX in (t, value.dtype) and (t.is_int or value.dtype.is_int or t == INDEX):
                return self.convert(value, t)
            raise Refused(f"{value.dtype} where {t} is needed: cast it")
        raise Refused(f"{describe(value)} is not a number")

    def affine_ssa(self, value: Affine) -> str:
        """A linear combination of loop indices as a value of index type."""
        assert self.body is not None
        total: str | None = None
        for name, c in value.terms:
            ssa = self.body.index_ssa(name)
            if c != 1:
                out = self.fresh("i")
                self.scalar_emit(f"{out} = arith.muli {ssa}, {self.const(c, INDEX)} : index")
                ssa = out
            if total is None:
                total = ssa
            else:
                out = self.fresh("i")
                self.scalar_emit(f"{out} = arith.addi {total}, {ssa} : index")
                total = out
        if total is None or value.offset != 0:
            offset = (
                self.const(value.offset, INDEX)
                if isinstance(value.offset, int)
                else self.index(value.offset)
            )
            if total is None:
                return offset
            out = self.fresh("i")
            self.scalar_emit(f"{out} = arith.addi {total}, {offset} : index")
            total = out
        return total

    def convert(self, value: object, t: DType) -> Val:
        """``value`` converted to ``t`` as PyTorch converts."""
        if isinstance(value, (bool, int, float)):
            if t.is_bool:
                value = bool(value)
            elif t.is_float or t.is_complex:
                value = float(value)
            elif isinstance(value, float):
                if not math.isfinite(value):
                    raise Refused(f"{value} is not a {t}")
                value = int(value)
            else:
                value = int(value)
                span = 1 << t.width
                value = (value - int(t.lowest)) % span + int(t.lowest)
            return self.to_val(value, t)
        if not isinstance(value, (Val, Scalar, Dyn, Affine)):
            raise Refused(f"{describe(value)} cannot be converted to {t}")
        x = (
            self.to_val(value, None)
            if not isinstance(value, (Dyn, Affine))
            else self.to_val(value, INDEX)
        )
        s = x.dtype
        if s == t:
            return x

        def one(op: str, ssa: str, a: str, b: str) -> str:
            got = self.fresh()
            self.scalar_emit(f"{got} = {op} {ssa} : {a} to {b}")
            return got

        if s.mlir == t.mlir:
            return Val(x.ssa, t)
        if t.is_bool:
            zero = Val(self.const(0, s), s)
            return self.compare("!=", x, zero)
        if s.is_complex:
            if t.is_complex:
                a, b = self.special("real", [x]), self.special("imag", [x])
                part = DType(f"f{t.width // 2}")
                return self.special("complex", [self.convert(a, part), self.convert(b, part)])
            return self.convert(self.special("real", [x]), t)
        if t.is_complex:
            part = DType(f"f{t.width // 2}")
            re_ = self.convert(x, part)
            return self.special("complex", [re_, Val(self.const(0, part), part)])
        if INDEX in (s, t):
            if s.is_float or t.is_float:
                return self.convert(self.convert(x, DType("si64")), t)
            unsigned = s.is_unsigned if s != INDEX else t.is_unsigned
            return Val(
                one(
                    "arith.index_castui" if unsigned else "arith.index_cast", x.ssa, s.mlir, t.mlir
                ),
                t,
            )
        if s.is_float and t.is_float:
            if s.width == t.width:  # f16 <-> bf16
                wide_ = one("arith.extf", x.ssa, s.mlir, "f32")
                return Val(one("arith.truncf", wide_, "f32", t.mlir), t)
            op = "arith.extf" if t.width > s.width else "arith.truncf"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if s.is_float:
            op = "arith.fptoui" if t.is_unsigned else "arith.fptosi"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if t.is_float:
            op = "arith.uitofp" if s.is_unsigned else "arith.sitofp"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if t.width > s.width:
            op = "arith.extui" if s.is_unsigned else "arith.extsi"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        return Val(one("arith.trunci", x.ssa, s.mlir, t.mlir), t)
