"""What is wrong with rules taken together: each finding with a program that shows it.

Found by trying, not by proving: a pair of rules is held against the programs of either's tests, and
against variants of them. What is reported has been seen to happen; what is not reported may exist.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.results import Diagnosis
from mlirules.drivers.quality.remarks import left_open
from mlirules.drivers.quality.synthesis import Search
from mlirules.generator.programs import Program
from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.native import native
from mlirules.language.notation import ast
from mlirules.language.rule import Line, Rule, nested_calls

TRIES = 60  # variants of one program held against another rule
LOOP_BOUND = 60  # applications to one small program


@dataclass
class _Known:
    """A rule, its searcher, and the programs it is known to match."""

    rule: Rule
    search: Search
    programs: list[Program | str] = field(default_factory=list)


def analyse(rules: Sequence[Rule], session: Session | None = None) -> list[Fault]:
    """The findings about one rule set, as warnings and remarks located in the rules."""
    session = session or current()
    out: list[Fault] = []
    for rule in rules:
        out += named_otherwise(rule)
        out += unknown_attributes(rule, session)
        out += without_consent(rule)
        out += left_open(rule, session)
    known = {
        rule.name: _Known(rule, Search(rule, rewrite=False, session=session)) for rule in rules
    }
    for entry in known.values():
        entry.programs = _programs(entry)
        if not entry.programs:
            out += never_holding(entry.search)
    out += _overlaps(rules, known)
    out += _loops(rules, known, session)
    return out


def _warning(rule: Rule, code: str, message: str, program: str, line: Line | None = None) -> Fault:
    span = rule.span if line is None else line.span
    example = f"for example\n{program.rstrip()}" if program else ""
    return Fault(span, code, message, example, "warning")


# ---- one rule ------------------------------------------------------------------------------------


def named_otherwise(rule: Rule) -> Iterator[Fault]:
    """A rule that is not found under its name: its file is called something else."""
    stem = Path(rule.path).stem
    if stem != rule.name and not rule.source.family:
        yield Fault(
            rule.span,
            "name",
            f"the rule {rule.name!r} stands in {Path(rule.path).name}",
            f"name the file {rule.name}.yaml: a rule is known by one name everywhere",
            "warning",
        )


def without_consent(rule: Rule) -> Iterator[Fault]:
    """Native code to which the user did not agree: what it does with others was not tried."""
    need = native(rule)
    if need is not None and not consent.admitted(need):
        yield replace(consent.missing(need), severity="warning")


def unknown_attributes(rule: Rule, session: Session) -> Iterator[Fault]:
    """Attributes of a rule's ops that the installed compiler's ops do not have."""
    calls = [(p.line, c) for p in rule.match for c in nested_calls(p.equation.call)]
    calls += [
        (line, statement.call)
        for line, statement in rule.rewrite
        if isinstance(statement, ast.OpEquation)
    ]
    for line, call in calls:
        for name, value in call.attrs:
            if not has_attribute(call.fn, name, session):
                span = line.text.span(value.pos, max(1, value.end - value.pos))
                yield Fault(
                    span,
                    "unknown-attribute",
                    f"{call.fn} of the installed compiler has no attribute {name!r}",
                    "only a program that carries it as an extra attribute "
                    f'can match, for example one with\n"{call.fn}"(...) {{{name} = ...}}',
                    "warning",
                )


def has_attribute(op: str, name: str, session: Session | None = None) -> bool:
    """Whether an op has an attribute of its own by this name."""
    for value in ('"mlirules.probe"', "unit"):
        text = f'"{op}"() <{{{name} = {value}}}> : () -> ()'
        try:
            said = str(ir.Module.parse(text, (session or current()).context))
        except ir.MLIRError as error:
            said = str(error)
        # An attribute of the op is converted, or shown with the op; any other is dropped.
        converted = (f"Invalid attribute `{name}`", f"for `{name}`: expected")
        if (
            any(words in said for words in converted)
            or "mlirules.probe" in said.rpartition("op")[2]
        ):
            return True
    return False


def never_holding(search: Search) -> list[Fault]:
    """Conditions that held in none of the programs tried for a rule that matched none at all."""
    rule = search.rule
    seen: set[tuple[str, str | int]] = set()
    nearest: Diagnosis | None = None
    program = ""

    def watch(found: Diagnosis) -> None:
        nonlocal nearest, program
        seen.update((line.section, line.key) for line, holds in found.lines if holds)
        if nearest is None or found.rank < nearest.rank:
            nearest, program = found, str(search.module)

    search.watch = watch
    search.first()
    search.watch = None
    return (
        [
            Fault(
                line.span,
                "never-holds",
                f"`{line}` held in none of the {search.tried} programs "
                "tried that have the rule's ops: it contradicts the types or another line",
                f"no program can match the rule; the nearest is refused:\n{program.rstrip()}",
                "warning",
            )
            for line, _ in rule.where
            if (line.section, line.key) not in seen
        ]
        if search.tried
        else []
    )


def _programs(known: _Known) -> list[Program | str]:
    """Programs that a rule matches, from its inline tests."""
    out: list[Program | str] = []
    for test in known.rule.tests:
        if test.input is not None and len(out) < 2:
            out += known.search.from_text(test.input)
    return out


# ---- pairs of rules ------------------------------------------------------------------------------


def _overlaps(rules: Sequence[Rule], known: dict[str, _Known]) -> list[Fault]:
    by_root: dict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        for root in ("",) if rule.equation is not None else rule.root_ops:
            by_root[root].append(rule)
    out = []
    seen: set[tuple[str, str]] = set()
    for group in by_root.values():
        for first, second in itertools.combinations(group, 2):
            if (first.name, second.name) in seen:
                continue
            seen.add((first.name, second.name))
            fault = _pair(known[first.name], known[second.name])
            if fault is not None:
                out.append(fault)
    return out


def _pair(a: _Known, b: _Known) -> Fault | None:
    """The finding about two rules with the same root; ``a`` stands first in the set."""
    if b.rule.name in a.rule.doc.overlaps or a.rule.name in b.rule.doc.overlaps:
        return None
    shared = _shared(a, b) or _shared(b, a)
    if shared is None:
        return None
    # Of equal rules the first of the set wins; the other's programs are all taken from it when
    # none is found that only it matches.
    wins, loses = (a, b) if a.rule.benefit >= b.rule.benefit else (b, a)
    if not _own(loses, wins):
        return _warning(
            loses.rule,
            "shadowed",
            f"{loses.rule.name} never applies: {wins.rule.name} "
            f"({wins.rule.span}) goes before it and matches every program tried that it matches",
            shared,
        )
    if a.rule.benefit != b.rule.benefit:
        return None
    return _warning(
        b.rule,
        "overlap",
        f"{b.rule.name} and {a.rule.name} ({a.rule.span}) match the same "
        f"program with the same benefit ({b.rule.benefit}): the order of the set decides",
        shared,
    )


def _shared(a: _Known, b: _Known) -> str | None:
    """A program that both rules match, starting from those of ``a``."""
    for program in a.programs:
        text = a.search.text(program)
        found = b.search.judge(text)
        if found is None:
            continue
        if found.applies:
            return text
        # Programs of the other's literals and ops are not near: do not look around them.
        lines = [r.line for r in found.refusals if r.line is not None]
        if any(n.section == "match" for n in lines) or len(lines) > 1:
            continue
        for variant in itertools.islice(a.search.changed(program, lines), TRIES):
            if a.search.applies(variant) and b.search.applies(text := a.search.text(variant)):
                return text
    return None


def _own(loses: _Known, wins: _Known) -> bool:
    """Whether some program is matched by ``loses`` and not by ``wins``."""
    for program in loses.programs:
        if not wins.search.applies(loses.search.text(program)):
            return True
    for program in loses.programs:
        lines = [line for line, _ in wins.rule.where] + [n for n, _ in wins.rule.types.values()]
        for variant in itertools.islice(loses.search.changed(program, lines), 4 * TRIES):
            if loses.search.applies(variant):
                text = loses.search.text(variant)
                if not wins.search.applies(text):
                    return True
    return not loses.programs


# ---- loops ---------------------------------------------------------------------------------------


def _loops(rules: Sequence[Rule], known: dict[str, _Known], session: Session) -> list[Fault]:
    """Rules that undo each other, seen to go on on a program of their tests."""
    out = []
    for component in _components(rules):
        engine = Engine(component, session.context)
        told: set[str] = set()
        for rule in component:
            for program in known[rule.name].programs:
                if rule.name in told:
                    break
                text = known[rule.name].search.text(program)
                module = parsed(text, session=session)
                try:
                    engine.run(module, Options(driver="greedy", bound=LOOP_BOUND))
                except MlirulesError as error:
                    if any(f.code != "loop" for f in error.faults):
                        continue
                    part = [f.message.split(" ", 1)[0] for f in error.faults]
                    if told & set(part):
                        continue
                    told |= set(part)
                    first = next(r for r in component if r.name in part)
                    who = " and ".join(part) + (" goes" if len(part) == 1 else " go")
                    out.append(
                        _warning(
                            first,
                            "loop",
                            f"{who} on for ever under the greedy driver: more than "
                            f"{LOOP_BOUND} applications to a program of a few ops",
                            text,
                        )
                    )
    return out


def _components(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules that may feed each other in a circle, by the names of ops: the strong components."""
    makes = {r.name: _makes(r) for r in rules}
    after: dict[str, list[str]] = {
        a.name: [b.name for b in rules if makes[a.name] & _starts(b)] for a in rules
    }
    reach = {name: _reachable(name, after) for name in after}
    by_name = {r.name: r for r in rules}
    out, done = [], set()
    for name in after:
        if name in done or name not in reach[name]:
            continue
        component = [n for n in after if n in reach[name] and name in reach[n]]
        done |= set(component)
        out.append([by_name[n] for n in component])
    return out


def _makes(rule: Rule) -> set[str]:
    # What index equations become is decided when the rule is lowered: any structured op.
    structured = any(isinstance(s, ast.IndexEquation) for _, s in rule.rewrite)
    return {*rule.produced_ops, *(["linalg.generic", "linalg.matmul"] if structured else [])}


def _starts(rule: Rule) -> set[str]:
    return set(rule.root_ops) | (rule.op_names if rule.match else set())


def _reachable(start: str, after: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    todo: list[Any] = [*after[start]]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += after[name]
    return seen
