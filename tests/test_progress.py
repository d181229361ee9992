"""What takes long is told, and an interrupt ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from mlirules.commands import common


def test_work_that_goes_on_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "STILL", 0.05)
    with common.working("running main on vulkan"):
        time.sleep(0.4)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "running main on vulkan: 0 s so far; Ctrl-C ends it"
    assert 2 <= len(said) <= 3, "each wait is twice as long"
    with common.working("nothing"):
        pass
    assert capsys.readouterr().err == ""


def test_an_interrupt_ends_what_computes_in_c() -> None:
    code = (
        "from mlirules.commands.common import stoppable\n"
        "with stoppable():\n    print('now', flush=True)\n    sum(range(10**12))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"now\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == -signal.SIGINT
        finally:
            process.kill()
