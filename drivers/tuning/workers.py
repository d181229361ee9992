"""Who evaluates candidates: threads of this process, or the workers of a Dask cluster.

Here each thread compiles and times; compilations run in parallel, a timing has the machine alone
(:func:`measure._gate`). A Dask worker does the same on its machine, against the default measured
there, so that results of unlike machines compare by their ratios; what a lost worker held is given
to another.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from mlirules.drivers.tuning import measure
from mlirules.drivers.tuning.measure import Result, Task
from mlirules.drivers.tuning.space import Candidate
from mlirules.language.faults import MlirulesError


class Workers(Protocol):
    """Evaluates candidates."""

    #: How many candidates are worth handing out at once.
    width: int

    def evaluate(
        self, task: Task, candidates: Sequence[Candidate], known: dict[str, str], rounds: int
    ) -> Iterator[tuple[Candidate, Result]]:
        """Results as they come, in any order."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...


def workers(spec: str) -> Workers:
    """``"2"``: threads here; ``"dask://HOST:PORT"``: a Dask cluster. Raises MlirulesError."""
    if spec.startswith("dask://"):
        return _Dask(spec.removeprefix("dask://"))
    if not spec.isdecimal() or not 1 <= int(spec) <= 256:
        raise MlirulesError.at(
            "--workers",
            f"not a number of workers: {spec!r}",
            code="workers",
            suggestion="write for example 2, or dask://HOST:PORT",
        )
    return _Threads(int(spec))


class _Threads:
    """Worker threads: compilation runs in subprocesses, timing in a child of the first thread.

    One runner serves all: a timing has the machine alone in any case, and every candidate is
    timed against the same reference.
    """

    def __init__(self, count: int) -> None:
        self.width = 2 * count
        self._count = count

    def evaluate(
        self, task: Task, candidates: Sequence[Candidate], known: dict[str, str], rounds: int
    ) -> Iterator[tuple[Candidate, Result]]:
        waiting: queue.SimpleQueue[Candidate] = queue.SimpleQueue()
        for candidate in candidates:
            waiting.put(candidate)
        compiled: queue.SimpleQueue[tuple[Candidate, Any]] = queue.SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    candidate = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    compiled.put((candidate, measure.compiled(task, candidate)))
                except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                    compiled.put((candidate, error))

        count = min(self._count, len(candidates))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for _ in candidates:
                candidate, made = compiled.get()
                if isinstance(made, BaseException):
                    raise made
                yield candidate, measure.judged(task, candidate, made, known, rounds)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        measure.close_runner()


class _Dask:
    """The workers of a Dask cluster; each one compiles and times."""

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise MlirulesError.not_installed(
                "--workers",
                "a Dask cluster needs dask.distributed",
                "tune",
                besides=", here and where the workers run",
            ) from None
        try:
            # The package is typed in part.
            library: Any = distributed
            self._client = library.Client(f"tcp://{address}", timeout=10, set_as_default=False)
            self._as_completed = library.as_completed
        except (OSError, ValueError) as error:
            raise MlirulesError.at(
                "--workers",
                f"no Dask scheduler at {address}: {error}",
                code="workers",
                suggestion="start one with `dask scheduler`, and `dask worker` beside it",
            ) from error
        self._scattered: dict[str, Any] = {}
        self.width = max(2, 2 * len(self._client.scheduler_info(n_workers=-1)["workers"]))

    def evaluate(
        self, task: Task, candidates: Sequence[Candidate], known: dict[str, str], rounds: int
    ) -> Iterator[tuple[Candidate, Result]]:
        if task.key not in self._scattered:
            # Every worker gets it: one that dies must not take the only copy along.
            self._scattered = {task.key: self._client.scatter(task, broadcast=True)}
        held = self._scattered[task.key]
        futures = {
            self._client.submit(
                measure.evaluate,
                held,
                c,
                dict(known),
                rounds,
                retries=3,
                pure=False,
                key=f"tune-{task.key}-{c.key}",
            ): c
            for c in candidates
        }
        try:
            for future in self._as_completed(list(futures), loop=self._client.loop):
                candidate = futures[future]
                error = future.exception()
                if error is not None:
                    note = f"every worker that got it was lost: {error}"[:300]
                    yield candidate, Result(candidate.key, "crash", note=note)
                else:
                    yield candidate, future.result()
        finally:
            self._client.cancel(list(futures))

    def close(self) -> None:
        self._client.close()
