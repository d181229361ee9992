"""What changed: matched programs, classified.

A change that only follows from another (the users of an inserted op read it now) is no change of
its own; a type that changed because an operand's did is marked as following.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mlirules.drivers.irdiff.graph import SEGMENTS, Block, Op, Program, Value
from mlirules.drivers.irdiff.match import Matching
from mlirules.drivers.irdiff.provenance import Provenance


class Kind(StrEnum):
    """The classes of changes."""

    INSERTED = "inserted"
    DELETED = "deleted"
    REPLACED = "replaced"
    ONE_TO_MANY = "one to many"
    MANY_TO_ONE = "many to one"
    MANY_TO_MANY = "many to many"
    MOVED = "moved"
    RETYPED = "retyped"
    ATTRIBUTE = "attribute changed"
    REWIRED = "operand rewired"


@dataclass(eq=False)
class Change:
    """One change: the ops of A and of B that it is about, and what differs in words."""

    kind: Kind
    before: list[Op]
    after: list[Op]
    #: (what, in A, in B): an attribute's name, ``operand 1``, ``result 0``, ``argument 2``.
    details: list[tuple[str, str, str]] = field(default_factory=list)
    #: It follows from another change: a type that an operand's change of type brought about.
    follows: bool = False
    #: Numbers of the rule applications that made it.
    applications: list[int] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    number: int = 0

    @property
    def function(self) -> str:
        """The function it lies in."""
        return (self.before or self.after)[0].function

    @property
    def signature(self) -> str:
        """The change without its place, to be compared across programs."""
        if self.kind in (Kind.ATTRIBUTE, Kind.RETYPED, Kind.REWIRED):
            what = ", ".join(
                dict.fromkeys(
                    f"{name}: {a} -> {b}" if self.kind is not Kind.REWIRED else name
                    for name, a, b in self.details
                )
            )
            return f"{self.kind}: {self.before[0].name} ({what})"
        return f"{self.kind}: {self.summary()}"

    def summary(self) -> str:
        """The ops of both sides: ``torch.aten.mm -> linalg.fill, linalg.matmul``."""
        sides = [_names(ops) for ops in (self.before, self.after)]
        if self.kind is Kind.MOVED:
            return sides[1]
        return " -> ".join(filter(None, sides)) if all(sides) else sides[0] or sides[1]

    def as_json(self) -> dict[str, object]:
        """The change as plain data."""
        return {
            "number": self.number,
            "kind": str(self.kind),
            "function": self.function,
            "signature": self.signature,
            "before": [_op_json(op) for op in self.before],
            "after": [_op_json(op) for op in self.after],
            "details": [{"what": w, "before": a, "after": b} for w, a, b in self.details],
            "follows": self.follows,
            "applications": self.applications,
            "rules": self.rules,
        }


def _names(ops: list[Op]) -> str:
    # What does the work first, then its constants and casts.
    counts = Counter(op.name for op in sorted(ops, key=lambda op: _is_auxiliary(op.name)))
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())


def _op_json(op: Op) -> dict[str, object]:
    return {"op": op.name, "number": op.number, "location": op.location, "line": op.first + 1}


class Diff:
    """All changes between two programs."""

    def __init__(
        self, before: Program, after: Program, provenance: Provenance | None = None
    ) -> None:
        self.before, self.after = before, after
        self.provenance = provenance
        if provenance is not None:
            provenance.check(len(before.ops), len(after.ops))
        self.matching = Matching(before, after)
        self.changes: list[Change] = []
        #: The change that an op of A or B is part of, as inserted, deleted or replaced.
        self.group_of: dict[Op, Change] = {}
        #: Changes of matched ops, by the op of A.
        self.edits: dict[Op, list[Change]] = defaultdict(list)
        self._symbols = {
            f"@{a.symbol}": f"@{b.symbol}"
            for a, b in self.matching.of.items()
            if a.symbol and b.symbol != a.symbol
        }
        self._retyped: set[Op] = set()
        self._groups()
        self._edits()
        self._moves()
        self._number()

    @property
    def counts(self) -> Counter[str]:
        """Changes by class."""
        return Counter(str(change.kind) for change in self.changes)

    def as_json(self) -> dict[str, object]:
        """The whole difference as plain data."""
        found: dict[str, object] = {
            "before": self.before.path,
            "after": self.after.path,
            "ops": [len(self.before.ops), len(self.after.ops)],
            "counts": dict(self.counts),
            "changes": [c.as_json() for c in self.changes],
        }
        if self.provenance is not None:
            found["applications"] = self.provenance.as_json()
        return found

    # -- ops without a counterpart

    def _groups(self) -> None:
        of, back = self.matching.of, self.matching.back
        gone = [op for op in self.before.ops if op not in of and _outermost(op, of)]
        new = [op for op in self.after.ops if op not in back and _outermost(op, back)]
        gone_set, new_set = set(gone), set(new)
        groups = _Groups([*gone, *new])
        tied = self._tie(groups, gone, new)
        # What stands in the place of what: a matched user reads the one in A, the other in B.
        pairs: list[tuple[Op, Op]] = []
        for a, b in of.items():
            if len(a.inputs) != len(b.inputs):
                continue
            for v, w in zip(a.inputs, b.inputs, strict=True):
                if v.op in gone_set and w.op in new_set:
                    pairs.append((v.op, w.op))
        linked: set[Op] = set()
        for p, q in pairs:
            if p in tied or q in tied:
                continue
            groups.union(p, q)
            linked |= {p, q}
        # What is made only for what was replaced goes with it, unless a rule says where it belongs.
        for ops, pool in ((gone, gone_set), (new, new_set)):
            for op in reversed(ops):
                users = {user for value in op.results for user, _ in value.uses}
                if op in tied or not users or not users <= pool:
                    continue
                roots = {groups.find(user) for user in users}
                if len(roots) == 1 and any(user in linked for user in users):
                    groups.union(op, next(iter(users)))
                    linked.add(op)
        for members in groups.sets():
            self._group(
                [op for op in members if op in gone_set],
                [op for op in members if op in new_set],
                tied,
            )

    def _tie(self, groups: _Groups, gone: list[Op], new: list[Op]) -> dict[Op, int]:
        """Group what one rule application took and made. Returns the application of each op."""
        tied: dict[Op, int] = {}
        if self.provenance is None:
            return tied
        first: dict[int, Op] = {}
        for ops, table in ((gone, self.provenance.consumer), (new, self.provenance.maker)):
            for op in ops:
                number = table.get(op.number)
                if number is None:
                    continue
                tied[op] = number
                chain = self.provenance.chain(number)
                if chain in first:
                    groups.union(first[chain], op)
                first.setdefault(chain, op)
        # What died because a rule took its last user goes with it.
        for op in reversed(gone):
            if op in tied:
                continue
            users = [user for value in op.results for user, _ in value.uses if user in tied]
            if users:
                tied[op] = tied[users[-1]]
                groups.union(op, users[-1])
        return tied

    def _group(self, gone: list[Op], new: list[Op], tied: dict[Op, int]) -> None:
        applications = sorted({tied[op] for op in [*gone, *new] if op in tied})
        if applications and self.provenance is not None:
            applications = self.provenance.members(applications)
        if gone and new:
            # Casts and constants that a rewrite puts around its work do not make it many.
            one, other = _count(gone) == 1, _count(new) == 1
            kind = (
                Kind.REPLACED
                if one and other
                else Kind.ONE_TO_MANY
                if one
                else Kind.MANY_TO_ONE
                if other
                else Kind.MANY_TO_MANY
            )
            self._add(Change(kind, gone, new, applications=applications))
        elif applications:
            self._add(
                Change(
                    Kind.DELETED if gone else Kind.INSERTED, gone, new, applications=applications
                )
            )
        else:
            for op in gone:
                self._add(self._merged(op) or Change(Kind.DELETED, [op], []))
            for op in new:
                self._add(self._split(op) or Change(Kind.INSERTED, [], [op]))

    def _merged(self, op: Op) -> Change | None:
        """A duplicate whose users read its twin now: many to one."""
        found = self._twin(op, self.matching.of, self.matching.back)
        return found and Change(Kind.MANY_TO_ONE, [found[0], op], [found[1]])

    def _split(self, op: Op) -> Change | None:
        """A new duplicate that takes users from its twin: one to many."""
        found = self._twin(op, self.matching.back, self.matching.of)
        return found and Change(Kind.ONE_TO_MANY, [found[1]], [found[0], op])

    @staticmethod
    def _twin(op: Op, across: Mapping[Op, Op], back: Mapping[Op, Op]) -> tuple[Op, Op] | None:
        """What the users of ``op`` read on the other side, if it has a twin beside ``op``.

        Returns the twin, on the side of ``op``, and what it is on the other.
        """
        for value in op.results:
            for user, n in value.uses:
                image = across.get(user)
                if image is None or n >= len(image.inputs):
                    continue
                read = image.inputs[n].op
                twin = back.get(read) if read is not None else None
                if read is not None and twin is not None and twin.up == op.up:
                    return twin, read
        return None

    def _add(self, change: Change) -> None:
        self.changes.append(change)
        if (
            change.before
            and change.before[0] in self.matching.of
            and (
                change.kind in (Kind.MOVED, Kind.RETYPED, Kind.ATTRIBUTE, Kind.REWIRED)
                or change.details
            )
        ):
            self.edits[change.before[0]].append(change)
            return
        for op in change.before:
            if op not in self.matching.of:
                self.group_of[op] = change
        for op in change.after:
            if op not in self.matching.back:
                self.group_of[op] = change

    # -- matched ops

    def _edits(self) -> None:
        for a in self.before.ops:
            b = self.matching.of.get(a)
            if b is None:
                continue
            first = len(self.changes)
            if a.name != b.name:
                self._add(Change(Kind.REPLACED, [a], [b], [("op", a.name, b.name)]))
            self._types(a, b)
            self._attributes(a, b)
            self._operands(a, b)
            if len(self.changes) > first:
                by = self._edited_by(a, b)
                for change in self.changes[first:]:
                    change.applications = by

    def _edited_by(self, a: Op, b: Op) -> list[int]:
        """The applications that took ``a`` and made ``b``, or else what ``b`` reads now.

        A rule that writes an op anew, with another attribute or operand, leaves a pair that is
        alike.
        """
        if self.provenance is None:
            return []
        consumer, maker = self.provenance.consumer, self.provenance.maker
        numbers = {n for n in (consumer.get(a.number), maker.get(b.number)) if n is not None}
        if not numbers:
            read = {maker.get(v.op.number) for v in b.inputs if v.op is not None}
            lost = {consumer.get(v.op.number) for v in a.inputs if v.op is not None}
            numbers = {n for n in read | lost if n is not None}
        return self.provenance.members(sorted(numbers)) if numbers else []

    def _types(self, a: Op, b: Op) -> None:
        details = [
            (f"result {n}", v.type, w.type)
            for n, (v, w) in enumerate(zip(a.results, b.results, strict=False))
            if v.type != w.type
        ]
        if len(a.results) != len(b.results):
            details.append(("results", str(len(a.results)), str(len(b.results))))
        for left, right in zip(a.regions, b.regions, strict=False):
            if len(left.blocks) != len(right.blocks):
                details.append(("blocks", str(len(left.blocks)), str(len(right.blocks))))
            for x in left.blocks:
                if x in self.matching.blocks:
                    details += self._block_types(x, self.matching.blocks[x])
        if "function_type" in a.attributes:
            details += self._function_results(a, b, details)
        if not details:
            return
        inputs = [(v.type, w.type) for v, w in zip(a.inputs, b.inputs, strict=False)]
        follows = any(v != w for v, w in inputs) and self._follows_from_operand(a, b)
        self._retyped.add(a)
        self._add(Change(Kind.RETYPED, [a], [b], details, follows=follows))

    def _follows_from_operand(self, a: Op, b: Op) -> bool:
        for v, w in zip(a.inputs, b.inputs, strict=False):
            if v.type == w.type:
                continue
            if v.op is None or v.op in self._retyped or v.op not in self.matching.of:
                return True
        return False

    def _block_types(self, x: Block, y: Block) -> list[tuple[str, str, str]]:
        out = []
        for n, v in enumerate(x.args):
            w = self.matching.args.get(v)
            if w is None:
                out.append((f"argument {n}", v.type, "(none)"))
            elif v.type != w.type:
                out.append((f"argument {n}", v.type, w.type))
        out += [
            (f"argument {n}", "(none)", w.type)
            for n, w in enumerate(y.args)
            if w not in self.matching.args_back
        ]
        return out

    def _function_results(
        self, a: Op, b: Op, known: list[tuple[str, str, str]]
    ) -> list[tuple[str, str, str]]:
        one, other = a.attributes["function_type"], b.attributes.get("function_type", "")
        if one == other or (known and _results(one) == _results(other)):
            return []
        if one.split("->")[-1] == other.split("->")[-1]:
            return [("type", one, other)]
        return [("returned type", _results(one), _results(other))]

    def _attributes(self, a: Op, b: Op) -> None:
        skip = SEGMENTS if len(a.operands) != len(b.operands) else frozenset[str]()
        details = []
        for name in sorted({*a.attributes, *b.attributes} - skip - {"function_type"}):
            one, other = a.attributes.get(name), b.attributes.get(name)
            if one == other or (one is not None and self._renamed(one) == other):
                continue
            details.append((name, one or "(none)", other or "(none)"))
        if a.attributes.get("sym_name") != b.attributes.get("sym_name"):
            details = [d for d in details if d[0] != "sym_name"]
            details.append(("sym_name", f"@{a.symbol}", f"@{b.symbol}"))
        if [self.matching.blocks.get(s) for s in a.successors] != b.successors:
            details.append(
                (
                    "successors",
                    str([s.index for s in a.successors]),
                    str([s.index for s in b.successors]),
                )
            )
        if details:
            self._add(Change(Kind.ATTRIBUTE, [a], [b], details))

    def _renamed(self, text: str) -> str:
        if not self._symbols or "@" not in text:
            return text
        return re.sub(r"@[\w$.\-]+", lambda m: self._symbols.get(m[0], m[0]), text)

    def _operands(self, a: Op, b: Op) -> None:
        details = []
        if len(a.operands) == len(b.operands):
            details = [
                (f"operand {n}", self.named(v), self.named(w, after=True))
                for n, (v, w) in enumerate(zip(a.operands, b.operands, strict=True))
                if self.matching.value(v) is not w and not self._explained(v, w)
            ]
        else:
            details = self._operand_lists(a, b)
        if details:
            self._add(Change(Kind.REWIRED, [a], [b], details))

    def _operand_lists(self, a: Op, b: Op) -> list[tuple[str, str, str]]:
        theirs = list(b.operands)
        out: list[tuple[str, str, str]] = []
        for n, v in enumerate(a.operands):
            image = self.matching.value(v)
            if image is not None and image in theirs:
                theirs.remove(image)
                continue
            w = next((w for w in theirs if self._explained(v, w)), None)
            if w is not None:
                theirs.remove(w)
            elif v.op not in self.group_of or not any(w.op in self.group_of for w in theirs):
                out.append((f"operand {n}", self.named(v), "(none)"))
        out += [
            (f"operand {b.operands.index(w)}", "(none)", self.named(w, after=True)) for w in theirs
        ]
        return out

    def _explained(self, v: Value, w: Value) -> bool:
        """Whether reading ``w`` instead of ``v`` follows from an insertion, deletion, ..."""
        p, q = v.op, w.op
        gone = p is not None and p not in self.matching.of
        new = q is not None and q not in self.matching.back
        if gone and new:
            return True
        if new and q is not None:  # inserted between: it is made of what was read
            return self._reaches(q, self.matching.value(v), new=True) or self._twins(q, v, new=True)
        if gone and p is not None:  # deleted: what it was made of, or its twin, is read
            return self._reaches(p, self.matching.value_back(w), new=False) or self._twins(
                p, w, new=False
            )
        return False

    def _twins(self, op: Op, value: Value, *, new: bool) -> bool:
        other = value.op
        image = (
            None if other is None else (self.matching.of if new else self.matching.back).get(other)
        )
        return image is not None and image.up == op.up

    def _reaches(self, op: Op, value: Value | None, *, new: bool) -> bool:
        """Whether ``op`` is made of ``value`` through ops that are all new (or all gone)."""
        if value is None:
            return False
        table = self.matching.back if new else self.matching.of
        work, seen = [op], {op}
        while work and len(seen) < 1000:
            for operand in work.pop().inputs:
                if operand is value:
                    return True
                inner = operand.op
                if inner is not None and inner not in table and inner not in seen:
                    seen.add(inner)
                    work.append(inner)
        return False

    def named(self, value: Value, *, after: bool = False) -> str:
        """A value in words: the name that A gives it, and the op that makes it."""
        known = self.matching.value_back(value) if after else None
        name = (known or value).name
        if after and known is None:
            name = f"{value.name} of B"
        return f"{name} ({value.op.name})" if value.op is not None else name

    # -- order

    def _moves(self) -> None:
        """Ops that act on something besides their results, in another order or block."""
        moved: list[tuple[Op, Op]] = []
        for x, y in self.matching.blocks.items():
            place = {op: n for n, op in enumerate(y.ops)}
            pairs = [
                (a, place[self.matching.of[a]])
                for a in x.ops
                if a in self.matching.of and self.matching.of[a] in place and a.ordered()
            ]
            out = [pairs[index][0] for index in out_of_order([p for _, p in pairs])]
            moved += [(a, self.matching.of[a]) for a in out]
        seen = {a for a, _ in moved}
        for a in self.before.ops:
            b = self.matching.of.get(a)
            if b is None or a in seen or a.parent is None or b.parent is None:
                continue
            if self.matching.blocks.get(a.parent) is not b.parent and not self._inside(a, seen):
                moved.append((a, b))
                seen.add(a)
        for a, b in sorted(moved, key=lambda pair: pair[0].number):
            self._add(Change(Kind.MOVED, [a], [b], [("place", _place(a), _place(b))]))

    @staticmethod
    def _inside(op: Op, ops: set[Op]) -> bool:
        while op.parent is not None:
            op = op.parent.region.op
            if op in ops:
                return True
        return False

    def _number(self) -> None:
        self.changes.sort(
            key=lambda c: (
                c.before[0].number if c.before else self._near(c.after[0]),
                c.after[0].number if c.after else 0,
            )
        )
        for number, change in enumerate(self.changes, 1):
            change.number = number
            if self.provenance is not None:
                names = self.provenance.rules(change.applications)
                change.rules = list(dict.fromkeys(names))

    def _near(self, op: Op) -> int:
        """Where an op of B would stand in A."""
        if op.parent is None:
            return 0
        at = op.parent.ops.index(op)
        for other in reversed(op.parent.ops[:at]):
            if other in self.matching.back:
                return self.matching.back[other].number
        owner = op.parent.region.op
        return self.matching.back[owner].number if owner in self.matching.back else op.number


class _Groups:
    """Disjoint sets of ops."""

    def __init__(self, ops: list[Op]) -> None:
        self.parent = {op: op for op in ops}

    def find(self, op: Op) -> Op:
        root = op
        while self.parent[root] is not root:
            root = self.parent[root]
        while self.parent[op] is not root:
            self.parent[op], op = root, self.parent[op]
        return root

    def union(self, a: Op, b: Op) -> None:
        self.parent[self.find(b)] = self.find(a)

    def sets(self) -> list[list[Op]]:
        out: dict[Op, list[Op]] = defaultdict(list)
        for op in self.parent:
            out[self.find(op)].append(op)
        return list(out.values())


# Arguments and borders of the ops that do the work.
_AUXILIARY = re.compile(
    r"torch\.constant\.|torch\.prim\.ListConstruct$|torch_c\.|arith\.constant$|tensor\.empty$"
)


def _count(ops: list[Op]) -> int:
    """How many ops do the work: without constants and casts, where there is anything else."""
    return sum(not _is_auxiliary(op.name) for op in ops) or len(ops)


def _is_auxiliary(name: str) -> bool:
    return _AUXILIARY.match(name) is not None


def _outermost(op: Op, matched: dict[Op, Op]) -> bool:
    """Whether an op without a counterpart is not part of another one without."""
    return op.parent is None or op.parent.region.op in matched


def _results(function_type: str) -> str:
    return function_type.rpartition("->")[2].strip()


def _place(op: Op) -> str:
    assert op.parent is not None
    owner = op.parent.region.op
    inside = f"@{owner.symbol}" if owner.symbol else owner.name
    at = op.parent.ops.index(op)
    after = f"after {op.parent.ops[at - 1].name}" if at else "first"
    return f"{after} in {inside}"


def out_of_order(places: list[int]) -> list[int]:
    """The fewest positions to take out so that the rest of the places ascends."""
    tails: list[int] = []
    at: list[int] = []
    previous: list[int] = [-1] * len(places)
    for n, place in enumerate(places):
        k = bisect_left(tails, place)
        if k == len(tails):
            tails.append(place)
            at.append(n)
        else:
            tails[k], at[k] = place, n
        previous[n] = at[k - 1] if k else -1
    keep: set[int] = set()
    n = at[-1] if at else -1
    while n >= 0:
        keep.add(n)
        n = previous[n]
    return [n for n in range(len(places)) if n not in keep]


def compare(
    before: str,
    after: str,
    *,
    names: tuple[str, str] = ("A", "B"),
    provenance: Provenance | None = None,
) -> Diff:
    """The difference between two programs, given as text.

    ``names`` are what faults and reports call them. Raises :class:`MlirulesError` for text that
    does not parse, and for a trace that was made from other programs.
    """
    return Diff(Program(before, names[0]), Program(after, names[1]), provenance)


def compare_files(before: Path, after: Path, provenance: Provenance | None = None) -> Diff:
    """The difference between two files. Raises :class:`MlirulesError`."""
    from mlirules.drivers.apply.programs import read_program

    texts = (read_program(before), read_program(after))
    return compare(*texts, names=(str(before), str(after)), provenance=provenance)
