"""The pool: jobs in child processes here, and in those of a Dask cluster's workers."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pool_work
from mlirules.drivers.iree.compiler import CompileError
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.workers import workers
from mlirules.support.pool import Ended, Job, Pool, Said, Work, outcomes

HERE = str(Path(__file__).parent)


def work(function: str = "doer", **fields: Any) -> Work:
    return Work(f"pool_work:{function}", path=(HERE,), **fields)


def jobs(*values: tuple[str, Any]) -> list[Job]:
    return [Job(value) for value in values]


def test_every_job_is_done_and_tells_which_it_is() -> None:
    with workers("2") as pool:
        done = list(outcomes(pool, work(), jobs(*(("print", n) for n in range(20)))))
    assert sorted(d.job for d in done) == list(range(20))
    assert all(d.said == [d.job] and not d.ended.fate for d in done)


def test_results_come_as_jobs_end() -> None:
    with workers("2") as pool:
        # Both workers must be there before the first job takes long.
        assert len(list(outcomes(pool, work(), jobs(("sleep", 0.5), ("sleep", 0.5))))) == 2
        done = [d.job for d in outcomes(pool, work(), jobs(("sleep", 3), *[("sleep", 0)] * 4))]
    assert done == [1, 2, 3, 4, 0]


def test_one_worker_goes_in_order_in_one_process() -> None:
    with workers("1") as pool:
        done = list(outcomes(pool, work(setup="s"), jobs(*[("pid", 0)] * 5)))
        again = list(outcomes(pool, work(setup="s"), jobs(("pid", 0))))
        other = list(outcomes(pool, work(setup="t"), jobs(("pid", 0))))
    assert [d.job for d in done] == list(range(5))
    ((setup, pid),) = {d.said[0] for d in done}
    assert setup == "s"
    assert again[0].said == [("s", pid)]
    ((setup, changed),) = other[0].said
    assert (setup, changed != pid) == ("t", True)


def test_a_process_does_so_many_jobs_and_no_more() -> None:
    with workers("1") as pool:
        done = list(outcomes(pool, work(most=2), jobs(*[("pid", 0)] * 5)))
    pids = [d.said[0] for d in done]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_what_dies_is_told_and_costs_its_job_alone() -> None:
    with workers("1") as pool:
        asked = jobs(("pid", 0), ("die", 0), ("pid", 0), ("exit", 3), ("pid", 0))
        done = list(outcomes(pool, work(), asked))
    assert [d.ended.fate for d in done] == ["", "died", "", "died", ""]
    died = done[1]
    assert died.said == ["began"]
    assert (died.ended.why, died.ended.status) == ("SIGSEGV", -11)
    assert "about to die" in died.ended.stderr
    assert done[3].ended.status == 3
    assert len({d.said[0] for d in done if not d.ended.fate}) == 3


def test_what_takes_longer_than_it_may_is_told() -> None:
    with workers("2") as pool:
        began = time.monotonic()
        asked = [Job(("hang", 0), 0.5), Job(("sleep", 1.5)), Job(("sleep", 0))]
        done = {d.job: d for d in outcomes(pool, work(), asked)}
    assert time.monotonic() - began < 60
    assert done[0].said == ["began"]
    assert (done[0].ended.fate, done[0].ended.why) == ("timed out", "stopped after 0.5 s")
    assert done[1].said == [1.5]
    assert done[2].said == [0]


def test_what_a_job_raises_is_raised() -> None:
    with workers("1") as pool:
        with pytest.raises(MlirulesError, match="what is wrong") as caught:
            list(pool.run(work(), jobs(("wrong", "what is wrong"))))
        assert caught.value.faults[0].span.path == "here"
        with pytest.raises(RuntimeError, match="_Odd: 1 2"):
            list(pool.run(work(), jobs(("odd", 0))))
        # Its processes are as good as new.
        assert list(pool.run(work(), jobs(("print", 1)))) == [Said(0, 1), Ended(0)]


def test_errors_of_the_compiler_go_through_a_pipe_whole() -> None:
    fault = Fault(Span("m.mlir", 3, 1), "crash", "it crashed")
    error = CompileError("crash", "what it said", [fault])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (CompileError, str(error), vars(error))


def test_workers_that_do_not_start_are_told() -> None:
    with (
        pytest.raises(MlirulesError, match="pool_work:broken does not start: exit code 3"),
        workers("1") as pool,
    ):
        list(pool.run(work("broken"), jobs(("pid", 0))))


def test_a_run_that_is_left_ends_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    with workers("2") as pool:
        run = pool.run(work(), jobs(("print", 0), ("command", str(mark))))
        assert next(run) == Said(0, 0)
        for _ in range(600):
            if mark.exists() and pool_work.running(str(mark)):
                break
            time.sleep(0.05)
        assert pool_work.running(str(mark))
    assert not pool_work.running(str(mark))


def test_an_interrupt_leaves_what_is_done_and_no_process(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    code = f"""
import os, signal, sys
from pathlib import Path
from mlirules.language.workers import workers
from mlirules.support.pool import Job, Said, Work
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs behind others ignores it
said = []
try:
    with workers("2") as pool:
        jobs = [Job(("print", 7)), Job(("command", {str(mark)!r}))]
        for one in pool.run(Work("pool_work:doer", path=({HERE!r},)), jobs):
            said += [one.value] if isinstance(one, Said) else []
            while not Path({str(mark)!r}).exists():
                pass
            os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print(said)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode, done.stderr) == ("[7]\n", 0, "")
    assert not pool_work.running(str(mark))


@pytest.mark.parametrize("spec", ["0", "-1", "two", "1000", "٢", "dask:/x"])
def test_what_names_no_workers_is_refused(spec: str) -> None:
    with pytest.raises(MlirulesError, match=r"--workers: error\[workers\]: not a number"):  # noqa: SIM117
        with workers(spec):
            pass


# ---- Dask -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed: Any = pytest.importorskip(
        "distributed", reason="dask.distributed is not installed"
    )
    made = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    with made:
        yield made


@pytest.fixture
def dask(cluster: Any) -> Iterator[Pool]:
    with workers(cluster.scheduler_address.replace("tcp://", "dask://")) as pool:
        yield pool


def test_a_cluster_does_jobs(dask: Pool) -> None:
    assert not dask.here
    assert dask.width == 4
    asked = jobs(*[("pid", 0)] * 4, ("die", 0), ("print", 5), ("exit", 3))
    asked.append(Job(("hang", 0), 0.5))
    done = {d.job: d for d in outcomes(dask, work(setup="s"), asked)}
    assert sorted(done) == list(range(8))
    assert all(done[n].said[0][0] == "s" for n in range(4))
    assert all(done[n].said[0][1] != os.getpid() for n in range(4))
    assert (done[4].said, done[4].ended.fate, done[4].ended.why) == (["began"], "died", "SIGSEGV")
    assert done[5].said == [5]
    assert (done[6].ended.fate, done[6].ended.status) == ("died", 3)
    assert (done[7].said, done[7].ended.fate) == (["began"], "timed out")


def test_a_cluster_keeps_no_process_of_a_pool_that_is_closed(cluster: Any) -> None:
    with workers(cluster.scheduler_address.replace("tcp://", "dask://")) as pool:
        done = list(outcomes(pool, work(), jobs(*[("pid", 0)] * 4)))
    for pid in {d.said[0][1] for d in done}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_cluster_raises_what_a_job_raises(dask: Pool) -> None:
    with pytest.raises(MlirulesError, match="what is wrong"):
        list(dask.run(work(), jobs(("wrong", "what is wrong"))))
    assert list(dask.run(work(), jobs(("print", 1)))) == [Said(0, 1), Ended(0)]


def test_what_a_lost_worker_held_goes_to_another(dask: Pool, tmp_path: Path) -> None:
    asked = jobs(("once", str(tmp_path / "mark")), ("print", 1), ("print", 2))
    done = {d.job: d.said for d in outcomes(dask, work(), asked)}
    assert (tmp_path / "mark").exists()
    assert done == {0: ["done by another"], 1: [1], 2: [2]}


def test_a_cluster_that_is_not_there_is_told() -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        pytest.raises(MlirulesError, match=r"no Dask scheduler at 127\.0\.0\.1:9"),
        workers("dask://127.0.0.1:9"),
    ):
        pass
