"""What a rule sees of ops of an e-graph: what it refused once it refuses of all that look alike.

A model repeats its layers, and a rule that finds its ops in one and refuses them would find and
refuse them in every other, which takes many times as long as to see that they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mlirules.drivers.apply.alternatives import LIST
from mlirules.drivers.apply.egraph import EGraph
from mlirules.drivers.iree.compiler import ir

__all__ = ["KNOWN", "Seen"]

#: How the names of ops begin whose results are known, or lists.
KNOWN = ("torch.constant.", LIST, "torch.vtensor.literal")


class Seen:
    """Nodes of an e-graph as the matcher sees them. The lists are the caller's, and grow.

    ``names`` are those of the nodes, ``givers`` the nodes that give the ``values``, and
    ``standing`` the value that is read for a class.
    """

    def __init__(
        self,
        graph: EGraph,
        names: Sequence[str],
        values: Sequence[ir.Value],
        givers: Sequence[int | None],
        standing: Callable[[int], int],
    ) -> None:
        self._graph = graph
        self._names = names
        self._values = values
        self._givers = givers
        self._standing = standing
        self._types: dict[int, ir.Type] = {}

    def of(self, nodes: Iterable[int], chosen: dict[int, int]) -> tuple[object, ...] | None:
        """What is seen of nodes that read the ``chosen`` values of classes.

        Their labels, which values are the same, and of values from elsewhere the types, or what is
        known of them. None: more than can be said so.
        """
        graph, standing = self._graph, self._standing
        places: dict[int, int] = {}
        parts: list[object] = []
        for number in nodes:
            node = graph.nodes[number]
            parts.append(node.label)
            for value in node.results:
                places[value] = len(places)
            for value in node.operands:
                member = chosen.get(graph.find(value))
                if member is None:
                    member = standing(value)
                giver = self._givers[member]
                if giver is None or not self._names[giver].startswith(KNOWN):
                    parts.append(self._place(member, places))
                    continue
                # A constant is one node however often it is made; a list is of values in turn.
                parts.append(member)
                for each in graph.nodes[giver].operands:
                    item = standing(each)
                    inner = self._givers[item]
                    if inner is not None and self._names[inner] == LIST:
                        return None
                    parts.append(item)
        return tuple(parts)

    def _place(self, value: int, places: dict[int, int]) -> tuple[int, ir.Type]:
        """Which of the values so far it is, and its type."""
        type_ = self._types.get(value)
        if type_ is None:
            type_ = self._types[value] = self._values[value].type
        return places.setdefault(value, len(places)), type_
