"""Numbers on Vulkan of fusions whose programs IREE's own conversion cannot compile there.

`tests/test_rules.py` runs the inline tests that ask for Vulkan. What a fusion leaves (attention,
exponentials of f64, ...) may need the shipped conversions: here the program goes through them after
the rule, as in the pipeline, and its results are held against those of the program as it was, on
the CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import rule_set, transform
from mlirules.drivers.quality.ruletest import run_test
from mlirules.language.rulefiles import LIBRARY
from mlirules.language.stage import Stage

SETS = ("torch/fusions", "torch/unfuse", "linalg")
CONVERSIONS = [
    Stage(phase="torch", rules=["torch/decompose", "torch/vulkan"], driver="greedy"),
    Stage(phase="torch", rules=["torch/to-linalg"], driver="walk"),
]


def _folders() -> list[str]:
    found = {Path(rule.path).resolve().parent for name in SETS for rule in rule_set((name,))}
    return sorted(str(folder.relative_to(LIBRARY.resolve())) for folder in found)


@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("folder", _folders())
def test_through_the_conversions(folder: str, vulkan: str) -> None:
    target = Target.parse(vulkan)
    names, comparisons = [], []
    for rule in rule_set((folder,)):
        if Path(rule.path).resolve().parent != LIBRARY.resolve() / folder:
            continue
        for test in rule.tests:
            if test.run is None or "vulkan" in test.run.devices:
                continue
            if "bf16" in (test.input or ""):  # IREE 3.13 compiles no product of bf16 for Vulkan
                continue
            made = run_test(rule, test, devices=["none"]).output
            converted = transform(made, CONVERSIONS, kind="vulkan").text
            names.append(f"{rule.name}, {test.name}")
            comparisons.append(numerics.Comparison(test.input or "", converted, test.run))
    if not comparisons:
        pytest.skip("every numeric test of the folder asks for Vulkan itself")
    found = numerics.compare_all([(comparison, target) for comparison in comparisons])
    problems = [f"{name}: {p}" for name, said in zip(names, found, strict=True) for p in said]
    assert not problems, "\n".join(problems)
