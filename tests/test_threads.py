"""Programs for the CPU get a thread for each core that the process may use, tied to none."""

import os
import threading
from pathlib import Path

import pytest

from mlirules.drivers.iree import cpu, threads


def _machine(folder: Path, siblings: dict[int, str]) -> Path:
    for number, group in siblings.items():
        place = folder / f"cpu{number}" / "topology"
        place.mkdir(parents=True)
        (place / "core_cpus_list").write_text(f"{group}\n", encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("allowed", "quota", "expected"),
    [
        ({0, 1, 2, 3}, None, 2),
        ({0, 2}, None, 1),
        ({0, 1}, None, 2),
        ({0, 1, 2, 3}, "max 100000", 2),
        ({0, 1, 2, 3}, "100000 100000", 1),
        ({0, 1, 2, 3}, "150000 100000", 2),
        ({0, 1, 2, 3}, "50000 100000", 1),
    ],
)
def test_cores_are_counted_that_the_process_may_use(
    allowed: set[int],
    quota: str | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cores of two threads each."""
    cpus = _machine(tmp_path / "cpu", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    group = tmp_path / "cpu.max"
    if quota is not None:
        group.write_text(f"{quota}\n", encoding="ascii")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed, raising=False)
    assert cpu.cores(cpus, group) == expected


def test_a_machine_that_tells_nothing_has_a_core_for_each_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 5}, raising=False)
    assert cpu.cores(tmp_path, tmp_path / "none") == 3


def test_what_the_user_says_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IREE_PY_RUNTIME_FLAGS", raising=False)
    assert threads.arguments(tmp_path) == [f"--task_topology_group_count={cpu.cores()}"]
    monkeypatch.setenv("IREE_PY_RUNTIME_FLAGS", "--task_topology_mode=physical_cores")
    assert threads.arguments(tmp_path) == []


def test_where_memory_is_nearer_to_some_cores_the_runtime_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IREE_PY_RUNTIME_FLAGS", raising=False)
    for node in ("node0", "node1"):
        (tmp_path / node).mkdir()
    assert threads.arguments(tmp_path) == []


_BATCH = getattr(os, "SCHED_BATCH", None)


@pytest.mark.skipif(_BATCH is None, reason="the system has no policy for batches")
def test_who_waits_for_workers_lets_them_go_first() -> None:
    seen: list[int] = []

    def call() -> None:
        seen.append(os.sched_getscheduler(0))

    threads.giving_way(call, "local-task")()
    threads.giving_way(call, "local-task://0")()
    threads.giving_way(call, "local-sync")()
    threads.giving_way(call, "cuda")()
    assert seen == [_BATCH, _BATCH, os.SCHED_OTHER, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(_BATCH is None, reason="the system has no policy for batches")
def test_who_waits_has_the_usual_policy_again_after_an_error() -> None:
    def call() -> None:
        raise ValueError("no such program")

    with pytest.raises(ValueError, match="no such program"):
        threads.giving_way(call, "local-task")()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(_BATCH is None, reason="the system has no policy for batches")
def test_a_policy_of_the_users_stays() -> None:
    seen: list[int] = []

    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        threads.giving_way(lambda: seen.append(os.sched_getscheduler(0)), "local-task")()
        seen.append(os.sched_getscheduler(0))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert seen == [_BATCH, _BATCH]


@pytest.mark.skipif(_BATCH is None, reason="the system has no policy for batches")
def test_where_no_policy_may_be_changed_the_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError("forbidden")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    seen: list[str] = []
    threads.giving_way(seen.append, "local-task")("called")
    assert seen == ["called"]
