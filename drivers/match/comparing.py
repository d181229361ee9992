"""An equation's expression against the body of a structured op: the same value, otherwise spelt.

What is computed must be what the equation says: with the sign that its types say, widened where it
says. Where it does not say, only forms that agree for all inputs are taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.bodies import (
    COMPARISONS,
    EXTENSIONS,
    FLOAT,
    MADE_AS,
    NARROWINGS,
    READ_AS,
    SPELT,
    TO_FLOAT,
    Node,
    Unsaid,
    arithmetic,
    op_for,
    operands_of,
)
from mlirules.drivers.match.indices import Env, Furthest, Linear, indices
from mlirules.language.notation import ast
from mlirules.language.signs import SIGNED, UNSIGNED, Said, builtin, cast_of
from mlirules.language.words import source

_COMMUTE = frozenset(["+", "*", "max", "min", "maxnum", "minnum", "and", "or", "xor"])
_COMMUTE |= {"bitand", "bitor", "bitxor", "==", "!="}
_SAID = {"arg": "an operand", "index": "a loop index"}


def spelt(node: Node) -> str:
    """A part of a body, in words."""
    if node.op == "const":
        return f"the constant {node.value}"
    if node.op in (*EXTENSIONS, *TO_FLOAT, *NARROWINGS):
        return f"a cast ({node.op})"
    return _SAID.get(node.op) or SPELT.get(node.op) or node.op


def either(name: str) -> str:
    """What would say whether the integers of ``name`` are signed."""
    return f"a declared type of {name}: si8, ui8, si32, ..."


#: Where a body may widen without a cast in the equation: what is read is taken in the type that is
#: computed in; or only where widening first or last gives the same; or nowhere.
READS, EXACT, NOWHERE = "reads", "exact", "nowhere"
#: Widening commutes with these: they give one of their operands.
_CHOICES = frozenset(["max", "min", "maxnum", "minnum", "select"])


#: So many operands a function without a name may have: they are tried in every order.
MAX_ARGUMENTS = 4


def _types_of(node: Node) -> dict[int, ir.Type]:
    """The element types of the operands that a part of a body reads."""
    types: dict[int, ir.Type] = {}
    pending, seen = [node], set()
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            if part.op == "arg":
                types[part.value] = part.type
            pending.extend(part.args)
    return types


@dataclass
class Comparing:
    """The comparison of an equation's expression with an op's body."""

    said: Said
    maps: list[list[Linear]]
    furthest: Furthest
    #: The op's operands: one value may stand there more than once.
    operands: list[ir.Value]

    @staticmethod
    def bind_type(element: str | None, found: ir.Type, env: Env) -> bool:
        """Bind an element type's symbol in place; whether it is not another type elsewhere."""
        if element is None:
            return True
        literal = builtin(element)
        if literal is not None:
            return str(found) == literal.mlir
        return bool(env.setdefault(f"t:{element}", found) == found)

    def unify(
        self, expr: ast.Expr, node: Node, env: Env, sign: str | None, widening: str
    ) -> Iterator[Env]:
        """Every way in which a part of the body computes a part of the equation.

        ``sign`` is what the equation says of the integers computed here, ``widening`` where the
        body may widen though the equation has no cast.
        """
        if isinstance(expr, ast.Call) and self.said.any_function(expr):
            yield from self.applied(expr, node, env)
            return
        cast = cast_of(expr)
        if cast is not None:
            yield from self.converted(*cast, node, env)
            return
        if node.op in READ_AS or node.op == "arith.extf":
            yield from self.widened(expr, node, env, widening)
            return
        match expr:
            case ast.Access(base=ast.Name(id=name), items=items):
                yield from self.access(expr, name, items, node, env, sign)
            case ast.Literal(value=value):
                if node.op == "const" and _same_number(value, node, sign):
                    yield env
                else:
                    self.differs(env, source(expr), node)
            case ast.Name(id=name):
                inner = node.args[0] if node.op.startswith("arith.index_cast") else node
                if inner.op == "index" and env.get(f"i:{name}", inner.value) == inner.value:
                    yield {**env, f"i:{name}": inner.value}
                elif node.op == "const":
                    known = env.get(f"s:{name}")
                    if known is None or known == node.value:
                        yield {**env, f"s:{name}": node.value}
            case ast.Unary(op="-", operand=operand):
                yield from self.negated(operand, node, env, sign, widening)
            case ast.Binary(op=op, left=left, right=right):
                yield from self.call(op, (left, right), node, env, sign, widening)
            case ast.Call(fn="bitcast", args=(operand, ast.Name(id=element))):
                if node.op == "arith.bitcast" and self.bind_type(
                    element, node.type, env := {**env}
                ):
                    yield from self.unify(
                        operand, node.args[0], env, self.said.signs(operand), NOWHERE
                    )
                else:
                    self.differs(env, source(expr), node)
            case ast.Call(fn="isnan", args=(operand,)) if node.op == "arith.cmpf uno":
                for new in self.unify(operand, node.args[0], env, None, EXACT):
                    yield from self.unify(operand, node.args[1], new, None, EXACT)
            case ast.Call(fn="isinf" | "isfinite" as fn, args=(operand,)) if _below_infinity(
                fn, node
            ):
                yield from self.unify(operand, node.args[0].args[0], env, None, EXACT)
            case ast.Call(fn=fn, args=args):
                yield from self.call(fn, args, node, env, sign, widening)
            case ast.Conditional(condition=c, then=a, otherwise=b):
                yield from self.call("select", (c, a, b), node, env, sign, widening)

    def applied(self, expr: ast.Call, node: Node, env: Env) -> Iterator[Env]:
        """Any function of operands, read at the equation's indices."""
        read = operands_of(node)
        if node.op in ("arg", "const") or read is None or len(read) != len(expr.args):
            self.differs(env, source(expr), node)
            return
        if len(read) > MAX_ARGUMENTS:
            return
        types = _types_of(node)
        for order in itertools.permutations(read):
            envs = [env]
            for arg, number in zip(expr.args, order, strict=True):
                leaf = Node("arg", types[number], value=number)
                envs = [new for e in envs for new in self.unify(arg, leaf, e, None, NOWHERE)]
            found = arithmetic(node, order)
            for new in envs:
                if new.get(f"s:{expr.fn}", found) == found:
                    yield {**new, f"s:{expr.fn}": found}

    def differs(self, env: Env, wanted: str, node: Node) -> None:
        """Note that the body has something else."""
        have = spelt(node)
        self.furthest.note(
            env, f"the body has {have} where the equation has {wanted}", wanted, have
        )

    def access(
        self,
        expr: ast.Expr,
        name: str,
        items: tuple[ast.Expr, ...],
        node: Node,
        env: Env,
        sign: str | None,
    ) -> Iterator[Env]:
        """An operand, read at the equation's indices."""
        if node.op != "arg":
            self.differs(env, source(expr), node)
            return
        own = self.said.sign(name)
        if None not in (sign, own) and sign != own and node.kind != FLOAT:
            self.furthest.note(
                env,
                f"{name} holds {own} integers, and they are computed with as {sign} ones",
                f"{sign} integers",
                f"{own} integers",
            )
            return
        known = env.get(f"v:{name}")
        if known is not None and self.operands[known] != self.operands[node.value]:
            self.furthest.note(
                env, f"{name} stands for two operands of the op", f"one {name}", "two operands"
            )
            return
        if known is None and node.value in [v for k, v in env.items() if k.startswith("v:")]:
            return
        env = {**env}
        element = self.said.elements.get(name)
        # A type that is spelt out is the business of `types`, which refuses with its line.
        if element is not None and builtin(element) is None:
            self.bind_type(element, node.type, env)
        for new in indices(name, items, self.maps[node.value], env, self.furthest):
            yield {f"v:{name}": node.value, **new}

    # -- conversions

    def widened(self, expr: ast.Expr, node: Node, env: Env, widening: str) -> Iterator[Env]:
        """A conversion in the body that the equation does not have."""
        if widening == NOWHERE or not _chosen(expr):
            self.furthest.note(
                env,
                f"the body widens {source(expr)} after computing it ({node.op}), the equation has "
                "no cast there"
                if not _chosen(expr)
                else f"the body has a cast ({node.op}) where the equation has {source(expr)}",
                source(expr),
                f"{node.op} of it",
            )
            return
        if node.op in TO_FLOAT and (widening != READS or not isinstance(expr, ast.Access)):
            self.differs(env, source(expr), node)
            return
        inner = node.args[0]
        sign = UNSIGNED if inner.kind == "bool" else self.said.signs(expr)
        if not self.reads_as(expr, node, sign, env):
            return
        if inner.op in (*EXTENSIONS, *TO_FLOAT):
            # Two steps give what one does where the first keeps every value.
            if inner.op not in EXTENSIONS or (inner.op == "arith.extf") != (
                node.op == "arith.extf"
            ):
                self.differs(env, source(expr), inner)
                return
            widening = EXACT
        yield from self.unify(expr, inner, env, self.said.signs(expr), widening)

    def reads_as(self, expr: ast.Expr, node: Node, sign: str | None, env: Env) -> bool:
        """Whether a conversion reads integers with the sign that the equation says."""
        wanted = READ_AS.get(node.op)
        if wanted is None or wanted == sign:
            return True
        if sign in (SIGNED, UNSIGNED):
            message = f"{source(expr)} holds {sign} integers, the body reads {wanted} ones"
        else:
            message = f"the equation does not say whether {source(expr)} is signed or unsigned"
        self.furthest.note(env, f"{message} ({node.op})", sign or either("it"), node.op)
        return False

    def converted(self, expr: ast.Expr, element: str | None, node: Node, env: Env) -> Iterator[Env]:
        """``cast(expr, element)``: one conversion, or none where the types are the same."""
        env = {**env}
        if not self.bind_type(element, node.type, env):
            self.furthest.note(
                env, f"the cast is to {node.type}, not {element}", str(element), str(node.type)
            )
            return
        own = self.said.signs(expr)
        if node.op in MADE_AS:
            made = self.said.sign_of(element) if element else None
            if made != MADE_AS[node.op]:
                self.furthest.note(
                    env,
                    f"the cast makes {MADE_AS[node.op]} integers ({node.op}), the equation "
                    + (f"{made} ones" if made else "does not say which"),
                    made or either("it"),
                    node.op,
                )
                return
        if node.op in READ_AS:
            sign = UNSIGNED if node.args[0].kind == "bool" else own
            if not self.reads_as(expr, node, sign, env):
                return
        if node.op in (*EXTENSIONS, *TO_FLOAT, *NARROWINGS):
            inner = node
            while True:
                inner = inner.args[0]
                yield from self.unify(expr, inner, env, own, NOWHERE)
                if not (inner.op == node.op == "arith.extf"):
                    return
        if node.op in ("arith.cmpi ne", "arith.cmpf une") and _is_zero(node.args[1]):
            yield from self.unify(expr, node.args[0], env, own, NOWHERE)  # cast(x, i1)
        yield from self.unify(expr, node, env, own, NOWHERE)

    # -- functions

    def negated(
        self, operand: ast.Expr, node: Node, env: Env, sign: str | None, widening: str
    ) -> Iterator[Env]:
        """``-x``: one op for floats, ``0 - x`` for integers."""
        if node.op == "arith.negf":
            yield from self.unify(operand, node.args[0], env, sign, widening)
        elif node.op == "arith.subi" and _is_zero(node.args[0]):
            yield from self.unify(operand, node.args[1], env, sign, widening)
        else:
            self.differs(env, source(ast.Unary(0, 0, "-", operand)), node)

    def call(
        self,
        fn: str,
        args: tuple[ast.Expr, ...],
        node: Node,
        env: Env,
        sign: str | None,
        widening: str,
    ) -> Iterator[Env]:
        """An operator or function of the notation against the op that computes it."""
        if fn == "select":
            if node.op != "arith.select" or len(args) != 3:
                self.differs(env, fn, node)
                return
            for new in self.unify(args[0], node.args[0], env, None, EXACT):
                for then in self.unify(args[1], node.args[1], new, sign, widening):
                    yield from self.unify(args[2], node.args[2], then, sign, widening)
            return
        inner_sign, inner_widening = sign or self.said.signs(*args), widening
        if fn in COMPARISONS or fn in ("isnan", "isinf", "isfinite"):
            inner_sign, inner_widening = self.said.signs(*args), EXACT
        elif widening == EXACT and fn not in _CHOICES:
            inner_widening = NOWHERE
        kind = node.args[0].kind if node.args else ""
        known = inner_sign if inner_sign in (SIGNED, UNSIGNED) else None
        wanted = op_for(fn, kind, known)
        if isinstance(wanted, Unsaid) and node.op in (wanted.signed, wanted.unsigned):
            self.furthest.note(
                env,
                f"the equation does not say whether {fn} is of signed or unsigned integers, the "
                f"body has {node.op}",
                either("what is read"),
                node.op,
            )
            return
        if node.op != wanted or len(node.args) != len(args):
            self.differs(env, fn if SPELT.get(node.op) != fn else str(wanted or fn), node)
            return
        orders = [node.args]
        if fn in _COMMUTE and len(args) == 2:
            orders.append(node.args[::-1])
        for order in orders:
            envs: list[Env] = [env]
            for expr, child in zip(args, order, strict=True):
                envs = [
                    n for e in envs for n in self.unify(expr, child, e, inner_sign, inner_widening)
                ]
            yield from envs


def _chosen(expr: ast.Expr) -> bool:
    """Whether an expression gives one of what it reads: widened before or after, it is the same."""
    match expr:
        case ast.Access() | ast.Literal() | ast.Name():
            return True
        case ast.Call(fn=fn, args=args) if fn in _CHOICES:
            return all(_chosen(a) for a in (args[1:] if fn == "select" else args))
        case ast.Conditional(then=then, otherwise=otherwise):
            return _chosen(then) and _chosen(otherwise)
    return False


def _below_infinity(fn: str, node: Node) -> bool:
    """Whether a comparison of a magnitude with infinity is what ``fn`` is lowered to."""
    if node.op != ("arith.cmpf oeq" if fn == "isinf" else "arith.cmpf olt"):
        return False
    magnitude, limit = node.args
    return magnitude.op == "math.absf" and limit.op == "const" and limit.value == math.inf


def _is_zero(node: Node) -> bool:
    return node.op == "const" and node.value == 0


def _same_number(value: Any, node: Node, sign: str | None) -> bool:
    """Whether a constant of the body is the number that the equation has there."""
    if isinstance(node.type, ir.FloatType):
        if isinstance(value, str):
            return False
        at = ir.Location.unknown(node.type.context)
        here = ir.FloatAttr.get(node.type, float(value), at).value  # rounded as a lowering rounds
        return bool(here == node.value and math.copysign(1, here) == math.copysign(1, node.value))
    if node.kind == "bool" or isinstance(value, bool):
        return node.kind == "bool" and bool(value) == bool(node.value)
    if sign == UNSIGNED and isinstance(value, int) and node.kind:
        return bool(value == node.value % (1 << ir.IntegerType(node.type).width))
    return bool(node.value == value)
