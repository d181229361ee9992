"""A process that does jobs for a benchmark, and the pipe to it.

Jobs go to its stdin and answers come from its stdout, each a line of JSON. What crashes or does not
end costs one job: the process is ended and the next job gets another one.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlirules
from mlirules.language.faults import MlirulesError

START_LIMIT = 120.0


class WorkerDied(Exception):
    """The worker ended in the middle of a job, and is of no more use.

    `kind` is `crash` or `timeout`; `stage`, `mode` and `artefact` are what it was at, empty where
    it had not said.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.stage = ""
        self.mode = ""
        self.artefact = ""


class Process:
    """A worker: a script beside this one, in a session of its own, and the pipe to it."""

    def __init__(self, script: str, arguments: Sequence[str], timeout: float) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the worker
        package = Path(mlirules.__file__).parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        worker = Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [sys.executable, str(worker), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self.timeout = timeout
        self._pending = b""
        self.done = 0
        try:
            self._read(time.monotonic() + START_LIMIT)
        except WorkerDied as error:
            raise MlirulesError.at(str(worker), f"the worker does not start: {error.why}") from None

    def ask(self, order: Mapping[str, Any], limit: float | None = None) -> Iterator[dict[str, Any]]:
        """The answers to a job, as they come, up to the one that says `done`.

        Each must come within `limit` seconds (default: the time-out). Raises WorkerDied.
        """
        stdin = self._process.stdin
        assert stdin is not None
        self.done += 1
        with contextlib.suppress(BrokenPipeError):  # reading says how it ended
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        while True:
            answer = self._read(time.monotonic() + (self.timeout if limit is None else limit))
            if "done" in answer:
                return
            yield answer

    def _read(self, deadline: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([stdout], [], [], max(0.0, left))
            if not ready:
                self.stop()
                raise WorkerDied("timeout", f"stopped after {self.timeout:g} s")
            data = os.read(stdout.fileno(), 1 << 16)
            if not data:
                raise WorkerDied("crash", self._epitaph())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _epitaph(self) -> str:
        code = self._process.wait()
        if code < 0:
            return signal.Signals(-code).name
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit code {code}"

    def stop(self) -> None:
        """End the worker and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
