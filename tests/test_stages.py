"""What `check` finds in pipeline files: stages, flags and filters that could do nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.drivers.quality.stages import pipeline_faults

LINE = """\
pipeline: mine
summary: A line of mine.
targets: [cpu]
flags: [--iree-opt-data-tiling]
stages:
  - name: conv
    phase: torch
    rules: [torch/to-linalg/matmul]
    driver: walk
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "said", "hint"),
    [
        (
            "phase: torch",
            "phase: troch",
            "7:12 pipeline",
            "`phase` must be one of torch, input, preprocessing",
            "did you mean 'torch'",
        ),
        (
            "[torch/to-linalg/matmul]",
            "[torch/to-linalg/matmull]",
            "8:13 no-rules",
            "no such rule file, folder or shipped rule set",
            "did you mean 'torch/to-linalg/matmul'",
        ),
        (
            "[torch/to-linalg/matmul]",
            "[configs]",
            "8:13 phase",
            "is a config rule, and those run in another phase",
            "write phase: configuration",
        ),
        (
            "phase: torch",
            "phase: configuration",
            "8:13 phase",
            "rules of torch/to-linalg/matmul are no config rules",
            "see docs/configs.md",
        ),
        (
            "phase: torch",
            "phase: preprocessing",
            "7:12 phase",
            "of its rules look at torch ops: none is left in phase preprocessing",
            "write phase: torch, where torch.aten.",
        ),
        (
            "data-tiling",
            "data-tilling",
            "4:9 flag",
            "iree-compile has no flag --iree-opt-data-tilling",
            "did you mean '--iree-opt-data-tiling'",
        ),
        (
            "targets: [cpu]",
            "targets: [cpuu]",
            "3:11 target",
            "there is no kind of target 'cpuu'",
            "did you mean 'cpu'",
        ),
        (
            "driver: walk",
            "driver: walk\n    margin: 0.1",
            "10:5 no-effect",
            "`margin:` is read with `driver: cost` or `driver: saturate` alone, and this stage",
            "write driver: cost",
        ),
        (
            "driver: walk",
            "driver: walk\n    only: ['*-mmm-*']",
            "10:13 filter",
            "fits no rule of the set",
            "filters are globs",
        ),
        (
            "driver: walk",
            "driver: walk\n    skip: ['*']",
            "6:5 no-effect",
            "the stage has no rule",
            "the filters leave out all rules",
        ),
        (
            "driver: walk",
            "driver: walk\n    expect_rules: {torch-mn-to-linalg: {min: 1}}",
            "10:20 expect",
            "the stage has no rule torch-mn-to-linalg, so it can never apply",
            "'torch-mm-to-linalg'",
        ),
        (
            "driver: walk\n",
            "driver: walk\n  - {name: conv, phase: torch, rules: [torch/decompose]}\n",
            "10:12 pipeline",
            "two stages are named conv",
            "the other stands in line 6",
        ),
    ],
)
def test_a_stage_that_could_do_nothing(
    tmp_path: Path, old: str, new: str, place: str, said: str, hint: str
) -> None:
    file = tmp_path / "mine.yaml"
    assert old in LINE
    file.write_text(LINE.replace(old, new))
    (fault,) = pipeline_faults(file)
    assert f"{fault.span.line}:{fault.span.column} {fault.code}" == place
    assert said in fault.message
    assert hint in fault.suggestion


def test_the_command_tells_it(tmp_path: Path, told: Callable[..., tuple[int, str]]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(LINE)
    assert told("check", file)[0] == 0
    file.write_text(
        "pipeline: mine\nsummary: A line of mine.\nextends: cpu\ninsert:\n"
        "  - {after: to-linalg, stages: [{phase: torch, rules: [nothing-there]}]}\n"
    )
    code, said = told("check", file)
    assert code == 2
    assert f"{file}:5:56: error[no-rules]: no such rule file" in said
