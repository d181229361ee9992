"""Every shipped rule's inline tests: one pytest item for a few files.

FileCheck and refusals of all tests; the numbers of each rule's first test that has any, on the CPU
and, of every third rule and of all that are made for it, on Vulkan, where there is a device and the
test asks for it. The numbers of its other tests (further types, sizes, spellings), and of all rules
on Vulkan, are compared by ``pytest -m slow tests/test_rules.py``.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.ruletest import run_tests
from mlirules.language import model
from mlirules.language.loader import rules_of
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files

FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]


#: Files whose programs are compiled at once: starting the compiler costs more than they do.
TOGETHER = 24


def _groups(files: list[Path]) -> list[list[Path]]:
    """Files in order, :data:`TOGETHER` of them each."""
    return [files[at : at + TOGETHER] for at in range(0, len(files), TOGETHER)]


def _id(files: list[Path]) -> str:
    names = [str(file.relative_to(LIBRARY).with_suffix("")) for file in files]
    return "+".join([names[0], *(name.rsplit("/", 1)[-1] for name in names[1:])])


Tests = list[tuple[Rule, model.Test]]


def _tests(files: list[Path]) -> tuple[Tests, Tests]:
    """The first test with numbers of each rule, and all others."""
    first: Tests = []
    others: Tests = []
    for rule in (rule for file in files for rule in rule_set((str(file),))):
        chosen = next((test for test in rule.tests if test.run is not None), None)
        for test in rule.tests:
            (first if test is chosen else others).append((rule, test))
    return first, others


def _for_vulkan(tests: Tests) -> Tests:
    """Every third rule's, and those of rules that are made for Vulkan or are kernels."""
    return [
        (rule, test)
        for at, (rule, test) in enumerate(tests)
        if at % 3 == 0 or rule.name.endswith("-vulkan") or rule.name.startswith("kernel-")
    ]


def _problems(
    tests: Iterable[tuple[Rule, model.Test]], devices: list[str], *, bounds: bool = True
) -> list[str]:
    results = run_tests(tests, devices=devices, bounds=bounds)
    return [f"{r.rule.name}, {r.test.name}: {problem}" for r in results for problem in r.problems]


def _further_kernels(tests: Tests) -> Tests:
    """Kernels that share their body with one before: that it keeps its bounds, that one shows."""
    files: set[str] = set()
    again = []
    for rule, test in tests:
        if rule.variants and rule.path in files:
            again.append((rule, test))
        files.add(rule.path)
    return again


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> list[str]:
    """Where numbers are compared: Vulkan is left out where there is none."""
    try:
        return ["cpu", request.getfixturevalue("vulkan")]
    except pytest.skip.Exception:
        return ["cpu"]


@pytest.mark.parametrize("files", _groups(FILES), ids=_id)
def test_rules(files: list[Path], devices: list[str]) -> None:
    first, others = _tests(files)
    again = _further_kernels(first)
    problems = _problems([test for test in first if test not in again], devices[:1])
    problems += _problems(again, devices[:1], bounds=False)
    problems += _problems(others, [])
    if devices[1:]:
        problems += _problems(_for_vulkan(first), devices[1:])
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("files", _groups(FILES), ids=_id)
def test_the_numbers_of_further_tests(files: list[Path], devices: list[str]) -> None:
    first, others = _tests(files)
    problems = _problems(others, devices) + _problems(first, devices[1:])
    problems += _problems(_further_kernels(first), devices[:1])
    assert not problems, "\n".join(problems)


#: Numbers of seven digits or more: so many of them are the coefficients of an approximation.
_DIGITS = re.compile(r"\d\.\d{6,}(?:[eE][-+]?\d+)?")
_COEFFICIENTS = 6
#: Whose an approximation is: a paper or a book with its year, a library, or how it was made.
_SOURCE = re.compile(
    r"\((?:[^()]*\W)?(?:19|20)\d\d\b|fdlibm|Cephes|Eigen|Abramowitz\s+and\s+Stegun|Chebyshev\s+interpolation"
)
_ERROR = re.compile(r"\d(?:\.\d+)?e-\d+|units?\s+in\s+the\s+last\s+place")


def _numerical(rule: Rule) -> bool:
    """Whether a rule computes something by numbers or sums of its own."""
    parts = rule.doc.model_dump(include={"match", "let", "where", "rewrite", "kernel"})
    coefficients = set(_DIGITS.findall(str(parts)))
    named = {"winograd"} | ({"attention"} if rule.kind == "kernel" else set())
    return len(coefficients) >= _COEFFICIENTS or not named.isdisjoint(rule.tags)


def _uncited(rule: Rule) -> list[str]:
    """What a rule does not say of its numbers."""
    said = " ".join([rule.doc.summary, rule.doc.notes, rule.doc.tolerance])
    needed = (("a source", _SOURCE), ("an error", _ERROR))
    return [what for what, pattern in needed if not pattern.search(said)]


def test_numerical_rules_cite_their_source_and_their_error() -> None:
    rules = [rule for rule in rule_set((str(LIBRARY),)) if _numerical(rule)]
    names = {rule.name for rule in rules}
    assert {"kernel-gelu", "linalg-winograd-nchw", "kernel-flash-attention"} <= names
    assert {"torch-sin-f64-to-linalg", "torch-exp-f64-vulkan", "torch-lgamma-to-linalg"} <= names
    assert len(rules) > 30
    assert {rule.name: missing for rule in rules if (missing := _uncited(rule))} == {}


def test_numbers_are_compared_on_vulkan_too(vulkan: str) -> None:
    rules = rule_set((str(LIBRARY),))
    assert sum(vulkan in t.run.devices for r in rules for t in r.tests if t.run) > 250


def test_the_library_is_one_set() -> None:
    """No two rules of one name: the whole library loads together."""
    rules = rule_set((str(LIBRARY),))
    held = [len(rules_of(load_yaml(file), ops=compiler.op_oracle)) for file in FILES]
    assert len(rules) == len({rule.name for rule in rules}) == sum(held)
