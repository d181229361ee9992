"""The mutation score of rule files: what counts, what is explained, and the library's own."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.mutation import FileReport, measure_file, of_file, reasons

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

RULE = """\
rule: tanh-of-relu
kind: fusion
summary: One rule of a test.
reason: To have a rule.
types: {x: vtensor<S... x T>}
match:
  - t = torch.aten.relu(x)
  - y = torch.aten.tanh(t)
where:
  - one_use(t)
  - T in [f16, f32]
  - rank(x) >= 0REASON
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
    check: 'CHECK: math.tanh'
  - name: what it refuses
    unchanged: |
      func.func @f(%x: !torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64> {
        %t = torch.aten.relu %x : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
        %y = torch.aten.tanh %t : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
        return %y : !torch.vtensor<[4],f64>
      }
    because: T in [f16, f32]
"""

# No variant of a program that is only text has other strides: what steps do is for a test to say.
STRIDED = """\
rule: one-by-one
kind: fusion
summary: One rule of a test.
reason: To have a rule.
types: {x: tensor<N x C x H x W x f32>, w: tensor<F x C x P x Q x f32>, y: tensor<N x F x I x J x f32>}
match: y[n, f, i, j] += x[n, c, i*s + u*d, j*t + v*e] * w[f, c, u, v]
where:
  - s == 1
  - t == 1
rewrite: y[n, f, i, j] += w[f, c, u, v] * x[n, c, i + u*d, j + v*e]
tests:
  - name: a step of one
    input: |
      func.func @f(%x: tensor<1x3x6x7xf32>, %w: tensor<4x3x2x2xf32>, %y: tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32> {
        %z = arith.constant 0.0 : f32
        %e = linalg.fill ins(%z : f32) outs(%y : tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32>
        %r = linalg.conv_2d_nchw_fchw {dilations = dense<[1, 1]> : tensor<2xi64>, strides = dense<[1, 1]> : tensor<2xi64>} ins(%x, %w : tensor<1x3x6x7xf32>, tensor<4x3x2x2xf32>) outs(%e : tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32>
        return %r : tensor<1x4x2x3xf32>
      }
    check: 'CHECK: linalg.generic'
  - name: steps of two
    unchanged: |
      func.func @f(%x: tensor<1x3x6x7xf32>, %w: tensor<4x3x2x2xf32>, %y: tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32> {
        %z = arith.constant 0.0 : f32
        %e = linalg.fill ins(%z : f32) outs(%y : tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32>
        %r = linalg.conv_2d_nchw_fchw {dilations = dense<[1, 1]> : tensor<2xi64>, strides = dense<[STEPS]> : tensor<2xi64>} ins(%x, %w : tensor<1x3x6x7xf32>, tensor<4x3x2x2xf32>) outs(%e : tensor<1x4x2x3xf32>) -> tensor<1x4x2x3xf32>
        return %r : tensor<1x4x2x3xf32>
      }
    because: s == 1
"""  # noqa: E501

FAMILY = """\
rule: relu-*
kind: fusion
summary: Two rules of a test.
reason: To have a family.
types: {x: vtensor<S... x T>}
match:
  - any:
      tanh: [t = torch.aten.relu(x), y = torch.aten.tanh(t)]
      exp: [t = torch.aten.relu(x), y = torch.aten.exp(t)]
where:
  - T == f32
  - rank(x) >= 0
rewrite:
  - any:
      tanh: "y[...] = tanh(max(x[...], 0))"
      exp: "y[...] = exp(max(x[...], 0))"
tests:
  - name: f32
    input:
      - |
        func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
          %t = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
      - any:
          tanh: "  %y = torch.aten.tanh %t : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>"
          exp: "  %y = torch.aten.exp %t : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>"
      - |2
          return %y : !torch.vtensor<[4],f32>
        }
    check: 'CHECK: math.'
  - name: f64
    unchanged:
      - |
        func.func @f(%x: !torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64> {
          %t = torch.aten.relu %x : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
      - any:
          tanh: "  %y = torch.aten.tanh %t : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>"
          exp: "  %y = torch.aten.exp %t : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>"
      - |2
          return %y : !torch.vtensor<[4],f64>
        }
    because: T == f32
"""


def measured(path: Path, text: str) -> FileReport:
    path.write_text(text, encoding="utf-8")
    return measure_file(rule_set((str(path),)))


def unnoticed(report: FileReport) -> list[tuple[str, str, str]]:
    return [(m.text, m.change, m.outcome) for m in report.mutants if m.outcome != "noticed"]


@pytest.fixture(name="benchmark")
def _benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("mutation", None)
    yield importlib.import_module("mutation")
    sys.modules.pop("mutation", None)


def test_a_condition_without_a_test_survives(tmp_path: Path) -> None:
    report = measured(tmp_path / "r.yaml", STRIDED.replace("STEPS", "2, 1"))
    assert unnoticed(report) == [("t == 1", "deleted", "survivor")]
    both = measured(tmp_path / "r.yaml", STRIDED.replace("STEPS", "2, 2"))
    # Each of them refuses what the other one does: no test is about one alone.
    assert unnoticed(both) == [
        ("s == 1", "deleted", "survivor"),
        ("t == 1", "deleted", "survivor"),
    ]


def test_what_the_rewrite_refuses_is_equivalent_for_its_own_condition_alone(tmp_path: Path) -> None:
    text = RULE.replace("REASON", "\n  - numel(x) == 4").replace("S... x T", "M x T")
    text = text.replace(
        "  - y[...] = tanh(max(x[...], 0))",
        "  - z = reshape(x, [4])\n  - y[i] = tanh(max(z[i], 0))",
    )
    text += (
        text[text.index("  - name: what it refuses") :]
        .replace("f64", "f32")
        .replace("[4]", "[6]")
        .replace("T in [f16, f32]", "z = reshape(x, [4])")
        .replace("refuses", "cannot make")
    )
    found = unnoticed(measured(tmp_path / "r.yaml", text))
    assert ("numel(x) == 4", "deleted", "equivalent") in found
    assert ("rank(x) >= 0", "deleted", "survivor") in found
    alone = unnoticed(measured(tmp_path / "r.yaml", text.replace("\n  - numel(x) == 4", "")))
    assert alone == [("rank(x) >= 0", "deleted", "survivor")]


def test_a_reason_explains_a_survivor(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    plain = measured(path, RULE.replace("REASON", ""))
    assert unnoticed(plain) == [("rank(x) >= 0", "deleted", "survivor")]
    said = measured(path, RULE.replace("REASON", "  # survives: no rank is negative"))
    assert unnoticed(said) == [("rank(x) >= 0", "deleted", "explained")]
    assert said.needless == []
    assert said.conditions == plain.conditions == 5
    assert next(m.why for m in said.mutants if m.outcome == "explained") == "no rank is negative"


def test_a_reason_for_what_a_test_notices_is_needless(tmp_path: Path) -> None:
    text = RULE.replace("REASON", "").replace("one_use(t)", "one_use(t)  # survives: so they say")
    assert measured(tmp_path / "r.yaml", text).needless == [(10, "so they say")]


def test_where_a_reason_stands() -> None:
    text = """\
where:
  - a  # survives: on the row
  # survives: before it,
  # on two rows
  - b
  # a comment
  - "# survives without a colon"
"""
    assert reasons(text) == {2: "on the row", 5: "before it, on two rows"}


def test_the_members_of_a_family_count_once(tmp_path: Path) -> None:
    path = tmp_path / "family.yaml"
    report = measured(path, FAMILY)
    assert [(m.row, m.text, m.change, m.outcome) for m in report.mutants if m.row in (11, 12)] == [
        (11, "T == f32", "deleted", "noticed"),
        (11, "T == f32", "negated", "noticed"),
        (12, "rank(x) >= 0", "deleted", "survivor"),
        (12, "rank(x) >= 0", "negated", "noticed"),
    ]
    with pytest.raises(ValueError, match="no report"):
        of_file([])


def test_the_benchmark_keeps_what_is_finished(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path / "cache"))
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text(RULE.replace("REASON", ""))
    (rules / "b.yaml").write_text(FAMILY)
    result = tmp_path / "out.json"
    done = benchmark.work

    def interrupted(path: str) -> Any:
        if path.endswith("b.yaml"):
            raise KeyboardInterrupt
        return done(path)

    monkeypatch.setattr(benchmark, "work", interrupted)
    assert benchmark.main([str(rules), "--json", str(result)]) == 130
    assert "1 of 2 files" in capsys.readouterr().out
    assert not result.exists()
    again: list[str] = []
    monkeypatch.setattr(benchmark, "work", lambda path: (again.append(path), done(path))[1])
    assert benchmark.main([str(rules), "--json", str(result)]) == 1
    assert [Path(path).name for path in again] == ["b.yaml"]
    said = capsys.readouterr().out
    assert "a.yaml:12:5: no test notices `rank(x) >= 0` deleted" in said
    found = json.loads(result.read_text())
    assert {k: found["sets"]["all"][k] for k in ("files", "rules", "survivor")} == {
        "files": 2,
        "rules": 3,
        "survivor": 2,
    }
    assert {row["text"] for row in found["not noticed"]} == {"rank(x) >= 0"}
    (rules / "a.yaml").write_text(RULE.replace("REASON", "  # survives: no rank is negative"))
    (rules / "b.yaml").write_text(FAMILY.replace("0\nrew", "0  # survives: no rank is\nrew"))
    assert benchmark.main([str(rules)]) == 0
    assert len(again) == 3  # both files say something else


def test_the_table_of_the_page_is_that_of_the_result(benchmark: Any, tmp_path: Path) -> None:
    page = (BENCHMARKS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    found = json.loads(benchmark.RESULT.read_text(encoding="utf-8"))
    copy = tmp_path / "testing.md"
    copy.write_text(page, encoding="utf-8")
    benchmark.renew(copy, benchmark.BEGIN, benchmark.END, benchmark.section(found["sets"]))
    assert copy.read_text(encoding="utf-8") == page
    assert found["sets"]["all"]["survivor"] == 0
    parts = [counted for name, counted in found["sets"].items() if name != "all"]
    for what in benchmark.COLUMNS:
        assert sum(part[what] for part in parts) == found["sets"]["all"][what]


@pytest.mark.slow
def test_no_condition_of_the_library_survives_unexplained(benchmark: Any, tmp_path: Path) -> None:
    result = tmp_path / "mutation.json"
    code = benchmark.main(["--json", str(result)])
    found = json.loads(result.read_text(encoding="utf-8"))
    survivors = [row for row in found["not noticed"] if row["outcome"] == "survivor"]
    assert survivors == []
    assert code == 0
    assert found["sets"]["all"]["mutants"] > 4000
