"""What a rule says of its tensors' integers: whether they are signed.

The compiler's integers carry no sign; its ops do (``arith.maxsi``, ``arith.maxui``). An equation
says which it means by the declared types of what it reads: ``si8`` or ``ui8``, or a symbol that a
condition keeps to one of the two. ``i8``, and a symbol that may stand for any type, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlirules.language.elements import kept_to
from mlirules.language.functions import SIMPLE
from mlirules.language.notation import ast
from mlirules.language.rule import Rule
from mlirules.language.values import DType, dtype_named

SIGNED, UNSIGNED = "signed", "unsigned"
#: Where parts of one expression say both.
MIXED = "mixed"

_COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])
_SIGNLESS = ("i4", "i8", "i16", "i32", "i64")


@dataclass(frozen=True)
class Said:
    """The declared element type of each tensor, and the sign of each symbol that has one."""

    elements: Mapping[str, str] = field(default_factory=dict)
    symbols: Mapping[str, str] = field(default_factory=dict)
    #: The signs of tensors without a declared type, by what they are computed from.
    made: Mapping[str, str] = field(default_factory=dict)

    def sign(self, name: str) -> str | None:
        """Whether the tensor ``name`` holds signed or unsigned integers; None: not said."""
        element = self.elements.get(name)
        return self.made.get(name) if element is None else self.sign_of(element)

    def sign_of(self, element: str) -> str | None:
        """The sign that an element type's name says; None for floats and where it says none."""
        return self.symbols.get(element) or sign_named(element)

    def signs(self, *exprs: ast.Expr) -> str | None:
        """What the parts of one computation say of its integers; MIXED where they contradict."""
        signs = {self._of(e) for e in exprs} - {None}
        return MIXED if len(signs) > 1 else next(iter(signs), None)

    def _of(self, expr: ast.Expr) -> str | None:
        match expr:
            case ast.Access(base=ast.Name(id=name)):
                return self.sign(name)
            case ast.Unary(operand=operand):
                return self.signs(operand)
            case ast.Binary(op=op, left=left, right=right):
                return None if op in _COMPARISONS else self.signs(left, right)
            case ast.Conditional(then=then, otherwise=otherwise):
                return self.signs(then, otherwise)
            case ast.Call(fn="select", args=(_, then, otherwise)):
                return self.signs(then, otherwise)
            case ast.Call(fn=fn, args=args):
                cast = cast_of(expr)
                if cast is not None:
                    return self.sign_of(cast[1]) if cast[1] else None
                simple = SIMPLE.get(fn)
                return self.signs(*args) if simple and not simple.to_bool else None
        return None

    def any_function(self, call: ast.Call) -> bool:
        """Whether a call is of a function without a name: `F(x)`, where `F` is no type."""
        named = call.fn[:1].isupper() and "." not in call.fn
        return named and call.fn not in self.elements.values() and builtin(call.fn) is None


NOTHING = Said()


def sign_named(element: str) -> str | None:
    """The sign that the name of an element type says: ``si8``, ``ui8``; bool counts as unsigned."""
    dtype = None if element in _SIGNLESS else dtype_named(element)
    if dtype is None or dtype.is_float or dtype.is_complex:
        return None
    return UNSIGNED if dtype.is_unsigned else SIGNED


def builtin(element: str) -> DType | None:
    """The element type spelt ``element``, signless ones as signed; None for a symbol."""
    return dtype_named("s" + element if element in _SIGNLESS else element)


def said_by(rule: Rule) -> Said:
    """What a rule's `types` say, and its conditions ``T in [si8, si16]`` and ``T == ui8``."""
    elements = {
        name: decl.element for name, (_, decl) in rule.types.items() if decl.element is not None
    }
    symbols: dict[str, str] = {}
    for name, words in kept_to(rule):
        sign = _sign_of_all(words)
        if sign is not None and name in elements.values():
            symbols.setdefault(name, sign)
    said = Said(elements, symbols)
    made: dict[str, str] = {}
    for _, equation in rule.index_match:
        sign = said.signs(equation.value)
        if equation.target not in elements and sign is not None:
            made[equation.target] = sign
            said = Said(elements, symbols, dict(made))
    return said


def cast_of(expr: ast.Expr) -> tuple[ast.Expr, str | None] | None:
    """What a cast is of, and the element type it is to (None: one that is computed)."""
    match expr:
        case ast.Call(fn="cast", args=(operand, element)):
            return operand, element.id if isinstance(element, ast.Name) else None
        case ast.Call(fn=fn, args=(operand,)) if builtin(fn) is not None or fn[0].isupper():
            return operand, fn
    return None


def _sign_of_all(words: list[str]) -> str | None:
    """The one sign of the integers among the types of these names, if they have one."""
    signs = {sign_named(n) for n in words if (d := builtin(n)) is None or not d.is_float}
    return signs.pop() if len(signs) == 1 else None
