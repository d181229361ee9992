"""What the workers of test_pool do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlirules.language.faults import MlirulesError


def doer(setup: Any) -> Callable[[Any, Callable[[Any], None]], None]:
    """Does what a job says."""
    pid = os.getpid()

    def do(job: Any, tell: Callable[[Any], None]) -> None:
        what, value = job
        if what == "pid":
            tell((setup, pid))
        elif what == "sleep":
            time.sleep(value)
            tell(value)
        elif what == "hang":
            tell("began")
            time.sleep(600)
        elif what == "die":
            print("about to die", file=sys.stderr)
            tell("began")
            os.kill(pid, signal.SIGSEGV)
        elif what == "exit":
            os._exit(value)
        elif what == "print":
            print(value)  # must not get among the answers
            tell(value)
        elif what == "wrong":
            raise MlirulesError.at("here", value)
        elif what == "odd":
            raise _Odd(1, 2)
        elif what == "once":  # kills whoever gets it first
            if not Path(value).exists():
                Path(value).touch()
                os.kill(os.getppid(), signal.SIGKILL)
            tell("done by another")
        elif what == "command":
            from mlirules.support import children

            Path(value).touch()
            children.run([sys.executable, "-c", f"import time; {value!r}; time.sleep(600)"])

    return do


class _Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} {b}")


def broken(_: Any) -> None:
    """Does not start."""
    os._exit(3)


def running(word: str) -> bool:
    """Whether a command with this word runs."""
    done = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True)
    return any(word in line and "ps axww" not in line for line in done.stdout.splitlines())
