"""A run of the ``saturate`` driver over a module: every block, the trace, what is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlirules.drivers.apply import tracking
from mlirules.drivers.apply.run import Application, Run
from mlirules.drivers.apply.saturate import Limits, Saturation, Step, blocks, sort_out
from mlirules.drivers.iree.compiler import ir
from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule

__all__ = ["apply"]


@dataclass
class Weighed:
    """What was chosen for a block, by the model."""

    block: str
    #: Empty where it is a chain of calls: what was imported has functions at their first op's.
    location: str
    before_ms: float
    after_ms: float
    steps: int
    rules: list[str]
    #: Ops of the program and alternatives.
    ops: int
    #: Why it ended before nothing new was found.
    early: str

    def as_json(self) -> str:
        """The choice as one line of JSON, for a trace."""
        return json.dumps({"decision": vars(self)}, ensure_ascii=False)

    def __str__(self) -> str:
        at = f" at {self.location}" if self.location else ""
        return (
            f"saturate{at}: {self.block} takes {self.before_ms:.3g} ms as it was, "
            f"{self.after_ms:.3g} ms after {self.steps} steps (by the model; {self.ops} ops)"
        )


#: Applies one rule once to a module, in place; returns how often it did.
Replay: TypeAlias = Callable[[Rule, ir.Module], int]

#: Nodes that a run may make at least, and times the ops of a block.
NODES, TIMES = 5000, 20
#: Of larger blocks what is cheapest would take time in proportion to the square of their size.
LARGEST = 20_000


def apply(run: Run, module: ir.Module, rules: Sequence[Rule], replay: Replay) -> None:
    """Saturate every block of ``module`` with ``rules``, and put what is cheapest in place."""
    kept, left_out = sort_out(rules)
    if left_out:
        count = len(rules) - len(kept)
        some = f"saturate leaves out {count} of {len(rules)} rules that could apply:"
        run.outcome.notes.append("\n  ".join([some, *(_told(*why) for why in left_out.items())]))
    options = run.options
    if options.weigh is None:
        raise MlirulesError.at(
            "saturate",
            "what is cheapest depends on the target, and none is given",
            code="cost",
            suggestion="give --target",
        )
    names = {name for rule in kept for name in rule.root_ops}
    for block in blocks(module):
        if not any(op.operation.name in names for op in block.operations):
            continue
        _block(run, Saturation(block, kept, dict(run.matchers), run.context, options), replay)


def _told(why: str, names: list[str]) -> str:
    """A line for the rules that are left out for one reason: three of them, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{why}: {', '.join(names[:3])}{more}"


def _block(run: Run, work: Saturation, replay: Replay) -> None:
    options, outcome = run.options, run.outcome
    where = _place(work.block.owner.operation)
    if work.mutable:
        outcome.notes.append(f"saturate leaves {where} alone: an op changes a list in place")
        return
    if len(work.ops) > LARGEST:
        outcome.notes.append(
            f"saturate leaves {where} alone: {len(work.ops)} ops, more than {LARGEST}"
        )
        return
    nodes = options.bound or options.nodes or max(NODES, TIMES * len(work.ops))
    limits = Limits(nodes, options.seconds, options.rounds, options.megabytes)
    try:
        early = work.grow(limits)
    except BaseException:
        work.restore()
        raise
    left = None if options.max_rewrites is None else options.max_rewrites - run.applied
    choice, found = work.choose(left)
    if left is not None and choice is not None:
        outcome.stopped |= len(found.chain) == left
    if early:
        outcome.early = True
        outcome.notes.append(f"saturate ended early in {where}, {early}: the best so far is taken")
    outcome.notes += [f"saturate: {text}" for text in work.told]
    if choice is None:
        work.restore()
        return
    texts = _pieces(run, work, found.chain, replay) if options.record and options.texts else {}
    first = options.first + run.applied + 1
    numbers = {number: first + at for at, number in enumerate(found.chain)}
    applications = [_application(work, number, numbers, texts) for number in found.chain]
    if options.record:
        _mark(run, work, numbers)
    location = str(tracking.place(work.block.owner.operation)).removeprefix("loc(")
    location = location.removesuffix(")").replace('"', "")
    if "(" in location:
        location = ""
    why = work.put(choice)
    if why:
        outcome.notes.append(f"saturate leaves {where} alone: {why}")
        return
    before, after = 1e-12 * found.before, 1e-12 * found.after
    rules = sorted({work.steps[n].rule.name for n in found.chain})
    outcome.decisions.append(
        Weighed(where, location, before, after, len(found.chain), rules, len(work.ops), early)
    )
    if options.record:
        outcome.applications += applications
    outcome.counts.update(Counter(work.steps[n].rule.name for n in found.chain))
    run.applied += len(found.chain)


def _place(op: ir.Operation) -> str:
    attributes = op.attributes
    name = f"@{ir.StringAttr(attributes['sym_name']).value}" if "sym_name" in attributes else ""
    return f"{op.name} {name}".strip()


def _application(
    work: Saturation, number: int, numbers: dict[int, int], texts: dict[int, tuple[str, str]]
) -> Application:
    step = work.steps[number]
    root = work.ops[step.root]
    before, after = texts.get(number, ("", ""))
    location = str(tracking.place(root)).removeprefix("loc(").removesuffix(")")
    marks = [mark for n in step.cone if (mark := tracking.read(work.ops[n])) is not None]
    makers = {work.graph.nodes[n].maker for n in step.cone}
    return Application(
        numbers[number],
        step.rule.name,
        step.rule.benefit,
        location.replace('"', ""),
        root.name,
        step.bindings,
        before,
        after,
        "saturate",
        consumed=sorted({n for what, n in marks if what == "op"}),
        builds_on=sorted(numbers[n] for n in makers if n in numbers),
    )


def _mark(run: Run, work: Saturation, numbers: dict[int, int]) -> None:
    """Let the locations of the ops that the steps made say what made them."""
    for number, count in numbers.items():
        step = work.steps[number]
        mark = tracking.mark(count, tracking.place(work.ops[step.root]), run.context)
        for made in step.made:
            if work.graph.nodes[made].maker == number:
                work.ops[made].location = mark


def _pieces(
    run: Run, work: Saturation, chain: Sequence[int], replay: Replay
) -> dict[int, tuple[str, str]]:
    """By step: the matched ops as a program, and that program with the rule applied."""
    found = {}
    for number in chain:
        step = work.steps[number]
        module = _piece(work, step, run.context)
        before = str(module.operation.get_asm(assume_verified=True))
        if not replay(step.rule, module):
            raise MlirulesError.at(
                "saturate",
                f"{step.rule.name} does not apply to what it was found to match:\n{before}",
                code="replay",
            )
        found[number] = (before, str(module))
    return found


def _piece(work: Saturation, step: Step, context: ir.Context) -> ir.Module:
    """A module whose ``@main`` computes the matched ops from what they read."""
    reads = dict(step.cone)
    for value in [v for read in step.cone.values() for v in read]:
        giver = work.givers[value]
        if giver is not None and work.names[giver].startswith("torch.constant."):
            reads.setdefault(giver, [])
    order: list[int] = []
    entered: set[int] = set()
    stack = [step.root]
    while stack:
        number = stack[-1]
        entered.add(number)
        below = [work.givers[v] for v in reads[number]]
        more = [n for n in below if n is not None and n in reads and n not in entered]
        if more:
            stack.append(more[-1])
        else:
            order.append(stack.pop())
    arguments: list[int] = []
    given: set[int] = set()
    for number in order:
        arguments += [v for v in reads[number] if v not in given]
        given.update(work.graph.nodes[number].results)
    arguments = list(dict.fromkeys(arguments))
    results = [value for value, _ in step.equal]
    values = work.values
    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        type_ = ir.FunctionType.get(
            [values[v].type for v in arguments], [values[v].type for v in results]
        )
        named = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(type_)}
        function = ir.Operation.create(
            "func.func", attributes=named, regions=1, ip=ir.InsertionPoint(module.body)
        )
        block = function.regions[0].blocks.append(*[values[v].type for v in arguments])
        mapped: dict[int, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
        for number in order:
            new = work.ops[number].clone(ir.InsertionPoint(block)).operation
            for at, value in enumerate(reads[number]):
                new.operands[at] = mapped[value]
            mapped.update(zip(work.graph.nodes[number].results, new.results, strict=True))
        ir.Operation.create(
            "func.return", operands=[mapped[v] for v in results], ip=ir.InsertionPoint(block)
        )
    return module
