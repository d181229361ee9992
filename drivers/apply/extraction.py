"""What to keep of an e-graph: for every class the node that makes the cheapest program.

Greedy over the graph: classes are settled in the order of their costs, each by the node that is
cheapest with all that it is computed from, where what is read twice counts once. That is the best
for every class on its own, given those below it, and no search over all combinations: sharing
between classes that lie beside each other is not weighed. Of equally cheap nodes the program's own
stays, then what they are computed by decides: never the order in which they were found.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.apply.egraph import EGraph

__all__ = ["Choice", "Weight", "extract", "original"]


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


def _settled(
    graph: EGraph, weights: Callable[[int], Weight], nodes: Iterable[int], classes: Iterable[int]
) -> tuple[dict[int, tuple[int, int]], dict[int, int], dict[int, int]]:
    """By class: the node and its result, and all that it is computed by as a mask; nodes' costs."""
    chosen: dict[int, tuple[int, int]] = {}
    masks: dict[int, int] = {}  # by class
    totals: dict[int, int] = {}
    constant: dict[int, bool] = {}
    digests: dict[int, str] = {}
    own: dict[int, int] = {}  # by node; what is known when compiling costs nothing
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
    return chosen, masks, own


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
    chosen, masks, own = _settled(graph, weights, nodes, roots)
    whole = 0
    for value in wanted:
        whole |= masks[graph.find(value)]
    cost = 0
    while whole:
        low = whole & -whole
        cost += own[low.bit_length() - 1]
        whole ^= low
    return Choice(chosen, cost)


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
