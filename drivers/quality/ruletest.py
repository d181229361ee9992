"""A rule's inline tests: FileCheck on the rewritten IR, refusals with their reason, numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options as CheckOptions
from filecheck.parser import Parser, pattern_for_opts

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.liveness import Frozen
from mlirules.drivers.match.results import Around, Refusal
from mlirules.drivers.measure import numerics, together
from mlirules.drivers.quality import custom_ops
from mlirules.drivers.quality.bounds import Checked, with_checks
from mlirules.generator import xsmm
from mlirules.language import reference
from mlirules.language.config.model import ConfigTest
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.model import Test
from mlirules.language.rule import Rule


@dataclass
class TestResult:
    """How one inline test went. ``problems`` is empty when it passed."""

    rule: Rule | ConfigRule
    test: Test | ConfigTest
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    output: str = ""
    #: What is wrong, at its place in the rule's file; numbers that differ have none.
    faults: list[Fault] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def tell(self, problem: str, key: str, code: str, message: str, hint: str) -> None:
        """Note a problem that stands at a key of the test."""
        self.problems.append(problem)
        at = ("tests", self._number, key)
        self.faults.append(Fault(self.rule.source.span_at(at, key=True), code, message, hint))

    def tell_unmatched(self, said: str, what: str) -> None:
        """Note what FileCheck said of ``output``, which is ``what`` of the test."""
        self.problems.append(said + "\n" + self.output)
        told = re.search(r"check:(\d+)(?::\d+)?: error: (.*)", said)
        row, message = (int(told[1]), told[2]) if told else (1, said)
        check = self.test.check or ""
        rows = check.split("\n")
        row = min(max(row, 1), len(rows))
        start = sum(len(r) + 1 for r in rows[: row - 1])
        lead = len(rows[row - 1]) - len(rows[row - 1].lstrip())
        text = self.rule.source.text_at(("tests", self._number, "check"))
        self.faults.append(
            Fault(
                text.span(start + lead, max(1, len(rows[row - 1].strip()))),
                "check-never-matches",
                f"{what} of {self.test.name!r} does not fit this line: {message}",
                "`mlirules test` shows what it is held against; `mlirules test -u` writes the "
                "lines of rewrites anew",
            )
        )

    @property
    def _number(self) -> int:
        return next(n for n, test in enumerate(self.rule.tests) if test is self.test)


def run_test(
    rule: Rule,
    test: Test,
    *,
    devices: Sequence[str] | None = None,
    bounds: bool = True,
    session: Session | None = None,
) -> TestResult:
    """Run one inline test; ``devices`` says where numbers are compared, if the test asks for it.

    Each is a kind of target, or a CPU by name (``cpu:x86-64-v3``), compared with the program as it
    is on the CPU of this machine. ``bounds``: a kernel that reads or writes beyond a buffer fails.
    """
    (result,) = run_tests([(rule, test)], devices=devices, bounds=bounds, session=session)
    return result


def run_tests(
    tests: Iterable[tuple[Rule, Test]],
    *,
    devices: Sequence[str] | None = None,
    bounds: bool = True,
    session: Session | None = None,
) -> list[TestResult]:
    """Run inline tests of rules, compiling what they run together.

    Rules are applied in ``session``, where binaries are kept, too (default: that of this thread).
    """
    session = session or current()
    tests = list(tests)
    results = [TestResult(rule, test) for rule, test in tests]
    asked: list[tuple[TestResult, Target, str, Checked | None]] = []
    for (rule, test), result in zip(tests, results, strict=True):
        try:
            if test.unchanged is not None:
                _unchanged(rule, test, result, session)
            else:
                targets = _rewritten(rule, test, result, devices, bounds, session)
                asked += [(result, *target) for target in targets]
        except MlirulesError as error:
            result.problems.append(str(error))
            result.faults += error.faults
    # What writes beyond a buffer is not run as it is.
    runs = [
        (result, target, made)
        for result, target, made, checks in asked
        if checks is None or _within_bounds(result, target, made, checks, session)
    ]
    expected = _expected(runs)
    runs = [run for run in runs if id(run[0]) not in expected or expected[id(run[0])] is not None]
    compared = [
        (numerics.Comparison(r.test.input or "", made, r.test.run, expected.get(id(r))), target)
        for r, target, made in runs
        if r.test.run is not None
    ]
    for (result, _, _), problems in zip(runs, numerics.compare_all(compared, session), strict=True):
        result.problems += problems
    return results


def _within_bounds(
    result: TestResult, target: Target, made: str, checks: Checked, session: Session
) -> bool:
    """Whether the kernels of a program stay within their buffers; the result tells otherwise."""
    test = result.test
    assert isinstance(test, Test) and test.run is not None
    result.skipped += [f"{target}: {span}: {said}" for span, said in checks.unchecked]
    if not checks.rows:
        return True
    _, arguments = numerics.signature(test.input or "")
    inputs = numerics.inputs_of(test.run, arguments)
    try:
        binary = together.binary(made, target, session)
        calls = [(checks.function, values) for _, values in inputs]
        done = runtime.run_each(binary.vmfb, calls, target)
    except MlirulesError as error:
        result.problems.append(f"{target}: {error}")
        return False
    right = True
    for (sizes, _), found in zip(inputs, done, strict=True):
        shown = f"{target}, sizes {sizes}" if sizes else str(target)
        if isinstance(found, MlirulesError):
            result.problems.append(f"{shown}: {found}")
            right = False
        elif faults := checks.faults(found):
            result.problems.append(f"{shown}: {MlirulesError(faults)}")
            result.faults += faults
            right = False
    return right


def _expected(
    runs: Sequence[tuple[TestResult, Target, str]],
) -> dict[int, list[list[runtime.Array]] | None]:
    """What the functions that rules name compute, by the id of the test's result.

    None where that is a problem, which the result tells then.
    """
    out: dict[int, list[list[runtime.Array]] | None] = {}
    for result, _, _ in runs:
        rule, test = result.rule, result.test
        if id(result) in out or not isinstance(rule, Rule) or rule.doc.reference is None:
            continue
        assert isinstance(test, Test)
        if test.run is None or test.run.expect is not None or test.input is None:
            continue
        name, arguments = numerics.signature(test.input)
        calls = [(name, inputs) for _, inputs in numerics.inputs_of(test.run, arguments)]
        out[id(result)] = None
        wrong = [str(MlirulesError(fault)) for fault in reference.faults(rule)]
        made: list[list[runtime.Array] | MlirulesError] = []
        if not wrong:
            try:
                made = custom_ops.evaluate(test.input, calls, custom_ops.of_rules([rule]))
            except MlirulesError as error:
                wrong.append(str(error))
        result.problems += wrong or [str(one) for one in made if isinstance(one, MlirulesError)][:1]
        if not result.problems:
            out[id(result)] = [one for one in made if not isinstance(one, MlirulesError)]
    return out


def example(rule: Rule, session: Session | None = None) -> tuple[Test, str] | None:
    """The rule's first positive test and what the rule makes of its program, as MLIR text.

    Raises :class:`MlirulesError` when the program is wrong or the rule does not apply to it.
    """
    session = session or current()
    for test in rule.tests:
        if test.input is not None:
            module = _parse(test.input, rule, test, session)
            if not _apply(rule, module, session):
                raise MlirulesError.at(rule.path, f"does not apply to {test.name!r}", code="test")
            return test, str(module)
    return None


def _parse(text: str, rule: Rule, test: Test, session: Session) -> ir.Module:
    index = rule.tests.index(test)
    key = "unchanged" if test.unchanged is not None else "input"
    mark = rule.source.text_at(("tests", index, key))
    try:
        return parsed(text, rule.path, session)
    except MlirulesError as error:
        faults = []
        for fault in error.faults:
            line, column = fault.span.line, fault.span.column
            span = (
                rule.source.span(
                    mark.line + line - 1, mark.column + column - 1, max(1, fault.span.length)
                )
                if line
                else rule.source.span_at(("tests", index, key))
            )
            faults.append(replace(fault, span=span))
        raise MlirulesError(faults) from None


def _apply(
    rule: Rule, module: ir.Module, session: Session, kind: str = "cpu", cpu: str = ""
) -> int:
    options = Options(driver="greedy", fold=False, target=kind, cpu=cpu)
    return session.engine_for([rule]).run(module, options).total


def _first_kind(rule: Rule) -> str:
    """The kind of target that a rule's program is shown for: kernels are not for every kind."""
    kinds = [kind for variant in rule.variants for kind in variant.doc.targets]
    return kinds[0] if kinds and "cpu" not in kinds else "cpu"


def _unchanged(rule: Rule, test: Test, result: TestResult, session: Session) -> None:
    module = _parse(test.unchanged or "", rule, test, session)
    engine = session.engine_for([rule])
    refusals: list[Refusal] = []
    candidates = 0

    cpu = test.cpu or ""
    around = Around(_first_kind(rule), Frozen(module.operation).dead, cpu=cpu)
    for op in ops_below(module.operation):
        if rule.looks_at(op.name, test.because):
            candidates += 1
            refusal = engine.explain(rule, op, around)
            if refusal is not None:
                refusals.append(refusal)
    if not candidates and test.because is not None:
        result.problems.append(f"the program holds no {rule.root_ops[0]}: it shows no refusal")
    errors = [refusal.error for refusal in refusals if refusal.error is not None]
    if errors:
        result.problems.append(str(errors[0]))
    if len(refusals) < candidates or _apply(rule, module, session, _first_kind(rule), cpu):
        result.tell(
            "the rule applied, but should not have",
            "unchanged",
            "test-applies",
            f"the rule rewrites the program of {test.name!r}, which it is to leave alone",
            "say in `where:` what refuses it; a program to be rewritten is an `input:`",
        )
        return
    if test.because is not None:
        said = {" ".join(str(r.line).split()) for r in refusals}
        if " ".join(test.because.split()) not in said:
            found = "; ".join(f"{r.line} ({r.message})" for r in refusals)
            problem = f"refused by another line: {found}"
            hint = "name that line, or change the program until this one alone refuses it"
            result.tell(problem, "because", "test-because", problem, hint)


def _rewritten(
    rule: Rule,
    test: Test,
    result: TestResult,
    devices: Sequence[str] | None,
    bounds: bool,
    session: Session,
) -> list[tuple[Target, str, Checked | None]]:
    """Apply the rule and check the IR; returns targets, with programs, to compare numbers on.

    With the programs what finds accesses of kernels beyond their buffers.
    """
    module = _parse(test.input or "", rule, test, session)
    if (missing := xsmm.lacking(rule)) is not None:
        result.skipped.append(missing)
        return []
    cpu = test.cpu or ""
    count = _apply(rule, module, session, _first_kind(rule), cpu)
    result.output = str(module)
    if count == 0:
        reasons = []
        engine = session.engine_for([rule])
        for op in ops_below(module.operation):
            if op.name in rule.root_ops:
                refusal = engine.explain(rule, op, Around(_first_kind(rule), cpu=cpu))
                if refusal is not None:
                    result.faults.append(refusal.fault(rule))
                    reasons.append(result.faults[-1].render())
        why = "\n".join(reasons) or f"no {rule.root_ops[0]} in the program"
        if not reasons:
            span = rule.source.span_at(("tests", rule.tests.index(test), "input"), key=True)
            said = f"the program holds no {rule.root_ops[0]}, so the rule does not apply to it"
            hint = "write the op that `match:` ends in"
            result.faults.append(Fault(span, "no-match", said, hint))
        result.problems.append(f"the rule did not apply\n{why}")
        return []
    if test.applied is not None and count != test.applied:
        said = f"applied {count} times, not {test.applied}"
        hint = "count them in what `mlirules apply --trace` writes"
        result.tell(said, "applied", "test-applied", f"the rule {said}", hint)
    if not module.operation.verify():
        result.problems.append("the rewritten program does not verify")
        return []
    if test.check is not None:
        message = filecheck(test.check, result.output)
        if message:
            result.tell_unmatched(message, "the rewritten program")
    targets: list[tuple[Target, str, Checked | None]] = []
    if test.run is not None:
        for device in _made_for(test, _asked(test.run.devices, devices, result), result):
            target = Target.parse("cuda:sm_80" if device == "cuda" else device)
            reason = target.available()
            if reason:
                result.skipped.append(f"{device}: {reason}")
                continue
            output, checks = result.output, None
            if rule.variants:  # a kernel is written for a target
                module = _parse(test.input or "", rule, test, session)
                architecture = target.architecture if target.kind == "cpu" else ""
                if not _apply(rule, module, session, target.kind, architecture):
                    result.problems.append(f"the rule did not apply for {target}")
                    continue
                checks = with_checks(module, rule) if bounds else None
                output = str(module)
            targets.append((target, output, checks))
    return targets


def _asked(tested: Sequence[str], devices: Sequence[str] | None, result: TestResult) -> list[str]:
    """Where a test's numbers are to be compared: ``cpu:znver4`` is one of the CPUs."""
    if devices is None:
        return list(tested)
    asked = [device for device in devices if device.partition(":")[0] in tested]
    kinds = {device.partition(":")[0] for device in asked}
    result.skipped += [f"{device}: not asked for" for device in tested if device not in kinds]
    return asked


def _made_for(test: Test, asked: Sequence[str], result: TestResult) -> list[str]:
    """The devices to compare numbers on: of CPUs the one that the test names, if it names one."""
    if test.cpu is None:
        return list(asked)
    found = []
    for device in asked:
        kind, _, architecture = device.partition(":")
        if kind == "cpu" and architecture in ("", test.cpu):
            found.append(f"cpu:{test.cpu}")
        elif kind == "cpu":
            result.skipped.append(f"{device}: the test is of cpu:{test.cpu}")
        else:
            found.append(device)
    return found


def filecheck(checks: str, text: str) -> str:
    """Run FileCheck lines over IR. Returns a message, empty when they hold."""
    options = CheckOptions(match_filename="check")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("output", text), parser)
    matcher.stderr = io.StringIO()
    code = matcher.run()
    if code == 0:
        return ""
    said = re.sub(r"\x1b\[[0-9;]*m", "", matcher.stderr.getvalue()).strip()
    return "FileCheck: " + (said or "the check lines do not hold")
