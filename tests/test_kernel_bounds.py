"""Kernels that go beyond a buffer fail their tests, at the line, with the index and the extent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.pipelines.transform import engine_for, rule_set
from mlirules.drivers.quality.bounds import Checked, with_checks
from mlirules.drivers.quality.ruletest import run_test
from mlirules.language import consent
from mlirules.language.rule import Rule

RULES = Path(__file__).parent / "kernel_bounds"


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


def rule(name: str) -> Rule:
    (found,) = rule_set((str(RULES / f"{name}.yaml"),))
    return found


def test_each_access_beyond_a_buffer_and_none_within() -> None:
    beyond = rule("beyond")
    result = run_test(beyond, beyond.tests[0], devices=["cpu"])
    said = [(f.span.source_line.strip(), f.message) for f in result.faults]
    own = "of dim 0 of memref<8xf32>, whose extent is 8"
    assert [(line.split("%", 2)[1].split()[0].strip(",["), told) for line, told in said] == [
        ("w1", f"vector.load reads indices 5 to 8 {own}"),
        ("w1", f"vector.store writes indices -1 to 2 {own}"),
        ("own", f"vector.maskedstore writes indices 6 to 8 {own}"),
        ("g", f"vector.gather reads indices 0 to 9 {own}"),
        ("part", f"memref.subview takes indices 6 to 9 {own}"),
        ("r1", f"vector.transfer_read reads indices 6 to 9 {own}"),
        ("p", "memref.store writes index 5 of dim 0 of x, whose extent is 5"),
        ("q", "memref.load reads index 5 of dim 1 of x, whose extent is 5"),
    ]
    # Told with file, line and column, and not run without checks: no numbers are compared.
    (problem,) = result.problems
    assert re.search(r"^cpu: \S+beyond\.yaml:\d+:9: error\[bounds\]: vector\.load reads", problem)
    assert not result.skipped


def test_a_recast_to_other_places_of_its_buffer_is_told_as_unchecked(tmp_path: Path) -> None:
    text = (RULES / "beyond.yaml").read_text()
    (tmp_path / "part.yaml").write_text(text.replace("[$(N), 1]", "[7, 1]"))
    (part,) = rule_set((str(tmp_path / "part.yaml"),))
    module = parsed(part.tests[0].input or "", part.path)
    engine_for([part]).run(module, Options(driver="greedy", fold=False, target="cpu"))
    checks = with_checks(module, part)
    assert checks is not None
    ((span, told),) = checks.unchecked
    assert told == "memref.reinterpret_cast is not checked for bounds"
    assert span.source_line.strip().startswith("%all = memref.reinterpret_cast %x_base")


def test_what_no_number_and_no_crash_would_tell() -> None:
    neighbour = rule("neighbour")
    assert run_test(neighbour, neighbour.tests[0], devices=["cpu"], bounds=False).passed
    result = run_test(neighbour, neighbour.tests[0], devices=["cpu"])
    (fault,) = result.faults
    assert fault.message == "memref.load reads index 2 of dim 1 of x, whose extent is 2"
    assert fault.span.source_line.strip().startswith("%unused = memref.load %x[%block_x, %next]")
    assert "cpu, sizes [3]: " in result.problems[0]


@pytest.mark.parametrize("kind", ["cpu", "vulkan"])
@pytest.mark.parametrize("made", rule_set(("kernels",)), ids=lambda r: r.name)
def test_every_access_of_the_shipped_kernels_is_checked(made: Rule, kind: str) -> None:
    if kind not in {target for variant in made.variants for target in variant.doc.targets}:
        pytest.skip(f"not for {kind}")
    first = made.tests[0]
    # A CPU that has all that most kernels ask for, else the one that this is for.
    for named in ("znver4", first.cpu or "") if kind == "cpu" else ("",):
        module = parsed(first.input or "", made.path)
        how = Options(driver="greedy", fold=False, target=kind, cpu=named)
        engine_for([made]).run(module, how)
        if (checks := with_checks(module, made)) is not None:
            break
    assert isinstance(checks, Checked)
    assert not checks.unchecked
    # That CPU has no tile registers, whose loads nothing follows; what is for known weights alone
    # has tests of its own.
    variants = (v for v in made.variants if kind in v.doc.targets and not v.tiles and not v.first)
    body = next(variants).doc.body
    ops = r"\b(?:memref|vector)\.(?:load|store|masked\w+|transfer_\w+|gather)\b"
    accesses = re.findall(ops, body)
    assert len({(row.span.line, row.span.column) for row in checks.rows[0]}) == len(accesses)
    assert module.operation.verify()
