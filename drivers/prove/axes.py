"""Axes that a program gives: which one is a case of its own only where something stands on it.

An axis is a number of either sign of which nothing is known but that it is one of a rank's. As
long as no more is asked it stays a symbol. The axes of a reduction are a set first: their order
is chosen where something depends on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove.expr import Int, Node, Poly, atom
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.world import World
from mlirules.language.operands import Refused


class Unordered(list[Any]):
    """Items whose order is not chosen yet; ``ordered`` chooses it."""

    def __init__(self, items: Iterable[Any], ordered: Callable[[], list[Any]]) -> None:
        super().__init__(items)
        self.ordered = ordered


@dataclass
class Axis:
    """What is known of one axis that a program gives: of which rank it is, and which of them."""

    rank: int
    at: int | None = None
    #: The axes that it is one of, where they are known as a set.
    group: Group | None = None


@dataclass
class Group:
    """Axes that are known as a set."""

    names: tuple[Node, ...]
    members: tuple[int, ...]


def axis_of(world: World, given: Poly, rank: int) -> Int | None:
    """An axis of a tensor of rank ``rank``, counted from the front; None: no plain axis.

    Raises :class:`Refused` on the path where it is none of the tensor's.
    """
    name = _plain(world, given)
    if name is None:
        return None
    held = world.axes.get(name)
    if held is None:
        if not world.choose(f"{name.key} is an axis of {rank}", [True, False]):
            raise Refused(f"axis {given} is outside a rank-{rank} tensor")
        world.axes[name] = held = Axis(rank)
    if held.rank != rank:
        at = value_of(world, name)
        if not -rank <= at < rank:
            raise Refused(f"axis {at} is outside a rank-{rank} tensor")
        return at % rank
    return atom(Node("axis", name.args[0], rank))


def axes_of(world: World, given: Sequence[object], rank: int) -> Unordered | None:
    """The axes of a reduction as a set; None where more than that is known of them.

    Raises :class:`Refused` on the path where they are no axes, or one stands twice.
    """
    names = [_plain(world, d) if isinstance(d, Poly) else None for d in given]
    found = [n for n in names if n is not None]
    if len(found) < len(names) or len(found) < 2 or len(set(found)) < len(found):
        return None
    held = [world.axes.get(n) for n in found]
    group = held[0].group if held[0] is not None else None
    if group is None or group.names != tuple(found) or held[0] is None or held[0].rank != rank:
        if any(h is not None for h in held):
            return None
        key = ",".join(n.key for n in found)
        if len(found) > rank or not world.choose(f"{key} are axes of {rank}", [True, False]):
            raise Refused(f"axis {given[0]} is outside a rank-{rank} tensor")
        sets = list(itertools.combinations(range(rank), len(found)))
        group = Group(tuple(found), world.choose(f"the axes {key} of {rank}", sets))
        for n in found:
            world.axes[n] = Axis(rank, group=group)
    return Unordered(group.members, lambda: [_at(world, n) for n in found])


def pinned(world: World, value: object) -> Any:
    """A value with every axis in it chosen."""
    if not world.axes or not isinstance(value, Poly):
        return value
    by: dict[Node, Int] = {}
    for n in sorted(value.symbols, key=lambda n: n.key):
        if n.op == "axis":
            by[n] = _at(world, Node("int", n.args[0]))
        elif n in world.axes:
            by[n] = value_of(world, n)
    return Normal(world).replaced(value, by)


def value_of(world: World, name: Node) -> int:
    """The number that a program gives for an axis: counted from the front or from the back."""
    at = _at(world, name)
    rank = world.axes[name].rank
    return int(world.choose(f"{name.key} from the front", [at, at - rank]))


def _at(world: World, name: Node) -> int:
    held: Axis = world.axes[name]
    if held.at is None:
        if held.group is not None:
            group = held.group
            key = ",".join(n.key for n in group.names)
            order = world.choose(f"the order of {key}", list(itertools.permutations(group.members)))
            for n, at in zip(group.names, order, strict=True):
                world.axes[n].at = at
        else:
            held.at = world.choose(f"axis {name.key} of {held.rank}", range(held.rank))
    assert held.at is not None
    return held.at


def _plain(world: World, given: Poly) -> Node | None:
    """The symbol that a number is, where nothing but what is asked of axes is known of it."""
    if len(given.terms) != 1:
        return None
    ((mono, c),) = given.terms.items()
    if c != 1 or len(mono) != 1 or mono[0][1] != 1 or mono[0][0].op != "int":
        return None
    name = mono[0][0]
    if name not in world.axes and any(name in f.symbols for f in world.facts):
        return None
    return name
