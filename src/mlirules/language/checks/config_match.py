"""Checks of a config rule's `match`: the equation, its operands, loops and sizes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mlirules.language.checks.config_findings import Findings
from mlirules.language.config.model import DimRange, Match
from mlirules.language.config.op import (
    ELEMENTS,
    SIGNED_ELEMENTS,
    ConfigRule,
    Operand,
    accesses,
    index_names,
    linear,
    render,
)
from mlirules.language.faults import Fault, did_you_mean
from mlirules.language.notation import ast
from mlirules.language.notation.parser import NotationError, parse_statement
from mlirules.language.source import Path_
from mlirules.language.typetexts import builtin_type

_EXAMPLES = {
    "contraction": "c[m, n] += a[m, k] * b[k, n]",
    "convolution": "o[n, i, j, f] += x[n, i + u, j + v, c] * w[u, v, c, f]",
    "attention": "o[b, h, m, n] = attention(q[b, h, m, d], k[b, h, s, d], v[b, h, s, n])",
    "generic": "s[i] += x[i, j]",
}


@functools.lru_cache(maxsize=512)
def _parsed(compute: str) -> ast.Statement:
    # The entries of a spec are mostly of few computations.
    return parse_statement(compute)


class MatchChecks(Findings):
    """Checks of ``match``."""

    def matched(self) -> ConfigRule | None:
        """The rule that `match` describes, or None with its faults."""
        match = self.doc.match
        if match.op == "operation":
            return self.by_name(match)
        for key, given in (
            ("operands", match.operands),
            ("limits", match.limits),
            ("program", match.program),
        ):
            if given:
                self.fault(
                    ("match", key),
                    "match-key",
                    f"`{key}:` belongs to `op: operation`",
                    "say what is computed with `compute:`",
                    key=True,
                )
        if match.compute is None:
            self.fault(
                ("match", "op"),
                "missing-key",
                "the key 'compute' is missing",
                f"say what the {match.op} computes: `compute: {_EXAMPLES[match.op]}`",
            )
            return None
        text = self.source.text_at(("match", "compute"))
        try:
            statement = _parsed(match.compute)
        except NotationError as error:
            self.faults.append(
                Fault(text.span(error.pos, error.length), "syntax", error.message, error.suggestion)
            )
            return None
        if not isinstance(statement, ast.IndexEquation):
            self.fault(
                ("match", "compute"),
                "compute",
                "this is no index equation",
                f"write for example {_EXAMPLES[match.op]}",
            )
            return None
        return self.computed(match, statement)

    def by_name(self, match: Match) -> ConfigRule | None:
        """An op by its name: loops and operand types are given."""
        for key, given in (
            ("compute", match.compute),
            ("types", match.types),
            ("dims", match.dims),
        ):
            if given:
                self.fault(
                    ("match", key),
                    "match-key",
                    f"`{key}:` does not go with `op: operation`",
                    "give operand types: `operands: ['tensor<?x64xf16>']`",
                    key=True,
                )
        if match.name is None:
            self.fault(
                ("match", "op"),
                "missing-key",
                "the key 'name' is missing",
                "name the op: `name: iree_linalg_ext.online_attention`",
            )
        if not match.loops:
            self.fault(
                ("match", "op"),
                "missing-key",
                "the key 'loops' is missing",
                "name the op's loops, outermost first: `loops: [m, n, k]`",
            )
        for i, text in enumerate(match.operands):
            if text is not None and builtin_type(text) is None:
                self.fault(
                    ("match", "operands", i),
                    "operand-type",
                    f"{text[:60]!r} is no tensor type",
                    "write for example 'tensor<?x64xf16>'",
                )
        return ConfigRule(self.doc, self.source, tuple(match.loops))

    def computed(self, match: Match, equation: ast.IndexEquation) -> ConfigRule | None:
        """An op by its equation: types and sizes fit what it reads."""
        before = len(self.faults)
        inputs = self.inputs(match.op, equation)
        loops = self.loops(match, equation, inputs)
        if len(self.faults) > before:
            return None
        out = Operand(equation.target, equation.indices)
        reductions = frozenset(loops) - {n for i in equation.indices for n in index_names(i)}
        operands = []
        for operand in (*inputs, out):
            element = match.types.get(operand.name)
            if element is None:
                self.fault(
                    ("match", "types") if match.types else ("match", "compute"),
                    "types",
                    f"the element type of {operand.name!r} is missing",
                    f"`types: {{{operand.name}: f32}}`",
                    key=bool(match.types),
                )
                element = ""
            signless = element.removeprefix("s").removeprefix("u")
            operands.append(Operand(operand.name, operand.indices, signless, element))
        known = {o.name for o in operands}
        if match.op == "attention":
            known |= {"scale", "max", "sum"}
        for name, element in match.types.items():
            if name not in known:
                self.fault(
                    ("match", "types", name),
                    "types",
                    f"`compute` has no operand {name!r}",
                    did_you_mean(name, known) or "it has " + ", ".join(sorted(known)),
                    key=True,
                )
            known_types = ELEMENTS + (SIGNED_ELEMENTS if match.op == "generic" else ())
            if element not in known_types:
                self.fault(
                    ("match", "types", name),
                    "types",
                    f"{element[:40]!r} is no element type",
                    did_you_mean(element, known_types) or "known: " + ", ".join(known_types),
                )
        for name, size in match.dims.items():
            if name not in loops:
                self.fault(
                    ("match", "dims", name),
                    "dims",
                    f"`compute` has no loop {name!r}",
                    did_you_mean(name, loops) or "it has " + ", ".join(loops),
                    key=True,
                )
            elif isinstance(size, DimRange):
                self.range(name, size)
            if (
                name in loops
                and match.op != "convolution"
                and not any(
                    isinstance(i, ast.Name) and i.id == name for o in operands for i in o.indices
                )
            ):
                self.fault(
                    ("match", "dims", name),
                    "dims",
                    f"no operand is indexed by {name!r} alone: its size cannot be seen",
                    key=True,
                )
        if len(self.faults) > before:
            return None
        return ConfigRule(self.doc, self.source, loops, reductions, tuple(operands), equation)

    def range(self, name: str, size: DimRange) -> None:
        """A range of sizes says something and holds a size."""
        path: Path_ = ("match", "dims", name)
        if size.min is None and size.max is None and size.multiple_of is None:
            self.fault(
                path,
                "dims",
                f"the range of {name!r} says nothing",
                "give min, max or multiple_of",
                key=True,
            )
        low = size.min or 1
        if size.max is not None:
            if low > size.max:
                self.fault(
                    (*path, "min"),
                    "dims",
                    f"the smallest size {low} is above the largest {size.max}",
                )
            elif size.multiple_of and size.max // size.multiple_of * size.multiple_of < low:
                self.fault(
                    (*path, "multiple_of"),
                    "dims",
                    f"no multiple of {size.multiple_of} lies between {low} and "
                    f"{size.max}: the entry could never match",
                )

    def inputs(self, op: str, equation: ast.IndexEquation) -> list[Operand]:
        """The operands that an equation reads, as its class of op needs them."""
        path: Path_ = ("match", "compute")
        if equation.bounds:
            self.fault(
                path, "compute", "loop bounds are not written here", "sizes stand in `dims:`"
            )
        value = equation.value
        read: list[ast.Access] = []
        if op in ("contraction", "convolution"):
            if equation.op != "+=":
                self.fault(path, "compute", f"a {op} accumulates with +=, not {equation.op}")
            parts = (
                [value.left, value.right]
                if (isinstance(value, ast.Binary) and value.op == "*")
                else [value]
            )
            read = [p for p in parts if isinstance(p, ast.Access)]
            if len(read) != 2:
                self.fault(
                    path,
                    "compute",
                    f"a {op} is a product of two operands",
                    f"write for example {_EXAMPLES[op]}",
                )
        elif op == "attention":
            if not (isinstance(value, ast.Call) and value.fn == "attention"):
                self.fault(
                    path, "compute", "write attention(q[...], k[...], v[...])", _EXAMPLES[op]
                )
            else:
                read = [p for p in value.args if isinstance(p, ast.Access)]
                if not 3 <= len(read) == len(value.args) <= 4:
                    self.fault(
                        path,
                        "compute",
                        "attention has queries, keys, values and possibly a mask",
                        _EXAMPLES[op],
                    )
        else:
            read = list(accesses(value))
        out: dict[str, Operand] = {}
        for access in read:
            if not isinstance(access.base, ast.Name):
                self.fault(path, "compute", "an operand is a name with indices")
                continue
            operand = Operand(access.base.id, access.items)
            known = out.get(operand.name)
            if known is not None and list(map(render, known.indices)) != list(
                map(render, operand.indices)
            ):
                self.fault(path, "compute", f"{operand.name!r} is read in two ways")
            if operand.name == equation.target:
                self.fault(
                    path, "compute", f"{operand.name!r} is the result", "+= reads it already"
                )
            out[operand.name] = operand
            for item in access.items:
                if not linear(item):
                    self.fault(path, "compute", f"the index {render(item)} is not linear")
        return list(out.values())

    def loops(
        self, match: Match, equation: ast.IndexEquation, inputs: Sequence[Operand]
    ) -> tuple[str, ...]:
        """The loops in their order: as given, else by first use."""
        names: dict[str, None] = {}
        for index in (*equation.indices, *(i for o in inputs for i in o.indices)):
            if not isinstance(index, (ast.Name, ast.Binary, ast.Literal)):
                self.fault(("match", "compute"), "compute", "an index is a loop or a sum of them")
                continue
            for name in index_names(index):
                names.setdefault(name)
        if match.loops:
            if sorted(match.loops) != sorted(names):
                self.fault(
                    ("match", "loops"),
                    "loops",
                    f"the loops of `compute` are {', '.join(names)}",
                    "give each of them once, outermost first",
                    key=True,
                )
            return tuple(match.loops)
        return tuple(names)
