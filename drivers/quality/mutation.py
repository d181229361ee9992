"""How well a rule's tests hold its conditions: coverage, and mutants that no test notices.

Both are taken over the inline tests and the programs made from the rule
(:mod:`mlirules.drivers.quality.synthesis`), which are run on the way. :func:`of_file` puts together
what was measured of the rules of one file: there a condition that cannot be missed by any program
says so, in a comment ``# survives: why`` on its row or on the rows before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from mlirules.drivers.apply.programs import parsed, shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree import program as programs_of
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Around, Diagnosis, Match, Refusal
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import engine_for
from mlirules.drivers.quality.remarks import said_equal
from mlirules.drivers.quality.synthesis import Synthesis, around_of, conditions, synthesise
from mlirules.language.faults import MlirulesError
from mlirules.language.model import RunDoc
from mlirules.language.notation import ast
from mlirules.language.rule import Line, Rule


@dataclass
class Covered:
    """How often a `where` line was seen true and seen false."""

    line: Line
    true: int = 0
    false: int = 0


@dataclass
class Mutant:
    """A rule with one condition changed, and the first test that notices; None: none does."""

    line: Line
    change: str  # deleted, negated
    noticed: str | None = None
    #: The rewrite refuses what the condition refuses: the change makes no difference.
    equivalent: bool = False


@dataclass
class Report:
    """What was made from a rule, whether it held, and how much the tests see."""

    rule: Rule
    synthesis: Synthesis
    problems: list[str] = field(default_factory=list)
    covered: list[Covered] = field(default_factory=list)
    mutants: list[Mutant] = field(default_factory=list)
    #: Why the numbers of the positive program were not compared; empty when they were.
    numbers: str = ""

    @property
    def score(self) -> tuple[int, int]:
        """Mutants noticed, and all that are not equivalent to the rule."""
        real = [m for m in self.mutants if not m.equivalent]
        return sum(m.noticed is not None for m in real), len(real)


Outcome: TypeAlias = Literal["noticed", "equivalent", "explained", "survivor"]


@dataclass(frozen=True)
class FileMutant:
    """One condition of a rule file changed, in every rule of the file that has it.

    ``row`` and ``column``, from 1, are its place. ``why``: the test that notices the change, the
    reason why none can; of a survivor, what came of the search for a program.
    """

    row: int
    column: int
    text: str
    change: str
    outcome: Outcome
    why: str = ""


@dataclass
class FileReport:
    """What was measured of a rule file. A line of a family counts once for all members."""

    #: Conditions of any kind, and those without a mutant: types and matches that no program was
    #: found against.
    conditions: int = 0
    untried: int = 0
    mutants: list[FileMutant] = field(default_factory=list)
    #: Rows whose comment gives a reason although every change of them is noticed, and the reason.
    needless: list[tuple[int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def of_file(reports: Sequence[Report]) -> FileReport:
    """What the reports of all rules of one file say together. Raises ValueError without any.

    A change to a line is noticed where the tests of one member of a family notice it: it is a
    change to them all. It is equivalent where it is so for every member.
    """
    if not reports:
        raise ValueError("no report of the file")
    out = FileReport(problems=[problem for report in reports for problem in report.problems])
    places: set[tuple[int, int]] = set()
    changes: dict[tuple[int, int, str], list[Mutant]] = {}
    for report in reports:
        places |= {_place(line) for line in conditions(report.rule)}
        for mutant in report.mutants:
            changes.setdefault((*_place(mutant.line), mutant.change), []).append(mutant)
    out.conditions = len(places)
    out.untried = len(places - {(row, column) for row, column, _ in changes})
    missing = {
        _place(line): why
        for report in reports
        for line, why in report.synthesis.missing
        if line is not None
    }
    said = reasons(reports[0].rule.source.text)
    used: set[int] = set()
    for (row, column, change), mutants in sorted(changes.items()):
        noticed = next((m.noticed for m in mutants if m.noticed is not None), None)
        outcome: Outcome = "survivor"
        why = missing.get((row, column), "")
        if noticed is not None:
            outcome, why = "noticed", noticed
        elif all(m.equivalent for m in mutants):
            outcome, why = "equivalent", "the rewrite refuses the same"
        elif row in said:
            outcome, why = "explained", said[row]
            used.add(row)
        out.mutants.append(FileMutant(row, column, str(mutants[0].line), change, outcome, why))
    out.needless = [(row, why) for row, why in said.items() if row not in used]
    return out


#: The sections of a rule file that say what is made of a match.
_MADE = ("rewrite", "kernel")
_REASON = re.compile(r"(?:^|\s)#\s*survives:\s*(.*)$")


def reasons(text: str) -> dict[int, str]:
    """Why changes to conditions are not noticed, by the row (from 1) of the condition.

    A comment ``# survives: why`` is about its own row; where nothing else stands there, about the
    next row that is no comment, and the comments between go on with it.
    """
    out: dict[int, str] = {}
    waiting: list[str] = []
    for row, content in enumerate(text.split("\n"), 1):
        found = _REASON.search(content)
        alone = content.lstrip().startswith("#")
        if found is not None and alone:
            waiting = [found[1]]
        elif alone and waiting:
            waiting.append(content.strip().lstrip("# "))
        elif not alone:
            if found is not None:
                out[row] = found[1].strip()
            elif waiting:
                out[row] = " ".join(waiting).strip()
            waiting = []
    return out


def _place(line: Line) -> tuple[int, int]:
    span = line.span
    return span.line, span.column


@dataclass
class _Case:
    name: str
    module: ir.Module
    fires: bool
    around: Around
    refused: list[list[Line]] = field(default_factory=list)


def measure_file(rules: Sequence[Rule]) -> FileReport:
    """What the tests of a file's rules see of its conditions.

    A family's lines are looked at in every member, but programs against a line are looked for only
    until tests of a member notice its change, in two members at most; against a kernel's, whose
    programs take long to judge, only where no inline test notices. Raises ValueError without rules.
    """
    noticed: set[tuple[int, int]] = set()
    searched: Counter[tuple[int, int]] = Counter()
    said = reasons(rules[0].source.text) if rules else {}
    reports = []
    for rule in rules:
        known = noticed | (_noticed_inline(rule) if rule.variants else set())
        limits = {place: 1 if place[0] in said else 2 for place in searched}
        skipped = known | {place for place, n in searched.items() if n >= limits[place]}
        reports.append(measure(rule, passed=skipped))
        searched.update(p for line in conditions(rule) if (p := _place(line)) not in skipped)
        noticed |= {
            _place(m.line) for m in reports[-1].mutants if m.noticed and m.change == "deleted"
        }
    return of_file(reports)


def _noticed_inline(rule: Rule) -> set[tuple[int, int]]:
    """The places of conditions without which an inline test would have another outcome."""
    cases = _cases(rule, Synthesis(rule))
    _look(rule, cases)
    found = {
        _place(line)
        for n, (line, _) in enumerate(rule.where)
        if _noticed(_mutated(rule, n, "deleted"), cases) is not None
    }
    return found | {_place(line) for line in conditions(rule) if _loosened(line, cases) is not None}


def measure(
    rule: Rule, *, numbers: bool = False, passed: Collection[tuple[int, int]] = ()
) -> Report:
    """Make programs from a rule, run them, and measure what the tests see of its conditions.

    ``numbers``: compile the positive program with and without the rule on the CPU and compare, with
    the tolerance of the first inline test that runs. ``passed``: the rows and columns of conditions
    against which no program is looked for.
    """
    made = synthesise(rule, wanted=lambda line: _place(line) not in passed)
    report = Report(rule, made, covered=[Covered(line) for line, _ in rule.where])
    cases = _cases(rule, made)
    if made.positive is None:
        report.problems += [reason for line, reason in made.missing if line is None]
    _run(rule, made, report)
    if numbers:
        report.numbers = _compare(rule, made, report)
    for diagnosis in _look(rule, cases):
        held = {(line.section, line.key): holds for line, holds in diagnosis.lines}
        for covered in report.covered:
            holds = held.get((covered.line.section, covered.line.key))
            covered.true += holds is True
            covered.false += holds is False
    for n, (line, _) in enumerate(rule.where):
        for change in ("deleted", "negated"):
            mutant = _mutated(rule, n, change)
            noticed = _noticed(mutant, cases)
            same = (
                noticed is None
                and change == "deleted"
                and _refused_by_rewrite(rule, mutant, line, cases)
            )
            report.mutants.append(Mutant(line, change, noticed, same))
    seen = {(line.section, line.key) for line, _ in rule.where}
    impossible = {(line.section, line.key) for line, _ in made.missing if line is not None}
    for line in conditions(rule):
        place = (line.section, line.key)
        if place not in seen:
            noticed = _loosened(line, cases)
            if noticed is not None or not (_place(line) in passed or place in impossible):
                report.mutants.append(Mutant(line, "deleted", noticed))
    return report


def _cases(rule: Rule, made: Synthesis) -> list[_Case]:
    texts = [
        (f"test {t.name!r}", t.input or t.unchanged or "", t.input is not None, t.cpu)
        for t in rule.tests
    ]
    if made.positive is not None:
        texts.append(("the program made to match", made.positive.text, True, None))
    texts += [(f"the program made against `{n.line}`", n.text, False, None) for n in made.negatives]
    out = []
    for name, text, fires, cpu in texts:
        try:
            module = parsed(text, rule.path)
        except MlirulesError:
            continue  # told when the test itself is run
        out.append(_Case(name, module, fires, around_of(rule, cpu)))
    return out


def _look(rule: Rule, cases: list[_Case]) -> list[Diagnosis]:
    """What is said of the rule at every op of the cases that it could start at."""
    matcher = Matcher(rule, shared_context())
    out = []
    for case in cases:
        for op in _roots(rule, case.module):
            out.append(matcher.diagnose(op, case.around))
            case.refused.append([r.line for r in out[-1].refusals if r.line is not None])
    return out


def _roots(rule: Rule, module: ir.Module) -> list[ir.Operation]:
    return [op for op in ops_below(module.operation) if op.name in rule.root_ops]


def _run(rule: Rule, made: Synthesis, report: Report) -> None:
    """Run the programs made from the rule through the driver, as `mlirules apply` would."""
    programs = [made.positive] if made.positive is not None else []
    for program in [*programs, *made.negatives]:
        module = ir.Module.parse(program.text, shared_context())
        try:
            options = Options(driver="greedy", cpu=around_of(rule).cpu)
            count = engine_for([rule]).run(module, options).total
        except MlirulesError as error:
            report.problems.append(f"{error}\n{program.text}")
            continue
        if program.line is None and not count:
            report.problems.append(f"the rule does not apply to\n{program.text}")
        elif program.line is not None and count:
            report.problems.append(f"applies in spite of `{program.line}` to\n{program.text}")
        elif not module.operation.verify():
            report.problems.append(f"the rewritten program does not verify\n{program.text}")


def _compare(rule: Rule, made: Synthesis, report: Report) -> str:
    run = next((t.run for t in rule.tests if t.run is not None and t.run.expect is None), None)
    if made.positive is None:
        return "no program"
    if run is None:
        return "no inline test compares numbers with the unrewritten program"
    text = made.positive.text
    cpu = Target("cpu", around_of(rule).cpu)
    if cpu.architecture and (lacking := cpu.available()) is not None:
        return lacking
    module = ir.Module.parse(text, shared_context())
    engine_for([rule]).run(module, Options(driver="greedy", cpu=cpu.architecture))
    try:
        compiler.compile_module(text, cpu)
        numerics.random_inputs(numerics.signature(text)[1])
    except MlirulesError as error:
        return f"the program does not run without the rule: {error.faults[0].message[:120]}"
    sizes = fitting_sizes(rule, text)
    plain = RunDoc(
        rtol=run.rtol,
        atol=run.atol,
        low=run.low,
        high=run.high,
        sizes=[sizes] if sizes else [],
    )
    problems = numerics.compare(text, str(module), plain, cpu)
    report.problems += [f"{problem}\n{text}" for problem in problems]
    return ""


def fitting_sizes(rule: Rule, text: str) -> list[int]:
    """Values for the `?` dims of a program, in order, that fit what the rule says of them.

    A dim of a symbol that is a number elsewhere in the program, or that a condition says is equal
    to such a one, must be that number at run time.
    """
    module = ir.Module.parse(text, shared_context())
    matcher = Matcher(rule, shared_context())
    around = around_of(rule)
    found = next(
        (m for op in _roots(rule, module) if isinstance(m := matcher.match(op, around), Match)),
        None,
    )
    entry = programs_of.entry(module)
    if found is None or entry is None:
        return []
    named: dict[str, list[tuple[str, int]]] = {}
    shapes: dict[str, list[int | None]] = {}
    for name, value in found.values.items():
        if name not in rule.types or not isinstance(value, ir.Value):
            continue
        listed = numerics.arguments_of([value.type])
        dims = rule.types[name][1].dims
        if len(listed) == 1 and dims is not None:
            shapes[name] = listed[0][0]
            named[name] = list(_symbols(dims, len(listed[0][0])))
    known: dict[tuple[str, int], int] = {}
    for name, symbols in named.items():
        known |= {s: n for s, n in zip(symbols, shapes[name], strict=False) if n is not None}
    for pair in said_equal(rule):
        values = [known[n, 0] for n in pair if (n, 0) in known]
        known |= {(n, 0): values[0] for n in pair if values}
    out: list[int] = []
    block = module.body.operations[0].regions[0].blocks[0]
    for argument in block.arguments:
        bound = next((n for n, v in found.values.items() if v == argument and n in named), None)
        symbols = named[bound] if bound is not None else []
        for shape, _ in numerics.arguments_of([argument.type]):
            for place, size in enumerate(shape):
                if size is None:
                    symbol = symbols[place] if place < len(symbols) else ("", 0)
                    out.append(known.get(symbol, 3))
    return out


def _symbols(dims: Sequence[ast.DimDecl], rank: int) -> Iterator[tuple[str, int]]:
    """The symbol of each of a tensor's dims, with the place in its pack."""
    packs = [d for d in dims if d.pack]
    if len(packs) > 1 or (not packs and len(dims) != rank):
        return
    for dim in dims:
        count = rank - len(dims) + 1 if dim.pack else 1
        for place in range(count):
            yield (dim.value if isinstance(dim.value, str) else "", place)


def _mutated(rule: Rule, n: int, change: str) -> Rule:
    where = list(rule.where)
    line, expr = where[n]
    if change == "deleted":
        del where[n]
    else:
        where[n] = (line, ast.Unary(expr.pos, expr.end, "not", expr))
    return replace(rule, where=where)


def _noticed(mutant: Rule, cases: list[_Case]) -> str | None:
    """The first test whose outcome the mutant changes."""
    matcher = Matcher(mutant, shared_context())
    for case in cases:
        found = [matcher.match(op, case.around) for op in _roots(mutant, case.module)]
        fires = any(isinstance(match, Match) for match in found)
        # A rewrite that does not fit what was let in is a fault, which fails a test as well.
        faults = any(isinstance(match, Refusal) and match.error for match in found)
        if faults or fires != case.fires:
            return case.name
    return None


def _refused_by_rewrite(rule: Rule, mutant: Rule, line: Line, cases: list[_Case]) -> bool:
    """Whether the rewrite refuses a program of those that the condition of the rule refuses."""
    matcher = Matcher(mutant, shared_context())
    place = (line.section, line.key)
    for case in cases:
        if case.fires:
            continue
        for op, refused in zip(_roots(rule, case.module), case.refused, strict=True):
            if any((said.section, said.key) == place for said in refused):
                found = matcher.explain(op, case.around)
                if found is not None and found.line is not None and found.line.section in _MADE:
                    return True
    return False


def _loosened(line: Line, cases: list[_Case]) -> str | None:
    """The first test that would apply if a type or match line said nothing."""
    place = (line.section, line.key)
    for case in cases:
        if not case.fires and any(
            refused and all((r.section, r.key) == place for r in refused)
            for refused in case.refused
        ):
            return case.name
    return None
