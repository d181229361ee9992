"""Which op of one program is which op of the other.

Ops are compared by use and definition. Each op has a hash of what it computes (``up``: itself and
everything it is made of), of what is made of it (``down``) and of both (``around``). Ops that agree
in all of it are matched first, then those that agree in one half, from an edit outwards; what is
left is matched best first along the uses of what is matched already. All of it is near linear in
the number of ops.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from mlirules.drivers.irdiff.graph import SEGMENTS, Block, Op, Program, Region, Value, walk
from mlirules.drivers.iree.traversal import Steps, finish

_MOST_CANDIDATES = 8  # of users that look alike, so many are tried with each other


class Matching:
    """Pairs of ops (``of``: op of A to op of B, ``back``: the other way) and of values."""

    def __init__(self, before: Program, after: Program) -> None:
        self.before, self.after = before, after
        self.of: dict[Op, Op] = {}
        self.back: dict[Op, Op] = {}
        self.args: dict[Value, Value] = {}
        self.args_back: dict[Value, Value] = {}
        self.blocks: dict[Block, Block] = {}
        _hash(before)
        _hash(after)
        self._pair(before.root, after.root)
        finish(self._regions(before.root, after.root))
        self._moved()

    # -- pairs

    def _pair(self, a: Op, b: Op) -> None:
        self.of[a] = b
        self.back[b] = a

    def value(self, value: Value) -> Value | None:
        """B's value for a value of A; None when its op has none."""
        if isinstance(value.owner, Block):
            return self.args.get(value)
        op = self.of.get(value.owner)
        if op is None or not 0 <= value.index < len(op.results):
            return None
        return op.results[value.index]

    def value_back(self, value: Value) -> Value | None:
        """A's value for a value of B."""
        if isinstance(value.owner, Block):
            return self.args_back.get(value)
        op = self.back.get(value.owner)
        if op is None or not 0 <= value.index < len(op.results):
            return None
        return op.results[value.index]

    # -- regions and blocks

    def _regions(self, a: Op, b: Op) -> Steps:
        for left, right in zip(a.regions, b.regions, strict=False):
            pairs = _pair_blocks(left.blocks, right.blocks)
            for x, y in pairs:
                self._arguments(x, y)
            for x, y in pairs:
                yield self._block(x, y)

    def _arguments(self, x: Block, y: Block) -> None:
        self.blocks[x] = y
        pairs = _align([v.type for v in x.args], [v.type for v in y.args])
        for i, j in pairs:
            self.args[x.args[i]] = y.args[j]
            self.args_back[y.args[j]] = x.args[i]

    def _block(self, x: Block, y: Block) -> Steps:
        made = _BlockMatcher(self, x, y)
        made.run()
        for a in x.ops:
            if a.regions and a in self.of and a not in made.before:
                yield self._regions(a, self.of[a])

    def _moved(self) -> None:
        """Ops that are left over on both sides and equal, in different blocks: they moved."""
        left: dict[tuple[int, int], list[Op]] = defaultdict(list)
        for op in self.before.ops:
            if op not in self.of:
                left[op.up, op.local].append(op)
        right: dict[tuple[int, int], list[Op]] = defaultdict(list)
        for op in self.after.ops:
            if op not in self.back:
                right[op.up, op.local].append(op)
        for key, ops in left.items():
            for a, b in zip(ops, right.get(key, ()), strict=False):
                if a in self.of or b in self.back or a.parent is None or b.parent is None:
                    continue
                if self._terminates(a) or self._terminates(b):
                    continue
                for inner, other in zip(walk(a), walk(b), strict=False):
                    if inner not in self.of and other not in self.back:
                        self._pair(inner, other)
                for one, two in zip(_blocks(a), _blocks(b), strict=False):
                    self._arguments(one, two)

    @staticmethod
    def _terminates(op: Op) -> bool:
        return op.parent is not None and op.parent.ops[-1] is op and op.ordered()


def _blocks(op: Op) -> Iterable[Block]:
    return (b for inner in walk(op) for region in inner.regions for b in region.blocks)


class _BlockMatcher:
    """Matches the ops of two blocks."""

    def __init__(self, matching: Matching, x: Block, y: Block) -> None:
        self.m = matching
        self.x, self.y = x, y
        #: Ops that were matched before: their regions have been looked at.
        self.before = {op for op in x.ops if op in matching.of}
        self.heap: list[tuple[float, int, Op, Op]] = []
        self.count = 0

    def run(self) -> None:
        self._symbols()
        self._exact()
        self._terminators()
        self._halves(lambda op: op.up)
        self._halves(lambda op: op.down)
        for a in self.x.ops:
            if a in self.m.of:
                self._neighbours(a, self.m.of[a])
        for one, two in zip(self.x.args, self.y.args, strict=False):
            self._users(one, two)
        self._best_first()
        self._leftovers()
        self._best_first()

    def free(self, a: Op, b: Op) -> bool:
        return a not in self.m.of and b not in self.m.back

    def pair(self, a: Op, b: Op) -> None:
        self.m._pair(a, b)

    def left(self) -> list[Op]:
        return [op for op in self.x.ops if op not in self.m.of]

    def right(self) -> list[Op]:
        return [op for op in self.y.ops if op not in self.m.back]

    # -- steps

    def _symbols(self) -> None:
        named = {(_family(op.name), op.symbol): op for op in self.y.ops if op.symbol}
        for a in self.x.ops:
            b = named.get((_family(a.name), a.symbol)) if a.symbol else None
            if b is not None and self.free(a, b):
                self.pair(a, b)
        # Renamed: the same body under another name, else the most alike of what is left.
        left, right = ([op for op in ops if op.symbol] for ops in (self.left(), self.right()))
        if not left or not right:
            return
        bodies = {id(op): _bag(op) for op in [*left, *right]}
        for a in left:
            best, most = None, 0.5
            for b in right:
                if _family(b.name) == _family(a.name) and self.free(a, b):
                    alike = _jaccard(bodies[id(a)], bodies[id(b)])
                    if alike > most:
                        best, most = b, alike
            if best is not None:
                self.pair(a, best)

    def _terminators(self) -> None:
        if self.x.ops and self.y.ops:
            a, b = self.x.ops[-1], self.y.ops[-1]
            if a.name == b.name and not a.symbol and self.free(a, b) and not a.results:
                self.pair(a, b)

    def _exact(self) -> None:
        groups: dict[tuple[int, int], list[Op]] = defaultdict(list)
        for op in reversed(self.right()):
            groups[op.up, op.around].append(op)
        at: dict[tuple[int, int], int] = defaultdict(int)
        for a in reversed(self.left()):
            if a in self.m.of or a.symbol:
                continue
            key = (a.up, a.around)
            candidates = groups.get(key, [])
            while at[key] < len(candidates) and candidates[at[key]] in self.m.back:
                at[key] += 1
            if at[key] < len(candidates):
                self._downwards(a, candidates[at[key]], lambda op: (op.up, op.around))

    def _downwards(self, a: Op, b: Op, key: Callable[[Op], object]) -> None:
        """Match a pair and, along the operands, what agrees by ``key``: twins stay together."""
        work = [(a, b)]
        while work:
            one, two = work.pop()
            if not self.free(one, two) or one.parent is not self.x or two.parent is not self.y:
                continue
            self.pair(one, two)
            for v, w in zip(one.inputs, two.inputs, strict=False):
                p, q = v.op, w.op
                if p is None or q is None or v.index != w.index or not self.free(p, q):
                    continue
                if not p.symbol and key(p) == key(q):
                    work.append((p, q))

    def _halves(self, key: Callable[[Op], int]) -> None:
        left: dict[int, list[Op]] = defaultdict(list)
        right: dict[int, list[Op]] = defaultdict(list)
        for op in self.left():
            left[key(op)].append(op)
        for op in self.right():
            right[key(op)].append(op)
        for k, ops in left.items():
            others = right.get(k, [])
            if len(ops) != 1 or len(others) != 1 or not self.free(ops[0], others[0]):
                continue
            if self.agree(ops[0], others[0]):
                self.pair(ops[0], others[0])

    # -- best first

    def agree(self, a: Op, b: Op) -> bool:
        """Whether nothing that is matched already speaks against a pair, or something for it."""
        good, bad = self.evidence(a, b)
        return good > 0 or bad == 0

    def evidence(self, a: Op, b: Op) -> tuple[int, int]:
        """How many operands and users of a pair are matched with each other, and otherwise."""
        good = bad = 0
        for v, w in zip(a.inputs, b.inputs, strict=False):
            image = self.m.value(v)
            if image is w:
                good += 1
            elif image is not None or self.m.value_back(w) is not None:
                bad += 1
        for v, w in zip(a.results, b.results, strict=False):
            seen = 0
            theirs = {(user, n) for user, n in w.uses}
            for user, n in v.uses[:_MOST_CANDIDATES]:
                image_op = self.m.of.get(user)
                if image_op is None:
                    continue
                if (image_op, n) in theirs:
                    good += 1
                else:
                    seen += 1
            bad += seen
        return good, bad

    def score(self, a: Op, b: Op) -> float:
        """How well a pair fits; 0 or less: not at all."""
        if a.name != b.name or a.symbol or b.symbol or len(a.regions) != len(b.regions):
            return 0.0
        good, bad = self.evidence(a, b)
        total = max(1, good + bad)
        alike = (
            2.0 * (a.up == b.up)
            + 1.0 * (a.down == b.down)
            + 2.0 * (a.local == b.local)
            + 1.0 * (a.types == b.types)
            + 1.0 * (_attributes(a) == _attributes(b))
        )
        if not good and a.up != b.up:
            return 0.0
        if bad > good and a.local != b.local:
            return 0.0
        return alike + 4.0 * good / total + min(good, 4) * 0.25

    def push(self, a: Op, b: Op) -> None:
        if a.parent is self.x and b.parent is self.y and self.free(a, b):
            score = self.score(a, b)
            if score > 0:
                self.count += 1
                heapq.heappush(self.heap, (-score, self.count, a, b))

    def _best_first(self) -> None:
        while self.heap:
            score, _, a, b = heapq.heappop(self.heap)
            if not self.free(a, b):
                continue
            now = self.score(a, b)
            if now <= 0:
                continue
            if now < -score - 1e-9:  # something near was matched otherwise meanwhile
                self.count += 1
                heapq.heappush(self.heap, (-now, self.count, a, b))
                continue
            self.pair(a, b)
            self._neighbours(a, b)

    def _neighbours(self, a: Op, b: Op) -> None:
        for v, w in zip(a.inputs, b.inputs, strict=False):
            if v.op is not None and w.op is not None and v.index == w.index:
                self.push(v.op, w.op)
        if len(a.inputs) != len(b.inputs):  # an operand more or less: by what they are, too
            for v in a.inputs[:_MOST_CANDIDATES]:
                for w in b.inputs[:_MOST_CANDIDATES]:
                    if v.op is not None and w.op is not None and v.op.local == w.op.local:
                        self.push(v.op, w.op)
        for v, w in zip(a.results, b.results, strict=False):
            self._users(v, w)

    def _users(self, v: Value, w: Value) -> None:
        mine: dict[tuple[str, int], list[Op]] = defaultdict(list)
        theirs: dict[tuple[str, int], list[Op]] = defaultdict(list)
        for op, n in v.uses:
            if op not in self.m.of:
                mine[op.name, n].append(op)
        if not mine:
            return
        for op, n in w.uses:
            if op not in self.m.back:
                theirs[op.name, n].append(op)
        for key, ops in mine.items():
            others = theirs.get(key, [])
            if not others:
                continue
            if len(ops) > _MOST_CANDIDATES or len(others) > _MOST_CANDIDATES:
                by: dict[int, list[Op]] = defaultdict(list)
                for op in others:
                    by[op.local].append(op)
                for op in ops:
                    for other in by.get(op.local, [])[:_MOST_CANDIDATES]:
                        self.push(op, other)
                continue
            for op in ops:
                for other in others:
                    self.push(op, other)

    def _leftovers(self) -> None:
        """What nothing speaks for: equal ops in their order, unless something speaks against it."""
        for key in ("up", "local"):
            groups: dict[int, list[Op]] = defaultdict(list)
            for op in self.right():
                groups[getattr(op, key)].append(op)
            for a in self.left():
                candidates = groups.get(getattr(a, key), [])
                for index, b in enumerate(candidates[:_MOST_CANDIDATES]):
                    if a.symbol or a.name != b.name or not self.free(a, b):
                        continue
                    if self.plausible(a, b):
                        del candidates[index]
                        self.pair(a, b)
                        self._neighbours(a, b)
                        break

    def plausible(self, a: Op, b: Op) -> bool:
        good, bad = self.evidence(a, b)
        if a.up == b.up:
            return bad == 0 or good > 0
        # Nothing in common but what it is: only where it stands alone tells that it is the same.
        return good > 0 or (bad == 0 and not a.inputs and not b.inputs)


# ---------------------------------------------------------------- hashes


def _hash(program: Program) -> None:
    root = program.root
    finish(_up(root, {}))
    root.down = root.around = 1
    # The last op first: what reads a value comes before what makes it.
    left = [op for region in root.regions for block in region.blocks for op in block.ops]
    while left:
        op = left.pop()
        _down(op)
        for region in reversed(op.regions):
            for block in region.blocks:
                left += block.ops


def _up(op: Op, up: dict[Value, int]) -> Steps:
    regions: list[int] = []
    for region in op.regions:
        yield _region_hash(region, up, regions)
    _up_alone(op, up, tuple(regions))


def _up_alone(op: Op, up: dict[Value, int], regions: tuple[int, ...]) -> None:
    attributes = frozenset(op.attributes.items())
    op.local = hash((op.name, attributes, op.types, len(op.operands), regions))
    operands = tuple([up.get(v, 7) for v in op.operands])
    op.up = hash((op.local, operands, tuple([s.key for s in op.successors])))
    for n, value in enumerate(op.results):
        up[value] = hash((op.up, n))


def _region_hash(region: Region, up: dict[Value, int], into: list[int]) -> Steps:
    """Append the hash of ``region`` to ``into``."""
    depth = region.op.depth + 1
    blocks = []
    seen: dict[int, int] = defaultdict(int)
    for block in region.blocks if len(region.blocks) > 1 else ():
        names = tuple(sorted([inner.name for inner in block.ops]))
        look = hash((tuple([v.type for v in block.args]), names))
        block.key = hash((look, seen[look]))
        seen[look] += 1
    for block in region.blocks:
        for n, value in enumerate(block.args):
            up[value] = hash(("argument", depth, block.key, n, value.type))
        for inner in block.ops:
            if inner.regions:
                yield _up(inner, up)
            else:
                _up_alone(inner, up, ())
        types = tuple([v.type for v in block.args])
        blocks.append(
            (
                types,
                tuple(sorted([inner.up for inner in block.ops])),
                tuple([inner.up for inner in block.ops if inner.ordered()]),
            )
        )
    into.append(hash(tuple(blocks[:1] + sorted(blocks[1:]))))


def _down(op: Op) -> None:
    if not op.results:
        assert op.parent is not None
        parent = op.parent.region.op
        op.down = hash((op.local, parent.down))
        op.around = hash((op.up, parent.around))
        return
    uses, around = [], []
    for value in op.results:
        for user, n in value.uses:
            uses.append((value.index, n, user.down))
            around.append((value.index, n, user.up, user.around))
    uses.sort()
    around.sort()
    op.down = hash((op.local, tuple(uses)))
    op.around = hash((op.up, tuple(around)))


def _pair_blocks(left: list[Block], right: list[Block]) -> list[tuple[Block, Block]]:
    """Entry with entry, then blocks that look alike, then what is left in order."""
    if not left or not right:
        return []
    pairs = [(left[0], right[0])]
    looks = {block.key: block for block in right[1:]}
    pairs += [(block, looks.pop(block.key)) for block in left[1:] if block.key in looks]
    done = {block for pair in pairs for block in pair}
    rest = [[b for b in side if b not in done] for side in (left, right)]
    return pairs + list(zip(*rest, strict=False))


def _family(name: str) -> str:
    """What kind of symbol an op is: a function stays one when a phase gives it another op."""
    return "func" if name.endswith(".func") else name


def _attributes(op: Op) -> dict[str, str]:
    return {k: v for k, v in op.attributes.items() if k not in SEGMENTS}


def _bag(op: Op) -> dict[int, int]:
    bag: dict[int, int] = defaultdict(int)
    for inner in walk(op):
        if inner is not op:
            bag[inner.local] += 1
    return bag


def _jaccard(a: dict[int, int], b: dict[int, int]) -> float:
    common = sum(min(n, b.get(k, 0)) for k, n in a.items())
    total = sum(a.values()) + sum(b.values()) - common
    return common / total if total else 1.0


def _align(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Positions that correspond: all where the lengths agree, else the longest common part."""
    if len(a) == len(b):
        return [(n, n) for n in range(len(a))]
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    ends = [(len(a) - n, len(b) - n) for n in range(end, 0, -1)]
    return [(n, n) for n in range(start)] + ends
