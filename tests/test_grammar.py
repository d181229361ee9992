"""docs/grammar.md is true: what it calls an example parses, what it calls refused is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.language.notation.parser import (
    NotationError,
    parse_expression,
    parse_statement,
    parse_type,
)

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "grammar.md").read_text(encoding="utf-8")
PARSERS: dict[str, Callable[[str], object]] = {
    "type": parse_type,
    "statement": parse_statement,
    "expression": parse_expression,
}


def examples(kind: str) -> list[tuple[str, str]]:
    out = []
    for what, body in re.findall(rf"```{kind} (\w+)\n(.*?)```", TEXT, re.DOTALL):
        out += [(what, line) for line in body.splitlines() if line]
    return out


@pytest.mark.parametrize(("what", "line"), examples("rule"))
def test_examples_parse(what: str, line: str) -> None:
    PARSERS[what](line)


@pytest.mark.parametrize(("what", "line"), examples("refused"))
def test_refused_lines_are_located(what: str, line: str) -> None:
    with pytest.raises(NotationError) as caught:
        PARSERS[what](line)
    assert 0 <= caught.value.pos <= len(line)
    assert caught.value.message


def test_every_production_has_an_example() -> None:
    assert len(examples("rule")) >= 35
    assert len(examples("refused")) >= 20
