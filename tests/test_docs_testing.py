"""The recipe of docs/testing.md, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parent.parent / "docs"


def test_the_lit_recipe_works_in_a_project_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("lit", reason="needs lit")
    text = (DOCS / "testing.md").read_text()
    (config,), (test,) = (
        re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "mlir")
    )
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlirules",
            "new",
            "conversion",
            "my-sigmoid",
            "-o",
            str(tmp_path / "rules"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "lit_tests"
    folder.mkdir()
    (folder / "lit.cfg.py").write_text(config)
    (folder / "my-sigmoid.mlir").write_text(test)
    lit = Path(sys.executable).parent / "lit"
    done = subprocess.run([lit, "-v", folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Passed\s*:\s*1 ", done.stdout)
    # It can fail as well: the op must be gone.
    (folder / "my-sigmoid.mlir").write_text(test.replace("--expect 1", "--expect 2"))
    done = subprocess.run([lit, "-v", folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1


def test_the_keys_of_a_test_are_those_that_there_are() -> None:
    from mlirules.language.model import RunDoc
    from mlirules.language.model import Test as Inline

    text = (DOCS / "testing.md").read_text()
    section = text.split("## What a test says")[1].split("\n## ")[0]
    told = set(re.findall(r"`((?:run\.)?[a-z]+)`(?=[,| ][^\n]*\|)", section))
    keys = {*Inline.model_fields} - {"name"} | {f"run.{k}" for k in RunDoc.model_fields}
    assert keys - {"run.devices"} <= told
    (shown,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    for test in yaml.safe_load(shown)["tests"]:
        Inline.model_validate(test)
