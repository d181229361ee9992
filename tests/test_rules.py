"""Every shipped rule's inline tests: one pytest item for a few rules of a folder, and a device.

On the CPU always: FileCheck, refusals, numbers. On Vulkan, where there is a device, the numbers of
the tests that ask for it.
"""

import re
from pathlib import Path

import pytest

from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.ruletest import run_tests
from mlirules.language.loader import LIBRARY, holds_config, rule_files

FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]
# Told from the text: reading hundreds of rules in every worker before a test runs takes a while.
ON_VULKAN = [file for file in FILES if re.search(r"devices:.*\bvulkan\b", file.read_text())]


#: Rules whose programs are compiled at once: starting the compiler costs more than they do.
TOGETHER = 8


def _groups(files: list[Path]) -> list[list[Path]]:
    """Rules of one folder, up to :data:`TOGETHER` of them."""
    groups: list[list[Path]] = []
    for file in files:
        if groups and len(groups[-1]) < TOGETHER and groups[-1][0].parent == file.parent:
            groups[-1].append(file)
        else:
            groups.append([file])
    return groups


def _id(files: list[Path]) -> str:
    names = [str(file.relative_to(LIBRARY).with_suffix("")) for file in files]
    return "+".join([names[0], *(name.rsplit("/", 1)[-1] for name in names[1:])])


def _problems(files: list[Path], devices: list[str]) -> list[str]:
    rules = [rule for file in files for rule in rule_set((str(file),))]
    results = run_tests([(r, test) for r in rules for test in r.tests], devices=devices)
    return [f"{r.rule.name}, {r.test.name}: {problem}" for r in results for problem in r.problems]


@pytest.mark.parametrize("files", _groups(FILES), ids=_id)
def test_rules(files: list[Path]) -> None:
    problems = _problems(files, ["cpu"])
    assert not problems, "\n".join(problems)


@pytest.mark.vulkan
@pytest.mark.parametrize("files", _groups(ON_VULKAN), ids=_id)
def test_rules_on_vulkan(files: list[Path], vulkan: str) -> None:
    problems = _problems(files, [vulkan])
    assert not problems, "\n".join(problems)


def test_the_library_is_one_set() -> None:
    """No two rules of one name: the whole library loads together."""
    rules = rule_set((str(LIBRARY),))
    assert len(rules) == len(FILES)
