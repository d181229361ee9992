"""Elements as typed trees: what an equation computes, before any law is used on it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mlirules.drivers.prove.conditions import compared
from mlirules.drivers.prove.expr import Node, Poly, Undecided
from mlirules.drivers.prove.world import World
from mlirules.generator.lowering.values import wide as wide_of
from mlirules.language.functions import SIMPLE
from mlirules.language.operands import Refused
from mlirules.language.values import DType

NUMBER = DType("number")
BOOL = DType("i1")
INDEX = DType("index")

#: The element types that a symbol may stand for.
TYPES = (
    *(DType(n) for n in ("f32", "f64", "f16", "bf16")),
    *(DType(n) for n in ("si64", "si32", "si16", "si8", "ui8", "ui16", "ui32", "ui64", "i1")),
    *(DType(n) for n in ("complex64", "complex128")),
)
#: Those of softmax and its like.
FLOATS = TYPES[:4]


class LazyType(DType):
    """An element type that a symbol stands for: what is asked of it is chosen when it is asked.

    Two of them that turn out to be one type share what is chosen of it.
    """

    def __init__(self, world: World, symbol: str, among: tuple[DType, ...] | None = None) -> None:
        object.__setattr__(self, "world", world)
        object.__setattr__(self, "own", symbol)
        object.__setattr__(self, "possible", among or world.limits.types or TYPES)
        object.__setattr__(self, "one", None)

    world: World
    own: str
    possible: tuple[DType, ...]
    one: LazyType | None

    def root(self) -> LazyType:
        """What stands for all symbols that are this type."""
        at = self
        while at.one is not None:
            at = at.one
        return at

    @property
    def symbol(self) -> str:
        """The symbol that names it."""
        return self.root().own

    @property
    def among(self) -> tuple[DType, ...]:
        """The types that it may be."""
        return self.root().possible

    def _ask(self, what: str, answer: Any) -> Any:
        options: list[object] = []
        for t in self.among:
            if answer(t) not in options:
                options.append(answer(t))
        found = options[0]
        if len(options) > 1:
            names = ",".join(t.name for t in self.among)
            found = self.world.choose(f"{self.symbol} in {names}: {what}", options)
            object.__setattr__(
                self.root(), "possible", tuple(t for t in self.among if answer(t) == found)
            )
        return found

    def _same(self, other: LazyType) -> bool:
        """Whether two symbols stand for one type: both ways where both are possible."""
        a, b = self.root(), other.root()
        if a is b:
            return True
        common = tuple(t for t in a.possible if t in b.possible)
        if not common:
            return False
        if len(a.possible) == len(b.possible) == 1:
            return True
        first, second = sorted((a.own, b.own))
        if not self.world.choose(f"{first} is {second}", [True, False]):
            return False
        object.__setattr__(b, "one", a)
        object.__setattr__(a, "possible", common)
        return True

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._ask("name", lambda t: t.name))

    @property
    def key(self) -> str:
        """What tells it from other types, without choosing."""
        return self.among[0].name if len(self.among) == 1 else f"?{self.symbol}"

    @property
    def is_float(self) -> bool:
        """As of :class:`DType`."""
        return bool(self._ask("float", lambda t: t.is_float))

    @property
    def is_bool(self) -> bool:
        """As of :class:`DType`."""
        return bool(self._ask("bool", lambda t: t.is_bool))

    @property
    def is_complex(self) -> bool:
        """As of :class:`DType`."""
        return bool(self._ask("complex", lambda t: t.is_complex))

    @property
    def is_int(self) -> bool:
        """As of :class:`DType`."""
        return bool(self._ask("int", lambda t: t.is_int))

    @property
    def is_unsigned(self) -> bool:
        """As of :class:`DType`."""
        return bool(self._ask("unsigned", lambda t: t.is_unsigned))

    @property
    def width(self) -> int:
        """Its width in bits."""
        return int(self._ask("width", lambda t: t.width))

    @property
    def narrow(self) -> bool:
        """Whether it is narrower than f32."""
        return bool(self._ask("narrow", lambda t: t.width < 32))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, LazyType):
            return self._same(other)
        if isinstance(other, DType):
            if other not in self.among:
                return False
            return bool(self._ask(f"is {other.name}", lambda t: t == other))
        return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return self.key


def type_key(t: DType) -> str:
    """A type's name in keys; a type that is not chosen keeps its symbol's."""
    return t.key if isinstance(t, LazyType) else t.name


def wide(t: DType) -> DType:
    """The type to accumulate in; of a type that is not chosen only whether it is narrow counts."""
    if isinstance(t, LazyType) and t.is_float:
        return DType("f32") if t.narrow else t
    return wide_of(t)


def opmath(t: DType) -> DType:
    """The type PyTorch computes ``t`` in."""
    if isinstance(t, LazyType):
        return DType("f32") if t.is_float and t.narrow else t
    return DType("f32") if t.is_float and t.width < 32 else t


class E(Node):
    """A scalar: ``op`` over ``args``, of an element type."""

    __slots__ = ("dtype",)

    def __init__(self, op: str, args: tuple[object, ...], dtype: DType) -> None:
        super().__init__(op, *args)
        self.dtype = dtype


def const(value: Any, t: DType) -> E:
    """A constant of a type."""
    if isinstance(value, bool) or t is BOOL or (t is not NUMBER and t.is_bool):
        return E("const", (bool(value),), t)
    if isinstance(value, float):
        if math.isnan(value):
            return E("special", ("nan",), t)
        if math.isinf(value):
            return E("special", ("inf" if value > 0 else "-inf",), t)
        if value == 0 and math.copysign(1, value) < 0:
            return E("const", (0, "-0"), t)
        value = Fraction(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    if t is not NUMBER and t.is_int:
        if isinstance(value, Fraction):
            raise Refused(f"{value} is not a {t}: cast it")
        if not int(t.lowest) <= value <= int(t.highest):
            raise Refused(f"{value} does not fit in {t}")
    return E("const", (value,), t)


def truth(condition: Node | bool) -> E:
    """A condition on indices as a truth value."""
    if isinstance(condition, bool):
        return E("const", (condition,), BOOL)
    return E("icond", (condition,), BOOL)


def is_scalar(value: object) -> bool:
    """Whether a value is a run-time or symbolic scalar."""
    return isinstance(value, (E, Poly))


def to_type(value: object, t: DType | None) -> E:
    """A value as a scalar of type ``t`` where given; constants take the type."""
    if isinstance(value, (bool, int, float, Fraction)):
        if t is None:
            if isinstance(value, bool):
                return const(value, BOOL)
            raise Refused(f"the type of {value} is not known here: cast it")
        return const(value, t)
    if isinstance(value, Poly):
        made = E("whole", (value,), INDEX)
        return made if t is None or t == INDEX else converted(made, t)
    if isinstance(value, E):
        if t is None or value.dtype is t:
            return value
        if value.dtype is NUMBER:
            return E("cast", (type_key(t), "number", value), t)
        if value.dtype == t:
            return value
        if value.dtype is INDEX:
            return converted(value, t)
        raise Refused(f"{value.dtype} where {t} is needed: cast it")
    raise Undecided(f"{type(value).__name__} as a scalar")


def paired(a: Any, b: Any) -> tuple[E, E]:
    """Two values in one type: a constant takes the other one's."""
    loose = [not isinstance(v, E) or v.dtype is NUMBER or v.dtype is INDEX for v in (a, b)]
    if loose[0] and loose[1]:
        if any(isinstance(v, E) and v.dtype is NUMBER for v in (a, b)):
            return number(a), number(b)
        if any(isinstance(v, float) for v in (a, b)):
            return number(a), number(b)
        return to_type(a, INDEX), to_type(b, INDEX)
    t = b.dtype if loose[0] else a.dtype
    return to_type(a, t), to_type(b, t)


def number(value: object) -> E:
    """A value as a number without an element type."""
    if isinstance(value, E):
        if value.dtype is NUMBER:
            return value
        if value.dtype is INDEX:
            return E("cast", ("number", "index", value), NUMBER)
        raise Refused(f"{value.dtype} where a number is needed")
    if isinstance(value, Poly):
        return E("cast", ("number", "index", E("whole", (value,), INDEX)), NUMBER)
    return const(value, NUMBER)


def converted(value: object, t: DType) -> E:
    """A value converted to an element type as PyTorch converts."""
    if isinstance(value, (bool, int, float)):
        if t.is_bool:
            return const(bool(value), t)
        if t.is_float or t.is_complex:
            return const(float(value), t)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise Refused(f"{value} is not a {t}")
            value = int(value)
        span = 1 << t.width
        return const((int(value) - int(t.lowest)) % span + int(t.lowest), t)
    if isinstance(value, Poly):
        value = E("whole", (value,), INDEX)
    if not isinstance(value, E):
        raise Undecided(f"{type(value).__name__} as a scalar")
    if value.dtype is t or value.dtype == t:
        return value
    return E("cast", (type_key(t), type_key(value.dtype), value), t)


_ARITH = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod"}


def arithmetic(world: World, op: str, a: Any, b: Any) -> Any:
    """``a op b`` on scalars, one of which is known only as a symbol."""
    if (
        not isinstance(a, E)
        and not isinstance(b, E)
        and not isinstance(a, float)
        and not (isinstance(b, float))
    ):
        # Whole numbers: sizes, indices, integer constants.
        a, b = (int(v) if isinstance(v, bool) else v for v in (a, b))
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return world.idiv(a, b)
            case "%":
                return world.imod(a, b)
            case "/":
                return arithmetic(world, op, number(a), number(b))
    x, y = paired(a, b)
    t = x.dtype
    if t is not NUMBER and t is not INDEX:
        if op == "/" and not (t.is_float or t.is_complex):
            raise Refused(f"/ is not defined on {t}")
        if t.is_bool:
            raise Refused(f"{op} is not defined on {t}")
    return E(_ARITH[op], (type_key(t), x, y), t)


def comparison(op: str, a: object, b: object) -> Any:
    """A comparison: of symbols known before run time a decision, of elements a truth value."""
    if (
        not isinstance(a, E)
        and not isinstance(b, E)
        and not isinstance(a, float)
        and not (isinstance(b, float))
    ):
        a, b = (int(v) if isinstance(v, bool) else v for v in (a, b))
        return truth(compared(op, a, b))
    x, y = paired(a, b)
    if x.dtype is INDEX and x.op == "whole" and y.op in ("whole", "const"):
        p, q = x.args[0], y.args[0]
        return truth(compared(op, p, q))
    return E("cmp", (op, type_key(x.dtype), x, y), BOOL)


def boolean(op: str, *args: object) -> E:
    """``and``, ``or``, ``xor``, ``not`` of truth values."""
    values = [to_type(a, BOOL) for a in args]
    for v in values:
        if not v.dtype.is_bool:
            raise Refused(f"{op} is not defined on {v.dtype}")
    return E(op, tuple(values), BOOL)


def selected(c: object, a: object, b: object) -> E:
    """``a`` where ``c`` holds, else ``b``."""
    if isinstance(c, bool):
        return to_type(a if c else b, None)
    condition = to_type(c, BOOL)
    if condition.op == "const":
        x, y = paired(a, b)
        return x if condition.args[0] else y
    x, y = paired(a, b)
    return E("select", (type_key(x.dtype), condition, x, y), x.dtype)


def function(fn: str, args: list[Any]) -> E:
    """A run-time function of scalars."""
    if fn == "select":
        return selected(*args)
    if fn in ("isnan", "isinf", "isfinite"):
        x = to_type(args[0], None)
        if not x.dtype.is_float:
            return const(fn == "isfinite", BOOL)
        return E("fn", (fn, type_key(x.dtype), x), BOOL)
    if fn in ("real", "imag"):
        x = to_type(args[0], None)
        if not x.dtype.is_complex:
            raise Refused(f"{fn} takes a complex number, not {x.dtype}")
        return E("fn", (fn, type_key(x.dtype), x), DType(f"f{x.dtype.width // 2}"))
    if fn == "complex":
        x, y = paired(*args)
        return E("fn", (fn, type_key(x.dtype), x, y), DType(f"complex{2 * x.dtype.width}"))
    if fn == "bitcast":
        x = to_type(args[0], None)
        if x.dtype == args[1]:
            return x
        return E("fn", ("bitcast", type_key(args[1]), type_key(x.dtype), x), args[1])
    if fn == "fma":
        x, y = paired(args[0], args[1])
        z = to_type(args[2], x.dtype)
        name = type_key(x.dtype)
        return E("add", (name, E("mul", (name, x, y), x.dtype), z), x.dtype)
    if fn == "sign":
        x = to_type(args[0], None)
        return E("fn", (fn, type_key(x.dtype), x), x.dtype)
    simple = SIMPLE.get(fn)
    if simple is None:
        raise Undecided(f"the function {fn}")
    if simple.arity == 2:
        x, y = paired(*args)
        values: tuple[E, ...] = (x, y)
    else:
        values = (to_type(args[0], None),)
    t = values[0].dtype
    if t is NUMBER:
        return E("fn", (fn, "number", *values), NUMBER)
    if t is INDEX:
        raise Undecided(f"{fn} of an index")
    has = (
        simple.float_op
        if t.is_float or t.is_complex
        else simple.bool_op
        if t.is_bool
        else simple.unsigned_op
        if t.is_unsigned
        else simple.signed_op
    )
    if not has:
        if fn in ("floor", "ceil", "round", "trunc") and not t.is_float:
            return values[0]
        if fn == "abs" and t.is_unsigned:
            return values[0]
        if t.is_complex or fn in ("abs", "pow", "bitand", "bitor", "bitxor", "max", "min"):
            pass
        else:
            raise Refused(f"{fn} is not defined on {t}")
    if fn == "abs" and t.is_complex:
        return E("fn", (fn, type_key(t), *values), DType(f"f{t.width // 2}"))
    if t.is_bool and fn in ("max", "bitor"):
        return boolean("or", *values)
    if t.is_bool and fn in ("min", "bitand"):
        return boolean("and", *values)
    if t.is_bool and fn == "bitxor":
        return boolean("xor", *values)
    return E("fn", (fn, type_key(t), *values), t)


def reduction(op: str, loops: tuple[Node, ...], body: E) -> E:
    """What ``op`` (``+``, ``*``, ``max``...) gives over all values of some loop indices."""
    return E("red", (op, type_key(body.dtype), loops, body), body.dtype)
