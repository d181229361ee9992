"""Why rules do not apply: every candidate of a program judged, the nearest first.

What a rule refuses at one op says :meth:`mlirules.drivers.match.matcher.Matcher.diagnose`. Here the
candidates are chosen, also where the program lacks the rule's root op, and ranked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mlirules.drivers.apply.run import Outcome
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.liveness import Frozen
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Around, Diagnosis, Refusal
from mlirules.language.faults import did_you_mean
from mlirules.language.rule import Line, Rule

# Says whether an op is one that the reader asked about.
Wanted: TypeAlias = Callable[[ir.Operation], bool]


def diagnoses(matcher: Matcher, module: ir.Module, wanted: Wanted | None = None) -> list[Diagnosis]:
    """How near a rule comes to applying at each candidate of a program, the nearest first.

    Candidates are the ops that have the name of the rule's root. Where an op asked for by
    ``wanted`` has another name, those that it stands in or feeds are taken, as far as the pattern
    reaches; where there are none either, the answer says what the rule looks for and what stands
    there. An empty list: ``wanted`` fits no op. The answers are settled: they outlive the program.
    """
    rule = matcher.rule
    roots = frozenset(rule.root_ops)
    ops = list(ops_below(module.operation))
    asked = ops if wanted is None else [op for op in ops if wanted(op)]
    chosen = [op for op in asked if op.name in roots]
    if not chosen and wanted is not None:
        around = [*asked, *(parent for op in asked for parent in _parents(op))]
        chosen = [op for op in around if op.name in roots]
        chosen = chosen or [root for op in asked for root in _reached(op, rule)]
        chosen = list(dict.fromkeys(chosen))
    surroundings = Around(dead=Frozen(module.operation).dead)
    found = [matcher.diagnose(op, surroundings) for op in chosen]
    if not found and asked:
        counts = Counter(op.name for op in ops)
        found = [_absent(matcher, asked, counts, None if wanted is None else asked[0])]
    names = ir.AsmState(module.operation)
    return [d.settled(names) for d in sorted(found, key=lambda d: d.rank)]


def _parents(op: ir.Operation) -> Iterator[ir.Operation]:
    """The ops that ``op`` stands in: a body's line is asked about, its op is meant."""
    while (parent := op.parent) is not None:
        op = parent
        yield op


def _reached(op: ir.Operation, rule: Rule) -> list[ir.Operation]:
    """The ops of the root's name that ``op`` feeds within the pattern's depth."""
    level, out = [op], []
    for _ in range(len(rule.op_names)):
        level = list(
            dict.fromkeys(u.owner.operation for o in level for r in o.results for u in r.uses)
        )
        out += [user for user in level if user.name in rule.root_ops]
    return out


def _absent(
    matcher: Matcher, ops: Sequence[ir.Operation], names: Counter[str], there: ir.Operation | None
) -> Diagnosis:
    """The answer where no op has the root's name: the nearest that the program has instead."""
    rule = matcher.rule
    if rule.equation is not None:
        line, root = rule.equation[0], "structured op (linalg)"
    else:
        one_of = rule.one_of.get(rule.root.op)
        line, root = one_of.line if one_of else rule.root.line, rule.spelt(rule.root.op)
    inner = next((op for op in ops if op.name in rule.op_names), None)
    lines: list[tuple[Line, bool | None]] = []
    if inner is not None:
        users = Counter(u.owner.name for r in inner.results for u in r.uses)
        found = ", ".join(users) or "nothing"
        refusal = Refusal(
            line, f"the result of {inner.name} feeds {found}, not {root}", root, found, 1, at=inner
        )
        return Diagnosis(inner, [refusal], 1, matcher.diagnosing.parts, lines)
    if there is not None:
        refusal = Refusal(line, f"the op here is {there.name}, not {root}", root, there.name)
        return Diagnosis(there, [refusal], 0, matcher.diagnosing.parts, lines)
    near = did_you_mean(root, names).removeprefix("did you mean ").rstrip("?")
    refusal = Refusal(
        line,
        f"the program has no {root}",
        root,
        "none",
        suggestion=f"it has {near.replace(' or ', ' and ')}" if near else "",
    )
    return Diagnosis(None, [refusal], 0, matcher.diagnosing.parts, lines)


@dataclass
class WhyNot:
    """Why one rule of a set did not apply, or not everywhere.

    ``nearest`` is the op it came nearest to, of the ``candidates`` that it left alone, settled;
    None when the program held no op that the rule starts at. ``applied`` counts its applications.
    ``made``: the candidates stand only in the result, made by other rules. ``taken``: it fits, and
    these rules, which fit as well, go before it.
    """

    rule: Rule
    candidates: int
    nearest: Diagnosis | None
    applied: int = 0
    made: bool = False
    taken: list[str] = field(default_factory=list)


def why_not(
    matchers: Sequence[Matcher], before: ir.Module, after: ir.Module, outcome: Outcome
) -> list[WhyNot]:
    """For each rule that left a candidate alone: why; the nearest first, absent roots last.

    ``before`` and ``after`` are the program around a run of the rules, ``outcome`` what the run
    did.
    """
    old, new = _by_name(before), _by_name(after)
    names = [ir.AsmState(module.operation) for module in (before, after)]
    dead = [Frozen(module.operation).dead for module in (before, after)]
    out = []
    for matcher in matchers:
        rule = matcher.rule
        applied = outcome.counts[rule.name]
        ops = [op for name in rule.root_ops for op in old.get(name, ())]
        made = not ops
        if made:
            ops = [op for name in rule.root_ops for op in new.get(name, ())]
        if not ops:
            if not applied:
                out.append(WhyNot(rule, 0, None))
            continue
        around = Around(dead=dead[made])
        found = [matcher.diagnose(op, around) for op in ops]
        left = [d for d in found if not d.applies or not applied]
        if not left:
            continue
        nearest = min(left, key=lambda d: d.rank)
        taken = []
        if nearest.applies:
            op = nearest.op
            assert isinstance(op, ir.Operation)  # not settled yet
            taken = [
                other.rule.name
                for other in matchers
                if other is not matcher
                and op.name in other.rule.root_ops
                and outcome.counts[other.rule.name]
                and other.diagnose(op, around).applies
            ]
        settled = nearest.settled(names[made])
        out.append(WhyNot(rule, len(left), settled, applied, made, taken))
    return sorted(out, key=lambda w: (w.nearest is None, w.nearest.rank if w.nearest else (0, 0.0)))


def _by_name(module: ir.Module) -> dict[str, list[ir.Operation]]:
    out: dict[str, list[ir.Operation]] = {}
    for op in ops_below(module.operation):
        out.setdefault(op.name, []).append(op)
    return out
