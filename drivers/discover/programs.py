"""A program of the search as MLIR: a torch function of given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlirules.drivers.discover.terms import (
    Axis,
    Code,
    Ref,
    Scalar,
    Sizes,
    Term,
    refs,
    scalar_value,
    value,
)


def in_order(terms: Sequence[Term], root: int) -> list[int]:
    """A program's ops, operands first; its inputs too."""
    out: list[int] = []
    stack: list[tuple[int, bool]] = [(root, False)]
    seen: set[int] = set()
    while stack:
        at, done = stack.pop()
        if done:
            out.append(at)
        elif at not in seen:
            seen.add(at)
            stack.append((at, True))
            stack.extend((r, False) for r in reversed(refs(terms[at].args)))
    return out


class Writer:
    """Writes programs with the same sizes and constants."""

    def __init__(
        self, terms: Sequence[Term], dims: Mapping[str, int], numbers: Mapping[str, float]
    ) -> None:
        self.terms, self.dims, self.numbers = terms, dims, numbers

    def type_of(self, term: int) -> str:
        """A program's result type."""
        t = self.terms[term].type
        return f"!torch.vtensor<[{','.join(map(str, t.concrete(self.dims)))}],{t.element}>"

    def text(self, root: int, inputs: Sequence[int], *, after: str = "") -> str:
        """A function of the inputs; ``after``: an op of one operand that stands behind."""
        names = {leaf: f"%{self.terms[leaf].args[0]}" for leaf in inputs}
        rows: list[str] = []
        self.constants: dict[tuple[str, str], str] = {}
        for at in in_order(self.terms, root):
            term = self.terms[at]
            if not term.op:
                continue
            operands = [self.operand(a, names, rows) for a in term.args]
            names[at] = f"%t{len(names)}"
            rows.append(
                f"{names[at]} = {term.op} {', '.join(o for o, _ in operands)} : "
                f"{', '.join(t for _, t in operands)} -> {self.type_of(at)}"
                if operands
                else f"{names[at]} = {term.op} : -> {self.type_of(at)}"
            )
        result, made = names[root], self.type_of(root)
        if after:
            rows.append(f"%after = {after} {result} : {made} -> {made}")
            result = "%after"
        given = ", ".join(f"{names[i]}: {self.type_of(i)}" for i in inputs)
        body = "\n".join(f"  {row}" for row in rows)
        return f"func.func @f({given}) -> {made} {{\n{body}\n  return {result} : {made}\n}}\n"

    def operand(self, a: object, names: Mapping[int, str], rows: list[str]) -> tuple[str, str]:
        """An operand and its type; constants are written where they are first read."""
        if isinstance(a, Ref):
            return names[a.term], self.type_of(a.term)
        if isinstance(a, Sizes):
            return self.listed([value(s, self.dims) for s in a.dims], names, rows)
        if isinstance(a, tuple):
            return self.listed(a, names, rows)
        if isinstance(a, (Axis, Code)):
            a = a.value
        elif isinstance(a, Scalar):
            a = scalar_value(a.text, self.numbers)
        kind = _KINDS[type(a)]
        shown = {True: "true", False: "false"}[a] if isinstance(a, bool) else repr(a)
        if isinstance(a, str):
            shown = f'"{a}"'
        elif isinstance(a, float):
            shown = f"{a:.17e}"
        return self.constant(f"torch.constant.{kind}", "" if a is None else shown, kind, rows)

    def constant(self, op: str, shown: str, kind: str, rows: list[str]) -> tuple[str, str]:
        """A constant, written once."""
        name = self.constants.get((op, shown))
        if name is None:
            name = self.constants[op, shown] = f"%c{len(self.constants)}"
            rows.append(f"{name} = {op} {shown}".rstrip())
        return name, f"!torch.{kind}"

    def listed(
        self, items: Sequence[object], names: Mapping[int, str], rows: list[str]
    ) -> tuple[str, str]:
        """A list made in place."""
        made = [self.operand(i, names, rows) for i in items]
        inner = made[0][1] if made else "!torch.int"
        short = "vtensor" if inner.startswith("!torch.vtensor") else inner.removeprefix("!torch.")
        name = f"%l{len(rows)}"
        rows.append(
            f"{name} = torch.prim.ListConstruct {', '.join(o for o, _ in made)} : "
            f"({', '.join(t for _, t in made)}) -> !torch.list<{short}>"
        )
        return name, f"!torch.list<{short}>"


_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    type(None): "none",
}
