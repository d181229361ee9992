"""A difference as rows: what a terminal or a page shows, in the order in which it is read.

Values of B that have a counterpart in A are shown by A's names, so that a line that did not change
reads the same on both sides.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mlirules.drivers.irdiff.changes import Change, Diff, Kind, out_of_order
from mlirules.drivers.irdiff.graph import Block, Op, Program, Value, walk
from mlirules.drivers.iree.traversal import Steps, flattened

Status = Literal["same", "deleted", "inserted", "changed"]
_LONGEST = 400
_TOKEN = re.compile(r"%[\w$.\-]+")
_WORD = re.compile(r"[\w.$%@#]+|\s+|.")


@dataclass
class Row:
    """One line of the view. ``left`` is A's, ``right`` B's; None where there is none."""

    status: Status
    left: str | None
    right: str | None
    #: The changes that the line is part of.
    changes: tuple[Change, ...] = ()
    #: The line opens (or closes) the regions of an op: shown even far from any change.
    opens: bool = False
    closes: bool = False
    left_line: int = 0
    right_line: int = 0


def rows(diff: Diff) -> list[Row]:
    """The whole difference, unchanged lines included."""
    return list(flattened(_Layout(diff).pair(diff.before.root, diff.after.root)))


def words(left: str, right: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Both lines in pieces; True marks those that differ."""
    a, b = _WORD.findall(left), _WORD.findall(right)
    out: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for what, i, j, k, n in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if j > i:
            out[0].append(("".join(a[i:j]), what != "equal"))
        if n > k:
            out[1].append(("".join(b[k:n]), what != "equal"))
    return out


class _Lines:
    """The lines of a program by the op they belong to."""

    def __init__(self, program: Program) -> None:
        self.lines = program.lines
        self.owner: list[Op | None] = [None] * len(program.lines)
        for op in program.ops:
            for line in range(max(op.first, 0), min(op.end, len(self.owner))):
                self.owner[line] = op

    def shown(self, op: Op) -> bool:
        """Whether an op has a line of its own (short forms print a body inside another's line)."""
        return 0 <= op.first < len(self.owner) and self.owner[op.first] is op

    def head(self, op: Op) -> range:
        end = op.first
        while end < min(op.end, len(self.owner)) and self.owner[end] is op:
            end += 1
        return range(op.first, end)

    def tail(self, op: Op) -> range:
        start, head = op.end, self.head(op).stop
        while start > head and self.owner[start - 1] is op:
            start -= 1
        return range(start, op.end)

    def label(self, block: Block) -> range:
        """The lines before a block that is not its region's first: its label, `} else {`."""
        first = next((op for op in block.ops if self.shown(op)), None)
        if first is None:
            return range(0)
        parent, start = block.region.op, first.first
        head = self.head(parent).stop
        while start > head and self.owner[start - 1] is parent:
            start -= 1
        return range(start, first.first)


class _Layout:
    def __init__(self, diff: Diff) -> None:
        self.diff = diff
        self.m = diff.matching
        self.a, self.b = _Lines(diff.before), _Lines(diff.after)
        self.taken = {value.name.partition("#")[0] for value in self._values(diff.before)}
        self.moved = {c.before[0]: c for c in diff.changes if c.kind is Kind.MOVED}
        self.touched: set[Op] = set()
        #: The last op of A that each change took, in the block at hand.
        self.late: dict[int, Op] = {}
        #: New ops by change that stand before the place where their change is shown.
        self.deferred: dict[int, list[Op]] = {}
        #: How far A has been shown.
        self.reached = -1
        for change in diff.changes:
            for op in (*change.before, *change.after):
                over: Op | None = op
                while over is not None and over not in self.touched:
                    self.touched.add(over)
                    over = over.parent.region.op if over.parent is not None else None

    @staticmethod
    def _values(program: Program) -> Iterator[Value]:
        for op in program.ops:
            yield from op.results
            for region in op.regions:
                for block in region.blocks:
                    yield from block.args

    # -- text

    def left(self, line: int) -> str:
        return _cut(self.a.lines[line])

    def right(self, line: int, op: Op) -> str:
        names: dict[str, str] = {}
        values = [*op.inputs, *op.results]
        for region in op.regions:
            for block in region.blocks:
                values += block.args
        for value in values:
            base = value.name.partition("#")[0]
            known = self.m.value_back(value)
            if known is not None:
                names[base] = known.name.partition("#")[0]
            elif base in self.taken:
                names[base] = base + "'"
        text = _cut(self.b.lines[line])
        return _TOKEN.sub(lambda m: names.get(m[0], m[0]), text)

    # -- rows

    def pair(self, a: Op, b: Op) -> Steps:
        """The rows of two ops that correspond."""
        changes = tuple(self.diff.edits.get(a, ()))
        for inner in walk(a):
            if inner is not a and not self.a.shown(inner) and inner in self.touched:
                changes += tuple(self._of(inner))
        for inner in walk(b):
            if inner is not b and not self.b.shown(inner) and inner in self.diff.group_of:
                changes += (self.diff.group_of[inner],)
        changes = tuple(dict.fromkeys(changes))
        nested = bool(a.regions or b.regions)
        yield from self._both(self.a.head(a), self.b.head(b), b, changes, opens=nested)
        for n in range(max(len(a.regions), len(b.regions))):
            left = a.regions[n].blocks if n < len(a.regions) else []
            right = b.regions[n].blocks if n < len(b.regions) else []
            pairs: list[tuple[Block | None, Block | None]] = [
                (x, self.m.blocks.get(x)) for x in left
            ]
            paired = {y for _, y in pairs}
            pairs += [(None, y) for y in right if y not in paired]
            for k, (x, y) in enumerate(pairs):
                if n or k:
                    one = self.a.label(x) if x is not None else range(0)
                    two = self.b.label(y) if y is not None else range(0)
                    yield from self._both(one, two, b, ())
                yield self._block(x, y)
        yield from self._both(self.a.tail(a), self.b.tail(b), b, (), closes=nested)

    def _of(self, op: Op) -> list[Change]:
        found = list(self.diff.edits.get(op, ()))
        if op in self.diff.group_of:
            found.append(self.diff.group_of[op])
        return found

    def _both(
        self,
        one: range,
        two: range,
        b: Op,
        changes: tuple[Change, ...],
        *,
        opens: bool = False,
        closes: bool = False,
    ) -> Iterator[Row]:
        status: Status = "changed" if changes else "same"
        for k in range(max(len(one), len(two))):
            left = self.left(one[k]) if k < len(one) else None
            right = self.right(two[k], b) if k < len(two) else None
            if status == "same":
                left, right = left or right, left or right
            lines = [side[k] + 1 if k < len(side) else 0 for side in (one, two)]
            yield Row(status, left, right, changes, opens, closes, *lines)

    def _block(self, x: Block | None, y: Block | None) -> Steps:
        mine = x.ops if x is not None else []
        theirs = y.ops if y is not None else []
        place = {op: n for n, op in enumerate(mine)}
        both = [b for b in theirs if self.m.back.get(b) in place]
        order = [place[self.m.back[b]] for b in both]
        aside = {both[n] for n in out_of_order(order)}
        at = 0
        waiting: list[Op] = []
        self.late = {c.number: op for op in mine if (c := self.diff.group_of.get(op)) is not None}
        for b in theirs:
            a = self.m.back.get(b)
            if a is None or a not in place:
                waiting.append(b)
                continue
            if b not in aside:
                yield from self._replaced(self._gone(mine[at : place[a]], y), waiting)
                waiting = []
                at = place[a] + 1
            elif waiting:
                yield from self._replaced([], waiting)
                waiting = []
            late, deferred = self.late, self.deferred
            self.deferred = {}
            yield self.pair(a, b)
            self.late, self.deferred = late, deferred
        yield from self._replaced(self._gone(mine[at:], y), waiting)
        left = [op for ops in self.deferred.values() for op in ops]
        self.deferred = {}
        yield from self._replaced([], left)

    def _gone(self, ops: list[Op], y: Block | None) -> list[Op]:
        return [
            op
            for op in ops
            if op not in self.m.of or (op in self.moved and self.m.of[op].parent is not y)
        ]

    def _replaced(self, gone: list[Op], new: list[Op]) -> Iterator[Row]:
        """What went and what came between two lines that stayed, change by change."""
        self.reached = max([self.reached, *(op.number for op in gone)])
        left: dict[int, list[tuple[Op, Change]]] = {}
        right: dict[int, list[tuple[Op, Change]]] = {}
        for op in gone:
            change = self.moved.get(op) or self.diff.group_of[op]
            left.setdefault(change.number, []).append((op, change))
        for number in list(self.deferred):
            if number in left:
                new = self.deferred.pop(number) + new
        for op in new:
            back = self.m.back.get(op)
            change = self.moved[back] if back is not None else self.diff.group_of[op]
            place = self.late.get(change.number)
            if place is not None and change.number not in left and place.number > self.reached:
                # At the head of the function, for a rewrite further down: it is shown there.
                self.deferred.setdefault(change.number, []).append(op)
                continue
            right.setdefault(change.number, []).append((op, change))
        # Of what only came, each stands before what follows it in B.
        order = list(left)
        slot = len(order)
        for number in reversed(right):
            if number in left:
                slot = order.index(number)
            else:
                order.insert(slot, number)
        for number in order:
            for op, change in left.get(number, ()):
                for line in range(op.first, op.end) if self.a.shown(op) else ():
                    yield Row("deleted", self.left(line), None, (change,), left_line=line + 1)
            for op, change in right.get(number, ()):
                for line in range(op.first, op.end) if self.b.shown(op) else ():
                    owner = self.b.owner[line] or op
                    yield Row(
                        "inserted", None, self.right(line, owner), (change,), right_line=line + 1
                    )


def folded(all_rows: list[Row], context: int) -> Iterator[Row | int]:
    """The rows near changes; an int says how many lines are left out there.

    Lines that open the regions around a change are kept.
    """
    keep = [False] * len(all_rows)
    stack: list[int] = []
    for n, row in enumerate(all_rows):
        if row.opens:
            stack.append(n)
        if row.status != "same":
            for k in range(max(0, n - context), min(len(all_rows), n + context + 1)):
                keep[k] = True
            for opener in stack:
                keep[opener] = True
        if row.closes and stack:
            stack.pop()
    skipped = 0
    for n, row in enumerate(all_rows):
        if keep[n]:
            if skipped:
                yield skipped
            skipped = 0
            yield row
        else:
            skipped += 1
    if skipped:
        yield skipped


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 4] + " ..."
