"""Workers: child processes of this one, or of the workers of a Dask cluster, that do jobs.

What they do is a :class:`Work`: a function of an importable module that is called once in every
process, with a setup that all jobs share, and gives what does a job. A job that kills its process,
or takes longer than its limit, ends itself alone: the process is replaced. On a Dask worker a job
runs in a child process as well, so that a job that dies takes no worker along; what a lost worker
held is given to another.

Setups, jobs and what workers say are pickled: through pipes to a process's own children, and
through Dask's connections, whose two ends run each other's code by their nature.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import json
import os
import pickle
import queue
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from mlirules.support import children

__all__ = ["Done", "Ended", "Job", "Pool", "Said", "Tell", "Unusable", "Work", "outcomes", "pool"]

#: Seconds that a worker may take to import what it works with, and to make its setup.
START_LIMIT = 300.0
#: Seconds that a process which is to end has for ending what it started.
GRACE = 1.0
#: Seconds between two looks at whether a run is to stop.
_GLANCE = 0.1
MOST = 256

#: How a worker says something of its job.
Tell = Callable[[Any], None]


class Unusable(Exception):
    """Workers cannot be had, or do not work. ``suggestion`` is what helps.

    ``extra`` is the distribution's extra that is missing, empty where it is something else.
    """

    def __init__(self, why: str, suggestion: str = "", extra: str = "") -> None:
        super().__init__(why)
        self.suggestion = suggestion
        self.extra = extra


@dataclass(frozen=True)
class Work:
    """What workers do.

    ``function`` is ``module:name``; called with ``setup`` in each process it gives a function of a
    job and of :data:`Tell`. ``limit``: seconds that may pass between two things that it says of a
    job. ``most`` jobs are done by one process, before another takes its place (None: any number).
    ``path`` are folders in which modules are looked for besides.
    """

    function: str
    setup: Any = None
    limit: float = 900.0
    most: int | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One job. ``limit`` replaces that of the work."""

    value: Any
    limit: float | None = None


@dataclass(frozen=True)
class Said:
    """What a worker said of a job; ``job`` is the place of the job in its run."""

    job: int
    value: Any


@dataclass(frozen=True)
class Ended:
    """How a job ended: ``fate`` is empty where it was done, else ``died`` or ``timed out``.

    ``why`` says it in a few words; ``status`` is the exit status of a process that ended by itself
    (negative: a signal), ``stderr`` what the process had said.
    """

    job: int
    fate: str = ""
    why: str = ""
    status: int | None = None
    stderr: str = ""


@dataclass(frozen=True)
class Done:
    """A job that has ended, with all that was said of it."""

    job: int
    said: list[Any]
    ended: Ended


class Pool(Protocol):
    """Does jobs. Close it, or leave it, and its processes end."""

    #: How many jobs are worth handing out at once.
    width: int
    #: Whether workers are processes of this machine.
    here: bool

    def run(self, work: Work, jobs: Sequence[Job]) -> Iterator[Said | Ended]:
        """Do the jobs: what is said of each as it comes, in any order, and how each ended.

        Raises what a job's function raised, and Unusable. Processes stay for the next run of the
        same work. A run that is not gone through ends with the next one, or with the pool.
        """
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...


def pool(spec: str) -> Pool:
    """``"2"``: processes here; ``"dask://HOST:PORT"``: a Dask cluster's. Raises Unusable."""
    if spec.startswith("dask://"):
        return _Dask(spec.removeprefix("dask://"))
    if not (spec.isascii() and spec.isdecimal()) or not 1 <= int(spec) <= MOST:
        raise Unusable(
            f"not a number of workers: {spec!r}", "write for example 2, or dask://HOST:PORT"
        )
    return _Local(int(spec))


def outcomes(workers: Pool, work: Work, jobs: Sequence[Job]) -> Iterator[Done]:
    """Jobs as they end, each with all that was said of it."""
    said: dict[int, list[object]] = {}
    for one in workers.run(work, jobs):
        if isinstance(one, Said):
            said.setdefault(one.job, []).append(one.value)
        else:
            yield Done(one.job, said.pop(one.job, []), one)


# ---- what goes through a pipe ---------------------------------------------------------------


def _packed(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


class _Elsewhere(Exception):
    """Where an error was raised, as text: the cause of what is raised here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def _raised(answer: dict[str, Any]) -> Exception:
    """The error that a child tells of."""
    trace = str(answer["trace"])
    if answer["raised"] is None:
        return RuntimeError(f"a worker failed:\n{trace}")
    error: Exception = _unpacked(answer["raised"])
    error.__cause__ = _Elsewhere(trace)
    return error


# ---- one process ----------------------------------------------------------------------------


class _Process:
    """A child that does one job after the other, and what it is at."""

    def __init__(self, work: Work, packed: str) -> None:
        self.key = _key(packed)
        self.work = work
        self.done = 0
        #: The job that it does; None: none, or it is still starting.
        self.at: int | None = None
        self._limit = START_LIMIT
        self._since = time.monotonic()
        self.ready = False
        self.child = children.Child(children.python("mlirules.support.pool:_child"))
        self.child.tell({"work": packed})

    def give(self, number: int, packed: str, limit: float | None) -> None:
        """Let it do a job."""
        self.at = number
        self.done += 1
        self._limit = self.work.limit if limit is None else limit
        self._since = time.monotonic()
        self.child.tell({"job": packed})

    @property
    def worn(self) -> bool:
        """Whether it has done its jobs."""
        return self.work.most is not None and self.done >= self.work.most

    @property
    def late(self) -> bool:
        """Whether it said nothing for longer than it may."""
        return time.monotonic() - self._since > self._limit

    def answer(self) -> dict[str, Any] | Ended:
        """The next answer, awaited within its limit, or how the process ended. Raises Unusable."""
        try:
            answer = self.child.answer(max(1.0, self._limit))
        except children.Died as died:
            return self._fate(died)
        self._since = time.monotonic()
        self.ready = True
        return answer

    def heard(self) -> Said | Ended | None:
        """What the next answer says; None: that it has started.

        Raises what its function raised, and Unusable.
        """
        answer = self.answer()
        if isinstance(answer, Ended):
            return answer
        if "raised" in answer:
            raise _raised(answer)
        if "ready" in answer:
            return None
        assert self.at is not None
        if "done" in answer:
            number, self.at = self.at, None
            return Ended(number)
        return Said(self.at, _unpacked(answer["said"]))

    def lost(self) -> Ended:
        """End it, because it is late. Raises Unusable."""
        said = self.child.said
        stop([self])
        return self._fate(children.Died("timeout", f"stopped after {self._limit:g} s", None, said))

    def _fate(self, died: children.Died) -> Ended:
        number, self.at = self.at, None
        if number is None:
            raise Unusable(f"a worker for {self.work.function} does not start: {died.why}")
        timed = died.kind == "timeout"
        why = f"stopped after {self._limit:g} s" if timed else died.why
        return Ended(number, "timed out" if timed else "died", why, died.status, died.stderr)


def _key(packed: str) -> str:
    return hashlib.sha256(packed.encode()).hexdigest()


def stop(processes: Sequence[_Process]) -> None:
    """End processes, with the commands that they are waiting for."""
    children.let_end([process.child for process in processes], GRACE)
    for process in processes:
        process.child.stop()


def _child() -> None:
    """What a process does: jobs, in the order in which they come on stdin, until it ends."""
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with children.answering() as answer:
        try:
            work: Work = _work(orders.get()["work"])
            module, _, name = work.function.partition(":")
            do = getattr(importlib.import_module(module), name)(work.setup)
            answer({"ready": True})
            while True:
                job = _unpacked(orders.get()["job"])
                do(job, lambda value: answer({"said": _packed(value)}))
                answer({"done": True})
        except Exception as error:  # noqa: BLE001 - raised again by whoever gave the job
            trace = traceback.format_exc()
            print(trace, file=sys.stderr)
            answer({"raised": _carried(error), "trace": trace})


def _work(packed: str) -> Work:
    """The work, where its modules can be imported. Its setup is packed by itself: they hold it."""
    path, folder, inner = _unpacked(packed)
    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    with contextlib.suppress(OSError):  # on another machine; what is missing there is told
        os.chdir(folder)
    work: Work = _unpacked(inner)
    return work


def _pack(work: Work) -> str:
    return _packed((work.path, str(Path.cwd()), _packed(work)))


def _carried(error: Exception) -> str | None:
    """An error, packed; None where it does not come out as it went in."""
    try:
        packed = _packed(error)
        return packed if type(_unpacked(packed)) is type(error) else None
    except Exception:  # noqa: BLE001 - of any class, which may do anything then
        return None


def _listen(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hand orders on; where nobody is left to give any, end."""
    pending = b""
    # Not by sys.stdin, whose lock would be held when the process ends.
    while data := os.read(0, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            orders.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10 * GRACE)
    os._exit(1)


# ---- processes here -------------------------------------------------------------------------


@dataclass
class _Run:
    """A run: its jobs that wait, and what came of the others."""

    work: Work
    packed: str
    waiting: list[tuple[int, Job]]
    heard: queue.SimpleQueue[Said | Ended | BaseException] = field(
        default_factory=queue.SimpleQueue
    )
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class _Local:
    """Child processes of this one, served by a thread while a run goes on."""

    here = True

    def __init__(self, count: int) -> None:
        self.width = 2 * count
        self._count = count
        self._processes: list[_Process] = []
        self._run: _Run | None = None

    def run(self, work: Work, jobs: Sequence[Job]) -> Iterator[Said | Ended]:
        self._halt()
        waiting = list(reversed(list(enumerate(jobs))))
        if not waiting:
            return
        run = self._run = _Run(work, _pack(work), waiting)
        key = _key(run.packed)
        others = [p for p in self._processes if p.key != key]
        self._processes = [p for p in self._processes if p.key == key]
        stop(others)
        run.thread = threading.Thread(target=self._serve, args=(run,), daemon=True)
        run.thread.start()
        ended = 0
        try:
            while ended < len(jobs):
                one = run.heard.get()
                if isinstance(one, BaseException):
                    raise one
                ended += isinstance(one, Ended)
                yield one
        finally:
            if self._run is run:
                self._halt()

    def _halt(self) -> None:
        """End the run that goes on, with the processes that are at its jobs."""
        run, self._run = self._run, None
        if run is None or run.thread is None:
            return
        run.stopped.set()
        run.thread.join()
        busy = [p for p in self._processes if p.at is not None or not p.ready]
        self._processes = [p for p in self._processes if p not in busy]
        stop(busy)

    def _serve(self, run: _Run) -> None:
        try:
            while not run.stopped.is_set():
                self._hand_out(run)
                busy = [p for p in self._processes if p.at is not None or not p.ready]
                if not busy:
                    return
                there = [p for p in busy if p.child.has_answer]
                if not there:
                    ready, _, _ = select.select([p.child for p in busy], [], [], _GLANCE)
                    there = [p for p in busy if p.child in ready]
                for process in there:
                    self._tell(run, process, process.heard())
                for process in busy:
                    if process not in there and process.late:
                        self._tell(run, process, process.lost())
        except BaseException as error:  # noqa: BLE001 - raised where results are awaited
            run.heard.put(error)

    def _tell(self, run: _Run, process: _Process, heard: Said | Ended | None) -> None:
        if isinstance(heard, Ended) and heard.fate:
            self._processes.remove(process)
        if heard is not None:
            run.heard.put(heard)

    def _hand_out(self, run: _Run) -> None:
        """Give jobs to who has none; start processes where there are fewer than jobs."""
        worn = [p for p in self._processes if p.at is None and p.worn]
        self._processes = [p for p in self._processes if p not in worn]
        stop(worn)
        for process in self._processes:
            if run.waiting and process.ready and process.at is None:
                number, job = run.waiting.pop()
                process.give(number, _packed(job.value), job.limit)
        starting = sum(not p.ready for p in self._processes)
        while len(self._processes) < self._count and starting < len(run.waiting):
            self._processes.append(_Process(run.work, run.packed))
            starting += 1

    def close(self) -> None:
        self._halt()
        processes, self._processes = self._processes, []
        stop(processes)


# ---- a Dask cluster -------------------------------------------------------------------------


class _Dask:
    """Child processes of a cluster's workers, one for each of their threads."""

    here = False

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise Unusable("a Dask cluster needs dask.distributed", extra="tune") from None
        try:
            # The package is typed in part.
            self._library: Any = distributed
            self._client = self._library.Client(
                f"tcp://{address}", timeout=10, set_as_default=False
            )
        except (OSError, ValueError) as error:
            raise Unusable(
                f"no Dask scheduler at {address}: {error}",
                "start one with `dask scheduler`, and `dask worker` beside it",
            ) from error
        threads = sum(
            worker["nthreads"]
            for worker in self._client.scheduler_info(n_workers=-1)["workers"].values()
        )
        self.width = max(2, 2 * threads)
        self._held: tuple[str, object] = ("", None)
        self._futures: list[object] = []
        self._runs = 0

    def run(self, work: Work, jobs: Sequence[Job]) -> Iterator[Said | Ended]:
        self._client.cancel(self._futures)
        if not jobs:
            return
        packed = _pack(work)
        key = _key(packed)
        if self._held[0] != key:
            # Every worker gets it: one that dies must not take the only copy along.
            terms = replace(work, setup=None)  # whose modules the worker itself may not find
            self._held = key, self._client.scatter((terms, packed), broadcast=True, hash=False)
        self._runs += 1
        named = f"mlirules-{os.getpid()}-{id(self):x}-{self._runs}"
        futures = {
            self._client.submit(
                _do_there,
                self._held[1],
                _packed(job.value),
                job.limit,
                retries=3,
                pure=False,
                key=f"{named}-{number}",
            ): number
            for number, job in enumerate(jobs)
        }
        self._futures = list(futures)
        try:
            for future in self._library.as_completed(self._futures, loop=self._client.loop):
                yield from self._outcome(future, futures[future])
        finally:
            self._client.cancel(self._futures)

    def _outcome(self, future: Any, number: int) -> Iterator[Said | Ended]:
        error = future.exception()
        if error is not None:
            if isinstance(error, Unusable):
                raise error
            lost = isinstance(error, self._library.KilledWorker)
            why = f"every worker that got it was lost: {error}" if lost else str(error)
            yield Ended(number, "died", why[:300])
            return
        said, ended = future.result()
        for value in said:
            yield Said(number, _unpacked(value))
        if isinstance(ended, dict):
            raise _raised(ended)
        yield replace(ended, job=number)

    def close(self) -> None:
        self._client.cancel(self._futures)
        with contextlib.suppress(OSError, TimeoutError):  # workers may be gone
            self._client.run(_let_go, on_error="ignore")
        self._client.close()


def _processes(worker: Any) -> dict[int, _Process]:
    """The processes of a Dask worker, by the thread that each belongs to."""
    if not hasattr(worker, "mlirules_processes"):
        worker.mlirules_processes = {}
    held: dict[int, _Process] = worker.mlirules_processes
    return held


def _do_there(
    given: tuple[Work, str], job: str, limit: float | None
) -> tuple[list[str], Ended | dict[str, Any]]:
    """What a Dask worker does: a job, in a child of its own.

    Returns what was said of it, packed, and how it ended, or what the child says of an error.
    """
    import distributed

    typed_in_part: Any = distributed
    work, packed = given
    held, thread = _processes(typed_in_part.get_worker()), threading.get_ident()
    process = held.get(thread)
    if process is None or process.key != _key(packed) or process.worn or not process.child.alive:
        if process is not None:
            stop([process])
        process = held[thread] = _Process(work, packed)
    said: list[str] = []
    if not process.ready:
        answer = process.answer()
        if isinstance(answer, Ended) or "raised" in answer:
            stop([held.pop(thread)])
            return said, answer
    process.give(0, job, limit)
    while True:
        answer = process.answer()
        if isinstance(answer, dict) and "said" in answer:
            said.append(answer["said"])
            continue
        if isinstance(answer, Ended) or "raised" in answer:
            stop([held.pop(thread)])
            return said, answer
        return said, Ended(0)


def _let_go(dask_worker: object) -> None:
    """End the processes of a Dask worker, which Dask gives by this name."""
    held = _processes(dask_worker)
    stop(list(held.values()))
    held.clear()
