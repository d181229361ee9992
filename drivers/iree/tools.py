"""The compiler's binaries, run each in a process: a crash must not take the caller along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirules.drivers.iree.diagnostics import CompileError, Lines, failure
from mlirules.drivers.iree.ops import tool_path
from mlirules.language.faults import Fault, Span
from mlirules.support import children

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
    return run([name, *arguments], stdin, path, timeout, lambda: stdin.split("\n"))


def run(
    command: Sequence[str],
    stdin: str,
    path: str,
    timeout: float | None,
    lines: Lines,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[str, str]:
    """Like :func:`run_tool`, which ``command`` names first; ``lines`` gives those of locations.

    ``meanwhile`` is called while the binary works.
    """
    name, *arguments = command
    words = [str(tool_path(name)), *arguments]
    try:
        done = children.run(words, stdin=stdin, timeout=timeout, meanwhile=meanwhile)
    except children.TimedOut as out:
        fault = Fault(Span(path), "timeout", f"{name} {out}")
        raise CompileError("timeout", out.stderr, [fault]) from None
    if done.status:
        raise failure(name, done.status, done.stderr, path, lines)
    return done.stdout, done.stderr
