"""Equal programs as rules: which side is cheaper, what is known, what is proven, what is written.

:class:`Search` is the whole: programs are enumerated (:mod:`space`), those of a class weighed by
the cost model, what a smaller rule implies is left out, what shipped rules do anyway is named, and
what remains is proven, tested and written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.discover import general
from mlirules.drivers.discover.implied import Rules
from mlirules.drivers.discover.opsets import OpSet
from mlirules.drivers.discover.programs import Writer, in_order
from mlirules.drivers.discover.shipped import Shipped
from mlirules.drivers.discover.space import Class, Space
from mlirules.drivers.discover.state import State
from mlirules.drivers.discover.terms import Scalar, refs, terms_key
from mlirules.drivers.discover.weighing import Scales
from mlirules.drivers.discover.written import Pair, rule_text, spelt
from mlirules.drivers.iree import compiler
from mlirules.drivers.prove import prove as proving
from mlirules.drivers.prove.meanings import Meanings
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.support import files

#: Programs of a class that may stand on the right side: the smallest, by what they read and write.
RIGHT = 2


@dataclass(frozen=True)
class Settings:
    """What is searched, and for how long."""

    out: Path
    target: str = "cpu"
    #: Seconds for everything; 0: no limit.
    limit: float = 0.0
    #: Seconds for one proof.
    timeout: float = 20.0
    #: The gain that must be exceeded: 0.03 is 3 %.
    margin: float = 0.03
    seed: int = 0
    #: How many rules are written at most; 0: all.
    most: int = 0
    #: Only say which shipped rules are found again.
    only_shipped: bool = False


@dataclass
class Row:
    """A pair of equal programs, and what became of it."""

    left: str
    right: str
    #: ``known`` (a shipped rule does it), ``new`` (written), ``unproven``, ``untested``.
    verdict: str
    #: How many times as fast the right side is by the model; 0: it costs nothing.
    gain: float
    rule: str = ""
    known: list[str] = field(default_factory=list)
    proof: str = ""
    reason: str = ""


@dataclass
class Found:
    """What a search found."""

    ops: OpSet
    programs: int = 0
    classes: int = 0
    #: Pairs of equal programs, each written once.
    pairs: int = 0
    #: Of them: not cheaper; implied by a smaller one.
    level: int = 0
    implied: int = 0
    rows: list[Row] = field(default_factory=list)
    #: Shipped rules over the set's ops: the rule, and the program it was found as (or "").
    shipped: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    #: Why the search ended early; empty: it did not.
    stopped: str = ""
    seconds: float = 0.0

    def count(self, verdict: str) -> int:
        """How many rows have a verdict."""
        return sum(r.verdict == verdict for r in self.rows)

    def data(self) -> dict[str, object]:
        """What was found, for ``--json``."""
        found = [n for n, program in self.shipped.items() if program]
        return {
            "ops": sorted(self.ops.ops),
            "size": self.ops.size,
            "programs": self.programs,
            "classes": self.classes,
            "pairs": self.pairs,
            "not_cheaper": self.level,
            "implied": self.implied,
            "known": self.count("known"),
            "new": self.count("new"),
            "unproven": self.count("unproven"),
            "shipped": {"over_the_ops": len(self.shipped), "found": len(found)},
            "shipped_rules": self.shipped,
            "rules": [asdict(r) for r in self.rows],
            "left_out": self.left_out,
            "stopped": self.stopped,
            "seconds": round(self.seconds, 1),
        }


Watch = Callable[[str, int, int], None]


class Stop(Exception):
    """The time is over."""


class Search:
    """One search. See the module's docstring."""

    def __init__(
        self,
        ops: OpSet,
        meanings: Meanings,
        settings: Settings,
        watch: Watch,
        session: Session | None = None,
    ) -> None:
        """``session``: in which rules are tried on programs (default: that of this thread)."""
        session = session or current()
        self.ops, self.meanings, self.settings, self.watch = ops, meanings, settings, watch
        self.started = time.monotonic()
        self.space = Space(ops, meanings, settings.seed)
        self.found = Found(ops)
        self.state = State(settings.out / "state.json")
        self.scales = Scales(settings.target, self.state, session)
        self.rules = Rules(self.space)
        self.shipped = Shipped(ops, session)
        self._seen: set[str] = set()

    # -- the whole

    def run(self) -> Found:
        """Search, within the time; what is done is kept after an interrupt, too."""
        try:
            self.enumerate()
            self.recognise()
            if not self.settings.only_shipped:
                self.pairs()
        except Stop as stop:
            self.found.stopped = str(stop)
        except KeyboardInterrupt:
            self.found.stopped = "interrupted"
        finally:
            self.state.save()
            self.found.seconds = time.monotonic() - self.started
        return self.found

    def check_time(self) -> None:
        """Raise :class:`Stop` where the time is over."""
        if self.settings.limit and time.monotonic() - self.started > self.settings.limit:
            raise Stop("the time was over")

    def enumerate(self) -> None:
        """All programs, smallest first."""
        try:
            for size in range(1, self.ops.size + 1):

                def step(n: int, of: int, size: int = size) -> None:
                    self.watch(f"programs of {size} ops: {len(self.space.terms)}", n, of)
                    self.check_time()

                self.space.grow(size, step)
        finally:
            self.found.programs = len(self.space.terms)
            self.found.classes = len(self.space.classes)
            self.found.left_out = {
                op: why
                for op, why in self.space.left_out.items()
                if not any(t.op == op for t in self.space.terms)
            }

    def recognise(self) -> None:
        """The shipped rules whose ops are in the set: which of them were found again?"""
        listed = self.shipped.over_the_set()
        for n, rule in enumerate(listed):
            self.watch(f"shipped: {rule.name}", n, len(listed))
            self.check_time()
            key = f"{rule.name} {rule.source.text} {self.ops.signature} {self.settings.seed}"
            known = self.state.get("shipped", key)
            if known is None:
                found = self.shipped.found_as(rule, self.space)
                known = "" if found is None else spelt(self.space.terms, found)
                self.state.put("shipped", key, known)
            self.found.shipped[rule.name] = known

    def pairs(self) -> None:
        """Every class with more than one program: its cheapest against the others."""
        terms = self.space.terms
        classes = [c for c in self.space.classes if len(c.members) > 1]
        left = [(m, c) for c in classes for m in c.members if terms[m].op and terms[m].matchable]
        left.sort(key=lambda p: self.order(*p))
        for n, (one, c) in enumerate(left):
            self.watch(f"pairs: {self.found.count('new')} new", n, len(left))
            self.check_time()
            self.left_side(one, c.members)
            if self.settings.most and self.found.count("new") >= self.settings.most:
                break

    def order(self, left: int, c: Class) -> tuple[Any, ...]:
        """Small programs first, as they imply others; then what promises most."""
        terms = self.space.terms
        twice = any(
            len(refs(terms[t].args)) > len({*refs(terms[t].args)}) for t in in_order(terms, left)
        )
        least = min(self.scales.rough(self.space, m) for m in c.members[:20])
        return terms[left].size, twice, least / max(1, self.scales.rough(self.space, left)), left

    # -- one left side

    def left_side(self, left: int, members: Sequence[int]) -> None:
        """A program against the cheapest of its class."""
        terms = self.space.terms
        rights = [
            m
            for m in members
            if m != left and terms[m].size <= terms[left].size and self.covers(left, m)
        ]
        if not rights:
            return
        key = terms_key(terms, left)
        if key in self._seen:
            return
        self._seen.add(key)
        self.found.pairs += 1
        if self.rules.implies(left):
            self.found.implied += 1
            return
        rights.sort(key=lambda m: (self.scales.rough(self.space, m), m))
        if self.scales.alike(self.space, left, rights[0]):
            self.found.level += 1
            return
        inputs = [t for t in in_order(terms, left) if not terms[t].op]
        before = self.cost(left, inputs)
        if before is None:
            return
        best, least = None, before
        for right in rights[:RIGHT]:
            after = self.cost(right, inputs)
            if after is not None and (best is None or after < least):
                best, least = right, after
        if best is None or before <= least * (1 + self.settings.margin):
            self.found.level += 1
            if terms[left].size == 1 and best is not None and terms[best].size == 1:
                # Two names of one op: larger programs are told under one of them.
                self.rules.add(left, best)
            return
        for dims in self.scales.sizes(self.ops)[1:]:
            one, two = (self.cost(t, inputs, dims) for t in (left, best))
            if one is None or two is None or one <= two * (1 + self.settings.margin):
                # What gains in some sizes alone is no rule: the cost driver decides there.
                self.found.level += 1
                return
        gain = before / least if least else 0.0
        self.weighed(left, best, gain, before, least, inputs)

    def covers(self, left: int, right: int) -> bool:
        """Whether a right side reads only what the left side names, and does not hold it."""
        terms = self.space.terms

        def given(root: int) -> set[Any]:
            out: set[object] = set()
            for t in in_order(terms, root):
                if not terms[t].op:
                    out.add(t)
                for a in general.flat(terms[t].args):
                    if isinstance(a, Scalar):
                        out |= set(general.names_in(a.text))
            return out

        return left not in terms[right].parts and given(right) <= given(left)

    def cost(
        self, root: int, inputs: Sequence[int], dims: Mapping[str, int] | None = None
    ) -> float | None:
        """Milliseconds by the model; None where the program does not compile."""
        if not self.space.terms[root].op:
            return 0.0
        return self.scales.milliseconds(self.program(root, inputs, dims))

    def program(
        self, root: int, inputs: Sequence[int], dims: Mapping[str, int] | None = None
    ) -> str:
        """A program in sizes that it is weighed in."""
        dims = dims or self.scales.sizes(self.ops)[0]
        return Writer(self.space.terms, dims, {"c": 0.37, "d": 1.9}).text(root, inputs)

    def weighed(
        self, left: int, right: int, gain: float, before: float, after: float, inputs: Sequence[int]
    ) -> None:
        """A pair that gains: known, or proven and written."""
        terms = self.space.terms
        row = Row(spelt(terms, left), spelt(terms, right), "new", round(gain, 3))
        self.found.rows.append(row)
        text = self.program(left, inputs)
        names, made = self.shipped.applied(text)
        if names:
            # Where a shipped rule leaves a program that costs no more, there is nothing to add.
            rest = self.scales.milliseconds(made) if terms[right].op else None
            if not terms[right].op or (
                rest is not None and rest <= after * (1 + self.settings.margin)
            ):
                row.verdict, row.known = "known", names
                self.rules.add(left, right)
                return
        pair = Pair(terms, left, right, self.ops, self.commuting())
        sizes = ", ".join(f"{k} = {v}" for k, v in self.scales.sizes(self.ops)[0].items())
        cost = f"{after:.3g} ms instead of {before:.3g}" if after else "nothing"
        pair.said["reason"] = (
            f"By the cost model of {self.settings.target} it takes {cost} ({sizes})."
        )
        self.proven(pair, row)
        if row.verdict in ("new", "unproven", "untested"):
            self.rules.add(left, right)

    def commuting(self) -> frozenset[str]:
        """Ops of the set whose first two operands may be swapped."""
        return frozenset(t.op for t in self.ops.operators if self.space.commutes(t))

    # -- proofs, tests, files

    def proven(self, pair: Pair, row: Row) -> None:
        """The most general form of a pair that is proven, and passes its tests."""
        row.verdict, row.reason = "unproven", "no form of it is proven"
        for form in general.forms(self.space, pair):
            self.check_time()
            text = rule_text(form, form.name)
            known = self.state.get("proofs", text)
            if known is None:
                try:
                    rule = load_rule(f"{form.name}.yaml", text, ops=compiler.op_oracle)
                except MlirulesError as error:
                    row.reason = str(error.faults[0].message)
                    known = {"verdict": "undecided", "reason": row.reason, "said": ""}
                else:
                    verdict = proving.prove(rule, self.meanings, timeout=self.settings.timeout)
                    from mlirules.drivers.prove.verdicts import sentence

                    data = verdict.data()
                    known = {
                        "verdict": verdict.verdict,
                        "reason": verdict.reason,
                        "said": sentence(data),
                    }
                if known["reason"] != "out of time":
                    self.state.put("proofs", text, known)
            row.proof, row.reason = known["verdict"], known["reason"]
            if known["verdict"] == "proven":
                said = {**form.said, "notes": f"{known['said'][:1].upper()}{known['said'][1:]}."}
                self.write(replace(form, said=said), row)
                return

    def write(self, pair: Pair, row: Row) -> None:
        """Write a proven rule with its tests, if they pass."""
        from mlirules.drivers.discover.tested import complete

        name = pair.name
        taken = {r.rule for r in self.found.rows if r.rule}
        count = 2
        while name in taken or self.shipped.has(name):
            name = f"{pair.name}-{count}"
            count += 1
        key = rule_text(pair, name)
        known = self.state.get("written", key)
        if known is None:
            text, problem = complete(pair, name)
            known = {"text": text, "problem": problem}
            self.state.put("written", key, known)
        if known["problem"]:
            row.verdict, row.reason = "untested", known["problem"]
            return
        row.verdict, row.rule, row.reason = "new", name, ""
        files.write_changed(self.settings.out / "rules" / f"{name}.yaml", known["text"])
