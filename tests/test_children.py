"""Child processes and files: the one way in which they are run and written."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pool_work
from mlirules.language import outputs
from mlirules.language.faults import MlirulesError
from mlirules.support import children, files


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _gone(pid: int) -> bool:
    """Whether a process ends at once: nobody may reap it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def test_a_command_is_run_to_its_end() -> None:
    done = children.run(_python("print(input()[::-1])"), stdin="abc\n")
    assert (done.status, done.stdout, done.ending) == (0, "cba\n", "")
    done = children.run(_python("import sys; print('why', file=sys.stderr); sys.exit(3)"))
    assert (done.status, done.ending) == (3, "why")
    done = children.run(_python("import os; os.kill(os.getpid(), 11)"))
    assert (done.status, done.ending) == (-11, "SIGSEGV")


STARTS_ANOTHER = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', "
    "'import time; time.sleep(60)'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, "
    "stderr=subprocess.DEVNULL); "
)


def test_what_takes_too_long_ends_with_all_it_started() -> None:
    code = STARTS_ANOTHER + "print(p.pid, file=sys.stderr, flush=True); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(children.TimedOut, match=r"was stopped after 1 s") as raised:
        children.run(_python(code), timeout=1)
    assert time.monotonic() - began < 20
    assert _gone(int(raised.value.stderr))


def _orders(order: Any) -> Iterator[dict[str, Any]]:
    print("chatter, which must not stand among the answers")
    if order == "die":
        os.kill(os.getpid(), 9)
    if order == "exit":
        sys.exit("cannot go on")
    if order == "hang":
        time.sleep(60)
    for n in range(order):
        yield {"n": n}


def serve() -> None:
    children.serve(_orders)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[children.Child]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with children.Child(children.python("test_children:serve")) as made:
        yield made


def test_a_child_answers_orders(child: children.Child) -> None:
    assert child.ask(1, 30) == {"n": 0}
    child.tell(2)
    assert [child.answer(30)["n"] for _ in range(2)] == [0, 1]
    assert child.alive


@pytest.mark.parametrize(
    ("order", "kind", "why", "status"),
    [("die", "crash", "SIGKILL", -9), ("exit", "crash", "cannot go on", 1)],
)
def test_how_a_child_died(
    child: children.Child, order: str, kind: str, why: str, status: int
) -> None:
    with pytest.raises(children.Died) as raised:
        child.ask(order, 30)
    assert (raised.value.kind, raised.value.why, raised.value.status) == (kind, why, status)
    assert not child.alive
    with pytest.raises((children.Died, ValueError)):
        child.ask(1, 30)


def test_a_child_that_hangs_is_stopped(child: children.Child) -> None:
    child.ask(1, 30)
    with pytest.raises(children.Died, match=r"stopped after 0.2 s") as raised:
        child.ask("hang", 0.2)
    assert raised.value.kind == "timeout"
    assert not child.alive


def test_who_awaits_a_child_that_another_thread_kills_is_told() -> None:
    for after in (0, 0.001, 0.05, 0.1, 0.2):
        with children.Child(_python("import sys; sys.stdin.read()")) as child:
            killer = threading.Timer(after, child.kill)
            killer.start()
            with pytest.raises(children.Died) as raised:
                child.ask({}, timeout=60)
            killer.join()
        assert (raised.value.kind, raised.value.status) == ("crash", -signal.SIGKILL)


def test_what_a_dead_child_left_running_ends() -> None:
    code = STARTS_ANOTHER + "print(f'{{\"pid\": {p.pid}}}', flush=True); sys.exit(1)"
    with children.Child(_python(code)) as child:
        left = child.answer(30)["pid"]
        with pytest.raises(children.Died):
            child.answer(30)
    assert _gone(left)


# ---------------------------------------------------------------- files


class _Interrupted(subprocess.Popen[Any]):
    """A process whose parent is interrupted when it has begun, before anybody knows of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("start", [children.run, children.Child])
def test_an_interrupt_amid_a_start_leaves_nothing_running(
    start: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", _Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    try:
        with pytest.raises(KeyboardInterrupt):
            start([sys.executable, "-c", f"import time; {str(tmp_path)!r}; time.sleep(600)"])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert not pool_work.running(str(tmp_path))


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made" / "file.txt"
    files.write(target, "one")
    with contextlib.suppress(KeyboardInterrupt), files.replaced(target) as name:
        name.write_text("half")
        assert name.suffix == ".txt"
        raise KeyboardInterrupt
    assert target.read_text() == "one"
    assert list(target.parent.iterdir()) == [target]
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    assert files.write_changed(target, "text")
    before = target.stat().st_mtime_ns
    assert not files.write_changed(target, "text")
    assert target.stat().st_mtime_ns == before
    assert files.write_changed(target, "other")


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    outputs.write(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_a_located_fault(tmp_path: Path) -> None:
    with pytest.raises(MlirulesError, match=r"cannot be written: No such file or directory"):
        outputs.write(tmp_path / "nowhere" / "file", b"")
    with pytest.raises(MlirulesError, match=r"cannot be written"):
        outputs.write(tmp_path, b"")


def test_something_is_done_while_a_command_runs(tmp_path: Path) -> None:
    file = tmp_path / "there"
    # It ends when the other has been called, and not before.
    waits = (
        f"import pathlib, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)"
    )
    done = children.run([sys.executable, "-c", waits], timeout=60, meanwhile=file.touch)
    assert done.status == 0


def test_a_command_ends_with_what_is_done_meanwhile() -> None:
    def fails() -> None:
        raise ValueError("meanwhile")

    started = time.monotonic()
    with pytest.raises(ValueError, match="meanwhile"):
        children.run(_python("import time; time.sleep(60)"), meanwhile=fails)
    assert time.monotonic() - started < 30
