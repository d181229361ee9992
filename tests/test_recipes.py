"""The rule files of docs/recipes.md, checked and tested as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.ruletest import run_test
from mlirules.language import consent
from mlirules.language.loader import rules_of
from mlirules.language.reading import load_yaml

DOCS = Path(__file__).parent.parent / "docs"

PASTED = {
    name: text
    for page in ("recipes.md", "other-dialects.md")
    if (DOCS / page).exists()
    for text in re.findall(r"```yaml\n(rule: .*?)```", (DOCS / page).read_text(), re.DOTALL)
    for name in re.findall(r"\Arule: (\S+)", text)
}


@pytest.mark.parametrize("name", PASTED)
def test_what_the_page_shows_works(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name.replace('-*', '')}.yaml"
    file.write_text(PASTED[name])
    consent.grant(native=True)  # one brings a kernel; taken back after the test by own_consent
    assert not check_rule(file)
    for rule in rules_of(load_yaml(file), ops=compiler.op_oracle):
        for test in rule.tests:
            result = run_test(rule, test, devices=["cpu"])
            assert result.passed, (rule.name, test.name, result.problems)
            assert not result.skipped
