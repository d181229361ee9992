"""Rules' inline tests in a process of their own: what crashes costs one test, not the run.

One child runs all tests and says each result as a line of JSON. Where it dies, the test that it was
at has failed, and another child goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlirules.drivers.quality.config_test import any_rules, run_any_test
from mlirules.drivers.quality.ruletest import TestResult
from mlirules.language import consent
from mlirules.language.config.op import ConfigRule
from mlirules.language.rule import Rule
from mlirules.support import children

#: Seconds that one test may take.
TIMEOUT = 900.0


def run_apart(
    paths: Sequence[str],
    rules: Sequence[Rule | ConfigRule],
    *,
    devices: Sequence[str] | None = None,
    bounds: bool = True,
    step: Callable[[str], object] = lambda _: None,
    timeout: float = TIMEOUT,
) -> Iterator[TestResult]:
    """The results of the inline tests of ``rules``, in order; the rule sets ``paths`` hold them."""
    tests = [(rule, test) for rule in rules for test in rule.tests]
    asked = {
        "paths": list(paths),
        "rules": [[rule.path, rule.name] for rule in rules],
        "devices": None if devices is None else list(devices),
        "bounds": bounds,
        "native": consent.current().native,
        "python": consent.current().python,
    }
    done = 0
    while done < len(tests):
        command = children.python("mlirules.drivers.quality.isolated:_child")
        with children.Child(command) as child:
            child.tell({**asked, "start": done})
            for rule, test in tests[done:]:
                step(rule.name)
                done += 1
                try:
                    said = child.answer(timeout)
                except children.Died as died:
                    yield TestResult(rule, test, [_fate(died, timeout)])
                    break
                yield TestResult(rule, test, said["problems"], said["skipped"], said["output"])


def _fate(died: children.Died, timeout: float) -> str:
    """How the child ended."""
    if died.status is None:
        return f"did not end within {timeout:g} s"
    said = [line for line in died.stderr.splitlines() if line.strip()]
    if died.status < 0:
        # What a crashing compiler says begins with the cause and goes on with its stack.
        shown = f": {said[0][:200]}" if said else ""
        return f"crashed the compiler or runtime ({died.why}){shown}"
    return f"ended its process with exit code {died.status}" + (
        f": {said[-1][:300]}" if said else ""
    )


def _child() -> None:
    """What the child process does: run the tests that an order asks for, an answer for each."""
    children.serve(_results)


def _results(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    consent.grant(native=asked["native"], python=asked["python"])
    wanted = {(path, name) for path, name in asked["rules"]}
    rules = {(r.path, r.name): r for r in any_rules(asked["paths"]) if (r.path, r.name) in wanted}
    ordered = [rules[path, name] for path, name in asked["rules"]]
    tests = [(rule, test) for rule in ordered for test in rule.tests]
    for rule, test in tests[asked["start"] :]:
        result = run_any_test(rule, test, devices=asked["devices"], bounds=asked["bounds"])
        yield {
            "problems": result.problems,
            "skipped": result.skipped,
            "output": result.output,
        }
