"""A process that does jobs for a benchmark: a script beside this one, which answers orders.

What crashes or does not end costs one job: the process is ended and the next job gets another one.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlirules
from mlirules.language.faults import MlirulesError
from mlirules.support.children import Child, Died

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
    """A worker, and how many jobs it was given."""

    def __init__(self, script: str, arguments: Sequence[str], timeout: float) -> None:
        package = Path(mlirules.__file__).parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        worker = Path(__file__).with_name(script)
        self._child = Child([sys.executable, worker, *arguments], environment={"PYTHONPATH": path})
        self.timeout = timeout
        self.done = 0
        try:
            self._child.answer(START_LIMIT)
        except Died as died:
            raise MlirulesError.at(str(worker), f"the worker does not start: {died}") from None

    def ask(self, order: Mapping[str, Any], limit: float | None = None) -> Iterator[dict[str, Any]]:
        """The answers to a job, as they come, up to the one that says `done`.

        Each must come within `limit` seconds (default: the time-out). Raises WorkerDied.
        """
        self.done += 1
        self._child.tell(order)
        while True:
            try:
                answer = self._child.answer(self.timeout if limit is None else limit)
            except Died as died:
                why = f"stopped after {self.timeout:g} s" if died.kind == "timeout" else died.why
                raise WorkerDied(died.kind, why) from None
            if "done" in answer:
                return
            yield answer

    def stop(self) -> None:
        """End the worker and whatever it started."""
        self._child.stop()
