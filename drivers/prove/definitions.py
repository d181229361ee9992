"""What PyTorch documents of ops of which no conversion rule says anything but by other ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlirules.language.model import RuleDoc, Test
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression, parse_statement, parse_type
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Line, OpPattern, Rule

#: The definitions that ship.
FILE = Path(__file__).with_name("definitions.yaml")


def definitions(file: Path = FILE) -> tuple[list[Rule], frozenset[str]]:
    """The definitions of a file as rules, and the names of those with conditions of PyTorch's."""
    source = load_yaml(file)
    out: list[Rule] = []
    valid: set[str] = set()
    for at, entry in enumerate(source.data):
        name = f"definition-{at}"
        conditions = [*entry.get("where", []), *entry.get("valid", [])]
        if entry.get("valid") and not entry.get("where"):
            valid.add(name)
        doc = RuleDoc.model_construct(
            rule=name,
            kind="conversion",
            summary="A definition.",
            reason="PyTorch's documentation.",
            match=[entry["match"]],
            types=entry.get("types", {}),
            let=entry.get("let", {}),
            where=conditions,
            rewrite=entry["rewrite"],
            tests=list[Test](),
        )

        def line(section: str, key: str | int, *place: Any, at: int = at) -> Line:
            return Line(section, key, source.text_at((at, *place)))

        equation = parse_statement(entry["match"])
        assert isinstance(equation, ast.OpEquation)
        match = OpPattern(line("match", 0, "match"), equation)
        out.append(
            Rule(
                doc,
                source,
                {
                    n: (line("types", n, "types", n), parse_type(t))
                    for n, t in entry.get("types", {}).items()
                },
                [match],
                [],
                [
                    (
                        n,
                        line("let", n, "let", n),
                        parse_expression(e) if isinstance(e, str) else None,
                        None if isinstance(e, str) else e,
                    )
                    for n, e in entry.get("let", {}).items()
                ],
                [
                    (line(s, i, s, i), parse_expression(str(c)))
                    for s in ("where", "valid")
                    for i, c in enumerate(entry.get(s, []))
                ],
                [
                    (line("rewrite", i, "rewrite", i), parse_statement(s))
                    for i, s in enumerate(entry["rewrite"])
                ],
            )
        )
    return out, frozenset(valid)
