"""What crashes costs one test; files that are no rules are said so."""

import json
import subprocess
from pathlib import Path

import pytest

import served
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.apart import run_gates, run_mutants
from mlirules.drivers.quality.isolated import Setup, run_apart
from mlirules.language.rulefiles import rule_files

# A read far outside of what the process holds: the program dies when it runs.
RULE = """rule: made-{name}
kind: conversion
summary: A relu whose first element is read from afar.
reason: To die while it runs.
types: {{x: vtensor<N x f32>, y: vtensor<N x f32>}}
match: y = torch.aten.relu(x)
rewrite:
  - body: |
      %far = arith.constant {far} : index
      %e = tensor.empty() : $x
      %y = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>],
        iterator_types = ["parallel"]}} outs(%e : $x) {{
      ^bb0(%o: f32):
        %i = linalg.index 0 : index
        %at = arith.addi %i, %far : index
        %v = tensor.extract %x[%at] : $x
        %z = arith.constant 0.0 : f32
        %r = arith.maximumf %v, %z : f32
        linalg.yield %r : f32
      }} -> $x
tests:
  - name: it runs
    input: &program |
      func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {{
        %y = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        return %y : !torch.vtensor<[4],f32>
      }}
    run: {{devices: [cpu]}}
  - name: it stays
    unchanged: |
      func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {{
        return %x : !torch.vtensor<[4],f32>
      }}
"""


def rules(folder: Path) -> Path:
    for name, far in (("a", "0"), ("b", "1000000000000"), ("c", "0")):
        text = RULE.format(name=name, far=far).replace("input: &program |", "input: |")
        (folder / f"made-{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_crash_costs_one_test_and_is_reported_with_its_rule(tmp_path: Path, workers: str) -> None:
    folder = rules(tmp_path)
    made = list(run_apart(Setup((str(folder),)), rule_set((str(folder),)), workers=workers))
    assert [(r.rule.name, r.test.name) for r in made] == [
        (f"made-{name}", said) for name in "abc" for said in ("it runs", "it stays")
    ]
    crashed = [r for r in made if not r.passed]
    assert [(r.rule.name, r.test.name) for r in crashed] == [("made-b", "it runs")]
    assert "crashed the compiler or runtime (SIG" in crashed[0].problems[0]


def test_a_test_that_takes_too_long_costs_itself_alone(tmp_path: Path) -> None:
    folder = rules(tmp_path)
    made = list(
        run_apart(Setup((str(folder),)), rule_set((str(folder),)), timeout=0.0, workers="2")
    )
    assert len(made) == 6
    late = [r for r in made if not r.passed]
    assert late
    assert all(r.problems == ["did not end within 0 s"] for r in late if r.rule.name != "made-b")


def test_a_gate_by_workers_is_that_without(tmp_path: Path) -> None:
    folder = rules(tmp_path)
    (folder / "made-b.yaml").unlink()
    chosen = rule_set((str(folder),))
    cpu = [Target.parse("cpu")]
    alone, apart = (
        [r.as_json() for r in run_gates([str(folder)], chosen, cpu, workers)]
        for workers in ("1", "2")
    )
    assert [r["rule"] for r in alone] == ["made-a", "made-c"]
    assert alone == apart
    # Outside of this process, what crashes is told of its rule.
    made = list(run_gates([str(rules(tmp_path))], rule_set((str(folder),)), cpu, "2"))
    assert [r.passed for r in made] == [r["passed"] for r in alone[:1]] + [False] + [
        r["passed"] for r in alone[1:]
    ]
    assert "the worker died: SIG" in made[1].problems[0]


def test_a_crash_among_mutants_costs_its_rule(tmp_path: Path) -> None:
    folder = str(rules(tmp_path))
    reports = list(run_mutants([folder], rule_set((folder,)), True, "2"))
    assert [r.rule.name for r in reports] == ["made-a", "made-b", "made-c"]
    assert [bool(r.problems) for r in reports] == [False, True, False]
    assert "the worker died: SIG" in reports[1].problems[0]
    assert reports[0].synthesis.positive is not None


def test_a_program_is_verified_on_each_target_by_a_worker(tmp_path: Path) -> None:
    folder = rules(tmp_path)
    (folder / "made-b.yaml").unlink()
    program = tmp_path / "program.mlir"
    program.write_text(
        "func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {\n"
        "  %y = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>\n"
        "  return %y : !torch.vtensor<[4],f32>\n}\n"
    )
    words = ["verify", str(program), "--rules", str(folder / "made-a.yaml"), "--json"]
    words += ["--targets", "cpu,cpu:x86-64-v3", "--save", str(tmp_path / "saved")]
    alone, apart = (json.loads(run(*words, "--workers", n).stdout) for n in ("1", "2"))
    assert alone["applied_by_target"] == {"cpu": 1, "cpu:x86-64-v3": 1}
    assert {c["target"] for c in alone["comparisons"]} == {"cpu", "cpu:x86-64-v3"}
    assert alone["passed"]
    assert alone == apart


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*served.command(), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_goes_on_behind_a_crash(tmp_path: Path) -> None:
    done = run("test", str(rules(tmp_path)), "--json")
    assert done.returncode == 1
    assert [r["passed"] for r in json.loads(done.stdout)] == [True, True, False, True, True, True]


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_folder_without_rules_is_said_so(command: str, tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    done = run(command, str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}: error[no-rules]: holds no rule files" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["check", "test"])
def test_files_that_would_not_be_read_are_said_so(command: str, tmp_path: Path) -> None:
    file = tmp_path / "made-a.yml"
    file.write_text(RULE.format(name="a", far="0"))
    for path in (tmp_path, file):
        done = run(command, str(path))
        assert done.returncode == 2
        assert "rename it to made-a.yaml" in done.stdout + done.stderr


@pytest.mark.parametrize("text", ["", "\n\n", "# a remark\n"])
def test_an_empty_file_is_told_with_its_first_character(text: str, tmp_path: Path) -> None:
    file = tmp_path / "made-a.yaml"
    file.write_text(text)
    done = run("check", str(file))
    assert done.returncode == 2
    assert f"{file}:1:1: error[empty]" in done.stdout + done.stderr


def test_pipelines_beside_rules_are_passed_over(tmp_path: Path) -> None:
    """`mlirules tune` writes its pipeline into the folder of its rules."""
    line = (
        "# what won\npipeline: found\nsummary: What a search found.\ntargets: [cpu]\nstages: []\n"
    )
    (rules(tmp_path) / "found.cpu.yaml").write_text(line)
    names = [file.name for file in rule_files(tmp_path)]
    assert names == ["made-a.yaml", "made-b.yaml", "made-c.yaml"]
    assert len(rule_files(tmp_path, pipelines=True)) == 4
    assert len(rule_set((str(tmp_path),))) == 3
