"""Binding a rule's symbols to the values of one match: dims and element types unify."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlirules.language.evaluate import Evaluator
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.operands import Refused, describe
from mlirules.language.rule import Line, Rule
from mlirules.language.signs import builtin
from mlirules.language.sizes import Computed, solve
from mlirules.language.values import Dyn, Opaque, Scalar, Tensor, dtype_named


def bind(
    rule: Rule, values: dict[str, object], misses: list[NoMatch] | None = None
) -> dict[str, object]:
    """All symbols of a match: values, dims, element types and `let` names.

    ``values`` holds what each name of the match is bound to (operands before results). Raises
    :class:`NoMatch` naming the line that does not hold; with ``misses`` every such line is noted
    there instead, and `let` lines that ask for what has no value are left out.
    """
    env: dict[str, object] = dict(values)
    unfit: set[str] = set()
    order = [n for n in values if n in rule.types]
    computed: list[Computed] = []
    for name in order:
        line, decl = rule.types[name]
        try:
            _unify(line, decl, name, values[name], env, computed)
        except NoMatch as no:
            if misses is None:
                raise
            misses.append(no)
            unfit.add(name)
    # When all others are known: what they read may stand in a later type.
    for unsolved in solve(computed, env, frozenset(values)):
        if misses is None:
            try:
                raise unsolved
            finally:
                del unsolved
        if not unfit:  # else what is missing may be the other line's
            misses.append(unsolved)
    for name, let_line, expr, value in rule.let:
        if expr is None:
            env[name] = value
            continue
        try:
            env[name] = Evaluator(env).eval(expr)
        except Refused as refused:
            said, node, wanted = refused.message, refused.node, str(let_line)
            # A name for what is raised would make a circle with this frame.
            if misses is None:
                raise NoMatch(let_line, said, expected=wanted, node=node) from None
            asked = {n.id for n in walk_expression(expr) if isinstance(n, ast.Name)}
            if not asked & unfit and all(n in env or dtype_named(n) is not None for n in asked):
                misses.append(NoMatch(let_line, said, expected=wanted, node=node))
    return env


def _unify(
    line: Line,
    decl: ast.TypeDecl,
    name: str,
    value: object,
    env: dict[str, object],
    computed: list[Computed],
) -> None:
    def refuse(message: str, expected: str = "") -> NoMatch:
        return NoMatch(line, message, expected=expected or str(line), found=describe(value))

    if value is None:
        if decl.optional or decl.kind == "none":
            for symbol in _symbols(decl):
                env.setdefault(symbol, None)
            return
        if decl.kind == "any":
            return
        raise refuse(f"{name} is none")
    if decl.kind in ("vtensor", "tensor"):
        if not isinstance(value, Tensor):
            raise refuse(f"{name} is {describe(value)}, not a {decl.kind}")
        if value.torch != (decl.kind == "vtensor"):
            raise refuse(f"{name} is {describe(value)}, not a {decl.kind}")
        if decl.element is not None:
            if value.dtype is None:
                raise refuse(f"the element type of {name} is not known")
            value = _element(line, decl.element, name, value, env)
        if decl.dims is not None:
            if value.dims is None:
                raise refuse(f"the rank of {name} is not known")
            _dims(line, decl.dims, name, value, env, computed)
        return
    if decl.kind == "list":
        if not isinstance(value, list):
            raise refuse(f"{name} is {describe(value)}, not a list")
        for i, item in enumerate(value):
            assert decl.of is not None
            of = decl.of
            if decl.constant and not of.constant:
                of = ast.TypeDecl(
                    of.pos, of.end, of.kind, of.dims, of.element, True, of.optional, of.of
                )
            _unify(line, of, f"{name}[{i}]", item, env, computed)
        return
    if decl.kind == "any":
        if decl.constant and isinstance(value, (Dyn, Scalar, Tensor, Opaque)):
            raise refuse(f"{name} is not constant")
        return
    if decl.constant and isinstance(value, (Dyn, Scalar)):
        raise refuse(f"{name} is not a constant, but {describe(value)}")
    if not _scalar_is(decl.kind, value):
        raise refuse(f"{name} is {describe(value)}, not {decl.kind}")


def _scalar_is(kind: str, value: object) -> bool:
    if isinstance(value, Scalar):
        return value.kind == kind or (kind == "number" and value.kind in ("int", "float"))
    match kind:
        case "int":
            return isinstance(value, (int, Dyn)) and not isinstance(value, bool)
        case "float":
            return isinstance(value, float)
        case "number":
            return isinstance(value, (int, float, Dyn)) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "device" | "generator":
            return isinstance(value, Opaque)
    return False


def _symbols(decl: ast.TypeDecl) -> list[str]:
    plain = [d.value for d in decl.dims or () if isinstance(d.value, str)]
    return plain + [n.id for d in decl.dims or () for n in d.asked()]


def _element(line: Line, element: str, name: str, value: Tensor, env: dict[str, object]) -> Tensor:
    """Unify an element type; the tensor, its integers unsigned where the declared type says so."""
    found = value.dtype
    assert found is not None
    literal = builtin(element)
    if literal is not None:
        if not value.torch and literal != found and literal.mlir == found.mlir:
            # linalg's integers carry no sign: they have the one that is declared.
            value = env[name] = replace(value, dtype=literal)
        elif literal != found:
            raise NoMatch(
                line,
                f"the element type of {name} is {found}, not {element}",
                expected=element,
                found=str(found),
            )
        return value
    known = env.get(element)
    if known is None:
        env[element] = found
    elif known != found:
        raise NoMatch(
            line,
            f"{element} is {known} elsewhere, but {found} in {name}",
            expected=f"{element} = {known}",
            found=str(found),
        )
    return value


def _dims(
    line: Line,
    decls: tuple[ast.DimDecl, ...],
    name: str,
    value: Tensor,
    env: dict[str, Any],
    computed: list[Computed],
) -> None:
    dims = list(value.dims or ())
    pack = next((i for i, d in enumerate(decls) if d.pack), None)
    fixed = len(decls) - (pack is not None)
    if len(dims) != fixed and (pack is None or len(dims) < fixed):
        at_least = "at least " if pack is not None else ""
        raise NoMatch(
            line,
            f"{name} has rank {len(dims)}, not {at_least}{fixed}",
            expected=f"rank {at_least}{fixed}",
            found=f"rank {len(dims)}",
        )
    if pack is not None:
        size = len(dims) - fixed
        packed = dims[pack : pack + size]
        symbol = decls[pack].value
        if isinstance(symbol, str):
            known = env.get(symbol)
            if known is None:
                env[symbol] = packed
            else:
                if len(known) != len(packed):
                    raise NoMatch(
                        line,
                        f"{symbol}... has {len(known)} dims elsewhere, {len(packed)} in {name}",
                        expected=f"{len(known)} dims",
                        found=f"{len(packed)} dims",
                    )
                env[symbol] = [
                    _one_dim(line, symbol, name, a, b) for a, b in zip(known, packed, strict=True)
                ]
        dims = dims[:pack] + dims[pack + size :]
        decls = decls[:pack] + decls[pack + 1 :]
    for decl, dim in zip(decls, dims, strict=True):
        if decl.expr is not None:
            computed.append(Computed(line, name, decl.expr, dim))
        if decl.value is None:
            continue
        if isinstance(decl.value, int):
            if isinstance(dim, int) and dim != decl.value:
                raise NoMatch(
                    line,
                    f"a dim of {name} is {dim}, not {decl.value}",
                    expected=str(decl.value),
                    found=str(dim),
                )
            if isinstance(dim, Dyn):
                raise NoMatch(
                    line,
                    f"a dim of {name} is dynamic, not {decl.value}",
                    expected=str(decl.value),
                    found="?",
                )
            continue
        known = env.get(decl.value)
        env[decl.value] = dim if known is None else _one_dim(line, decl.value, name, known, dim)


def _one_dim(line: Line, symbol: str, name: str, a: object, b: object) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if a != b:
            raise NoMatch(
                line,
                f"{symbol} is {a} elsewhere, but {b} in {name}",
                expected=f"{symbol} = {a}",
                found=str(b),
            )
        return a
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    # A result's own dim has no source before the rewrite: prefer an operand's.
    return b if isinstance(a, Dyn) and a.op == "result" else a
