"""The ``saturate`` driver: rules as equalities, in an e-graph of each block's pure ops.

Where a rule matches, what it makes is put beside the matched op, and the two are taken for equal;
nothing is replaced until no rule says anything new, or a limit is reached. Then the cheapest
program is taken (:mod:`mlirules.drivers.apply.extraction`). So the order of rules and their
``benefit`` do not matter, and rules that undo each other end.

The alternatives are ops of the program, which matcher and rewrites of the other drivers work on as
they are. Every op reads, for each class, the value that stands for it; to match other members of a
class the ops of a pattern are let read those for as long as the matcher looks
(:mod:`mlirules.drivers.apply.alternatives`).
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.apply import pieces, tracking
from mlirules.drivers.apply.alternatives import Skeleton, Skeletons, unsaid, unsuitable
from mlirules.drivers.apply.egraph import Application as Said
from mlirules.drivers.apply.egraph import EGraph
from mlirules.drivers.apply.extraction import Choice, Weight, extract, original
from mlirules.drivers.apply.placing import Instantiator
from mlirules.drivers.apply.purity import PURE, changes_list, is_pure
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.seen import KNOWN, Seen
from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import is_open, open_ops, ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Around, Match
from mlirules.drivers.match.rewrites import Rewrite
from mlirules.language.faults import MlirulesError
from mlirules.language.operands import describe
from mlirules.language.rule import Rule

__all__ = ["Found", "Limits", "Saturation", "Step", "blocks", "sort_out"]

#: So many choices of ops are tried for one rule at one op, each time that it is looked at.
WAYS = 64


@dataclass(frozen=True)
class Limits:
    """When to end, with the best so far."""

    #: Ops, the program's own among them.
    nodes: int
    seconds: float
    #: How often all rules are looked for.
    rounds: int
    #: By how many 10^6 bytes the process may grow.
    megabytes: float


@dataclass
class Step:
    """One application: the rule, the ops it matched with what they read, what it made."""

    rule: Rule
    root: int
    #: The matched nodes, each with the values that it read then.
    cone: dict[int, list[int]]
    #: What must be equal for the match, and the clock of then: two values each.
    needs: list[tuple[int, int]]
    clock: int
    #: Values of the root and those made for them.
    equal: list[tuple[int, int]]
    #: The nodes it made, or found made.
    made: list[int]
    #: What the names of the match stand for.
    env: dict[str, object]

    @property
    def bindings(self) -> dict[str, str]:
        """That in words. Few steps are told of: it is not written for the others."""
        return {name: describe(value) for name, value in self.env.items()}


@dataclass
class Found:
    """What became of one block."""

    #: The steps from the program to what was chosen, in an order in which they can be taken.
    chain: list[int] = field(default_factory=list)
    #: Why it ended early, or what was left alone.
    notes: list[str] = field(default_factory=list)
    before: int = 0
    after: int = 0


def sort_out(rules: Sequence[Rule]) -> tuple[list[Rule], dict[str, list[str]]]:
    """The rules that an e-graph can hold, and the names of the others by why it cannot."""
    kept: list[Rule] = []
    left: dict[str, list[str]] = {}
    for rule in rules:
        why = unsuitable(rule)
        if why is None:
            kept.append(rule)
        else:
            left.setdefault(why, []).append(rule.name)
    return kept, left


def blocks(module: ir.Module) -> list[ir.Block]:
    """The blocks whose ops are looked at, inner ones before those around them."""
    found = [
        block
        for op in (module.operation, *open_ops(module))
        if op.name != "builtin.module" and is_open(op)
        for region in op.regions
        for block in region.blocks
    ]
    return found[::-1]


def _plain(rewrite: Rewrite) -> bool:
    """Whether a rewrite makes torch ops of torch values alone."""
    return all(not cast for _, cast, _, _ in rewrite.reads) and all(
        step.op.name.startswith(PURE) and not len(step.op.regions) and step.attribute is None
        for step in rewrite.steps
    )


class Saturation:
    """One block's e-graph: :meth:`grow` it, :meth:`choose`, then put the choice in place."""

    def __init__(
        self,
        block: ir.Block,
        rules: Sequence[Rule],
        matchers: dict[str, Matcher],
        context: ir.Context,
        options: Options,
    ) -> None:
        self.block = block
        self.matchers = matchers
        self.options = options
        self.graph = EGraph()
        self.ops: list[ir.Operation] = []  # by node
        self.names: list[str] = []
        self.values: list[ir.Value] = []  # by value
        self.givers: list[int | None] = []  # by value: the node that gives it
        self.steps: list[Step] = []
        self.leaves: list[int] = []
        self.wanted: list[int] = []
        self.told: Counter[str] = Counter()
        self._ids: dict[ir.Value, int] = {}
        #: Types by number, and by value the number of its type: asking the compiler takes longer.
        self._kinds: dict[ir.Type, int] = {}
        self._kind_of: list[int] = []
        self._variable: list[bool] = []  # by type
        self._shown: dict[int, int] = {}
        self._weights: dict[int, Weight] = {}
        #: What ops take, by what they are and the types that they read.
        self._taken: dict[tuple[Hashable, ...], int] = {}
        self._done: set[Hashable] = set()
        self._instantiator = Instantiator(context)
        self._around = Around(options.target, uses=False)
        self._unsaid = {rule.name: unsaid(rule) for rule in rules}
        skeletons: dict[str, list[Skeleton]] = {}
        for rule in rules:
            skeleton = Skeleton(rule)
            for name in rule.root_ops:
                skeletons.setdefault(name, []).append(skeleton)
        self._skeletons = {name: Skeletons(found) for name, found in skeletons.items()}
        self._depth = max((s.depth for found in skeletons.values() for s in found), default=0)
        #: Labels by number, and what a node of one is in words, where a rule made it.
        self._labels: dict[Hashable, int] = {}
        self._texts: dict[Hashable, str] = {}
        #: What rules refused, as far as they see it.
        self._refused: set[Hashable] = set()
        self._seen = Seen(self.graph, self.names, self.values, self.givers, self._standing)
        self._original = [op.operation for op in block.operations]
        self._pinned: list[ir.Operation] = []
        #: Whether there is an op that changes a list: then lists are not values.
        self.mutable = any(changes_list(op) for op in self._original)
        for op in self._original:
            self._enter(op)

    # -- the program as an e-graph

    def _value(self, value: ir.Value) -> int:
        """The number of a value; one that is new comes from elsewhere."""
        found = self._ids.get(value)
        if found is None:
            found = self._new(value)
            self.leaves.append(found)
        return found

    def _new(self, value: ir.Value) -> int:
        number = self._ids[value] = self.graph.value()
        self.values.append(value)
        self._kind_of.append(self._kind(value))
        self.givers.append(None)
        self._shown[number] = number
        return number

    def _kind(self, value: ir.Value) -> int:
        """The number of a value's type."""
        type_ = value.type
        found = self._kinds.get(type_)
        if found is None:
            found = self._kinds[type_] = len(self._kinds)
            self._variable.append(irtypes.is_torch_variable(type_))
        return found

    def _may_change(self, value: ir.Value) -> bool:
        return self._variable[self._kind(value)]

    def _enter(self, op: ir.Operation) -> None:
        if is_pure(op, self._may_change):
            self._add(op, [self._value(v) for v in op.operands], None)
            return
        self._pinned.append(op)
        own = {v for inner in ops_below(op) for v in inner.results} if len(op.regions) else set()
        for value in pieces.read_by(op):
            if value not in own:
                self.wanted.append(self._value(value))
        for value in op.results:
            self._value(value)

    def _label(self, op: ir.Operation) -> int:
        kept = tuple(sorted(((a.name, a.attr) for a in _named(op)), key=lambda a: a[0]))
        label = (op.name, kept, *map(self._kind, op.results))
        return self._labels.setdefault(label, len(self._labels))

    def _add(self, op: ir.Operation, operands: Sequence[int], maker: int | None) -> int:
        results = [self._new(v) for v in op.results]
        number = self.graph.node(self._label(op), operands, results, maker)
        for result in results:
            self.givers[result] = number
        self.ops.append(op)
        self.names.append(op.name)
        return number

    def _show(self, touched: Iterable[int]) -> None:
        """Let ops read the value that stands for each class: a constant where there is one."""
        for number in touched:
            node = self.graph.nodes[number]
            if not node.merged:
                operands = self.ops[number].operands
                for at, value in enumerate(node.operands):
                    operands[at] = self.values[self._standing(value)]

    def _standing(self, value: int) -> int:
        root = self.graph.find(value)
        found = self._shown.get(root)
        if found is None:
            found = self._shown[root] = min(self.graph.values(root), key=self._rank)
        return found

    def _rank(self, value: int) -> tuple[int, str, int]:
        """Constants first, then the program's own values, then by what gives them.

        The number of a value that a rule made depends on the order of the rules, and decides last.
        """
        giver = self.givers[value]
        if giver is None:
            return 3, "", value
        name = self.names[giver]
        kind = 0 if name.startswith("torch.constant.") else 1 if "ListConstruct" in name else 2
        if kind == 2 and name != "torch.vtensor.literal":
            kind = 3 if self.graph.nodes[giver].maker is None else 4
        return kind, name if kind == 4 else "", value

    def _rebuild(self) -> set[int]:
        """Close the graph under congruence. Returns the classes that changed."""
        touched = self.graph.rebuild()
        changed, self.graph.changed = self.graph.changed, set()
        changed = {self.graph.find(c) for c in changed}
        for root in changed:
            self._shown.pop(root, None)
        again = [n for root in changed for n in self.graph.users(root)]
        self._show(dict.fromkeys([*touched, *again]))
        return changed

    # -- growing

    def grow(self, limits: Limits) -> str:
        """Apply rules until they say nothing new. Why it ended before that, if it did."""
        started, size = time.monotonic(), _megabytes()
        self._rebuild()
        waiting = dict.fromkeys(range(len(self.graph.nodes)), 0)
        for _ in range(limits.rounds):
            # All that holds now is found before any of it is said: in any order it is the same.
            found: list[tuple[Match, Step]] = []
            late = False
            for number, distance in waiting.items():
                skeletons = self._skeletons.get(self.names[number])
                if skeletons is None or self.graph.nodes[number].merged:
                    continue
                for skeleton in skeletons.at(self.graph, number, self.names):
                    if distance <= skeleton.depth:
                        found += self._matches(skeleton, number)
                late = time.monotonic() - started > limits.seconds
                if late:
                    break
            for match, step in found:
                self._apply(match, step)
                if len(self.ops) > limits.nodes:
                    self._rebuild()
                    return f"after {len(self.ops)} ops (the limit is {limits.nodes})"
            changed = self._rebuild()
            if late or time.monotonic() - started > limits.seconds:
                return f"after {limits.seconds:g} s"
            if _megabytes() - size > limits.megabytes:
                return f"after {limits.megabytes:g} MB"
            waiting = self._above(changed)
            if not waiting:
                return ""
        return f"after {limits.rounds} rounds"

    def _above(self, classes: Iterable[int]) -> dict[int, int]:
        """The nodes at which a change in these classes can make a difference, and how far above."""
        level = list(dict.fromkeys(classes))
        found = {n: 0 for root in level for n, _ in self.graph.members(root)}
        seen = set(level)
        for distance in range(1, self._depth + 1):
            users = dict.fromkeys(n for root in level for n in self.graph.users(root))
            level = []
            for number in users:
                # What is new itself is looked at with all rules in any case.
                found.setdefault(number, distance)
                for value in self.graph.nodes[number].results:
                    root = self.graph.find(value)
                    if root not in seen:
                        seen.add(root)
                        level.append(root)
        return dict(sorted(found.items()))

    def _matches(self, skeleton: Skeleton, number: int) -> list[tuple[Match, Step]]:
        """A rule's matches at a node, in every way that holds and was not taken yet."""
        rule = skeleton.rule
        name, found = rule.name, []
        matcher = self.matchers[name]
        for count, (way, nodes) in enumerate(skeleton.ways(self.graph, number, self.names)):
            if count == WAYS:
                self.told[f"{name}: more than {WAYS} choices of ops at one place"] += 1
                break
            key = (name, tuple(sorted(nodes)))
            if key in self._done:
                continue
            seen = None if matcher.judging.fixed else self._seen.of(nodes, way)
            if seen is not None and (name, seen) in self._refused:
                continue
            changed = self._read(nodes, way)
            try:
                match = matcher.match(self.ops[number], self._around)
                if isinstance(match, Match):
                    self._done.add(key)
                    found.append((match, self._step(match, number)))
                elif match.error is not None:
                    raise match.error
                elif seen is not None:
                    self._refused.add((name, seen))
            finally:
                for op, at, value in changed:
                    op.operands[at] = value
        return found

    def _step(self, match: Match, number: int) -> Step:
        """What a match rests on, taken down while the program reads as it was matched."""
        step = Step(match.rule, number, {}, [], self.graph.clock, [], [], match.env)
        for op in dict.fromkeys((self.ops[number], *(o.operation for o in match.inner))):
            if len(op.results) and (given := self._ids.get(op.results[0])) is not None:
                self._note(step, given)
        return step

    def _read(
        self, nodes: Iterable[int], chosen: dict[int, int]
    ) -> list[tuple[ir.Operation, int, ir.Value]]:
        """Let nodes read the chosen members of classes; returns what they read before."""
        changed = []
        for number in nodes:
            op = self.ops[number]
            for at, value in enumerate(self.graph.nodes[number].operands):
                member = chosen.get(self.graph.find(value))
                if member is not None:
                    before = op.operands[at]
                    if self.values[member] != before:
                        changed.append((op, at, before))
                        op.operands[at] = self.values[member]
        return changed

    def _apply(self, match: Match, step: Step) -> None:
        rule, number = match.rule, step.root
        if not _plain(match.rewrite):
            self.told[f"{rule.made_by.span}: {rule.name} makes more than torch ops here"] += 1
            return
        at = len(self.steps)
        root = self.ops[number]
        self._instantiator.mark = tracking.place(root)
        made = self._instantiator.instantiate(match.rewrite, match.values, root)
        same: dict[ir.Value, ir.Value] = {}
        gone: list[ir.Operation] = []
        for view in self._instantiator.last_created:
            op = view.operation
            for n, value in enumerate(op.operands):
                if value in same:
                    op.operands[n] = same[value]
            self._take(op, step, at, same, gone)
        made = [same.get(value, value) for value in made]
        for op in reversed(gone):
            op.erase()
        for name, result, value in zip(
            self.matchers[rule.name].structure.names_of_results(root),
            root.results,
            made,
            strict=True,
        ):
            if name in self._unsaid[rule.name]:
                continue
            if result.type != value.type:
                text = f"{rule.made_by.span}: {rule.name} gives {value.type} for {result.type}"
                raise MlirulesError.at("saturate", text, code="types")
            step.equal.append((self._ids[result], self._value(value)))
        self.steps.append(step)
        step.clock = self.graph.clock
        for one, two in step.equal:
            self.graph.union(one, two, Said(at))

    def _note(self, step: Step, given: int) -> None:
        """Write down that the node which gives this value was matched, and what it read."""
        member = self.givers[given]
        if member is None:
            return
        node = self.graph.nodes[member]
        read = [self._ids[v] for v in self.ops[member].operands]
        step.cone[member] = read
        step.needs += [
            (made, now) for made, now in zip(node.operands, read, strict=True) if made != now
        ]

    def _take(
        self,
        op: ir.Operation,
        step: Step,
        at: int,
        same: dict[ir.Value, ir.Value],
        gone: list[ir.Operation],
    ) -> None:
        """Enter an op that a rewrite made, or the equal one that is there instead of it."""
        operands = [self._value(v) for v in op.operands]
        known = self.graph.known(self._label(op), operands)
        if known is None:
            step.made.append(self._add(op, operands, at))
            return
        node = self.graph.nodes[known]
        step.made.append(known)
        step.needs += [(a, b) for a, b in zip(operands, node.operands, strict=True) if a != b]
        for value, result in zip(op.results, node.results, strict=True):
            same[value] = self.values[result]
            # Also for what was made after it, which reads it.
            value.replace_all_uses_with(self.values[result])
        gone.append(op)

    # -- choosing

    def _weight(self, number: int) -> Weight:
        found = self._weights.get(number)
        if found is None:
            op, node = self.ops[number], self.graph.nodes[number]
            constant = not node.operands and self.names[number].startswith(KNOWN)
            read = (node.label, *[self._kind_of[v] for v in node.operands])
            taken = self._taken.get(read)
            if taken is None:
                assert self.options.weigh is not None
                taken = self._taken[read] = round(1e15 * self.options.weigh(op))
            # A little for every op that a rule makes: it must gain something, and of two programs
            # that take as long the shorter one does.
            cost = taken + (node.maker is not None) * 1_000_000
            text = f"{number}" if node.maker is None else self._texts.get(node.label)
            if text is None:
                text = f"{op.name}{sorted(map(str, _named(op)))}"
                text += "".join(str(v.type) for v in op.results)
                self._texts[node.label] = text
            found = self._weights[number] = Weight(cost, constant, text)
        return found

    def choose(self, upto: int | None = None) -> tuple[Choice | None, Found]:
        """The cheapest program and the steps to it, or to the first ``upto`` of these.

        No choice: the program as it stands is no dearer.
        """
        found = Found()
        if not self.steps:
            return None, found
        choice = extract(self.graph, self._weight, self.leaves, self.wanted)
        found.before = original(self.graph, self._weight, self.wanted)
        found.after = choice.cost
        if found.after * (1 + self.options.margin) < found.before:
            found.chain = self._chain(choice)
        if not found.chain:
            found.after = found.before
            return None, found
        if upto is not None and upto < len(found.chain):
            found.chain = found.chain[:upto]
            if not found.chain:
                return None, found
            steps = [self.steps[n] for n in found.chain]
            own = [n for n, node in enumerate(self.graph.nodes) if node.maker is None]
            nodes = [*own, *(n for step in steps for n in step.made)]
            equal = [(a, b, Said(n)) for n in found.chain for a, b in self.steps[n].equal]
            self.graph.reset(nodes, equal)
            choice = extract(self.graph, self._weight, self.leaves, self.wanted)
            found.after = choice.cost
        return choice, found

    def _chain(self, choice: Choice) -> list[int]:
        """The steps that the chosen program rests on, in the order in which they were taken."""
        end = self.graph.clock
        taken: set[int] = set()
        pairs: list[tuple[int, int, int]] = []
        nodes: set[int] = set()
        leaf_of = {self.graph.find(v): v for v in reversed(self.leaves)}
        left = list(self.wanted)
        while left:
            value = left.pop()
            picked = choice.nodes.get(self.graph.find(value))
            if picked is None:
                # From elsewhere: an argument may stand for what was computed.
                pairs.append((value, leaf_of[self.graph.find(value)], end))
                continue
            number, at = picked
            node = self.graph.nodes[number]
            pairs.append((value, node.results[at], end))
            if number not in nodes:
                nodes.add(number)
                left += node.operands
                if node.maker is not None:
                    taken.add(node.maker)
        todo = list(taken | self.graph.grounds(pairs))
        taken = set(todo)
        while todo:
            step = self.steps[todo.pop()]
            more = self.graph.grounds((a, b, step.clock) for a, b in step.needs)
            for member in step.cone:
                maker = self.graph.nodes[member].maker
                if maker is not None:
                    more.add(maker)
            todo += more - taken
            taken |= more
        return sorted(taken)

    # -- putting it in place

    def restore(self) -> None:
        """Put the program back as it was."""
        for number, node in enumerate(self.graph.nodes):
            if node.maker is None:
                for at, value in enumerate(node.operands):
                    self.ops[number].operands[at] = self.values[value]
        self._erase(n for n, node in enumerate(self.graph.nodes) if node.maker is not None)

    def put(self, choice: Choice) -> str:
        """Make the chosen program of the block. Why that cannot be, and nothing was done."""
        order, why = self._order(choice)
        if why:
            self.restore()
            return why
        value_of = {
            root: self.values[self.graph.nodes[n].results[at]]
            for root, (n, at) in choice.nodes.items()
        }
        leaf_of = {self.graph.find(v): self.values[v] for v in reversed(self.leaves)}

        def now(value: int) -> ir.Value:
            root = self.graph.find(value)
            return leaf_of[root] if root in leaf_of else value_of[root]

        for anchor, number in order:
            op = self.ops[number]
            for at, value in enumerate(self.graph.nodes[number].operands):
                op.operands[at] = now(value)
            if anchor is not None:
                op.move_before(anchor)
        mapped = {self.values[v]: now(v) for v in self.wanted}
        for op in self._pinned:
            pieces.remap(op, mapped)
        kept = {number for _, number in order}
        self._erase(n for n in range(len(self.ops)) if n not in kept)
        return ""

    def _order(self, choice: Choice) -> tuple[list[tuple[ir.Operation | None, int]], str]:
        """The chosen nodes, each after what it reads, with the op of the program it goes before."""
        placed: set[int] = set()
        order: list[tuple[ir.Operation | None, int]] = []
        passed = {self._ids[v] for v in self._outside()}
        own = {self.ops[n]: n for n, node in enumerate(self.graph.nodes) if node.maker is None}
        live: set[int] = set()
        left = [self.graph.find(v) for v in self.wanted]
        while left:
            picked = choice.nodes.get(left.pop())
            if picked is not None and picked[0] not in live:
                live.add(picked[0])
                left += [self.graph.find(v) for v in self.graph.nodes[picked[0]].operands]
        leaves: dict[int, list[int]] = {}
        for leaf in self.leaves:
            leaves.setdefault(self.graph.find(leaf), []).append(leaf)

        def place(root: int, anchor: ir.Operation) -> bool:
            stack = [root]
            while stack:
                top = self.graph.find(stack[-1])
                if top in leaves:
                    stack.pop()
                    if leaves[top][0] not in passed:
                        return False
                    continue
                number = choice.nodes[top][0]
                if number in placed:
                    stack.pop()
                    continue
                waiting = []
                for value in self.graph.nodes[number].operands:
                    below = self.graph.find(value)
                    if below in leaves:
                        if leaves[below][0] not in passed:
                            return False
                    elif choice.nodes[below][0] not in placed:
                        waiting.append(value)
                if waiting:
                    stack += waiting
                    continue
                placed.add(number)
                order.append((None if self.ops[number] == anchor else anchor, number))
                stack.pop()
            return True

        late = "the cheapest program would need a value before the op that gives it"
        for op in self._original:
            number = own.get(op)
            if number is not None:
                if number in live and not place(self.graph.nodes[number].results[0], op):
                    return [], late
                continue
            read = [self._ids[v] for v in pieces.read_by(op) if v in self._ids]
            if not all(place(value, op) for value in read):
                return [], late
            passed.update(self._ids[v] for v in op.results)
        return order, ""

    def _outside(self) -> list[ir.Value]:
        pinned = set(self._pinned)
        return [
            v
            for v in (self.values[n] for n in self.leaves)
            if (owner := pieces.owner(v)) is None or owner not in pinned
        ]

    def _erase(self, nodes: Iterable[int]) -> None:
        """Erase ops that nothing of the program reads; they may read each other, in circles."""
        gone = [self.ops[n] for n in nodes]
        inside = set(gone)
        other = next((v for v in self.values if pieces.owner(v) not in inside), None)
        for op in gone:
            operands = op.operands
            for at in range(len(operands)):
                assert other is not None  # an op reads what is left, or nothing
                operands[at] = other
        for op in gone:
            op.erase()


def _named(op: ir.Operation) -> list[ir.NamedAttribute]:
    return [op.attributes[n] for n in range(len(op.attributes))]


def _megabytes() -> float:
    """The most memory that the process has had so far, 10^6 bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
