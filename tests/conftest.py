"""Fixtures shared by all tests: devices, and a cache that no test shares with the user."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import served
from mlirules.cli import main
from mlirules.language import consent

REQUIRED_DEVICES = "MLIRULES_REQUIRE_DEVICES"
"""Comma-separated drivers (`vulkan`, `cuda`) whose absence is a failure instead of a skip."""


# Of the processes that tests start, each would compile the sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@cache
def _why_no_device(driver: str) -> str | None:
    """Say why IREE's `driver` has no device here, or None when it has one.

    Asked of `iree-run-module` in a process of its own: a broken driver may crash the asker.
    """
    here = Path(sys.executable).parent / "iree-run-module"
    tool = str(here) if here.exists() else shutil.which("iree-run-module")
    if tool is None:
        return "iree-run-module is not installed"
    try:
        asked = subprocess.run(
            [tool, f"--list_devices={driver}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"iree-run-module --list_devices={driver} gave no answer within 60 s"
    if asked.returncode == 0 and asked.stdout.strip():
        return None
    said = asked.stderr.strip().splitlines() or asked.stdout.strip().splitlines()
    return f"no {driver} device: {said[-1] if said else 'iree-run-module lists none'}"


def _device(driver: str) -> str:
    reason = _why_no_device(driver)
    if reason is not None:
        if driver in os.environ.get(REQUIRED_DEVICES, "").split(","):
            pytest.fail(f"{REQUIRED_DEVICES} asks for {driver}, but there is {reason}")
        pytest.skip(reason)
    return driver


@pytest.fixture
def vulkan() -> str:
    """The name of the Vulkan target; skips, saying why, where there is no Vulkan device."""
    return _device("vulkan")


@pytest.fixture
def cuda() -> str:
    """The name of the CUDA driver; skips, saying why, where there is no CUDA device."""
    return _device("cuda")


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session's artefacts are cached: empty at the start, never the user's own.

    The workers of pytest-xdist share it, as processes of a user's do.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mlirules-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLIRULES_CACHE_DIR", str(folder))
        yield folder


def _copied_if_there(source: str, target: str) -> None:
    """Copy a file, but where another worker has renamed or removed it since it was listed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


@pytest.fixture
def own_cache(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a test's own, but that rules which were read before are not read again."""
    folder = tmp_path / "own-cache"
    for kind in ("rules", "pipelines"):
        if (cache_dir / kind).is_dir():
            shutil.copytree(
                cache_dir / kind,
                folder / kind,
                ignore=shutil.ignore_patterns(".*"),
                copy_function=_copied_if_there,
            )
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def served_commands() -> Iterator[None]:
    """The server that runs the command line for this session's tests."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        address = str(Path(folder) / "socket")
        server = subprocess.Popen([sys.executable, served.__file__, address])
        while not Path(address).exists() and server.poll() is None:
            time.sleep(0.005)
        patch.setenv(served.ADDRESS, address)
        yield
        server.terminate()
        server.wait()


@pytest.fixture(autouse=True)
def own_consent() -> Iterator[None]:
    """What a test lets run, it lets run alone."""
    with consent.given():
        yield


@pytest.fixture(scope="session", autouse=True)
def config_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of this session's user, which trusts the native code beside the tests."""
    folder = tmp_path_factory.mktemp("mlirules-config")
    trusted = [Path(__file__).parent, Path(__file__).parent.parent / "examples"]
    (folder / "mlirules").mkdir()
    listed = "".join(f"  - {json.dumps(str(path))}\n" for path in trusted)
    (folder / "mlirules" / "config.yaml").write_text(f"trusted:\n{listed}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        yield folder


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command in this process: what it exits with, and all that it says."""

    def run(*arguments: object) -> tuple[int, str]:
        try:
            main([str(a) for a in arguments])
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        found = capsys.readouterr()
        return code, found.out + found.err

    return run


Pasted = Callable[[str, Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def pasted() -> Pasted:
    """Run the shell blocks of a page in a folder, as a reader who pastes them would."""

    def run(blocks: str, folder: Path) -> subprocess.CompletedProcess[str]:
        words = shlex.join(served.command())
        program = f'mlirules() {{ {words} "$@"; }}\nset -euo pipefail\n'
        return subprocess.run(
            ["bash", "-c", program + blocks],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        )

    return run
