"""Pipelines said by how they differ from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirules.cli import main
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import PIPELINES, Pipeline
from mlirules.language.rulefiles import rule_files

DOCS = Path(__file__).parent.parent / "docs" / "pipelines.md"


def write(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"pipeline: {name}\nsummary: A pipeline of a test.\n{text}")
    return path


def test_stages_go_where_they_are_put(tmp_path: Path) -> None:
    base = Pipeline.load("cpu-fast")
    made = Pipeline.load(
        write(
            tmp_path,
            """\
extends: cpu-fast
insert:
  - {before: decompose, stages: [{name: one, phase: torch, rules: [torch/fusions]}]}
  - {after: to-linalg, stages: [{name: two, phase: torch, rules: [linalg/fusions]}]}
without: [linalg-forms]
stages: [{name: last, phase: preprocessing, rules: [linalg/fusions]}]
flags: [--iree-opt-level=O1]
without_flags: [--iree-global-opt-data-tiling]
""",
        )
    )
    names = [s.name for s in made.stages]
    assert names == [
        "limits",
        "integers",
        "integer-groups",
        "integer-group-activations",
        "integer-group-floats",
        "integer-activations",
        "integer-floats",
        "integer-kernels",
        "bf16-limited",
        "bf16-added",
        "bf16",
        "bf16-plain",
        "bf16-kernels",
        "narrow-turns",
        "widened",
        "widened-products",
        "widened-onwards",
        "patches",
        "attention",
        "layers",
        "algebra",
        "bf16-attention",
        "flash",
        "forms",
        "norms",
        "one",
        "decompose",
        "gates",
        "scales",
        "scaled-images",
        "means",
        "row-kernels",
        "limited-kernels",
        "added-kernels",
        "shifted-kernels",
        "kernels",
        "pools",
        "packing",
        "bf16-layers",
        "products",
        "computed-products",
        "bytes",
        "depthwise",
        "integer-products",
        "extensions",
        "permutes",
        "to-linalg",
        "two",
        "part-writes",
        "last",
    ]
    kept = {s.name: s for s in base.stages}
    assert all(s == kept[s.name] for s in made.stages if s.name in kept)
    assert made.flags[-1] == "--iree-opt-level=O1"
    assert "--iree-global-opt-data-tiling" in base.flags
    assert "--iree-global-opt-data-tiling" not in [*made.flags, *made.dispensable]
    assert (made.pipeline, made.targets) == ("mine", base.targets)


def test_a_file_beside_it_is_extended_and_its_rules_are_found(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    write(tmp_path, "extends: cpu\nstages: [{name: own, phase: torch, rules: [own]}]\n", "one")
    two = write(tmp_path, "extends: one.yaml\nwithout: [decompose]\n", "two")
    made = Pipeline.load(two)
    assert [s.name for s in made.stages] == ["to-linalg", "part-writes", "own"]
    assert made.stages[-1].rules == [str(tmp_path / "own")]


@pytest.mark.parametrize(
    ("text", "line", "said", "hint"),
    [
        ("extends: cpu-fats\n", 3, "there is no pipeline 'cpu-fats'", "cpu-fast"),
        ("extends: mine.yaml\n", 3, "extends this pipeline itself", "shipped"),
        (
            "extends: cpu\ninsert:\n  - before: decompos\n"
            "    stages: [{phase: torch, rules: [linalg/fusions]}]\n",
            5,
            "cpu has no stage 'decompos'",
            "decompose",
        ),
        ("extends: cpu\nwithout: [forms]\n", 4, "cpu has no stage 'forms'", "to-linalg"),
        ("extends: cpu\nwithout_flags: [--no]\n", 4, "cpu has no flag '--no'", "none"),
        (
            "extends: cpu\ninsert:\n  - stages: [{phase: torch, rules: [linalg/fusions]}]\n",
            5,
            "say either",
            "",
        ),
        ("extends: cpu\nwithot: [decompose]\n", 4, "unknown key 'withot'", "without"),
        (
            "extends: cpu\nstages: [{name: to-linalg, phase: torch, rules: [linalg/fusions]}]\n",
            1,
            "two stages are named to-linalg",
            "",
        ),
    ],
)
def test_faults_are_located(tmp_path: Path, text: str, line: int, said: str, hint: str) -> None:
    with pytest.raises(MlirulesError) as raised:
        Pipeline.load(write(tmp_path, text))
    (fault,) = raised.value.faults
    assert fault.span.line == line
    assert said in fault.message
    assert hint in fault.suggestion


def test_two_files_that_extend_each_other(tmp_path: Path) -> None:
    write(tmp_path, "extends: two.yaml\n", "one")
    with pytest.raises(MlirulesError, match="extends this pipeline itself"):
        Pipeline.load(write(tmp_path, "extends: one.yaml\n", "two"))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)


def test_new_writes_one_that_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "pipeline", "my-cpu", "-o", str(tmp_path)) == 0
    path = tmp_path / "my-cpu.yaml"
    assert str(path) in capsys.readouterr().err
    assert run("check", str(path)) == 0
    names = [s.name for s in Pipeline.load(path).stages]
    assert names[names.index("decompose") - 1] == "my-cpu-rules"


def test_the_page_names_the_stages() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for path in PIPELINES.glob("*.yaml"):
        stages = ", ".join(f"`{s.name}`" for s in Pipeline.load(path).stages)
        assert any(f"`{path.stem}`" in row and stages in row for row in page.splitlines())


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    name = "x" * 5000
    path.write_text(
        "pipeline: long\nsummary: A long name.\ntargets: [cpu]\n"
        f"stages: [{{phase: torch, rules: [{name}], driver: greedy}}]\n"
    )
    (stage,) = Pipeline.load(path).stages
    assert stage.rules == [name]
    with pytest.raises(MlirulesError, match="no such rule file"):
        rule_files(name)
    with pytest.raises(MlirulesError, match="no such pipeline"):
        Pipeline.load(name)
