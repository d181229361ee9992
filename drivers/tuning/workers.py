"""Who evaluates candidates: processes of this machine, or the workers of a Dask cluster.

Here the workers compile and this process times, so that every candidate is timed against the same
reference; compilations run in parallel, a timing has the machine alone (:func:`measure._gate`). A
Dask worker does both on its machine, against the default measured there, so that results of unlike
machines compare by their ratios.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlirules.drivers.tuning import measure
from mlirules.drivers.tuning.measure import Compiled, Result, Runners, Task
from mlirules.drivers.tuning.space import Candidate
from mlirules.support.pool import Job, Pool, Tell, Work, outcomes

#: Seconds that a candidate may take besides its own limits: it waits while others are timed.
PATIENCE = 900.0


def evaluate(
    pool: Pool,
    task: Task,
    candidates: Sequence[Candidate],
    known: dict[str, str],
    rounds: int,
    runners: Runners,
) -> Iterator[tuple[Candidate, Result]]:
    """Results as they come, in any order; ``runners`` time what workers here compile.

    ``known`` is as :func:`measure.judged` takes it.
    """
    limit = PATIENCE + 20 * task.compile_s
    if pool.here:
        work = Work(f"{__name__}:Compiling", replace(task, default=b""), limit)
        jobs = [Job(candidate) for candidate in candidates]
    else:
        work = Work(f"{__name__}:Evaluating", task, limit)
        jobs = [Job((candidate, dict(known), rounds)) for candidate in candidates]
    for done in outcomes(pool, work, jobs):
        candidate = candidates[done.job]
        if done.ended.fate:
            state = "timeout" if done.ended.fate == "timed out" else "crash"
            yield candidate, Result(candidate.key, state, note=done.ended.why[:300])
            continue
        (made,) = done.said
        if isinstance(made, Compiled):
            made = measure.judged(task, candidate, made, known, rounds, runners)
        yield candidate, made


class Compiling:
    """What a worker here does for a task: compile candidates."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, candidate: Candidate, tell: Tell) -> None:
        """Tell the :class:`Compiled`."""
        tell(measure.compiled(self._task, candidate))


class Evaluating:
    """What a worker elsewhere does for a task: compile candidates and time them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._runners = Runners()

    def __call__(self, job: tuple[Candidate, dict[str, str], int], tell: Tell) -> None:
        """Tell the :class:`Result`."""
        candidate, known, rounds = job
        tell(measure.evaluate(self._task, candidate, self._runners, known, rounds))
