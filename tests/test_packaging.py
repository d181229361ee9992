"""The distribution: what ships, that it works away from the checkout, and that CI runs the README.

The package is assembled over symbolic links; an sdist holds copies of what they point to. So the
wheel that users get is built from the sdist, and it is that one which is looked into.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("drivers", "generator", "rules", "specs")


def _sources() -> set[str]:
    """Every file that must ship, by its name inside the wheel."""
    package = ROOT / "src" / "mlirules"
    own = {f"mlirules/{path.name}" for path in package.iterdir() if path.is_file()}
    own |= {
        f"mlirules/{path.relative_to(package).as_posix()}"
        for room in ("api", "commands", "language", "support")
        for path in (package / room).rglob("*")
        if path.suffix in (".py", ".j2")
    }
    linked = {
        f"mlirules/{folder}/{path.relative_to(package / folder).as_posix()}"
        for folder in LINKED
        for path in (package / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
    return own | linked


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    # setuptools writes beside the sources: two workers building in one tree would collide.
    tree = tmp_path_factory.mktemp("tree") / "mlirules"
    unwanted = shutil.ignore_patterns(".git", ".venv", ".*_cache", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=unwanted)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_links_are_relative() -> None:
    for folder in LINKED:
        link = ROOT / "src" / "mlirules" / folder
        if (ROOT / folder).is_dir():  # an unpacked sdist holds copies, and no folder to link to
            assert link.is_symlink()
            assert str(link.readlink()) == f"../../{folder}"


def test_wheel_holds_every_source_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == _sources()


def test_pytorch_finds_the_backend(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/entry_points.txt")]
        text = archive.read(name).decode()
    assert (
        "[torch_dynamo_backends]\nmlirules = mlirules.api.dynamo.backend:mlirules_backend" in text
    )


def test_wheel_holds_rules_templates_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "mlirules/py.typed" in names
    assert any(n.startswith("mlirules/rules/") and n.endswith(".yaml") for n in names)
    assert any(n.startswith("mlirules/specs/pipelines/") and n.endswith(".yaml") for n in names)
    assert any(n.startswith("mlirules/generator/templates/") and n.endswith(".j2") for n in names)
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    assert {f"mlirules/specs/demo/bert.{s}" for s in ("mlirbc", "npz")} <= set(names)


def test_sdist_holds_the_tests_and_no_links(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.partition("/")[2] for member in members}
    assert {f"src/{name}" for name in _sources()} <= names
    assert {"lit_tests/lit.cfg.py", "tests/conftest.py", "LICENSE", "CHANGELOG.md"} <= names


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import mlirules, mlirules.cli, sys\n"
        "for name in mlirules.__all__: getattr(mlirules, name)\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.partition('.')[0] == 'mlirules' and getattr(module, '__file__', None):\n"
        "        print(module.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert files
    assert [file for file in files if not file.is_relative_to(tmp_path)] == []


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    command = script[-1]
    assert command.startswith("python3 -m venv .venv && ")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
