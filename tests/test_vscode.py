"""The extension for VS Code: what it says of itself, and that it packs into a `.vsix`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "editors" / "vscode"


def test_it_starts_the_server_that_there_is() -> None:
    said = json.loads((EXTENSION / "package.json").read_text())
    code = (EXTENSION / "extension.js").read_text()
    command = said["contributes"]["configuration"]["properties"]["mlirules.command"]
    assert command["default"] == ["mlirules", "lsp"]
    # A workspace that is opened must not choose what is run.
    assert command["scope"] == "machine"
    assert said["main"] == "./extension.js"
    for name in re.findall(r'require\("([^".]+)', code):
        assert name == "vscode" or name.split("/")[0] in said["dependencies"]
    for command in said["contributes"]["commands"]:
        assert f'"{command["command"]}"' in code
    assert (EXTENSION / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_it_packs(tmp_path: Path) -> None:
    npm, npx = shutil.which("npm"), shutil.which("npx")
    if npm is None or npx is None:
        pytest.skip("no npm here")
    folder = tmp_path / "vscode"
    shutil.copytree(EXTENSION, folder, ignore=shutil.ignore_patterns("node_modules", "*.vsix"))
    for command in (
        [npm, "install", "--omit=dev", "--no-audit", "--no-fund"],
        [npx, "--yes", "@vscode/vsce", "package", "--allow-missing-repository"],
    ):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode and re.search(r"E404|ENOTFOUND|EAI_AGAIN|ECONNREFUSED", done.stderr):
            pytest.skip("the npm registry is not reached")
        assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("mlirules-*.vsix")
    with zipfile.ZipFile(made) as packed:
        names = set(packed.namelist())
    assert {"extension/package.json", "extension/extension.js"} <= names
    assert any(n.startswith("extension/node_modules/vscode-languageclient/") for n in names)
