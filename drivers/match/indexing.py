"""Finding a computation however it is spelt: an index equation against structured ops.

``c[m, n] += a[m, k] * b[k, n]`` matches ``linalg.matmul``, a ``linalg.generic`` with renamed or
permuted loops, commuted operands, or narrow inputs extended inside the body. The op's indexing
maps and its body are compared with the equation, with backtracking over commutative operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.iree.compiler import indexing_maps, ir
from mlirules.language.notation import ast
from mlirules.language.words import source

_NAMES = {
    "arith.addf": "+",
    "arith.addi": "+",
    "arith.subf": "-",
    "arith.subi": "-",
    "arith.mulf": "*",
    "arith.muli": "*",
    "arith.divf": "/",
    "arith.divsi": "truncdiv",
    "arith.floordivsi": "//",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.maxui": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
    "arith.minui": "min",
    "arith.maxnumf": "maxnum",
    "arith.minnumf": "minnum",
    "arith.negf": "neg",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.select": "select",
    "arith.remf": "rem",
    "arith.remsi": "rem",
    "math.absf": "abs",
    "math.absi": "abs",
    "math.powf": "pow",
    "math.roundeven": "round",
}
_WIDEN = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
_NARROW = ("arith.truncf", "arith.trunci", "arith.fptosi", "arith.fptoui")
_COMMUTE = frozenset(["+", "*", "max", "min", "maxnum", "minnum", "and", "or", "xor"])
_REDUCERS = {
    "+=": "+",
    "*=": "*",
    "max=": "max",
    "min=": "min",
    "and=": "and",
    "or=": "or",
    "xor=": "xor",
}
_CMPF = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
_CMPI = {0: "==", 1: "!=", 2: "<", 3: "<=", 4: ">", 5: ">=", 6: "<", 7: "<=", 8: ">", 9: ">="}

Env = dict[str, Any]
_AGREED = 10  # a depth beyond those of whole reasons: the body was compared, part by part


@dataclass(frozen=True)
class Found:
    """A structured op that computes an equation."""

    inputs: dict[str, Any]  # tensor name -> the operand
    symbols: dict[str, int]  # numbers that the equation leaves open (strides)
    init: Any


@dataclass(frozen=True)
class Miss:
    """Why an op does not compute an equation."""

    message: str
    depth: int = 0
    expected: str = ""
    found: str = ""


@dataclass(frozen=True)
class _Node:
    op: str
    args: tuple[_Node, ...] = ()
    value: Any = None


@dataclass
class _Furthest:
    """The reason that comparing the body got furthest with, over all orders of the operands."""

    miss: Miss

    def note(self, env: Env, message: str, expected: str, found: str) -> None:
        """A dead end, after as many agreements as ``env`` holds."""
        if _AGREED + len(env) > self.miss.depth:
            self.miss = Miss(message, _AGREED + len(env), expected, found)


def match_equation(
    equation: ast.IndexEquation, op: Any, *, any_start: bool = False
) -> Found | Miss:
    """Match one op. The op's results are the equation's target.

    ``any_start``: a reduction may go on from any value, not only from its identity.
    """
    found = all_matches(equation, op, any_start=any_start)
    return found if isinstance(found, Miss) else found[0]


def all_matches(
    equation: ast.IndexEquation, op: Any, *, any_start: bool = False
) -> list[Found] | Miss:
    """Every way in which one op computes the equation: factors may stand in either order."""
    maps = indexing_maps(op)
    if maps is None:
        return Miss("the op has no indexing maps", 0, "a structured op")
    if len(op.results) != 1:
        return Miss(f"the op has {len(op.results)} results, not 1", 1)
    block = op.regions[0].blocks[0]
    operands = list(op.operands)
    loops = maps[0].n_dims if maps else 0
    linear = []
    for m in maps:
        items = [_linear(e) for e in m.results]
        if any(i is None for i in items):
            return Miss("an indexing map is not linear", 1)
        linear.append(items)
    tree = _body(block)
    if tree is None:
        return Miss("the body is not a single expression", 1)
    out = len(operands) - 1
    value: _Node = tree
    candidates: list[_Node] = []
    if equation.op == "=":
        if _reads(tree, out):
            return Miss(
                "the op accumulates, the equation does not", 2, "=", f"{tree.op} into the result"
            )
        candidates = [value]
    else:
        reducer = _REDUCERS[equation.op]
        if tree.op != reducer or len(tree.args) != 2:
            return Miss(
                f"the op computes {_said(tree)}, it does not reduce with {equation.op}",
                2,
                equation.op,
                _said(tree),
            )
        for a, b in (tree.args, tree.args[::-1]):
            if a.op == "arg" and a.value == out:
                candidates.append(b)
        if not candidates:
            return Miss("the body does not accumulate into the result", 2)
        identity = any_start or _identity_fill(operands[out], equation.op)
        if not identity:
            return Miss(
                "the reduction does not start from its identity",
                3,
                f"a linalg.fill with the identity of {equation.op}",
                _start(operands[out]),
            )
    furthest = _Furthest(Miss("the body or the indexing maps differ from the equation", 4))
    matches: list[Found] = []
    for candidate in candidates:
        state: Env = {}
        for env in _indices(equation.target, equation.indices, linear[out], state, furthest):
            for final in _unify(equation.value, candidate, env, linear, furthest):
                bound = {k[2:]: v for k, v in final.items() if k.startswith("i:")}
                packed = {d for k, v in final.items() if k.startswith("p:") for d in v}
                named = len(set(bound.values()) | packed)
                if named != loops:
                    furthest.note(
                        final,
                        f"the op has {loops} loops, the equation {named}",
                        f"{named} loops",
                        f"{loops} loops",
                    )
                    continue
                inputs = {k[2:]: operands[v] for k, v in final.items() if k.startswith("v:")}
                symbols = {k[2:]: v for k, v in final.items() if k.startswith("s:")}
                matches.append(Found(inputs, symbols, operands[out]))
    return matches or furthest.miss


_SAID = {
    "arg": "an operand",
    "const": "a constant",
    "index": "a loop index",
    "widen": "a cast",
    "narrow": "a cast",
}


def _said(node: _Node) -> str:
    """A part of a body, in words."""
    if node.op == "const":
        return f"the constant {node.value}"
    return _SAID.get(node.op, node.op)


def _start(value: Any) -> str:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return "an argument"
    if owner.name != "linalg.fill":
        return f"the result of {owner.name}"
    filled = owner.operands[0].owner
    if isinstance(filled, ir.Block) or filled.name != "arith.constant":
        return "a linalg.fill with a value known only at run time"
    return f"a linalg.fill with {getattr(filled.attributes['value'], 'value', '?')}"


def _shown(name: str, found: list[Any], env: Env) -> str:
    """An indexing map as indices, in the equation's names as far as they are known."""
    names = {v: k[2:] for k, v in env.items() if k.startswith("i:")}
    items = []
    for terms, constant in found:
        parts = [
            names.get(dim, f"d{dim}") + (f"*{factor}" if factor != 1 else "")
            for dim, factor in terms
        ]
        if constant or not parts:
            parts.append(str(constant))
        items.append(" + ".join(parts))
    return f"{name}[{', '.join(items)}]"


def _linear(expr: Any) -> tuple[tuple[tuple[int, int], ...], int] | None:
    """An affine expression as sorted (dim, coefficient) terms and a constant."""
    terms: dict[int, int] = {}
    constant = 0

    def add(e: Any, factor: int) -> bool:
        nonlocal constant
        if isinstance(e, ir.AffineDimExpr):
            terms[e.position] = terms.get(e.position, 0) + factor
            return True
        if isinstance(e, ir.AffineConstantExpr):
            constant += factor * e.value
            return True
        if isinstance(e, ir.AffineAddExpr):
            return add(e.lhs, factor) and add(e.rhs, factor)
        if isinstance(e, ir.AffineMulExpr) and isinstance(e.rhs, ir.AffineConstantExpr):
            return add(e.lhs, factor * e.rhs.value)
        return False

    return (tuple(sorted(terms.items())), constant) if add(expr, 1) else None


def _body(block: Any) -> _Node | None:
    made: dict[Any, _Node] = {}
    for i, arg in enumerate(block.arguments):
        made[arg] = _Node("arg", value=i)

    def of(value: Any) -> _Node | None:
        if value in made:
            return made[value]
        owner = value.owner
        if isinstance(owner, ir.Block):
            return None
        node = build(owner)
        if node is not None:
            made[value] = node
        return node

    def build(op: Any) -> _Node | None:
        name = op.name
        if name == "arith.constant":
            attribute = op.attributes["value"]
            if isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)):
                return _Node("const", value=attribute.value)
            return None
        if name == "linalg.index":
            return _Node("index", value=ir.IntegerAttr(op.attributes["dim"]).value)
        args = []
        for operand in op.operands:
            node = of(operand)
            if node is None:
                return None
            args.append(node)
        if name in _WIDEN:
            return _Node("widen", tuple(args))
        if name in _NARROW:
            return _Node("narrow", tuple(args))
        if name == "arith.cmpf":
            spelt = _CMPF.get(ir.IntegerAttr(op.attributes["predicate"]).value)
        elif name == "arith.cmpi":
            spelt = _CMPI.get(ir.IntegerAttr(op.attributes["predicate"]).value)
        else:
            spelt = _NAMES.get(name) or (name[5:] if name.startswith("math.") else None)
        return _Node(spelt, tuple(args)) if spelt else None

    operations = list(block.operations)
    yielded = list(operations[-1].operands)
    return of(yielded[0]) if len(yielded) == 1 else None


def _reads(node: _Node, argument: int) -> bool:
    if node.op == "arg":
        return bool(node.value == argument)
    return any(_reads(a, argument) for a in node.args)


def _identity_fill(value: Any, op: str) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "linalg.fill":
        return False
    filled = owner.operands[0].owner
    if isinstance(filled, ir.Block) or filled.name != "arith.constant":
        return False
    attribute = filled.attributes["value"]
    number: int | float | None = getattr(attribute, "value", None)
    match op:
        case "+=" | "or=" | "xor=":
            return number == 0
        case "*=":
            return number == 1
        case "max=" | "min=":
            low = op == "max="
            if isinstance(attribute, ir.FloatAttr):
                return number == (float("-inf") if low else float("inf"))
            width = int(ir.IntegerType(attribute.type).width)
            return number == (-(1 << (width - 1)) if low else (1 << (width - 1)) - 1)
    return number in (-1, True, 1)


def _indices(
    name: str, items: tuple[ast.Expr, ...], found: list[Any], env: Env, furthest: _Furthest
) -> Iterator[Env]:
    """Unify an access's indices with an operand's indexing map."""
    wanted = f"{name}[{', '.join(map(source, items))}]"

    def differs() -> None:
        shown = _shown(name, found, env)
        furthest.note(
            env,
            f"the op reads {shown} where the equation has {wanted}"
            if shown != wanted
            else f"{wanted} stands for another dim elsewhere",
            wanted,
            shown,
        )

    packed = any(isinstance(item, ast.Pack) for item in items)
    if not packed and len(items) != len(found):
        furthest.note(
            env,
            f"{name} has {len(found)} dims, the equation gives it {len(items)}",
            f"{len(items)} dims",
            f"{len(found)} dims",
        )
        return
    envs = list(_aligned(items, found, env))
    if not envs:
        differs()
    yield from envs


def _aligned(items: tuple[ast.Expr, ...], found: list[Any], env: Env) -> Iterator[Env]:
    """Unify indices one by one; a pack takes as many dims as it did elsewhere, or as it can."""
    if not items:
        if not found:
            yield env
        return
    item, rest = items[0], items[1:]
    if isinstance(item, ast.Pack):
        key = f"p:{item.id or '...'}"
        known = env.get(key)
        most = len(found) - sum(1 for i in rest if not isinstance(i, ast.Pack))
        for count in range(most, -1, -1) if known is None else [len(known)]:
            dims = tuple(t[0][0] if _plain(t, c) else -1 for t, c in found[:count])
            if count > most or -1 in dims or known not in (None, dims):
                continue
            if known is None and _taken(dims, env):
                continue
            yield from _aligned(rest, found[count:], {**env, key: dims})
        return
    wanted = _terms(item)
    if wanted is None or not found:
        return
    (terms, constant), (pairs, offset) = found[0], wanted
    if offset == constant and len(pairs) == len(terms):
        for new in _assign(pairs, list(terms), env):
            yield from _aligned(rest, found[1:], new)


def _plain(terms: tuple[tuple[int, int], ...], constant: int) -> bool:
    """Whether a linear index is one loop index and nothing else."""
    return len(terms) == 1 and terms[0][1] == 1 and not constant


def _taken(dims: tuple[int, ...], env: Env) -> bool:
    """Whether one of the loops stands for a loop index or in a pack already, or twice here."""
    used = {v for k, v in env.items() if k.startswith("i:")}
    used |= {d for k, v in env.items() if k.startswith("p:") for d in v}
    return len(set(dims)) != len(dims) or not used.isdisjoint(dims)


def _terms(item: ast.Expr) -> tuple[list[tuple[str, int | str]], int] | None:
    """An index as (loop name, coefficient or symbol) pairs and a constant."""
    match item:
        case ast.Name(id=name):
            return [(name, 1)], 0
        case ast.Literal(value=int() as value):
            return [], value
        case ast.Binary(op="+", left=left, right=right):
            a, b = _terms(left), _terms(right)
            if a is None or b is None:
                return None
            return a[0] + b[0], a[1] + b[1]
        case ast.Binary(op="*", left=ast.Name(id=name), right=ast.Literal(value=int() as c)):
            return [(name, c)], 0
        case ast.Binary(op="*", left=ast.Name(id=name), right=ast.Name(id=symbol)):
            return [(name, symbol)], 0
    return None


def _assign(
    pairs: list[tuple[str, int | str]], terms: list[tuple[int, int]], env: Env
) -> Iterator[Env]:
    if not pairs:
        yield env
        return
    (name, wanted), rest = pairs[0], pairs[1:]
    for i, (dim, coefficient) in enumerate(terms):
        known = env.get(f"i:{name}")
        if known is not None and known != dim:
            continue
        if known is None and _taken((dim,), env):
            continue
        new = {**env, f"i:{name}": dim}
        if isinstance(wanted, str):
            symbol = env.get(f"s:{wanted}")
            if symbol is not None and symbol != coefficient:
                continue
            new[f"s:{wanted}"] = coefficient
        elif wanted != coefficient:
            continue
        yield from _assign(rest, terms[:i] + terms[i + 1 :], new)


def _unify(
    expr: ast.Expr, node: _Node, env: Env, maps: list[Any], furthest: _Furthest
) -> Iterator[Env]:
    def differs(wanted: str) -> None:
        furthest.note(
            env, f"the body has {_said(node)} where the equation has {wanted}", wanted, _said(node)
        )

    is_cast = isinstance(expr, ast.Call) and (
        expr.fn == "cast"
        or (len(expr.args) == 1 and expr.fn[0].isupper())
        or expr.fn in ("f16", "bf16", "f32", "f64")
    )
    if node.op == "widen":
        # Narrow inputs extended inside compute the same.
        inner = expr.args[0] if is_cast and isinstance(expr, ast.Call) else expr
        yield from _unify(inner, node.args[0], env, maps, furthest)
        return
    if is_cast and isinstance(expr, ast.Call):
        inner_node = node.args[0] if node.op == "narrow" else node
        yield from _unify(expr.args[0], inner_node, env, maps, furthest)
        return
    match expr:
        case ast.Access(base=ast.Name(id=name), items=items):
            if node.op != "arg":
                differs(source(expr))
                return
            known = env.get(f"v:{name}")
            if known is not None and known != node.value:
                furthest.note(
                    env, f"{name} stands for two operands of the op", f"one {name}", "two operands"
                )
                return
            if known is None and node.value in [v for k, v in env.items() if k.startswith("v:")]:
                return
            for new in _indices(name, items, maps[node.value], env, furthest):
                yield {**new, f"v:{name}": node.value}
        case ast.Literal(value=value):
            if node.op == "const" and node.value == value:
                yield env
            else:
                differs(source(expr))
        case ast.Name(id=name):
            if node.op == "index" and env.get(f"i:{name}", node.value) == node.value:
                yield {**env, f"i:{name}": node.value}
            elif node.op == "const":
                known = env.get(f"s:{name}")
                if known is None or known == node.value:
                    yield {**env, f"s:{name}": node.value}
        case ast.Unary(op="-", operand=operand):
            if node.op == "neg":
                yield from _unify(operand, node.args[0], env, maps, furthest)
            else:
                differs(source(expr))
        case ast.Binary(op=op, left=left, right=right):
            yield from _call(op, (left, right), node, env, maps, furthest)
        case ast.Call(fn=fn, args=args):
            yield from _call(fn, args, node, env, maps, furthest)
        case ast.Conditional(condition=c, then=a, otherwise=b):
            yield from _call("select", (c, a, b), node, env, maps, furthest)


def _call(
    op: str,
    args: tuple[ast.Expr, ...],
    node: _Node,
    env: Env,
    maps: list[Any],
    furthest: _Furthest,
) -> Iterator[Env]:
    if node.op != op or len(node.args) != len(args):
        furthest.note(
            env, f"the body has {_said(node)} where the equation has {op}", op, _said(node)
        )
        return
    orders = [node.args]
    if op in _COMMUTE and len(args) == 2:
        orders.append(node.args[::-1])
    for order in orders:
        envs: list[Env] = [env]
        for expr, child in zip(args, order, strict=True):
            envs = [n for e in envs for n in _unify(expr, child, e, maps, furthest)]
        yield from envs
