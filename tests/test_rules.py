"""Every shipped rule's inline tests: one pytest item a rule and device.

On the CPU always: FileCheck, refusals, numbers. On Vulkan, where there is a device, the numbers of
the tests that ask for it.
"""

import re
from pathlib import Path

import pytest

from mlirules.drivers.pipeline import rule_set
from mlirules.drivers.ruletest import run_test
from mlirules.rules.loader import LIBRARY, holds_config, rule_files

FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]
# Told from the text: reading hundreds of rules in every worker before a test runs takes a while.
ON_VULKAN = [file for file in FILES if re.search(r"devices:.*\bvulkan\b", file.read_text())]


def _id(file: Path) -> str:
    return str(file.relative_to(LIBRARY).with_suffix(""))


def _problems(file: Path, devices: list[str]) -> list[str]:
    (rule,) = rule_set((str(file),))
    results = [run_test(rule, test, devices=devices) for test in rule.tests]
    return [f"{r.test.name}: {problem}" for r in results for problem in r.problems]


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_rule(file: Path) -> None:
    problems = _problems(file, ["cpu"])
    assert not problems, "\n".join(problems)


@pytest.mark.vulkan
@pytest.mark.parametrize("file", ON_VULKAN, ids=_id)
def test_rule_on_vulkan(file: Path, vulkan: str) -> None:
    problems = _problems(file, [vulkan])
    assert not problems, "\n".join(problems)


def test_the_library_is_one_set() -> None:
    """No two rules of one name: the whole library loads together."""
    rules = rule_set((str(LIBRARY),))
    assert len(rules) == len(FILES)
