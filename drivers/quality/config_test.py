"""A config rule's inline tests: the entry hits, or a named part of it refuses."""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.drivers.iree.compiler import Job
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.ruletest import TestResult, filecheck, run_test
from mlirules.drivers.tuning_specs.compile import (
    ConfigReport,
    NotApplied,
    compile_with,
    config_set,
    configure,
)
from mlirules.drivers.tuning_specs.match import refusal
from mlirules.language.config.model import ConfigTest
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import MlirulesError
from mlirules.language.model import Test
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import holds_config, rule_files

#: Seconds that one compilation of a test may take.
TIMEOUT = 300.0

_ARCHITECTURES = {"cuda": "cuda:sm_80", "hip": "hip:gfx942"}


def run_config_test(
    rule: ConfigRule,
    test: ConfigTest,
    *,
    devices: Sequence[str] | None = None,
    compiled: bool = True,
) -> TestResult:
    """Run one inline test of a config rule. ``devices`` limits where numbers are checked.

    Without ``compiled`` programs are only taken as far as configurations are chosen, which is
    quick; that they compile, and their numbers, are left out.
    """
    result = TestResult(rule, test)
    name = test.target or rule.doc.targets[0]
    target = Target.parse(_ARCHITECTURES.get(name, name))
    try:
        if test.unchanged is not None:
            _unchanged(rule, test, target, result)
        else:
            _configured(rule, test, target, result, devices, compiled)
    except MlirulesError as error:
        result.problems.append(str(error))
        result.faults += error.faults
    except NotApplied as error:
        result.problems.append(str(error))
    return result


def shown(report: ConfigReport) -> str:
    """Configured ops as text, a line each: what a test's `check:` lines are held against."""
    return "".join(
        f"{op.dispatch} {op.op} rule={op.marker or 'none'} "
        f"lowering_config = {op.lowering_config or 'none'} "
        f"translation_info = {op.translation_info or 'none'} "
        f"decomposition_config = {op.decomposition_config or 'none'}\n"
        for op in report.ops
    )


def _job(rule: ConfigRule, target: Target) -> Job:
    return Job(target, path=rule.path, timeout=TIMEOUT)


def _unchanged(rule: ConfigRule, test: ConfigTest, target: Target, result: TestResult) -> None:
    report = configure(test.unchanged or "", _job(rule, target), [rule])
    result.output = shown(report)
    if report.hits:
        result.tell(
            "the entry hit an op, but should not have\n" + result.output,
            "unchanged",
            "test-hits",
            f"the rule configures an op of {test.name!r}, which it is to leave alone",
            "say in `match:` what it is not for; a program with an op for it is an `input:`",
        )
        return
    refusals = [r for op in report.ops if (r := refusal(rule, op.operation)) is not None]
    if test.because is not None and test.because not in {r.part for r in refusals}:
        found = "; ".join(f"{r.part} ({r.message})" for r in refusals) or "no op at all"
        said = f"refused by another part: {found}"
        hint = "name that part, or change the program until this one alone refuses it"
        result.tell(said, "because", "test-because", said, hint)


def _configured(
    rule: ConfigRule,
    test: ConfigTest,
    target: Target,
    result: TestResult,
    devices: Sequence[str] | None,
    compiled: bool,
) -> None:
    text = test.input or ""
    binary = None
    if compiled:
        binary, report = compile_with(text, _job(rule, target), [rule])
    else:
        report = configure(text, _job(rule, target), [rule])
    result.output = shown(report)
    if not report.hits:
        reasons = [
            f"{op.dispatch}, {op.op}: {r.part}: {r.message}"
            for op in report.ops
            if (r := refusal(rule, op.operation)) is not None
        ]
        result.tell(
            "\n".join(["the entry hit no op", *reasons]),
            "input",
            "test-hits-nothing",
            f"the rule configures no op of {test.name!r}",
            "; ".join(reasons) or "the compiler made no dispatch that has a configuration",
        )
        return
    if test.hits is not None and len(report.hits) != test.hits:
        said = f"hit {len(report.hits)} ops, not {test.hits}"
        hint = "write how many it hits, or say in `match:` what it is not for"
        result.tell(said, "hits", "test-hits", f"the rule {said}", hint)
    if test.check is not None:
        message = filecheck(test.check, result.output)
        if message:
            result.tell_unmatched(message, "the list of configured ops")
    if test.run is None or binary is None:
        return
    if devices is not None and target.kind not in devices:
        result.skipped.append(f"{target.kind}: not asked for")
        return
    reason = target.available()
    if reason:
        result.skipped.append(f"{target.kind}: {reason}")
        return
    result.problems += numerics.compare(text, binary, test.run, target)


def any_rules(paths: Sequence[str]) -> list[Rule | ConfigRule]:
    """Rules of every kind in rule sets: rewrite rules first, each kind in its order."""
    files = {path: rule_files(path) for path in paths}
    rewriting = [p for p in paths if not all(map(holds_config, files[p]))]
    configuring = [p for p in paths if any(map(holds_config, files[p]))]
    rules: list[Rule | ConfigRule] = []
    rules += rule_set(tuple(rewriting)) if rewriting else ()
    rules += config_set(configuring) if configuring else ()
    return rules


def run_any_test(
    rule: Rule | ConfigRule,
    test: Test | ConfigTest,
    *,
    devices: Sequence[str] | None = None,
    bounds: bool = True,
) -> TestResult:
    """Run an inline test of a rule of any kind. Arguments as for :func:`run_test`."""
    if isinstance(rule, ConfigRule) and isinstance(test, ConfigTest):
        return run_config_test(rule, test, devices=devices)
    assert isinstance(rule, Rule)
    assert isinstance(test, Test)
    return run_test(rule, test, devices=devices, bounds=bounds)
