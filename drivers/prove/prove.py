"""A rule's verdict: whether both sides are equal in every case, or where the proof stops."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mlirules.drivers.prove import variables
from mlirules.drivers.prove.abstract import SLICE
from mlirules.drivers.prove.binding import op_key
from mlirules.drivers.prove.conditions import at_least_zero, is_zero
from mlirules.drivers.prove.constants import exactly, meant
from mlirules.drivers.prove.expr import Int, Node, Poly, Undecided, atom, key_of, nodes_in
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import INDEX, NUMBER, E, LazyType
from mlirules.drivers.prove.sides import At, Case
from mlirules.drivers.prove.tensors import Applied, Array
from mlirules.drivers.prove.world import Impossible, Limits, OutOfTime, World, bound_in, paths
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression
from mlirules.language.operands import Refused
from mlirules.language.rule import Line, Rule
from mlirules.language.values import dtype_named
from mlirules.support import files

#: The highest rank for which a rule over any rank is proven.
RANKS = 6

Word = Literal["proven", "bounded", "refuted", "undecided"]


@dataclass
class Verdict:
    """What is known of a rule, why, and at which line the proof stopped."""

    rule: str
    verdict: Word
    #: How far: "all sizes, ranks to 6", the bounds, or the reason that nothing is decided.
    reason: str
    line: Line | None = None
    #: Whether both sides round alike: then also NaN, infinities and signed zeros are equal.
    exact: bool = False
    seconds: float = 0.0
    cases: int = 0
    #: Conversion rules that said what the ops mean.
    used: tuple[str, ...] = ()
    #: Conditions without which both sides are equal, too.
    unneeded: tuple[str, ...] = ()
    #: Both sides were worked out and their forms differ: not only out of the model's reach.
    different: bool = False
    #: A program and inputs that were run with and without the rule, and what differed.
    refutation: dict[str, object] | None = None
    #: What NaN, infinities and signed zeros do: "equal", "not decided" or what differs.
    special: str = ""

    def data(self) -> dict[str, object]:
        """The verdict for ``--json``."""
        out: dict[str, object] = {
            "rule": self.rule,
            "verdict": self.verdict,
            "reason": self.reason,
            "arithmetic": "bit for bit" if self.exact else "over the reals",
            "special_values": self.special or ("equal" if self.exact else "not decided"),
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
        }
        if self.line is not None:
            span = self.line.span
            out["line"] = str(replace(span, path=files.shown(span.path)))
        if self.unneeded:
            out["unneeded"] = list(self.unneeded)
        if self.refutation is not None:
            out["refutation"] = self.refutation
        return out


@dataclass
class _Round:
    """What one way of proving found."""

    rank: int = -1  # every rank up to here is proven
    cases: int = 0
    exact: bool = True
    line: Line | None = None
    reason: str = ""
    used: set[str] = field(default_factory=set)
    #: The lowest rank of any case.
    lowest: int = RANKS
    #: Sizes are at least this.
    least: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    #: Whether sizes were broadcast without asking which of them are 1.
    broadcast: bool = False


def prove(
    rule: Rule, meanings: Meanings, *, timeout: float = 30.0, dropped: int | None = None
) -> Verdict:
    """The verdict on a rule. ``dropped``: without that line of ``where``.

    ``timeout``: seconds of the processor's time.
    """
    started = time.process_time()
    said = _beyond(rule)
    if said is not None:
        line, why = said
        return Verdict(rule.name, "undecided", why, line)
    if rule.variables:
        return _joined(rule, meanings, timeout, dropped)
    deadline = started + timeout
    best = _Round()
    asked = False
    tries = [(n, *w, e) for n in (0, 1) for w in _ways(rule, meanings) for e in (False, True)]
    for least, opaque, mapped, eager in tries:
        if eager and (not asked or best.reason.startswith(DIFFERENT)):
            continue  # what forms differ in is decided as it is met
        mine = meanings.seen_from(rule.name, opaque, mapped=mapped)
        found = _round(rule, mine, _Terms(deadline, least, eager), dropped)
        asked = found.broadcast
        found.used = mine.used
        if best.reason == "out of time" and found.rank <= best.rank:
            break
        if found.rank > best.rank or (found.rank == best.rank and least == 0):
            best = found
        if found.rank >= RANKS or time.process_time() > deadline:
            break
        if best.reason.startswith(DIFFERENT) and any(True for _ in meant(rule)):
            break  # for all numbers they are not equal
    fixed = ""
    if best.rank < 1 and (best.reason.startswith(DIFFERENT) or best.reason == NO_CASE):
        pinned, said_of = _for_meant(rule, meanings, deadline, dropped)
        if pinned is not None:
            best, fixed = pinned, said_of
    seconds = time.process_time() - started
    used = tuple(sorted(best.used))
    verdict: Word
    limits = []
    if best.rank < RANKS:
        limits.append(f"ranks to {best.rank}; beyond: {best.reason}")
    if fixed:
        limits.append(fixed)
    if best.least:
        limits.append("sizes of at least 1")
    limits += [f"where {op} has a meaning ({why})" for op, why in best.left_out.items()]
    if best.rank < max(1, best.lowest) or not best.cases:
        verdict, reason = "undecided", best.reason or NO_CASE
    elif limits:
        verdict, reason = "bounded", "; ".join(limits)
    else:
        verdict = "proven"
        reason = "for all sizes, and every rank to 6 where the rule leaves it open"
    return Verdict(
        rule.name,
        verdict,
        reason,
        None if verdict == "proven" else best.line,
        best.exact and verdict in ("proven", "bounded"),
        seconds,
        best.cases,
        used,
        unneeded=for_cost(rule) if verdict == "proven" and dropped is None else (),
        different=verdict == "undecided" and best.reason.startswith(DIFFERENT),
    )


def _for_meant(
    rule: Rule, meanings: Meanings, deadline: float, dropped: int | None
) -> tuple[_Round | None, str]:
    """A proof for the numbers that a rule's constants stand for, and which those are."""
    best: _Round | None = None
    said: list[str] = []
    for numbers in meant(rule):
        mine = meanings.seen_from(rule.name)
        found = _round(rule, mine, _Terms(deadline, constants=numbers), dropped)
        found.used = mine.used
        if not found.cases and found.rank < 1 and found.reason == NO_CASE:
            continue  # the rule's other conditions leave it out
        said.append(", ".join(f"{n} = {v:g}" for n, v in numbers.items()))
        if best is None or found.rank < best.rank:
            best = found
    if exactly(rule):
        return best, ""
    return best, f"constants as what they stand for ({'; '.join(said)})"


#: What is said where a rule has no case.
NO_CASE = "no case of the rule was found"

#: What a difference between two forms is told as.
DIFFERENT = "not shown to be equal"


def for_cost(rule: Rule) -> tuple[str, ...]:
    """Conditions that a proof does not use: they only say where the rewrite pays."""
    return tuple(
        f"`{line}` is for cost"
        for line, expr in rule.where
        if isinstance(expr, ast.Call) and expr.fn in ("one_use", "inside", "static")
    )


def unneeded(rule: Rule, meanings: Meanings, *, timeout: float) -> tuple[str, ...]:
    """Conditions without which a proven rule is proven, too, and weaker ones that would do."""
    found = list(for_cost(rule))
    for at, (line, expr) in enumerate(rule.where):
        if isinstance(expr, ast.Call) and expr.fn in ("one_use", "inside", "static", "unused"):
            continue
        if prove(rule, meanings, timeout=timeout, dropped=at).verdict == "proven":
            found.append(f"`{line}` is not needed for equality")
            continue
        for text in weaker(str(line), expr):
            where = list(rule.where)
            where[at] = (line, parse_expression(text))
            if prove(replace(rule, where=where), meanings, timeout=timeout).verdict == "proven":
                found.append(f"instead of `{line}`, `{text}` would do for equality")
                break
    return tuple(found)


def weaker(text: str, expr: ast.Expr) -> Iterator[str]:
    """Conditions that hold wherever this one does, the weakest first."""
    match expr:
        case ast.Binary(op=op, left=left, right=right):
            a, b = text[left.pos : left.end], text[right.pos : right.end]
            match op, right:
                case "and", _:
                    yield from (a, b)
                case "in", ast.ListExpr(items=items):
                    types = [dtype_named(i.id) for i in items if isinstance(i, ast.Name)]
                    named = [t for t in types if t is not None]
                    if len(named) < len(items) or not named:
                        return
                    if all(t.is_float for t in named):
                        yield from (f"is_float({a}) or is_complex({a})", f"is_float({a})")
                    elif all(t.is_int for t in named):
                        yield from (f"not is_bool({a})", f"is_int({a})")
                case "==", ast.Literal(value=int(n)) if n > 0 and not isinstance(n, bool):
                    yield from (f"{a} != 0", f"{a} >= 1", f"{a} <= {n}", f"{a} >= {n}")
                case "==", _ if not isinstance(right, ast.ListExpr):
                    yield from (f"{a} <= {b}", f"{a} >= {b}")
                case ((">" | "<"), _):
                    yield from (f"{a} != {b}", f"{a} {op}= {b}")
        case ast.Call(fn="is_float", args=(ast.Name(id=name),)):
            yield from (f"not is_bool({name})", f"is_float({name}) or is_complex({name})")
            yield f"is_float({name}) or is_int({name})"
        case ast.Call(fn="is_int", args=(ast.Name(id=name),)):
            yield from (f"not is_bool({name})", f"is_int({name}) or is_bool({name})")


def refuted(rule: Rule, verdict: Verdict) -> Verdict:
    """The verdict where running the rule's programs shows a difference; else as it is.

    Nothing is refuted but by two programs that were run and whose results differ.
    """
    from mlirules.drivers.prove.refuting import tried

    found = tried(rule)
    if found.refuted is not None:
        listed = {op for o in rule.one_of.values() for op in o.ops}
        ops = [op for op in sorted(listed) if f"{op} " in found.refuted["program"]]
        of = f" of {', '.join(ops)}" if ops else ""
        verdict.verdict = "refuted"
        verdict.reason = f"a program{of} differs: {found.refuted['difference']}"
        verdict.refutation = found.refuted
        verdict.exact = False
    elif found.special is not None and not verdict.exact:
        verdict.special = found.special
    return verdict


def _beyond(rule: Rule) -> tuple[Line, str] | None:
    """The line of a match that the model has no words for, and what it says; None where none is."""
    for pattern in rule.match:
        if pattern.equation.each:
            return pattern.line, "an op that stands for every item of a list"
    return variables.beyond(rule)


def _joined(rule: Rule, meanings: Meanings, timeout: float, dropped: int | None) -> Verdict:
    """One verdict of those for all ops that a rule's variables may be: the worst of them."""
    started = time.process_time()
    for word, one_of in rule.one_of.items():
        if dropped is not None and rule.where[dropped][1] is one_of.expr:
            said = f"{word} stands for ops of any name"
            return Verdict(rule.name, "undecided", said, one_of.line)
    found: list[tuple[str, Verdict]] = []
    covered: set[str] = set()
    for ops, any_of_them in variables.kinds(rule, meanings):
        verdict = prove(any_of_them, meanings, timeout=timeout / 2, dropped=dropped)
        if verdict.verdict in ("proven", "bounded"):
            first, *_ = those = sorted(f"{word} = {op}" for word in rule.one_of for op in ops)
            found.append((f"{first} and {len(those) - 1} more", verdict))
            covered.update(those)
    cases = [(said, one) for said, one in variables.named(rule, meanings) if said not in covered]
    for at, (said, one) in enumerate(cases):
        if isinstance(one, str):
            verdict = Verdict(rule.name, "undecided", one, rule.root.line)
        else:
            left = timeout - (time.process_time() - started)
            share = max(left, 0.0) / (len(cases) - at)
            verdict = prove(one, meanings, timeout=share, dropped=dropped)
        found.append((said, verdict))
        if verdict.verdict == "undecided":
            break  # no other one makes it better
    order = ("proven", "bounded", "undecided")
    worst = max((v for _, v in found), key=lambda v: order.index(v.verdict))
    reasons: dict[str, list[str]] = {}
    for said, v in found:
        if v.verdict == worst.verdict:
            reasons.setdefault(v.reason, []).append(said)
    reason = worst.reason
    if worst.verdict != "proven":
        # An op of a list of many is one that stands for those that stop at the same place.
        reason = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    return replace(
        worst,
        reason=reason,
        exact=worst.verdict != "undecided" and all(v.exact for _, v in found),
        seconds=time.process_time() - started,
        cases=sum(v.cases for _, v in found),
        used=tuple(sorted({n for _, v in found for n in v.used})),
    )


def _ways(rule: Rule, meanings: Meanings) -> list[tuple[frozenset[str], bool]]:
    """Ops to take as unknown functions, in turn: those of both sides first, then none.

    With each whether slices are maps of indices, and functions of single elements any such
    functions: first so where both sides have slices.
    """
    made = _made_by(rule)
    common = _common(rule, meanings, made)
    slicing = SLICE in made and any(op_key(p.equation.call) == SLICE for p in rule.match)
    return [
        (opaque, mapped)
        for mapped in ((True, False) if slicing else (False,))
        for opaque in ((common, frozenset[str]()) if common else (frozenset[str](),))
    ]


def _common(rule: Rule, meanings: Meanings, made: set[str]) -> frozenset[str]:
    """Ops of both sides, but those that are cheaper to write out."""
    before = {op_key(p.equation.call) for p in rule.match}
    for op in list(before):
        for written in meanings.definitions.get(op, ()):
            before |= _made_by(written)
    return frozenset(op for op in before & made if op not in _LIGHT)


#: Ops that only move elements: what they do is cheaper to write out than to compare.
_LIGHT = frozenset(
    f"torch.aten.{name}"
    for name in (
        "view",
        "reshape",
        "transpose.int",
        "permute",
        "unsqueeze",
        "squeeze.dim",
        "slice.Tensor",
    )
)


def _made_by(rule: Rule) -> set[str]:
    return {op_key(s.call) for _, s in rule.rewrite if isinstance(s, ast.OpEquation)}


def _symmetric(call: ast.Call) -> bool:
    """An op that PyTorch defines by a commuting operation of its first two operands."""
    if call.fn == "torch.aten.add.Tensor":
        return (
            len(call.args) == 3
            and isinstance(call.args[2], ast.Literal)
            and (call.args[2].value == 1)
        )
    return call.fn in ("torch.aten.mul.Tensor", "torch.aten.logical_and", "torch.aten.logical_or")


@dataclass(frozen=True)
class _Terms:
    """What a try at a proof takes for granted, and how long it may go on."""

    #: Seconds of the processor's time, as :func:`time.process_time` counts them.
    deadline: float
    #: The smallest size.
    least: int = 0
    #: Cases are told apart before it is known that they differ.
    eager: bool = False
    #: Numbers for the rule's constants.
    constants: dict[str, float] = field(default_factory=dict)


def _round(rule: Rule, meanings: Meanings, terms: _Terms, dropped: int | None) -> _Round:
    out = _Round(least=terms.least)
    variants: list[int | None] = [None]
    variants += [
        n
        for n, p in enumerate(rule.match)
        if p.op in rule.doc.commutative and not _symmetric(p.equation.call)
    ]
    for at, swapped in enumerate(variants):
        limits = Limits(
            terms.deadline, RANKS, least=terms.least, left_out=out.left_out, eager=terms.eager
        )
        limits.constants = terms.constants

        def run(world: World, swapped: int | None = swapped) -> bool:
            case = Case(world, rule, meanings, swapped=swapped, dropped=dropped)
            try:
                sides = case.run()
            finally:
                out.broadcast = out.broadcast or bool(world.wide)
            exact = True
            for name, value in sides.before.items():
                case.line = case.line or (rule.rewrite[0][0] if rule.rewrite else None)
                try:
                    exact = compare(world, name, value, sides.after[name]) and exact
                except OutOfTime:
                    raise
                except Undecided as undecided:
                    raise At(case.line, undecided.reason) from None
                except Refused as refused:
                    raise At(case.line, str(refused)) from None
            return exact

        reached = RANKS
        try:
            for world, exact in paths(lambda w: (run(w),), limits):
                out.cases += 1
                out.lowest = min(out.lowest, world.rank)
                out.exact = out.exact and exact[0]
        except OutOfTime as stopped:
            out.reason = stopped.reason
            reached = limits.rank_at_work - 1
        except At as stopped:
            out.line, out.reason = stopped.line, stopped.reason
            # A difference that is found is no bound.
            reached = limits.rank_at_work - 1 if stopped.time else -1
        except Undecided as undecided:
            out.reason = undecided.reason
            reached = -1
        out.rank = reached if at == 0 else min(out.rank, reached)
        if out.rank < 1:
            return out
    if not out.cases:
        out.rank, out.reason = -1, NO_CASE
    return out


def compare(world: World, name: str, before: object, after: object) -> bool:
    """Hold a result against what replaces it; whether they are computed alike.

    Raises :class:`Undecided` where they are not known to be equal.
    """
    if isinstance(before, Applied) and isinstance(after, Applied):
        if before == after:
            return True
        raise Undecided(f"{name} is an op of other operands, and nothing is known of the op")
    if not isinstance(before, Array) or not isinstance(after, Array):
        raise Undecided(f"{name} is no tensor whose elements are known")
    index = _places(world, before)
    for v in index:
        if isinstance(v, Poly):
            (node,) = v.vars
            world.assume(at_least_zero(node.args[1] - 1), check=False)
            world.assume(at_least_zero(node.args[1] - 1 - v), check=False)
    if not world.possible():
        raise Impossible("a result without elements")
    left, right = elements(world, before, after, index)
    if left.key == right.key:
        return True
    normal = Normal(world)
    unroll = False
    if strict(normal, left, {}) == strict(normal, right, {}):
        return True
    for _ in range(40):
        stage = world.stage()
        normal.unroll = unroll
        a, b = normal.near(normal.of(left)), normal.near(normal.of(right))
        if world.equal and key_of(a) != key_of(b):
            # Sizes that are equal on this path, under one name.
            for _ in range(3):
                a, b = normal.replaced(a, world.equal), normal.replaced(b, world.equal)
        if (isinstance(a, Poly) and isinstance(b, Poly) and a == b) or (
            not isinstance(a, Poly) and not isinstance(b, Poly) and a == b
        ):
            # Integers are exact: nothing rounds that could differ.
            return rounds_nowhere(left) and rounds_nowhere(right)
        if stage != world.stage():
            # More was assumed on the way: what was written before is written anew.
            normal = Normal(world)
            left, right = elements(world, before, after, _places(world, before))
            continue
        split = _free_condition(a, b, ("eq0", "ge0")) or _free_condition(a, b, ("any",))
        empty = None if split is not None else _emptiness(world, a, b)
        if split is None and empty is None:
            split = _free_condition(a, b, ("elem?", "cmp"))
        if split is not None:
            if not world.decide(split) and split.op == "ge0":
                size = split.args[0] + 1
                if isinstance(size, Poly) and not size.vars and world.follows(at_least_zero(size)):
                    # No size is below 0: one that is not at least 1 is 0.
                    world.assume(is_zero(size), check=False)
        elif empty is not None:
            # No size is below 0: one that is not at least 1 is 0.
            if not world.decide(at_least_zero(empty - 1)):
                world.assume(is_zero(empty))
        elif _settled(world, a, b):
            pass
        elif not unroll and _small_sums(normal, a, b):
            unroll = True
        else:
            only = a - b if isinstance(a, Poly) or isinstance(b, Poly) else a
            raise Undecided(f"{DIFFERENT}: {name}, whose difference is {shown(only)}")
        normal = Normal(world)
        left, right = elements(world, before, after, _places(world, before))
    raise Undecided("too many conditions on indices")


def _small_sums(normal: Normal, a: object, b: object) -> bool:
    """Whether any sum is one over few numbers, as many on this path."""
    return any(
        n.op == "sum" and any(normal.count(v.args[1]) is not None for v in n.args[0])
        for n in nodes_in((a, b))
    )


def _settled(world: World, a: object, b: object) -> bool:
    """Write down equations of sizes that follow, though none of what is assumed is one of them.

    Sizes that are 1 for certain, and of several equations that may hold the one that does.
    """
    sizes = {n for n in nodes_in((a, b)) if n.op in ("dim", "int")}
    found = [is_zero(atom(n) - 1) for n in sorted(sizes - set(world.equal), key=lambda n: n.key)]
    found += [e for f in world.facts if f.op == "or" for e in f.args if e.op == "eq0"]
    new = [e for e in found if isinstance(e, Node) and not world.known.get(e.key)]
    new = [e for e in new if world.follows(e)]
    for e in new:
        world.hold(e)
    return bool(new)


def _places(world: World, of: Array) -> list[Any]:
    """The index of any element of a result."""
    return [
        0 if world.same(s, 1) else atom(Node("var", f"out:{i}", s)) for i, s in enumerate(of.shape)
    ]


def elements(world: World, before: Array, after: Array, index: list[object]) -> tuple[E, E]:
    """One element of both sides, under the names of types that are left when both are known."""
    while True:
        stage = world.stage()
        left, right = before.elem(index), after.elem(index)
        if stage == world.stage():
            return left, right


def rounds_nowhere(e: E) -> bool:
    """Whether an element is computed of integers and truth values alone."""
    for n in nodes_in(e):
        if not isinstance(n, E) or n.dtype is INDEX:
            continue
        among = n.dtype.among if isinstance(n.dtype, LazyType) else (n.dtype,)
        if n.dtype is NUMBER or not all(t.is_int or t.is_bool for t in among):
            return False
    return True


def shown(value: object) -> str:
    """A normal form, cut to a line."""
    text = str(value)
    return text if len(text) <= 300 else text[:300] + "..."


def _free_condition(a: object, b: object, ops: Sequence[str]) -> Node | None:
    """A condition of these kinds on sizes, indices and elements of the result that is open."""
    for node in nodes_in((a, b)):
        if node.op == "holds" and node.args[0].op in ops:
            condition = node.args[0]
            if not bound_in(condition):
                assert isinstance(condition, Node)
                return condition
    return None


def _emptiness(world: World, a: object, b: object) -> Int | None:
    """The size of a reduction of which it is open whether it runs over anything."""
    for node in nodes_in((a, b)):
        if node.op in ("sum", "reduce"):
            for v in node.args[0]:
                some = at_least_zero(v.args[1] - 1)
                if isinstance(some, Node) and not some.vars and world.answer(some) is None:
                    return v.args[1]
    return None


def strict(normal: Normal, e: E, names: dict[Node, Any], depth: int = 0) -> str:
    """A key of a tree that rounds alike: equal but for the order of commuting operands."""

    def one(value: object) -> str:
        if isinstance(value, E):
            return strict(normal, value, names, depth)
        if isinstance(value, (Poly, Node)):
            return key_of(normal.replaced(value, names, bare=True))
        if isinstance(value, tuple):
            return "(" + ",".join(one(v) for v in value) + ")"
        return repr(value)

    if e.op == "red":
        op, t, loops, body = e.args
        inner = dict(names)
        sizes = []
        for i, v in enumerate(loops):
            size = normal.replaced(v.args[1], inner, bare=True)
            sizes.append(one(size))
            inner[v] = atom(Node("var", f"~{depth}.{i}", size))
        text = strict(normal, body, inner, depth + 1)
        return f"red({op},{t},{','.join(sizes)},{text})"
    parts = [one(a) for a in e.args]
    if e.op in ("add", "mul"):
        parts[1:] = sorted(parts[1:])
    if e.op in ("and", "or", "xor"):
        parts.sort()
    return f"{e.op}({','.join(parts)})"


def library(sets: Sequence[str]) -> list[Rule]:
    """All rules of some sets, read. Raises :class:`MlirulesError` with their faults."""
    from mlirules.drivers.iree import compiler
    from mlirules.language.library import open_rules

    return open_rules(sets, ops=compiler.op_oracle, compiler=compiler.revision()).rules()


def meanings() -> Meanings:
    """What ops mean by the conversion rules that ship."""
    from mlirules.language.library import open_rules
    from mlirules.language.rulefiles import LIBRARY

    folders = [str(LIBRARY / "torch" / name) for name in ("to-linalg", "decompose")]
    return Meanings.of(open_rules(folders).rules())
