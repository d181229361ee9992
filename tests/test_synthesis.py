"""Tests made from rules: programs, coverage of conditions, mutants, and CHECK lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlirules.cli import main
from mlirules.drivers.iree import compiler
from mlirules.drivers.quality import checklines
from mlirules.drivers.quality.mutation import measure
from mlirules.drivers.quality.synthesis import conditions, synthesise
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import LIBRARY, rule_files

EXPLAIN = Path(__file__).parent / "explain"

FUSED = """\
# a comment that stays
rule: tanh-of-relu
kind: fusion  # and this one
summary: One rule of a test.
reason: To have a rule.
types: {x: vtensor<S... x T>}
match:
  - t = torch.aten.relu(x)
  - y = torch.aten.tanh(t)
where:
  - one_use(t)
  - T in [f16, f32]
rewrite:
  - y[...] = tanh(max(x[...], 0))
tests:
  - name: what it matches
    input: |
      func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
        %t = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        %y = torch.aten.tanh %t : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        return %y : !torch.vtensor<[4],f32>
      }
CHECK
  # a comment between tests
  - name: what it refuses
    unchanged: |
      func.func @f(%x: !torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64> {
        %t = torch.aten.relu %x : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
        %y = torch.aten.tanh %t : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
        return %y : !torch.vtensor<[4],f64>
      }
"""
CHECKED = FUSED.replace("CHECK", "    check: 'CHECK: math.tanh'")


def rule_from(path: Path) -> Rule:
    return load_rule(path, ops=compiler.op_oracle)


@pytest.fixture(name="fused")
def _fused(tmp_path: Path) -> Rule:
    path = tmp_path / "tanh-of-relu.yaml"
    path.write_text(CHECKED)
    return rule_from(path)


def test_one_program_matches_and_each_condition_refuses_one(fused: Rule) -> None:
    made = synthesise(fused)
    assert made.source == "types"
    assert not made.missing
    lines = [str(n.line) for n in made.negatives]
    assert lines == ["one_use(t)", "T in [f16, f32]", "vtensor<S... x T>", "t = torch.aten.relu(x)"]
    report = measure(fused)
    assert not report.problems  # each was run, and refused by its own line only
    assert all(c.true and c.false for c in report.covered)
    assert report.score == (6, 6)


def test_a_mutant_that_no_test_notices_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(CHECKED.replace("  - one_use(t)\n", "  - rank(x) >= 0\n"))
    report = measure(rule_from(path))
    survivors = [(str(m.line), m.change) for m in report.mutants if m.noticed is None]
    assert survivors == [("rank(x) >= 0", "deleted")]
    (never,) = [c for c in report.covered if not c.false]
    assert str(never.line) == "rank(x) >= 0"
    assert any(str(line) == "rank(x) >= 0" for line, _ in report.synthesis.missing)


def test_the_inline_tests_alone_are_not_enough(fused: Rule) -> None:
    # The inline tests never see the value used twice: the made program does.
    one_use = measure(fused).covered[0]
    assert one_use.false == 1


@pytest.mark.parametrize(
    "name",
    ["matmul/mm", "matmul/addmm", "elementwise/gelu", "convolution/convolution", "views/permute"],
)
def test_shipped_rules(name: str) -> None:
    folder, _, op = name.partition("/")
    (file,) = rule_files(f"torch/to-linalg/{folder}/torch-{op}-to-linalg")
    rule = rule_from(file)
    report = measure(rule)
    assert not report.problems
    assert report.synthesis.positive is not None
    for covered in report.covered:
        assert covered.true
        assert covered.false
    noticed, mutants = report.score
    assert noticed == mutants > 0


def test_what_cannot_be_made_has_a_reason() -> None:
    rule = rule_from(LIBRARY / "torch/to-linalg/matmul/torch-addmm-to-linalg.yaml")
    made = synthesise(rule)
    known = {str(n.line) for n in made.negatives} | {str(line) for line, _ in made.missing}
    assert known == {str(line) for line in conditions(rule)}
    assert all(reason for _, reason in made.missing)


def test_a_rule_that_no_program_matches_fails(tmp_path: Path) -> None:
    path = tmp_path / "tanh-of-relu.yaml"
    path.write_text(CHECKED.replace("T in [f16, f32]", "T == f64 and T == f32"))
    report = measure(rule_from(path))
    assert report.problems == ["no program matches: neither the types nor an inline test gave one"]


def test_a_rule_over_linalg_starts_from_its_inline_test() -> None:
    report = measure(rule_from(LIBRARY / "linalg/linalg-transposed-matmul.yaml"))
    assert report.synthesis.source == "inline test"
    assert {str(n.line) for n in report.synthesis.negatives} >= {"c[m, n] += a[m, k] * b[n, k]"}
    assert not report.problems


def test_the_numbers_of_the_made_program_are_compared(fused: Rule, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    wrong = CHECKED.replace("max(x[...], 0)", "max(x[...], 1)")
    path.write_text(wrong.replace("    check: 'CHECK: math.tanh'", "    run: {devices: [cpu]}"))
    report = measure(rule_from(path), numbers=True)
    assert report.problems
    assert "elements differ" in report.problems[0]
    assert measure(fused, numbers=True).numbers == (
        "no inline test compares numbers with the unrewritten program"
    )


def test_the_command(fused: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    run(["test", fused.path, "--synthesise", "--devices", "none", "--json"])
    (report,) = json.loads(capsys.readouterr().out)
    assert report["mutation"] == {"noticed": 6, "mutants": 6, "survivors": []}
    assert len(report["negatives"]) == 4
    run(["test", fused.path, "--synthesise", "--devices", "none"])
    assert "where lines seen both ways: 2 of 2" in capsys.readouterr().out


def test_workers_find_the_same(fused: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(fused.path).parent
    other = CHECKED.replace("tanh-of-relu", "another").replace("  - one_use(t)\n", "")
    (folder / "another.yaml").write_text(other)
    found = []
    for workers in ("1", "2"):
        asked = ["test", str(folder), "--synthesise", "--devices", "none", "--workers", workers]
        run([*asked, "--json"])
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert [report["rule"] for report in found[1]] == ["another", "tanh-of-relu"]
    run([*asked, "--only", "another"])
    said = capsys.readouterr().out
    assert "1 rules, 0 failed" in said
    assert "left out" not in said  # a rule that was not asked for is none that rewrites nothing


def test_update_writes_what_is_missing_and_keeps_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tanh-of-relu.yaml"
    path.write_text(FUSED.replace("CHECK\n", "\n"))
    run(["test", "-u", str(path), "--devices", "none"])
    written = path.read_text()
    assert "CHECK: %[[MAXIMUMF:.+]] = arith.maximumf" in written
    assert "CHECK: math.tanh{{.*}}%[[MAXIMUMF]]" in written
    assert written.endswith("    because: T in [f16, f32]\n")
    kept = [row for row in written.split("\n") if not re.search("CHECK|check:|because:", row)]
    assert kept == FUSED.replace("CHECK\n", "\n").split("\n")
    capsys.readouterr()
    run(["test", "-u", str(path), "--devices", "none"])
    assert path.read_text() == written  # stable
    assert "wrote" not in capsys.readouterr().err


def test_update_replaces_only_what_no_longer_holds(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(CHECKED.replace("math.tanh'", "linalg.matmul'"))
    said = checklines.update(path)
    assert [s.rpartition(": ")[2] for s in said] == [
        "wrote `check:` of the test 'what it matches'",
        "wrote `because:` of the test 'what it refuses'",
    ] or len(said) == 2
    assert "linalg.matmul" not in path.read_text()


def test_update_writes_nothing_when_a_rule_does_not_apply(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    text = FUSED.replace("CHECK\n", "\n").replace("relu %x", "sigmoid %x")
    path.write_text(text)
    with pytest.raises(MlirulesError, match="does not apply"):
        checklines.update(path)
    assert path.read_text() == text


def run(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0
