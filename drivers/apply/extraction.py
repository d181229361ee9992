"""What to keep of an e-graph: for every class the node that makes the cheapest program.

Greedy over the graph first: classes are settled in the order of their costs, each by the node that
is cheapest with all that it is computed from, where what is read twice counts once. That is the
best for every class on its own, given those below it. Then one class at a time takes another node
where the whole program gets cheaper with it, which weighs what classes beside each other share,
until none does: no search over all combinations. Of equally cheap nodes the program's own stays,
then what they are computed by decides: never the order in which they were found.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.apply.egraph import EGraph

__all__ = ["Choice", "Weight", "extract", "original"]

#: So often all classes are looked at again for a node with which the program is cheaper.
PASSES = 4


@dataclass(frozen=True, slots=True)
class Weight:
    """What a node costs by itself, in 1e-15 s, and whether it is known when compiling."""

    cost: int
    #: Known whatever it reads, such as a literal.
    constant: bool
    #: What it is, the same in every run; of the program's own ops their places.
    text: str


@dataclass
class Choice:
    """The node that was chosen for each class, and what the chosen program costs."""

    #: By the class: the node, and which of its results.
    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)
    cost: int = 0


@dataclass
class _Settled:
    """What the greedy choice came to: by class, and by node."""

    #: By class: the node and its result.
    chosen: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: By class: what it costs with all that it is computed by, and what it is, in every run.
    totals: dict[int, int] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    #: By node: its own cost (none where it is known when compiling), and what it is.
    own: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


def _settled(
    graph: EGraph, weights: Callable[[int], Weight], nodes: Iterable[int], classes: Iterable[int]
) -> _Settled:
    """The cheapest node of every class on its own."""
    found = _Settled()
    chosen, totals, digests, own = found.chosen, found.totals, found.digests, found.own
    masks: dict[int, int] = {}  # by class: all that it is computed by
    constant: dict[int, bool] = {}
    waiting: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    queue: list[tuple[int, bool, str, int, int]] = []  # cost, new, digest, node, mask

    def cost(mask: int) -> int:
        total = 0
        while mask:
            low = mask & -mask
            total += own[low.bit_length() - 1]
            mask ^= low
        return total

    def ready(number: int) -> None:
        node = graph.nodes[number]
        weight = weights(number)
        below = list(dict.fromkeys(graph.find(v) for v in node.operands))
        known = weight.constant or (bool(below) and all(constant[c] for c in below))
        own[number] = 0 if known else weight.cost
        # The largest part is taken as it is, and of the others what it has not.
        below.sort(key=lambda c: -totals[c])
        mask, total = (masks[below[0]], totals[below[0]]) if below else (0, 0)
        for part in below[1:]:
            total += cost(masks[part] & ~mask)
            mask |= masks[part]
        bit = 1 << number
        if not mask & bit:
            mask, total = mask | bit, total + own[number]
        read = "".join(digests[graph.find(v)] for v in node.operands)
        digest = hashlib.sha256((weight.text + read).encode()).hexdigest()
        fresh = node.maker is not None
        found.texts[number] = digest
        state[number] = known
        heapq.heappush(queue, (total, fresh, digest, number, mask))

    state: dict[int, bool] = {}
    for at, root in enumerate(classes):  # what comes from elsewhere
        masks[root], totals[root], constant[root] = 0, 0, False
        digests[root] = f"argument {at}"
    leaves = set(masks)
    for number in nodes:
        below = {graph.find(v) for v in graph.nodes[number].operands} - leaves
        waiting[number] = len(below)
        for root in below:
            readers.setdefault(root, []).append(number)
        if not below:
            ready(number)
    while queue:
        total, _, digest, number, mask = heapq.heappop(queue)
        for at, value in enumerate(graph.nodes[number].results):
            root = graph.find(value)
            if root in masks:
                continue
            chosen[root], masks[root], totals[root] = (number, at), mask, total
            constant[root], digests[root] = state[number], f"{digest} {at}"
            for reader in readers.get(root, ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready(reader)
    return found


class _Program:
    """A choice for every class, and what the program of those that are wanted costs."""

    def __init__(self, graph: EGraph, found: _Settled, wanted: Iterable[int]) -> None:
        self._graph = graph
        self._own = found.own
        self.chosen = dict(found.chosen)
        #: How often a class is read by what the program holds, or wanted.
        self.reads: Counter[int] = Counter()
        self._uses: Counter[int] = Counter()  # by node: the classes that it stands for
        self._below: dict[int, list[int]] = {}
        self.cost = 0
        for root in dict.fromkeys(graph.find(v) for v in wanted):
            self._count([root], 1)

    def below(self, number: int) -> list[int]:
        """The classes that a node reads."""
        found = self._below.get(number)
        if found is None:
            operands = self._graph.nodes[number].operands
            found = list(dict.fromkeys(self._graph.find(v) for v in operands))
            self._below[number] = found
        return found

    def _count(self, classes: list[int], by: int) -> None:
        """Read classes once more (1) or less (-1), with all that only they are the reason for."""
        left = list(classes)
        while left:
            root = left.pop()
            before, now = self.reads[root], self.reads[root] + by
            self.reads[root] = now
            if bool(before) != bool(now) and root in self.chosen:
                left += self._stand(self.chosen[root][0], by)

    def _stand(self, number: int, by: int) -> list[int]:
        """A node stands for one class more or less. The classes that are read otherwise by it."""
        before, now = self._uses[number], self._uses[number] + by
        self._uses[number] = now
        if bool(before) == bool(now):
            return []
        self.cost += by * self._own[number]
        return self.below(number)

    def take(self, root: int, node: tuple[int, int]) -> None:
        """Let a node stand for a class that is read."""
        old, self.chosen[root] = self.chosen[root], node
        self._count(self._stand(node[0], 1), 1)
        self._count(self._stand(old[0], -1), -1)

    def circular(self, root: int) -> bool:
        """Whether a class is computed from itself."""
        seen: set[int] = set()
        left = list(self.below(self.chosen[root][0]))
        while left:
            top = left.pop()
            if top == root:
                return True
            if top not in seen and top in self.chosen:
                seen.add(top)
                left += self.below(self.chosen[top][0])
        return False


def _improved(graph: EGraph, found: _Settled, wanted: Sequence[int]) -> _Program:
    """Let single classes take another node as long as the program gets cheaper by it."""
    program = _Program(graph, found, wanted)
    several = [c for c in found.chosen if len(graph.members(c)) > 1]
    several.sort(key=lambda c: (-found.totals[c], found.digests[c]))
    others = {
        c: sorted(
            (m for m in graph.members(c) if m[0] in found.own),
            key=lambda m: (graph.nodes[m[0]].maker is not None, found.texts[m[0]], m[1]),
        )
        for c in several
    }
    for _ in range(PASSES):
        before = program.cost
        for root in several:
            for node in others[root]:
                old, cost = program.chosen[root], program.cost
                if node[0] == old[0] or not program.reads[root]:
                    continue
                program.take(root, node)
                if program.cost >= cost or program.circular(root):
                    program.take(root, old)
        if program.cost == before:
            break
    return program


def extract(
    graph: EGraph,
    weights: Callable[[int], Weight],
    leaves: Sequence[int],
    wanted: Sequence[int],
) -> Choice:
    """The cheapest program found that gives the values ``wanted``.

    ``leaves`` are the values that no node gives, in an order that is the program's.
    """
    nodes = [n for n, node in enumerate(graph.nodes) if not node.merged]
    roots = list(dict.fromkeys(graph.find(v) for v in leaves))
    found = _improved(graph, _settled(graph, weights, nodes, roots), wanted)
    return Choice(found.chosen, found.cost)


def original(graph: EGraph, weights: Callable[[int], Weight], wanted: Sequence[int]) -> int:
    """What the program costs as it stands, equal ops counted once as well."""
    giver = {
        value: number
        for number, node in enumerate(graph.nodes)
        if node.maker is None
        for value in node.results
    }
    live: set[int] = set()
    left = [giver[v] for v in wanted if v in giver]
    while left:
        number = left.pop()
        if number not in live:
            live.add(number)
            left += [giver[v] for v in graph.nodes[number].operands if v in giver]
    constant: dict[int, bool] = {}
    seen: set[tuple[object, ...]] = set()
    total = 0
    for number in sorted(live):  # in the order of the program: operands first
        node = graph.nodes[number]
        weight = weights(number)
        read = [giver.get(v) for v in node.operands]
        known = bool(read) and all(n is not None and constant[n] for n in read)
        constant[number] = weight.constant or known
        key = (node.label, *(graph.find(v) for v in node.operands))
        if not constant[number] and key not in seen:
            total += weight.cost
        seen.add(key)
    return total
