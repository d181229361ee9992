"""Rules' inline tests in a process of their own: what crashes costs one test, not the run.

One child runs all tests and says each result as a line of JSON. Where it dies, the test that it was
at has failed, and another child goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from mlirules.drivers.quality.config_test import any_rules, run_any_test
from mlirules.drivers.quality.ruletest import TestResult
from mlirules.language import consent
from mlirules.language.config.op import ConfigRule
from mlirules.language.rule import Rule

#: Seconds that one test may take.
TIMEOUT = 900.0

_CHILD = (
    "import sys; sys.path[:] = {path!r}; import mlirules.drivers.quality.isolated as i; i._child()"
)


def run_apart(
    paths: Sequence[str],
    rules: Sequence[Rule | ConfigRule],
    *,
    devices: Sequence[str] | None = None,
    step: Callable[[str], object] = lambda _: None,
    timeout: float = TIMEOUT,
) -> Iterator[TestResult]:
    """The results of the inline tests of ``rules``, in order; the rule sets ``paths`` hold them."""
    tests = [(rule, test) for rule in rules for test in rule.tests]
    asked = {
        "paths": list(paths),
        "rules": [[rule.path, rule.name] for rule in rules],
        "devices": None if devices is None else list(devices),
        "native": consent.current().native,
    }
    done = 0
    while done < len(tests):
        with _Child({**asked, "start": done}) as child:
            for rule, test in tests[done:]:
                step(rule.name)
                said = child.line(timeout)
                done += 1
                if said is None:
                    yield TestResult(rule, test, [child.fate(timeout)])
                    break
                yield TestResult(rule, test, said["problems"], said["skipped"], said["output"])


class _Child:
    """A child process that runs tests."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (__exit__)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # it died at once: that is told at its first line
            self.process.stdin.write(json.dumps(asked))
            self.process.stdin.close()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, timeout: float) -> dict[str, Any] | None:
        """The next result; None where the child died or took too long."""
        try:
            said = self.lines.get(timeout=timeout)
        except queue.Empty:
            return None
        found: dict[str, Any] | None = json.loads(said) if said is not None else None
        return found

    def fate(self, timeout: float) -> str:
        """How the child ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"did not end within {timeout:g} s"
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        if code < 0:
            # What a crashing compiler says begins with the cause and goes on with its stack.
            first = next((line for line in said if line.strip()), "")
            shown = f": {first[:200]}" if first else ""
            return f"crashed the compiler or runtime ({signal.Signals(-code).name}){shown}"
        return f"ended its process with exit code {code}" + (f": {said[-1][:300]}" if said else "")

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()


def _child() -> None:
    """What the child process does: run the tests that stdin asks for, a line for each."""
    asked = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints does not stand among the results
    consent.grant(native=asked["native"])
    wanted = {(path, name) for path, name in asked["rules"]}
    rules = {(r.path, r.name): r for r in any_rules(asked["paths"]) if (r.path, r.name) in wanted}
    ordered = [rules[path, name] for path, name in asked["rules"]]
    tests = [(rule, test) for rule in ordered for test in rule.tests]
    for rule, test in tests[asked["start"] :]:
        result = run_any_test(rule, test, devices=asked["devices"])
        said = {
            "problems": result.problems,
            "skipped": result.skipped,
            "output": result.output,
        }
        answers.write(json.dumps(said) + "\n")
        answers.flush()
