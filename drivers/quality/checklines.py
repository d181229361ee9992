"""CHECK lines written from what a rule makes: from the parsed result, few, and stable.

A line names an op that the rule made and the checked ops that feed it, nothing else: no SSA
numbers, no types, no constants. Every set of lines is held against the program before the rule,
which it must refuse, and against the result spelt in other ways, which it must accept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.quality.ruletest import filecheck, run_test
from mlirules.language import outputs
from mlirules.language.edit import with_value
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import kind_of, rules_of
from mlirules.language.model import Test
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.language.source import SourceFile

MAX_LINES = 8
_OLD = "mlirules.old"
_PLACEHOLDER = "CHECK: to be written"

# Ops that say nothing about what is computed: sizes, storage, constants, borders, terminators.
_SILENT = re.compile(
    r"torch\.constant\.|torch_c\.|torch\.prim\.ListConstruct$|arith\.(constant|index_cast)|"
    r"tensor\.(empty|dim|cast)$|linalg\.(yield|index)$|tensor\.yield$|func\.|"
    r"arith\.(ext|trunc|[sufp]*to)"
)


def update(path: str | Path, session: Session | None = None) -> list[str]:
    """Write the CHECK lines and reasons that a rule file lacks, or that no longer hold.

    A test that holds is left as it is. Returns what was written, in words; an empty list: nothing.
    Raises :class:`MlirulesError` for a file that is wrong otherwise.
    """
    session = session or current()
    source = load_yaml(path)
    tests = source.data.get("tests") if isinstance(source.data, dict) else None
    if kind_of(source) == "config" or not isinstance(tests, list):
        return []
    text = source.text
    for i, test in enumerate(tests):
        bare = isinstance(test, dict) and "input" in test and not {"check", "run"} & set(test)
        if bare:
            text = with_value(load_yaml(path, text), ("tests", i), "check", _PLACEHOLDER)
    source = load_yaml(path, text)
    rules = rules_of(source, ops=compiler.op_oracle)
    said = []
    for i in range(len(tests)):
        key, value = _missing(_of_members(source, rules, i), source, i, session)
        if key:
            text = with_value(load_yaml(path, text), ("tests", i), key, value)
            said.append(f"{path}: wrote `{key}:` of the test {tests[i]['name']!r}")
    if said:
        for written in rules_of(load_yaml(path, text), ops=compiler.op_oracle):
            for test in written.tests:
                result = run_test(written, test, devices=[], session=session)
                if not result.passed:
                    where = written.source.span_at(("tests", written.tests.index(test)))
                    raise MlirulesError(
                        Fault(
                            where,
                            "update",
                            f"the test {test.name!r} does not hold: {result.problems[0]}",
                            "nothing was written",
                        )
                    )
        outputs.write_changed(Path(path), text)
    return said


def _of_members(source: SourceFile, rules: Sequence[Rule], i: int) -> list[tuple[Rule, Test]]:
    """A test of a file, as the rules of the file have it; a family has several."""
    place = source.span_at(("tests", i))
    return [
        (rule, test)
        for rule in rules
        for n, test in enumerate(rule.tests)
        if rule.source.span_at(("tests", n)) == place
    ]


def _missing(
    held: list[tuple[Rule, Test]], source: SourceFile, i: int, session: Session
) -> tuple[str, str]:
    """The key that a test lacks, or that no longer holds, and what belongs there; else nothing."""
    if not held:
        return "", ""
    first = held[0][1]
    if first.unchanged is not None and first.because is None:
        reasons = {_reason(rule, test.unchanged or "", session) for rule, test in held}
        return ("because", reasons.pop()) if len(reasons) == 1 and "" not in reasons else ("", "")
    programs = [
        (rule, test.input, test.check)
        for rule, test in held
        if test.input is not None and test.check is not None
    ]
    if not any(c.strip() == _PLACEHOLDER or _fails(r, p, c, session) for r, p, c in programs):
        return "", ""
    given = source.data["tests"][i].get("check")
    if not isinstance(given, str):
        raise MlirulesError(
            Fault(
                source.span_at(("tests", i, "check"), key=True),
                "update",
                "these CHECK lines are written in parts, for several rules",
                "mend them by hand, or write `check:` without `any:` and run this again",
            )
        )
    every = [(rule, program, lines_for(rule, program, session)) for rule, program, _ in programs]
    # What holds for each: one's lines, or those that all of them have.
    common = [line for line in every[0][2] if all(line in lines for _, _, lines in every)]
    for lines in (*(lines for _, _, lines in every), common):
        check = "\n".join(lines)
        if all(_tells(rule, program, check, session) for rule, program, _ in every):
            return "check", check
    shown = "; ".join(f"{rule.name}: {', '.join(lines)}" for rule, _, lines in every[:3])
    raise MlirulesError(
        Fault(
            source.span_at(("tests", i)),
            "update",
            f"no CHECK lines hold for all {len(every)} rules that have this test ({shown})",
            "write `check:` by hand, with `any:` where the rules differ",
        )
    )


def _tells(rule: Rule, program: str, check: str, session: Session) -> bool:
    """Whether CHECK lines tell what a rule makes from the program."""
    before = str(_module(rule, program, session))
    return (
        bool(check) and not _fails(rule, program, check, session) and bool(filecheck(check, before))
    )


def _module(rule: Rule, text: str, session: Session) -> ir.Module:
    return parsed(text, rule.path, session)


def _rewritten(rule: Rule, text: str, session: Session) -> ir.Module:
    """The program after the rule; ops that stood there before carry a mark."""
    module = _module(rule, text, session)
    with session.context:
        for op in ops_below(module.operation):
            op.attributes[_OLD] = ir.UnitAttr.get()
    count = session.engine_for([rule]).run(module, Options(driver="greedy")).total
    if not count:
        raise MlirulesError(
            Fault(
                rule.span,
                "update",
                "the rule does not apply to the test's input: no CHECK line can be written",
            )
        )
    return module


def _fails(rule: Rule, text: str, check: str, session: Session) -> bool:
    module = _module(rule, text, session)
    session.engine_for([rule]).run(module, Options(driver="greedy"))
    return bool(filecheck(check, str(module)))


def _reason(rule: Rule, text: str, session: Session) -> str:
    """The one line that refuses a program; empty when there is not exactly one."""
    matcher = Matcher(rule, session.context)
    found = [
        matcher.diagnose(op)
        for op in ops_below(_module(rule, text, session).operation)
        if op.name in rule.root_ops
    ]
    lines = {str(d.refusals[0].line) for d in found if d.refusals}
    return lines.pop() if len(lines) == 1 else ""


def lines_for(rule: Rule, text: str, session: Session) -> list[str]:
    """CHECK lines for what a rule makes of a program.

    Raises :class:`MlirulesError` when the rule does not apply, or no line tells the result from
    the program.
    """
    module = _rewritten(rule, text, session)
    made = [op for op in ops_below(module.operation) if _OLD not in op.attributes]
    left = {op.name for op in ops_below(module.operation)}
    label = next((op for op in ops_below(module.operation) if op.name == "func.func"), None)
    telling = [op for op in made if not _SILENT.match(op.name)] or made
    if len(telling) > MAX_LINES:  # what stands in the function says more than bodies do
        outer = [op for op in telling if op.parent and op.parent.name == "func.func"]
        telling = (outer or telling)[:MAX_LINES]
    for op in ops_below(module.operation):
        if _OLD in op.attributes:
            del op.attributes[_OLD]
    head = []
    if label is not None:
        head = [f"CHECK-LABEL: func.func @{ir.StringAttr(label.attributes['sym_name']).value}"]
    gone = [
        f"CHECK-NOT: {name}"
        for name in sorted(rule.op_names)
        if name not in left and not _SILENT.match(name)
    ][-1:]
    after, before = str(module), str(_module(rule, text, session))
    for wired in (True, False):
        lines = [*head, *_op_lines(telling, wired), *gone]
        check = "\n".join(lines)
        spellings = (
            after,
            re.sub(r"%([A-Za-z0-9_]+)", r"%renamed_\1", after),
            str(module.operation.get_asm(enable_debug_info=True)),
        )
        if filecheck(check, before) and not any(filecheck(check, s) for s in spellings):
            return lines
    raise MlirulesError(
        Fault(
            rule.span,
            "update",
            "no CHECK line tells the result from the program",
            "write the `check:` by hand",
        )
    )


def _op_lines(ops: list[ir.Operation], wired: bool) -> list[str]:
    """A line for each op; ``wired``: with the checked ops that feed it, by captured names."""
    names: dict[ir.Value, str] = {}
    used = {operand for op in ops for operand in op.operands} if wired else set()
    out = []
    for op in ops:
        feeds = [names[o] for o in op.operands if o in names]
        line = op.name + "".join(f"{{{{.*}}}}%[[{name}]]" for name in feeds)
        results = [r for r in op.results if r in used]
        if len(op.results) == 1 and results:
            name = _name(op.name, names)
            names[results[0]] = name
            line = f"%[[{name}:.+]] = {line}"
        out.append(f"CHECK: {line}")
    return out


def _name(op: str, taken: dict[ir.Value, str]) -> str:
    stem = re.sub(r"\W", "_", op.rpartition(".")[2]).upper()
    known = set(taken.values())
    return next(n for n in (stem, *(f"{stem}{i}" for i in range(2, 1000))) if n not in known)
