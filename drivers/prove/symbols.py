"""Expressions of a rule over sizes and constants that are known only as symbols."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from typing import Any

from mlirules.drivers.prove import scalars
from mlirules.drivers.prove.axes import axes_of, axis_of, pinned
from mlirules.drivers.prove.conditions import at_least_zero, compared, is_zero
from mlirules.drivers.prove.expr import Int, Node, Poly, Undecided, key_of, nodes_in
from mlirules.drivers.prove.lists import UNORDERED, Lists, in_order
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import NUMBER, E
from mlirules.drivers.prove.tensors import Applied, Unknown
from mlirules.drivers.prove.world import World
from mlirules.language.evaluate import Evaluator
from mlirules.language.functions import SIMPLE, SPECIAL, TENSOR
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, dtype, sequence, tensor
from mlirules.language.values import DType, Tensor, dtype_named

#: Functions of the closed set that only move values about, or work on types and ranks.
_STRUCTURAL = frozenset(
    {
        "rank",
        "shape",
        "dim",
        "ranked",
        "is_tensor",
        "len",
        "take",
        "last",
        "skip",
        "slice",
        "reversed",
        "every",
        "interleave",
        "insert",
        "drop",
        "restore",
        "permute",
        "swap",
        "concat",
        "set",
        "reduced",
        "repeat",
        "expanded",
        "range",
        "dtype",
        "dtype_of",
        "is_complex",
        "is_unsigned",
        "bitwidth",
        "lowest",
        "highest",
        "part",
        "inverse",
        "is_permutation",
        "promoted",
    }
)


def symbolic(value: object) -> bool:
    """Whether a value holds anything that is known only as a symbol."""
    if isinstance(value, (list, tuple)):
        return any(symbolic(v) for v in value)
    return isinstance(value, (Poly, E, Unknown))


class Symbols(Lists):
    """Walks an expression; what a rule asks of sizes and constants is decided in its world."""

    def __init__(self, world: World, names: Mapping[str, Any], *, matching: bool = False) -> None:
        super().__init__(world, names)
        #: Whether this is the rule to be proven, whose own conditions on the IR hold.
        self.matching = matching
        #: Inside the body of an equation conditions may depend on indices.
        self.running = False

    # -- names

    def name(self, node: ast.Name) -> Any:
        """What a name stands for."""
        if node.id in self.names:
            value = self.names[node.id]
            if isinstance(value, Unknown) and value.settle is not None:
                return value.settle()
            if isinstance(value, (Unknown, Applied)):
                raise Undecided(f"{node.id}: nothing says what it is")
            return value
        found = dtype_named(node.id)
        if found is not None:
            return found
        raise Undecided(f"nothing says what {node.id} is")

    # -- operators

    def unary(self, op: str, value: object) -> Any:
        """``not`` or ``-``."""
        value = in_order(value)
        if op == "not":
            if isinstance(value, E):
                return scalars.boolean("not", value)
            return super().unary(op, value)
        if isinstance(value, (list, tuple)):
            return [self.unary(op, v) for v in value]
        if isinstance(value, Poly):
            return -value
        if isinstance(value, E):
            if value.dtype.is_bool:
                raise Refused("- is not defined on i1")
            return E(
                "sub",
                (scalars.type_key(value.dtype), scalars.const(0, value.dtype), value),
                value.dtype,
            )
        return super().unary(op, value)

    def logical(self, op: str, left: ast.Expr, right: ast.Expr) -> Any:
        """``and`` and ``or``."""
        join = partial(scalars.boolean, op)
        return self.joined(left, right, over=op == "or", join=join)

    def conditional(self, condition: object, then: ast.Expr, otherwise: ast.Expr) -> Any:
        """One of two expressions."""
        if isinstance(condition, E):
            if condition.op == "icond":
                answer = self.world.answer(condition.args[0])
                if answer is not None:
                    return self.eval(then if answer else otherwise)
            return scalars.selected(condition, self.eval(then), self.eval(otherwise))
        return super().conditional(condition, then, otherwise)

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """An operator's value."""
        if op in ("in", "not in"):
            found = any(self.equal(a, v) for v in sequence(b, "the right side of 'in'"))
            return found if op == "in" else not found
        a, b = in_order(a), in_order(b)
        many = isinstance(a, (list, tuple)) or isinstance(b, (list, tuple))
        if op in ("==", "!="):
            if not many and self.at_run_time(a, b):
                return self.run_time_comparison(op, a, b)
            found = self.equal(a, b)
            return found if op == "==" else not found
        if op in ("<", "<=", ">", ">="):
            if self.at_run_time(a, b):
                return self.run_time_comparison(op, a, b)
            return self.decided(op, a, b)
        if many:
            if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
                if len(a) != len(b):
                    raise Refused(f"lists of {len(a)} and {len(b)} items")
                return [self.binary(op, x, y) for x, y in zip(a, b, strict=True)]
            if isinstance(a, (list, tuple)):
                return [self.binary(op, x, b) for x in a]
            return [self.binary(op, a, y) for y in b]
        if symbolic(a) or symbolic(b):
            for v in (a, b):
                if isinstance(v, Tensor) or v is None:
                    raise Refused("a tensor is not a number")
                if isinstance(v, Unknown):
                    raise Undecided(f"{v.name}: nothing says what it is")
            return scalars.arithmetic(self.world, op, a, b)
        return super().binary(op, a, b)

    def at_run_time(self, a: object, b: object) -> bool:
        """Whether a comparison is of elements or of loop indices."""
        for v in (a, b):
            if isinstance(v, E) and v.dtype is not NUMBER:
                return True
            if isinstance(v, E) and any(True for _ in v.vars):
                return True
            if self.running and isinstance(v, Poly) and v.vars:
                return True
        return False

    def run_time_comparison(self, op: str, a: object, b: object) -> Any:
        """A truth value; a plain one where the world knows it."""
        found = scalars.comparison(op, a, b)
        if isinstance(found, E) and found.op == "icond":
            answer = self.world.answer(found.args[0])
            if answer is not None:
                return answer
        if isinstance(found, E) and found.op == "const":
            return bool(found.args[0])
        return found

    def decided(self, op: str, a: object, b: object) -> bool:
        """A comparison of symbols: a fork where both are possible."""
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            raise Undecided("a comparison with what is not known")
        if not symbolic(a) and not symbolic(b):
            return bool(super().binary(op, a, b))
        if isinstance(a, (E, float)) or isinstance(b, (E, float)):
            return self.decided_real(op, a, b)
        if isinstance(a, Poly) and isinstance(b, Poly) and a == b:
            return op in ("==", "<=", ">=")
        a, b = (int(v) if isinstance(v, bool) else pinned(self.world, v) for v in (a, b))
        for v in (a, b):
            if not isinstance(v, (int, Poly)):
                raise Refused(f"{type(v).__name__} is not a number")
        return self.world.decide(compared(op, a, b))

    def decided_real(self, op: str, a: object, b: object) -> bool:
        """A comparison of real numbers known as symbols."""
        values = []
        for v in (a, b):
            if isinstance(v, float) and not math.isfinite(v):
                if op in ("==", "!="):
                    return op == "!="  # the other one is a finite number, or this is undecided
                raise Undecided("a comparison with an infinity")
            values.append(Normal(self.world).real(scalars.number(v)))
        d = values[0] - values[1]
        if not isinstance(d, Poly):
            return {
                "==": d == 0,
                "!=": d != 0,
                "<": d < 0,
                "<=": d <= 0,
                ">": d > 0,
                ">=": d >= 0,
            }[op] is True
        match op:
            case "==" | "!=":
                first = next(iter(d.terms.values()))
                found = self.world.decide(Node("req0", d if first > 0 else -d))
                if found:
                    self.is_number(d)
                return found == (op == "==")
            case ">=":
                return self.world.decide(Node("rge0", d))
            case "<=":
                return self.world.decide(Node("rge0", -d))
            case ">":
                return self.world.decide(Node("rgt0", d))
            case _:
                return self.world.decide(Node("rgt0", -d))

    def is_number(self, d: Poly) -> None:
        """Remember that a number of the program's is a given one, where its difference is 0."""
        rest = d.terms.get((), 0)
        ((mono, c), *more) = [(m, k) for m, k in d.terms.items() if m]
        if not more and len(mono) == 1 and mono[0][1] == 1 and mono[0][0].op == "num":
            self.world.reals[str(mono[0][0].args[0])] = -Fraction(rest) / Fraction(c)

    def equal(self, a: object, b: object) -> bool:
        """Equality of two values, decided where they are symbols."""
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(self.equal(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            raise Undecided("a comparison with what is not known")
        if a is None or b is None:
            return a is b
        if isinstance(a, str) or isinstance(b, str):
            return bool(isinstance(a, str) and isinstance(b, str) and a == b)
        if isinstance(a, (DType, Tensor)) or isinstance(b, (DType, Tensor)):
            if isinstance(a, Tensor) or isinstance(b, Tensor):
                return a is b
            return bool(a == b)
        if isinstance(a, bool) != isinstance(b, bool):
            return False
        if symbolic(a) or symbolic(b):
            return self.decided("==", a, b)
        return bool(a == b)

    # -- functions

    def call(self, node: ast.Call) -> Any:
        """A function's value."""
        fn = node.fn
        special = getattr(self, f"do_{fn}", None)
        if fn in ("one_use", "inside", "unused"):
            if not self.matching:
                raise Refused(f"{fn} asks about the program")
            return True
        target = self.names.get(fn) if fn not in SIMPLE else None
        as_type = target if isinstance(target, DType) else dtype_named(fn)
        if as_type is not None:
            if len(node.args) != 1:
                raise Refused(f"{fn}(x) converts one value", node)
            return scalars.converted(self.eval(node.args[0]), as_type)
        if fn == "cast":
            return scalars.converted(self.eval(node.args[0]), dtype(self.eval(node.args[1])))
        if fn == "wide":
            return scalars.wide(dtype(self.eval(node.args[0])))
        if fn in TENSOR:
            raise Refused(f"{fn} gives a tensor: define it in an equation of its own", node)
        args = Evaluator.items(self, node.args) if fn in UNORDERED else self.items(node.args)
        if any(isinstance(a, Unknown) for a in args) and fn not in ("present", "constant"):
            raise Undecided(f"{fn} of what is not known")
        if fn == "select" and isinstance(args[0], bool):
            return args[1] if args[0] else args[2]
        if fn == "indexed":
            raise Undecided("indexing by tensors")
        if (
            any(isinstance(a, E) and a.dtype is not NUMBER for a in args)
            or (fn in SIMPLE and fn not in ("max", "min", "abs"))
            or (fn in SPECIAL and fn != "cast")
            or (fn == "sqrt" and any(symbolic(a) for a in args))
        ):
            if fn in ("sum", "product"):
                raise Undecided(f"{fn} of run-time values")
            if fn in ("max", "min") and len(args) > 2:
                out = args[0]
                for other in args[1:]:
                    out = scalars.function(fn, [out, other])
                return out
            if fn in SIMPLE or fn in SPECIAL:
                if all(not isinstance(a, E) for a in args):
                    if fn == "sqrt" and not symbolic(args):
                        return super().call(node)
                    args = [scalars.number(a) if fn != "select" else a for a in args]
                return scalars.function(fn, args)
        if special is not None:
            return special(*args)
        if fn not in _STRUCTURAL:
            if symbolic(args):
                raise Undecided(f"{fn} of what is known only as a symbol")
            return super().call(node)
        try:
            return super().call(node)
        except Refused as refused:
            if symbolic(args):
                raise Undecided(f"{fn} of what is known only as a symbol: {refused}") from None
            raise
        except TypeError as error:
            raise Undecided(f"{fn}: {error}") from None

    def do_sqrt(self, a: Any) -> Any:
        """The square root of a number."""
        return super().call(ast.Call(0, 0, "sqrt", (ast.Literal(0, 0, a),)))

    def do_ceildiv(self, a: Any, b: Any) -> Int:
        """Division rounded up."""
        a, b = self.whole(a, "a"), self.whole(b, "b")
        return -self.world.idiv(-a, b)

    def do_abs(self, a: Any) -> Any:
        """The absolute value."""
        if isinstance(a, E):
            return scalars.function("abs", [a])
        if isinstance(a, Poly):
            return a if self.world.decide(at_least_zero(a)) else -a
        return abs(a)

    def do_max(self, *args: object) -> Any:
        """The largest of numbers."""
        return self._extreme("max", args)

    def do_min(self, *args: object) -> Any:
        """The smallest of numbers."""
        return self._extreme("min", args)

    def _extreme(self, fn: str, args: Sequence[Any]) -> Any:
        flat = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else [*args]
        if len(args) > 1 and any(isinstance(a, (list, tuple)) for a in args):
            lengths = {len(a) for a in args if isinstance(a, (list, tuple))}
            if len(lengths) > 1:
                raise Refused(f"{fn} of lists of several lengths")
            return [
                self._extreme(fn, [a[i] if isinstance(a, (list, tuple)) else a for a in args])
                for i in range(lengths.pop())
            ]
        if not flat:
            raise Refused(f"{fn} of nothing")
        if any(isinstance(v, E) for v in flat):
            out = flat[0]
            for v in flat[1:]:
                out = scalars.function(fn, [out, v])
            return out
        if not any(isinstance(v, Poly) for v in flat):
            return (max if fn == "max" else min)(flat)
        flat = [pinned(self.world, v) for v in flat]
        out = flat[0]
        for v in flat[1:]:
            out = self.world.most(out, v) if fn == "max" else self.world.least(out, v)
        return out

    def do_product(self, items: object) -> Any:
        """The product of a list."""
        out: Any = 1
        for v in sequence(items):
            out = self.binary("*", out, v)
        return out

    def do_sum(self, items: object) -> Any:
        """The sum of a list."""
        out: Any = 0
        for v in sequence(items):
            out = self.binary("+", out, v)
        return out

    def do_numel(self, x: object) -> Any:
        """The number of elements."""
        return self.do_product(list(tensor(x).dims or ()))

    def do_positions(self, items: object, value: object) -> list[int]:
        """Where a value stands in a list."""
        return [i for i, v in enumerate(sequence(items)) if self.equal(v, value)]

    def do_distinct(self, items: object) -> bool:
        """Whether no two items are equal."""
        values = sequence(items)
        return not any(self.equal(values[i], v) for i in range(len(values)) for v in values[:i])

    def do_all_equal(self, items: object, value: object) -> bool:
        """Whether every item equals a value."""
        return all(self.equal(v, value) for v in sequence(items))

    def do_at_least(self, items: object, value: object) -> bool:
        """Whether every item is at least a value."""
        return all(self.decided(">=", v, value) for v in sequence(items))

    def do_divisible(self, a: object, b: object) -> bool:
        """Whether the first is a multiple of the second."""
        a, b = self.whole(a, "a"), self.whole(b, "b")
        if self.world.decide(is_zero(b)):
            raise Refused("division by zero")
        return self.world.decide(is_zero(self.world.imod(a, b)))

    def do_axis(self, d: object, x: object) -> Any:
        """An axis counted from the front."""
        if isinstance(d, (list, tuple)):
            return [self.do_axis(v, x) for v in d]
        rank = x if isinstance(x, int) else len(x) if isinstance(x, list) else tensor(x).rank
        most = max(1, rank)
        d = self.whole(d, "the axis")
        found = axis_of(self.world, d, most) if isinstance(d, Poly) else None
        if found is not None:
            return 0 if most == 1 else found
        if not (self.decided(">=", d, -most) and self.decided("<", d, most)):
            raise Refused(f"axis {d} is outside a rank-{rank} tensor")
        # Which one it is counts only where something stands on it.
        return 0 if most == 1 else self.world.imod(d, most)

    def do_axes(self, dims: object, x: object) -> list[Any]:
        """The axes of a reduction."""
        rank = tensor(x).rank
        named = [] if dims is None else dims if isinstance(dims, (list, tuple)) else [dims]
        several = axes_of(self.world, named, rank)
        if several is not None:
            return several
        found = [self.do_axis(d, rank) for d in named]
        if rank == 0:
            return []
        if not self.do_distinct(found):
            raise Refused("an axis stands twice")
        return found or list(range(rank))

    def do_pooled(
        self,
        sizes: object,
        kernel: object,
        stride: object,
        padding: object,
        dilation: object,
        ceil: object,
    ) -> list[Any]:
        """The sizes that windows give."""
        lists = [sequence(v) for v in (sizes, kernel, stride, padding, dilation)]
        if len({len(v) for v in lists}) > 1:
            raise Refused("lists of different lengths")
        if not all(self.decided(">=", s, 1) for s in lists[2]):
            raise Refused("the stride must be positive")
        out = []
        for n, k, s, p, d in zip(*lists, strict=True):
            room = n + 2 * p - (d * (k - 1) + 1)
            if not ceil:
                out.append(self.world.idiv(room, s) + 1)
                continue
            most = self.do_ceildiv(room, s) + 1
            out.append(self.world.least(most, self.do_ceildiv(n + p, s)))
        return out

    def do_bound(self, value: Any, size: Any) -> Any:
        """A slice's bound as PyTorch reads it."""
        value = self.whole(value, "the bound")
        if isinstance(value, int) and value >= 1 << 62:
            return size
        if not self.decided(">=", value, 0):
            return self.world.most(size + value, 0)
        return self.world.least(value, size)

    def do_broadcasts(self, *tensors: object) -> bool:
        """Whether shapes broadcast as far as known: what is left is assumed of programs."""
        shapes = [list(reversed(tensor(t).dims or ())) for t in tensors]
        for i in range(max(len(s) for s in shapes)):
            sizes = {s[i] for s in shapes if i < len(s) and isinstance(s[i], int) and s[i] != 1}
            if len(sizes) > 1:
                return False
        return True

    def do_broadcast_shape(self, *tensors: object) -> list[Any]:
        """The shape that tensors are broadcast to together."""
        shapes = [list(tensor(t).dims or ()) for t in tensors]
        out: list[Any] = []
        for sizes in zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
            found: Any = 1
            for size in sizes:
                found = size if self.equal(found, 1) else found
            out.append(found)
        return out[::-1]

    def do_expanded_shape(self, x: object, sizes: object) -> list[Any]:
        """The shape that x is stretched to."""
        dims, wanted = list(tensor(x).dims or ()), sequence(sizes)
        if len(wanted) < len(dims):
            raise Refused(f"{len(wanted)} sizes for a tensor of rank {len(dims)}")
        out: list[object] = [*wanted[: len(wanted) - len(dims)]]
        for have, want in zip(dims, wanted[len(out) :], strict=True):
            # PyTorch takes -1 and the dim's own size where the dim is not 1.
            if self.equal(want, -1) or self.world.same(have, want):
                out.append(have)
            elif self.equal(have, 1):
                out.append(want)
            else:
                out.append(have)
        return out

    def do_aligned(self, items: object, x: object) -> list[Any]:
        """The indices of a tensor that is broadcast."""
        values, dims = sequence(items), list(tensor(x).dims or ())
        if len(values) < len(dims):
            raise Refused(f"{len(values)} indices for a tensor of rank {len(dims)}")
        return [
            self.stretched(d, v)
            for v, d in zip(values[len(values) - len(dims) :], dims, strict=True)
        ]

    def stretched(self, size: Int, index: Int) -> Int:
        """The index into a dim that is broadcast: 0 where its size is 1."""
        if isinstance(size, int):
            return 0 if size == 1 else index
        if isinstance(index, Poly) and self.world.within(index, size):
            return index
        found = self.world.picked(is_zero(size - 1), 0, index)
        if isinstance(index, Poly) and self.world.broadcasts(size, index):
            self.world.inside.add((key_of(found), size.key))
        return found

    def do_static(self, x: object) -> bool:
        """Whether sizes are known at compile time: both are cases where they are symbols."""
        if isinstance(x, Tensor):
            x = list(x.dims or ())
        if not symbolic(x):
            return True
        if self.matching:
            # A size that is a fixed unknown number: what the rule does with it is the same.
            return bool(self.world.choose("static", [True, False]))
        # What a program's types say of a result is what its op computes. Otherwise what an op
        # means does not depend on whether its sizes are known when it is compiled.
        return not any(
            "result:" in n.key or str(n.args[0]).startswith("result:")
            for n in nodes_in(tuple(x) if isinstance(x, list) else x)
        )

    def do_constant(self, x: object) -> bool:
        """Whether a scalar is known at compile time."""
        if isinstance(x, Unknown):
            raise Undecided(f"{x.name}: nothing says what it is")
        if isinstance(x, (list, tuple)):
            return all(self.do_constant(v) for v in x)
        if isinstance(x, Tensor):
            return False
        if symbolic(x):
            return bool(self.world.choose(f"constant {x}", [True, False]))
        return True

    def do_present(self, x: object) -> bool:
        """Whether an optional operand is there."""
        if isinstance(x, Unknown):
            raise Undecided(f"{x.name}: nothing says what it is")
        return x is not None

    def do_is_float(self, t: object) -> bool:
        """Whether a type or number is a float."""
        if isinstance(t, Poly) or (isinstance(t, (int, float)) and not isinstance(t, bool)):
            return isinstance(t, float)
        if isinstance(t, E):
            return t.dtype is NUMBER or t.dtype.is_float
        return not isinstance(t, bool) and dtype(t).is_float

    def do_is_int(self, t: object) -> bool:
        """Whether a type or number is an integer."""
        if isinstance(t, E):
            return t.dtype is not NUMBER and t.dtype.is_int
        if isinstance(t, (Poly, int, float)):
            return not isinstance(t, (bool, float))
        return dtype(t).is_int

    def do_is_bool(self, t: object) -> bool:
        """Whether a type or value is a truth value."""
        if isinstance(t, E):
            return t.dtype is not NUMBER and t.dtype.is_bool
        if isinstance(t, (Poly, int, float)):
            return isinstance(t, bool)
        return dtype(t).is_bool

    def do_opmath(self, t: object) -> DType:
        """The type PyTorch computes in."""
        return scalars.opmath(dtype(t))

    def do_promoted(self, *values: object) -> DType:
        """The element type in which PyTorch combines values."""
        plain: list[object] = []
        for v in values:
            if isinstance(v, Poly):
                plain.append(1)
            elif isinstance(v, E):
                plain.append(1.0)
            elif isinstance(v, Unknown):
                raise Undecided("the type of what is not known")
            else:
                plain.append(v)
        from mlirules.language.builtins import FUNCTIONS

        impl = FUNCTIONS["promoted"].impl
        assert impl is not None
        found: DType = impl(*plain)
        return found
