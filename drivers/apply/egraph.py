"""An e-graph: which values of a program are equal, and the ops that give them.

Values and nodes are numbers here; what they stand for is the caller's. A node has a *label* (all
that makes two ops of the same operands the same op), the values that it reads and those that it
gives. Equal nodes are one (hash-consing), values of equal nodes are equal (congruence, restored by
:meth:`EGraph.rebuild` after unions). Every union has a reason, so that what was concluded can be
explained by the unions that it rests on. Nothing recurses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Application", "Congruence", "EGraph", "Node", "Reason"]


@dataclass(frozen=True, slots=True)
class Application:
    """Two values are equal because a rule says so."""

    number: int


@dataclass(frozen=True, slots=True)
class Congruence:
    """Two values are equal because equal nodes give them."""

    left: int
    right: int


Reason = Application | Congruence


@dataclass(slots=True)
class Node:
    """An op: the values as it was made to read them, and those that it gives."""

    label: Hashable
    operands: tuple[int, ...]
    results: tuple[int, ...]
    #: The application that made it first; None: it stands in the program.
    maker: int | None
    #: Whether an equal node stands for it.
    merged: bool = False


@dataclass(slots=True)
class _Class:
    """The values that are equal, the nodes that give one of them, and those that read one."""

    values: list[int]
    members: list[tuple[int, int]]  # node, which of its results
    users: list[int] = field(default_factory=list)


class EGraph:
    """Values, nodes and what is known to be equal."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._parent: list[int] = []
        self._classes: dict[int, _Class] = {}
        self._known: dict[Hashable, int] = {}
        self._edges: list[list[tuple[int, int, Reason]]] = []
        #: How many unions there were: what is explained as of then uses no later one.
        self.clock = 0
        self._dirty: list[int] = []
        #: Classes that got further members, since the caller last looked.
        self.changed: set[int] = set()

    # -- building

    def value(self) -> int:
        """A new value, equal to itself alone, which no node gives (yet)."""
        number = len(self._parent)
        self._parent.append(number)
        self._classes[number] = _Class([number], [])
        self._edges.append([])
        return number

    def find(self, value: int) -> int:
        """The class of ``value``: the number of one of its values, until the next union."""
        parent = self._parent
        while parent[value] != value:
            parent[value] = value = parent[parent[value]]
        return value

    def known(self, label: Hashable, operands: Iterable[int]) -> int | None:
        """The node that is equal to one of this label and these operands, if there is one."""
        return self._known.get(self._key(label, operands))

    def node(
        self,
        label: Hashable,
        operands: Sequence[int],
        results: Sequence[int],
        maker: int | None = None,
    ) -> int:
        """Add a node that gives ``results``, values that no other node gives."""
        number = len(self.nodes)
        self.nodes.append(Node(label, tuple(operands), tuple(results), maker))
        self._enter(number)
        return number

    def _enter(self, number: int) -> None:
        node = self.nodes[number]
        for at, value in enumerate(node.results):
            root = self.find(value)
            self._classes[root].members.append((number, at))
            self.changed.add(root)
        for value in dict.fromkeys(self.find(v) for v in node.operands):
            self._classes[value].users.append(number)
        self._known_as(number)

    def _key(self, label: Hashable, operands: Iterable[int]) -> Hashable:
        return label, tuple([self.find(v) for v in operands])

    def _known_as(self, number: int) -> None:
        """Enter a node under what it is now; unite it with the one that is there."""
        node = self.nodes[number]
        if node.merged:
            return
        other = self._known.setdefault(self._key(node.label, node.operands), number)
        if other == number:
            return
        # The older one stays: it may be the program's own.
        first, second = sorted((other, number))
        self._known[self._key(node.label, node.operands)] = first
        self.nodes[second].merged = True
        for a, b in zip(self.nodes[first].results, self.nodes[second].results, strict=True):
            self.union(a, b, Congruence(first, second))

    def union(self, a: int, b: int, reason: Reason) -> bool:
        """Take two values for equal. Whether that is news. :meth:`rebuild` before asking on."""
        one, two = self.find(a), self.find(b)
        if one == two:
            return False
        self._edges[a].append((b, self.clock, reason))
        self._edges[b].append((a, self.clock, reason))
        self.clock += 1
        kept, gone = self._classes[one], self._classes[two]
        if len(kept.users) + len(kept.values) < len(gone.users) + len(gone.values):
            one, two, kept, gone = two, one, gone, kept
        self._parent[two] = one
        kept.values += gone.values
        kept.members += gone.members
        # Nodes that read the class that goes are known under another name from now on.
        self._dirty += gone.users
        kept.users += gone.users
        del self._classes[two]
        self.changed.discard(two)
        self.changed.add(one)
        return True

    def rebuild(self) -> list[int]:
        """Unite what unions have made congruent. Returns the nodes whose operands changed."""
        touched: list[int] = []
        while self._dirty:
            dirty, self._dirty = list(dict.fromkeys(self._dirty)), []
            for number in dirty:
                self._known_as(number)
            touched += dirty
        return list(dict.fromkeys(touched))

    def reset(self, nodes: Iterable[int], equal: Iterable[tuple[int, int, Reason]]) -> None:
        """Start again with some of the nodes and these equalities alone."""
        count = len(self._parent)
        self._parent = list(range(count))
        self._classes = {n: _Class([n], []) for n in range(count)}
        self._known, self._dirty, self.clock = {}, [], 0
        self._edges = [[] for _ in range(count)]
        kept = set(nodes)
        for number, node in enumerate(self.nodes):
            node.merged = number not in kept
            if number in kept:
                self._enter(number)
        for a, b, reason in equal:
            self.union(a, b, reason)
        self.rebuild()

    # -- asking

    def values(self, value: int) -> list[int]:
        """The values that equal ``value``, itself among them."""
        return self._classes[self.find(value)].values

    def members(self, value: int) -> list[tuple[int, int]]:
        """The nodes that give a value equal to this one, and which of their results it is."""
        found = self._classes[self.find(value)]
        nodes = self.nodes
        for number, _ in found.members:
            if nodes[number].merged:
                found.members = [m for m in found.members if not nodes[m[0]].merged]
                break
        return found.members

    def users(self, value: int) -> list[int]:
        """The nodes that read a value equal to this one."""
        found = self._classes[self.find(value)]
        found.users = [n for n in dict.fromkeys(found.users) if not self.nodes[n].merged]
        return found.users

    def why(self, a: int, b: int, clock: int) -> list[tuple[Reason, int]]:
        """Why two equal values are: the unions on a way from one to the other, and when each was.

        Only unions before ``clock`` are gone along; the values must have been equal by then.
        """
        if a == b:
            return []
        came: dict[int, tuple[int, Reason, int]] = {}
        left = deque([a])
        while b not in came:
            value = left.popleft()
            for other, at, reason in self._edges[value]:
                if at < clock and other not in came and other != a:
                    came[other] = (value, reason, at)
                    left.append(other)
        found: list[tuple[Reason, int]] = []
        while b != a:
            b, reason, at = came[b]
            found.append((reason, at))
        return found

    def grounds(self, pairs: Iterable[tuple[int, int, int]]) -> set[int]:
        """The applications that equalities rest on directly, through congruences.

        ``pairs``: two values, and the clock by which they were equal.
        """
        found: set[int] = set()
        left = list(pairs)
        seen: set[tuple[int, int, int]] = set()
        while left:
            a, b, clock = pair = left.pop()
            if a == b or pair in seen:
                continue
            seen.add(pair)
            for reason, at in self.why(a, b, clock):
                if isinstance(reason, Application):
                    found.add(reason.number)
                    continue
                one, two = self.nodes[reason.left], self.nodes[reason.right]
                left += [(x, y, at) for x, y in zip(one.operands, two.operands, strict=True)]
        return found
