"""``check`` on rules taken together: each finding comes with a program that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlirules.cli import main
from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.analysis import analyse, has_attribute
from mlirules.language.faults import Fault
from mlirules.language.loader import load_rules
from mlirules.support import package

ROOT = Path(__file__).parent.parent

RULE = """\
rule: {name}
kind: conversion
summary: One rule of a set.
reason: To be looked at beside others.
benefit: {benefit}
{more}types:
  x: vtensor<{x}>
match:
  - y = torch.aten.{op}(x){attributes}
where:
{where}
rewrite:
  - {rewrite}
tests:
  - name: what it matches
    input: |
      func.func @f(%x: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {{
        %y = torch.aten.{op} %x : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
        return %y : !torch.vtensor<[4,8],f32>
      }}
    check: 'CHECK: func.func'
  - name: what it refuses
    unchanged: |
      func.func @f(%x: !torch.vtensor<[4],i1>) -> !torch.vtensor<[4],i1> {{
        %y = torch.aten.{op} %x : !torch.vtensor<[4],i1> -> !torch.vtensor<[4],i1>
        return %y : !torch.vtensor<[4],i1>
      }}
"""


def write(
    folder: Path,
    name: str,
    *where: str,
    op: str = "relu",
    benefit: int = 1,
    more: str = "",
    x: str = "... x T",
    rewrite: str = "y[...] = max(x[...], 0)",
    attributes: str = "",
) -> None:
    lines = "\n".join(f"  - {w}" for w in where or ("is_float(T)",))
    (folder / f"{name}.yaml").write_text(
        RULE.format(
            name=name,
            benefit=benefit,
            more=more,
            x=x,
            op=op,
            where=lines,
            rewrite=rewrite,
            attributes=attributes,
        )
    )


def findings(folder: Path) -> list[Fault]:
    found = analyse(load_rules([folder], ops=compiler.op_oracle))
    return [fault for fault in found if fault.severity != "note"]


def test_two_rules_for_one_program_with_one_benefit(tmp_path: Path) -> None:
    write(tmp_path, "a", "T in [f32, f64]")
    write(tmp_path, "b", "rank(x) == 2")
    (found,) = findings(tmp_path)
    assert (found.code, found.severity) == ("overlap", "warning")
    assert found.span.path.endswith("b.yaml")
    assert "torch.aten.relu" in found.suggestion


def test_an_overlap_that_no_test_shows_is_found(tmp_path: Path) -> None:
    # Each rule's own tests are refused by the other.
    write(tmp_path, "a", "T == f32")
    write(tmp_path, "b", "not static(x) or is_float(T)", x="4 x N x T")
    (tmp_path / "b.yaml").write_text(
        (tmp_path / "b.yaml").read_text().replace("[4,8],f32", "[4,8],f64")
    )
    (found,) = findings(tmp_path)
    assert found.code == "overlap"


def test_a_declared_overlap_and_different_benefits_are_fine(tmp_path: Path) -> None:
    write(tmp_path, "a", "T in [f32, f64]")
    write(tmp_path, "b", "rank(x) == 2", more="overlaps: [a]\n")
    assert not findings(tmp_path)
    write(tmp_path, "b", "rank(x) == 2", benefit=2)
    assert not findings(tmp_path)


def test_disjoint_rules_are_fine(tmp_path: Path) -> None:
    write(tmp_path, "a", "T == f32")
    write(tmp_path, "b", "T == f64")
    (tmp_path / "b.yaml").write_text(
        (tmp_path / "b.yaml").read_text().replace("[4,8],f32", "[4,8],f64")
    )
    assert not findings(tmp_path)


def test_a_rule_that_another_takes_everything_from(tmp_path: Path) -> None:
    write(tmp_path, "narrow", "T == f32", "rank(x) == 2")
    write(tmp_path, "wide", "T in [f16, f32]", benefit=3)
    (found,) = findings(tmp_path)
    assert found.code == "shadowed"
    assert found.span.path.endswith("narrow.yaml")
    assert "never applies: wide" in found.message


def test_rules_that_undo_each_other() -> None:
    (found,) = findings(ROOT / "lit_tests/drivers/rules/loop")
    assert found.code == "loop"
    assert "cos-to-sin" in found.message
    assert "sin-to-cos" in found.message
    assert "torch.aten." in found.suggestion


def test_a_rule_that_matches_its_own_result(tmp_path: Path) -> None:
    write(tmp_path, "again", rewrite="y = torch.aten.relu(x)")
    (found,) = findings(tmp_path)
    assert found.code == "loop"
    assert found.message.startswith("again goes on for ever")


def test_a_condition_that_can_never_hold(tmp_path: Path) -> None:
    write(tmp_path, "never", "is_float(T)", "rank(x) == 3", x="M x N x T")
    (found,) = findings(tmp_path)
    assert found.code == "never-holds"
    assert "`rank(x) == 3`" in found.message
    assert "torch.aten." in found.suggestion, "the nearest program"


def test_an_attribute_that_the_compiler_does_not_have(tmp_path: Path) -> None:
    write(tmp_path, "a", attributes=" {speed = 3}")
    found = findings(tmp_path)
    assert found[0].code == "unknown-attribute"
    assert "'speed'" in found[0].message
    assert has_attribute("torch.vtensor.literal", "value")
    assert has_attribute("torch.operator", "name")
    assert has_attribute("arith.cmpf", "predicate")
    assert has_attribute("tensor.insert_slice", "operandSegmentSizes")
    assert not has_attribute("arith.cmpf", "predicat")


def test_the_command_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a", "T in [f32, f64]")
    write(tmp_path, "b", "rank(x) == 2")
    assert run(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "warning[overlap]" in said
    assert "1 of them warnings" in said
    assert run(["check", str(tmp_path), "--strict"]) == 1
    capsys.readouterr()
    assert run(["check", str(tmp_path), "--alone", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []


def test_a_file_with_another_name_fails_where_warnings_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a")
    assert run(["check", str(tmp_path), "--strict"]) == 0
    (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
    capsys.readouterr()
    # So what ships has none: `check --strict` of it is a test (tests/test_cli.py).
    assert run(["check", str(tmp_path), "--strict"]) == 1
    said = capsys.readouterr().out
    assert "b.yaml:1:7: warning[name]: the rule 'a' stands in b.yaml" in said


@pytest.mark.slow
def test_nothing_is_found_in_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--strict"]) == 0
    assert "no faults" in capsys.readouterr().out


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


def test_a_rule_is_named_as_its_file() -> None:
    shipped = sorted(package.RULES.rglob("*.yaml"))
    named = {
        path: path.read_text(encoding="utf-8").partition("\nrule: ")[2].split()[0]
        for path in shipped
    }
    families = {path for path, name in named.items() if "*" in name}
    assert [
        path for path, name in named.items() if path.stem != name and path not in families
    ] == []
