"""The compiler's binaries, run each in a process: a crash must not take the caller along."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from mlirules.drivers.iree.diagnostics import CompileError, Lines, failure
from mlirules.drivers.iree.ops import tool_path
from mlirules.language.faults import Fault, Span

__all__ = ["run", "run_tool"]


def run_tool(
    name: str,
    arguments: Sequence[str],
    *,
    stdin: str = "",
    path: str = "<string>",
    timeout: float | None = None,
) -> tuple[str, str]:
    """Run a compiler binary with ``stdin`` and return what it printed: (stdout, stderr).

    ``path`` is what faults call the text on stdin; ``timeout`` in seconds. Raises CompileError.
    """
    return run(name, arguments, stdin, path, timeout, lambda: stdin.split("\n"))


def run(
    name: str,
    arguments: Sequence[str],
    stdin: str,
    path: str,
    timeout: float | None,
    lines: Lines,
) -> tuple[str, str]:
    """Like :func:`run_tool`; ``lines`` gives the lines that locations mean, when asked."""
    command = [str(tool_path(name)), *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            message = f"{name} was stopped after {timeout:g} s"
            raise CompileError("timeout", stderr, [Fault(Span(path), "timeout", message)]) from None
        except BaseException:  # an interrupt, too, must not leave the compiler running
            _kill(process)
            raise
    if process.returncode:
        raise failure(name, process.returncode, stderr, path, lines)
    return stdout, stderr


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
        os.killpg(process.pid, signal.SIGKILL)
