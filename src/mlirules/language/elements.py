"""The types of elements that a rule asks for, and those that it may bring.

Most rules about bf16 or bytes look at ops that any program has. Which types of elements there are
in a program is quickly told, and so is which of the rules can apply then, without looking at an op.
Integers stand here by their width: linalg's carry no sign, and rules say what they take theirs for.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlirules.language.notation import ast
from mlirules.language.rule import Rule, nested_calls
from mlirules.language.values import DType, dtype_named

__all__ = ["asked", "brought", "kept_to", "shown"]

_TENSORS = ("vtensor", "tensor")


def shown(dtype: DType) -> str:
    """An element type as it stands here."""
    return dtype.mlir


def asked(rule: Rule) -> list[list[str]]:
    """Sets of element types: a program that has none of one of them has no place for the rule."""
    lists = _listed(rule)
    found: set[tuple[str, ...]] = set()
    for name in _matched(rule):
        decl = _tensor(rule, name)
        if decl is None or decl.element is None:
            continue
        literal = dtype_named(decl.element)
        if literal is not None:
            found.add((shown(literal),))
        elif decl.element in lists:
            found.add(lists[decl.element])
    return [list(one) for one in sorted(found)]


def brought(rule: Rule) -> list[str] | None:
    """The element types that what the rule makes may have and the program lacks; None: any."""
    if not rule.match or not rule.rewrite:  # by equations, and kernels
        return None
    matched = list(_matched(rule))
    known = {t.element for name in matched if (t := _tensor(rule, name)) is not None}
    roots = {name for n in (*rule.other_roots, -1) for name in rule.match[n].equation.results if n}
    found: set[str] = set()
    for _, statement in rule.rewrite:
        if not isinstance(statement, ast.OpEquation) or len(nested_calls(statement.call)) > 1:
            return None
        for name in statement.results:
            if name is None or name in roots:
                continue
            decl = _tensor(rule, name)
            if decl is None or decl.element is None:
                return None
            literal = dtype_named(decl.element)
            if literal is not None:
                found.add(shown(literal))
            elif decl.element not in known:
                return None
    return sorted(found)


def _tensor(rule: Rule, name: str) -> ast.TypeDecl | None:
    """What is declared of a value that is a tensor wherever the rule matches."""
    line_and_decl = rule.types.get(name)
    if line_and_decl is None:
        return None
    decl = line_and_decl[1]
    return decl if decl.kind in _TENSORS and not decl.optional else None


def _matched(rule: Rule) -> Iterator[str]:
    """The names that stand for one value each wherever the rule matches."""
    for pattern in rule.match:
        equation = pattern.equation
        if equation.each is not None:
            continue
        yield from (n for n in equation.results[: -1 if equation.pack else None] if n)
        for call in nested_calls(equation.call):
            yield from (a.id for a in call.args if isinstance(a, ast.Name))


def _listed(rule: Rule) -> dict[str, tuple[str, ...]]:
    """What conditions say that symbols of element types are one of."""
    let = {name for name, *_ in rule.let}
    found: dict[str, tuple[str, ...]] = {}
    for name, words in kept_to(rule):
        types = [None if word in let else dtype_named(word) for word in words]
        if name not in let and types and all(types):
            found.setdefault(name, tuple(sorted({shown(t) for t in types if t is not None})))
    return found


def kept_to(rule: Rule) -> Iterator[tuple[str, list[str]]]:
    """Each name that a condition keeps to some words (``T in [f16, f32]``, ``T == ui8``), and them.

    What is no word among them stands as an empty one.
    """
    left = [condition for _, condition in reversed(rule.where)]
    while left:
        match left.pop():
            case ast.Binary(op="and", left=one, right=other):
                left += [other, one]
            case ast.Binary(op="in", left=ast.Name(id=name), right=ast.ListExpr(items=items)):
                yield name, [i.id if isinstance(i, ast.Name) else "" for i in items]
            case ast.Binary(op="==", left=ast.Name(id=name), right=ast.Name(id=word)):
                yield name, [word]
