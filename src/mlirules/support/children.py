"""Child processes: all that this package starts, with one way to wait, to talk, and to end them.

:func:`run` waits for a command and takes what it prints. A :class:`Child` stays and answers orders,
each a line of JSON; :func:`serve` is what it runs. Children have a session of their own: an
interrupt is their parent's to handle, and ending one ends whatever it has started.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Child", "Died", "Done", "TimedOut", "answering", "how", "python", "run", "serve"]


class TimedOut(Exception):
    """A command was stopped after its time. ``stderr`` is what it had said by then."""

    def __init__(self, seconds: float, stderr: str) -> None:
        super().__init__(f"was stopped after {seconds:g} s")
        self.seconds = seconds
        self.stderr = stderr


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed. ``status`` is negative for a signal."""

    status: int
    stdout: str
    stderr: str

    @property
    def ending(self) -> str:
        """How it ended, in a few words; empty: well."""
        return how(self.status, self.stderr)


def how(status: int, stderr: str) -> str:
    """A signal's name, or the last line that a process said, or its exit code; empty: well."""
    if status < 0:
        return signal.Signals(-status).name
    if not status:
        return ""
    said = stderr.strip().splitlines()
    return said[-1] if said else f"exit code {status}"


def run(
    command: Sequence[str | Path],
    *,
    stdin: str = "",
    timeout: float | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> Done:
    """Run ``command`` with ``stdin`` to its end. Raises TimedOut after ``timeout`` seconds.

    ``meanwhile`` is called once it runs, and what it prints is read when that returns.
    """
    signals = _Signals()
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except BaseException:
        signals.release()
        raise
    with process:
        try:
            signals.release()
            if meanwhile is not None:
                meanwhile()
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            _, stderr = process.communicate()
            assert timeout is not None
            raise TimedOut(timeout, stderr) from None
        except BaseException:  # an interrupt, too, must not leave it running
            _kill(process)
            raise
    return Done(process.returncode, stdout, stderr)


def python(function: str, *arguments: str) -> list[str]:
    """The command that calls ``package.module:function`` in a new Python, as this one finds it."""
    module, _, name = function.partition(":")
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; m.{name}()"
    return [sys.executable, "-c", code, *arguments]


class _Signals:
    """Signals that end things, kept until :meth:`release` hands them on.

    What a signal raises while a process starts would leave that one running, known to nobody.
    Signals raise in the main thread alone.
    """

    def __init__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, lambda *came: self._came.append(came))
                self._handlers[number] = handler

    def release(self) -> None:
        """Let signals through again, first those that came."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number, frame in self._came:
            self._handlers[number](number, frame)


def _kill(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
        os.killpg(process.pid, signal.SIGKILL)


class Died(Exception):
    """A child ended, or did not answer in time, and was stopped: it is of no more use.

    ``kind`` is ``crash`` or ``timeout``; ``status`` its exit status (negative for a signal; None
    when it was stopped), ``stderr`` what it had said.
    """

    def __init__(self, kind: str, why: str, status: int | None = None, stderr: str = "") -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.status = status
        self.stderr = stderr


class Child:
    """A process that answers orders. Leave it, or :meth:`stop` it, and all it started ends."""

    def __init__(
        self, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child lives
        self._pending = b""
        signals = _Signals()
        try:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except BaseException:
            signals.release()
            raise
        try:
            signals.release()
        except BaseException:  # nobody gets the child
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        if self._process.returncode is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # reaping is for `stop`
        with contextlib.suppress(ChildProcessError):  # another thread has just stopped it
            return os.waitid(os.P_PID, self._process.pid, flags) is None
        return False

    def fileno(self) -> int:
        """What to wait at for answers of several children."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def has_answer(self) -> bool:
        """Whether a whole answer was read already: there is nothing to wait for."""
        return b"\n" in self._pending

    @property
    def said(self) -> str:
        """What it has said on stderr so far."""
        return self._said()

    def tell(self, order: object) -> None:
        """Give an order. That the child is gone is told where its answer is awaited."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next answer, within ``timeout`` seconds. Raises Died."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                said = self._said()
                self.stop()
                raise Died("timeout", f"stopped after {timeout:g} s", None, said)
            data = os.read(stdout.fileno(), 1 << 16)
            if not data:
                # Not reaped yet: its group, with what it has left running, is still its own.
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
                self.stop()
                status, said = self._process.returncode, self._said()
                raise Died("crash", how(status, said) or "ended", status, said)
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def ask(self, order: object, timeout: float) -> dict[str, Any]:
        """The one answer to an order. Raises Died."""
        self.tell(order)
        return self.answer(timeout)

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def ask_to_end(self) -> None:
        """Let it end what it started in sessions of their own; :meth:`stop` is still to follow."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the child, from any thread: whoever awaits its answer is told that it died.

        Its pipes stay open, for that one to :meth:`stop` it.
        """
        if self._process.returncode is None:
            _kill(self._process)

    def stop(self) -> None:
        """End the child and whatever it started in its session. For the thread that asks it."""
        if self._process.returncode is None:
            _kill(self._process)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what it was not told any more
                stream.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()


def let_end(these: Sequence[Child], seconds: float) -> None:
    """Give children so long to end, with what they started in sessions of their own.

    :meth:`Child.stop` or :meth:`Child.kill` is still to follow.
    """
    for child in these:
        child.ask_to_end()
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(child.alive for child in these):
        time.sleep(0.01)


@contextlib.contextmanager
def answering() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """What a child answers by. Standard output is kept for it: what else prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        # At once: what a child says last is taken for why it ended.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)

        def tell(answer: Mapping[str, object]) -> None:
            out.write(json.dumps(answer) + "\n")
            out.flush()

        yield tell


def serve(answers: Callable[[Any], Iterator[Mapping[str, Any]]]) -> None:
    """What a child does: give the answers to every order that stands on stdin, until it ends."""
    with answering() as tell:
        for line in sys.stdin:
            for answer in answers(json.loads(line)):
                tell(answer)
