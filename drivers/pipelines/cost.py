"""The ``cost`` driver: a rule is applied only where a cost model says that it pays.

Where a rule matches, the matched ops are cut out as a program of their own, with and without the
rule. Both go through the rest of the pipeline, and the cheaper one stays: by the roofline model
(:mod:`mlirules.drivers.measure.roofline`), or by timing both in turns on the device. What was
measured is kept in files, by a hash of both programs as the compiler gets them, the target and
the machine.
Of several rules that match at one op, the cheapest goes, if it beats leaving the op alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirules.drivers.apply import pieces, tracking
from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, cpu, irtypes, program
from mlirules.drivers.iree.compiler import Job, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.places import Places, forget
from mlirules.drivers.match.results import Around, Match, Refusal
from mlirules.drivers.measure.machine import machine
from mlirules.drivers.pipelines.choosing import Chooser
from mlirules.drivers.pipelines.decisions import Decision
from mlirules.generator import xsmm
from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule
from mlirules.language.typetexts import builtin_type
from mlirules.support import cache, files, package

if TYPE_CHECKING:
    from mlirules.drivers.measure import roofline
    from mlirules.drivers.measure.parameters import Parameters

__all__ = ["Candidate", "Decision", "Judge", "Settings", "cut_out", "filled"]


@dataclass(frozen=True)
class Candidate:
    """A program ready for the compiler: its text, and the phase at which to resume."""

    text: str
    resume: str | None = None


@dataclass(frozen=True)
class Settings:
    """How cost stages decide."""

    target: Target
    #: For the compiler, besides the target's own.
    flags: tuple[str, ...] = ()
    #: Time the programs instead of asking the model.
    measure: bool = False
    #: The gain that must be exceeded: 0.03 is 3 %.
    margin: float = 0.03
    #: Seconds that timing one piece may take, and that compiling or running it may take at most.
    seconds: float = 2.0
    timeout: float = 300.0
    #: Called with what is about to be weighed.
    progress: Callable[[str], object] = lambda _what: None


class Judge:
    """Decides for one run of a stage. Called with a match, answers whether to go ahead."""

    def __init__(
        self,
        matchers: dict[str, Matcher],
        context: ir.Context,
        settings: Settings,
        finish: Callable[[str], Candidate],
        later: Callable[[], str] = lambda: "",
    ) -> None:
        """``finish`` takes a piece of the program through what the pipeline does afterwards.

        ``later`` says what that is, by content; empty: nothing is kept of how pieces end up.
        """
        self._tell_later = later
        self.matchers = matchers
        self.finish = finish
        self.context = context
        self.settings = settings
        self.decisions: list[Decision] = []
        self._verdicts: dict[tuple[str, str], Decision] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._engines: dict[str, Engine] = {}
        self._choose = Chooser(settings.target, settings.flags)

    def __call__(self, match: Match, around: Around) -> bool:
        """Whether to apply the rule: it pays, and no other one that matches here pays more."""
        best: Decision | None = None
        own: Decision | None = None
        for name, matcher in self.matchers.items():
            found = match if name == match.rule.name else matcher.match(match.root, around)
            if isinstance(found, Refusal):
                if found.error is not None:
                    raise found.error
                continue
            decision = self._weigh(found, around.places)
            if name == match.rule.name:
                own = decision
            if decision.applies and (best is None or _with(decision) < _with(best)):
                best = decision
        assert own is not None
        if own.applies and best is not None and best.rule != own.rule:
            own = replace(own, applies=False, reason=f"{best.rule} is cheaper here")
        self._tell(own)
        return own.applies

    def _tell(self, decision: Decision) -> None:
        if (told := (decision.rule, decision.location, decision.key)) not in self._told:
            self._told.add(told)
            self.decisions.append(decision)

    def _weigh(self, match: Match, order: Places) -> Decision:
        location = str(tracking.place(match.root)).removeprefix("loc(").removesuffix(")")
        base = Decision(
            match.rule.name,
            False,
            "none",
            self.settings.target.name,
            location.replace('"', ""),
            match.root.name,
        )
        try:
            before = cut_out(match, self.context, order)
        except NotSeparable as error:
            return replace(base, reason=str(error))
        seen = self._verdicts.get((match.rule.name, before))
        if seen is None:
            self.settings.progress(f"{match.rule.name} at {base.location}")
            seen = self._decide(base, before, match)
            self._verdicts[match.rule.name, before] = seen
        return replace(seen, location=base.location)

    def _decide(self, base: Decision, before: str, match: Match) -> Decision:
        rule = match.rule
        kept = self._kept(before, rule)
        known = None if kept is None else _pair(kept)
        if known is not None and known[0]:
            # What was measured here goes before any model, also when nothing is to be measured.
            timed = self._timed(replace(base, key=known[0]))
            if timed is not None:
                return timed
        if not self.settings.measure:
            learned = self._learned(base, match)
            if learned is not None:
                return learned
            if rule.variants:
                why = "a kernel's work is not in the model: --measure times it"
                return replace(base, reason=why)
        # Most pipelines weigh nothing, and its parameters are slow to read.
        from mlirules.drivers.measure import roofline

        if known is not None:
            key, reason = known
            if reason:
                return replace(base, reason=reason)
            found = self._found(replace(base, key=key))
            if found is not None:
                return found
        try:
            after = self._rewritten(before, rule)
            pair = (self.finish(before), self.finish(after))
            base = replace(base, key=self._key(pair))
            if kept is not None:
                files.write_changed(kept, json.dumps({"pair": base.key}) + "\n")
            if self.settings.measure:
                return self._measure(base, before, pair)
            return self._model(base, pair)
        except (NotSeparable, roofline.DynamicShape) as error:
            if kept is not None:
                files.write_changed(kept, json.dumps({"not": str(error)}) + "\n")
            return replace(base, reason=str(error))
        except MlirulesError as error:
            # A piece that does not compile on its own says nothing about the whole.
            return replace(base, reason=f"cannot be weighed: {error.faults[0].message}")

    def _learned(self, base: Decision, match: Match) -> Decision | None:
        """The decision by what the learned model says of both forms; None: it says nothing."""
        if self._choose.certain(match):
            why = "no kernel takes so few places, of which a product is the faster form"
            return replace(base, applies=True, reason=why)
        choice = self._choose(match)
        if choice is None or "plain" not in choice.seconds:
            return None
        other = "plain"
        applies = choice.seconds[other] > (1 + self.settings.margin) * choice.own
        reason = self._because(applies)
        if not applies and choice.leads:
            other, applies = choice.best(), True
            reason = f"its form {other} is slower"
        without = choice.seconds[other]
        return replace(
            base,
            applies=applies,
            model="learned",
            before_ms=1e3 * without,
            after_ms=1e3 * choice.own,
            ratio=without / choice.own,
            before={"form": other},
            after={"form": choice.form},
            source=str(choice.model),
            reason=reason,
        )

    def _rewritten(self, before: str, rule: Rule) -> str:
        """The piece with the rule applied once."""
        engine = self._engines.get(rule.name)
        if engine is None:
            engine = self._engines[rule.name] = Engine([rule], self.context)
        module = compiler.parse(before, "<piece>", self.context)
        target = self.settings.target
        cpu = target.architecture if target.kind == "cpu" else ""
        options = Options(driver="greedy", max_rewrites=1, target=target.kind, cpu=cpu)
        if not engine.run(module, options).total:
            raise NotSeparable("the rule does not match the piece on its own")
        return _text(module)

    @functools.cached_property
    def later(self) -> str:
        """What the pipeline does afterwards: asked for when there is something to weigh."""
        return self._tell_later()

    def _kept(self, before: str, rule: Rule) -> Path | None:
        """Where it is kept what becomes of a piece: making that again takes longest of all."""
        if not self.later or not _is_whole(rule):
            return None
        settings = self.settings
        parts = [
            before,
            rule.name,
            hashlib.sha256(rule.source.text.encode()).hexdigest(),
            xsmm.made_by() if any(variant.xsmm for variant in rule.variants) else "",
            self.later,
            settings.target.name,
            *settings.target.flags,
            *settings.flags,
            compiler.revision(),
            machine(),
            str(cpu.divided(settings.target.architecture)),
            package.code(),
        ]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        return cache.directory() / "pieces" / f"{key}.json"

    def _found(self, base: Decision) -> Decision | None:
        """The decision of a pair that was weighed before; None when it was not."""
        if self.settings.measure:
            return None
        found = _read(self._modelled(base.key))
        return None if found is None else self._estimated(base, found, cached=True)

    def _timed(self, base: Decision) -> Decision | None:
        """The decision of a pair that was measured on this machine; None when it was not."""
        found = _read(cache.directory() / "cost" / f"{base.key}.json")
        return None if found is None else self._measured(base, found, cached=True)

    def _modelled(self, key: str) -> Path:
        """Where it is kept what the model says of a pair."""
        from mlirules.drivers.measure import roofline

        known = (roofline.PARAMETERS / f"{self.settings.target.kind}.yaml").read_bytes()
        digest = hashlib.sha256(known).hexdigest()[:8]
        return cache.directory() / "cost" / f"{key}.{digest}.json"

    def _key(self, pair: tuple[Candidate, Candidate]) -> str:
        parts = [
            *(c.text + str(c.resume) for c in pair),
            self.settings.target.name,
            *self.settings.target.flags,
            *self.settings.flags,
            compiler.revision(),
            machine(),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def _model(self, base: Decision, pair: tuple[Candidate, Candidate]) -> Decision:
        from mlirules.drivers.measure import roofline

        path = self._modelled(base.key)
        found = _read(path)
        cached = found is not None
        if found is None:
            known = roofline.parameters(self.settings.target.kind)
            one, two = (self._estimate(candidate, known) for candidate in pair)
            found = {
                "ratio": one.seconds / two.seconds if two.seconds else 1.0,
                "before": one.as_json(),
                "after": two.as_json(),
            }
            files.write_changed(path, json.dumps(found, indent=1) + "\n")
        return self._estimated(base, found, cached=cached)

    def _estimated(self, base: Decision, found: dict[str, Any], *, cached: bool) -> Decision:
        """The decision by what the model says of both forms."""
        applies = found["ratio"] > 1 + self.settings.margin
        return replace(
            base,
            applies=applies,
            model="roofline",
            cached=cached,
            ratio=found["ratio"],
            before_ms=found["before"]["ms"],
            after_ms=found["after"]["ms"],
            before=found["before"],
            after=found["after"],
            reason=self._because(applies),
        )

    def _estimate(self, candidate: Candidate, known: Parameters) -> roofline.Estimate:
        from mlirules.drivers.measure import roofline

        return roofline.estimate(filled(candidate.text), self._job(candidate), known)

    def _job(self, candidate: Candidate) -> Job:
        """How the compiler goes on with a candidate."""
        settings = self.settings
        return Job(settings.target, settings.flags, settings.timeout, "<piece>", candidate.resume)

    def _because(self, applies: bool) -> str:
        gain = f"{100 * self.settings.margin:g} %"
        return f"gains more than {gain}" if applies else f"does not gain more than {gain}"

    def _measure(self, base: Decision, before: str, pair: tuple[Candidate, Candidate]) -> Decision:
        path = cache.directory() / "cost" / f"{base.key}.json"
        found = _read(path)
        cached = found is not None
        if found is None:
            found = self._time(before, pair)
            files.write_changed(path, json.dumps(found, indent=1) + "\n")
        return self._measured(base, found, cached=cached)

    def _measured(self, base: Decision, found: dict[str, Any], *, cached: bool) -> Decision:
        """The decision by what was measured of both forms."""
        if "reason" in found:
            return replace(base, model="measured", cached=cached, reason=found["reason"])
        ratio, low = found["ratio"], found["ratio_low"]
        applies = ratio > 1 + self.settings.margin and low > 1
        return replace(
            base,
            applies=applies,
            model="measured",
            cached=cached,
            before_ms=found["before_ms"],
            after_ms=found["after_ms"],
            ratio=ratio,
            ratio_low=low,
            ratio_high=found["ratio_high"],
            rounds=found["rounds"],
            reason=self._because(applies),
        )

    def _time(self, before: str, pair: tuple[Candidate, Candidate]) -> dict[str, Any]:
        """Compile both, run both in turns, compare what they compute."""
        # They load the runtime, which only timing needs.
        from mlirules.drivers.measure import child as measuring
        from mlirules.drivers.measure import numerics

        arguments = numerics.signature(before)[1]
        if any(size is None for shape, _ in arguments for size in shape):
            return {"reason": "sizes are known only when the program runs"}
        settings = self.settings
        programs = {
            name: compiler.compile_job(filled(c.text), self._job(c))
            for name, c in zip(("before", "after"), pair, strict=True)
        }
        inputs = numerics.random_inputs(arguments, low=0.1, high=2.0)
        found = measuring.compare(
            programs,
            inputs,
            settings.target,
            measuring.Budget(seconds=settings.seconds, timeout=settings.timeout),
        )
        if found.error > 1e-2:
            return {"reason": f"its results differ by {found.error:.2g} of the largest"}
        ratio = found.comparison.ratio("after")
        return {
            "before_ms": 1e3 * found.comparison["before"].median,
            "after_ms": 1e3 * found.comparison["after"].median,
            "ratio": ratio.median,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "rounds": len(found.comparison["before"].samples),
            "error": found.error,
            "target": settings.target.name,
        }


def _is_whole(rule: Rule) -> bool:
    """Whether the rule's file holds all of it: a kernel in C stands in another."""
    linked = [variant.doc.object for variant in rule.variants]
    return all(made is None or made.source is None for made in linked)


def _with(decision: Decision) -> float:
    return decision.after_ms if decision.after_ms is not None else float("inf")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # nothing there, or nothing that can be used
        return None
    return found if isinstance(found, dict) and ("ratio" in found or "reason" in found) else None


def _pair(path: Path) -> tuple[str, str] | None:
    """What became of a piece: the key of its two forms, or why there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return str(found.get("pair", "")), str(found.get("not", ""))
    except (OSError, ValueError, AttributeError):
        return None


# ---------------------------------------------------------------- pieces of programs


class NotSeparable(Exception):
    """The matched ops cannot stand as a program of their own."""


def cut_out(match: Match, context: ir.Context, order: Places) -> str:
    """The matched ops as a program: ``@main`` takes what they read and returns what is read of
    them, the root's results first.

    Constants come along, large ones without their values: pieces that differ by their weights
    alone are the same program (see :func:`filled`). Raises :class:`NotSeparable`.
    """
    cone = order.ordered(_cone(match))
    inside = set(cone)
    arguments = list(
        dict.fromkeys(
            value
            for op in cone
            for value in pieces.read_by(op)
            if pieces.owner(value) not in inside
        )
    )
    root = match.root.operation
    results = list(root.results)
    for op in cone:
        if op != root and not _is_constant(op):
            results += [
                v for v in op.results if any(use.owner.operation not in inside for use in v.uses)
            ]
    if any(irtypes.of_unknown_size(v.type) for v in (*arguments, *results)):
        raise NotSeparable("sizes are known only when the program runs")
    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        type_ = ir.FunctionType.get([v.type for v in arguments], [v.type for v in results])
        named = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(type_)}
        function = ir.Operation.create(
            "func.func", attributes=named, regions=1, ip=ir.InsertionPoint(module.body)
        )
        block = function.regions[0].blocks.append(*[v.type for v in arguments])
        mapped: dict[ir.Value, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
        for op in cone:
            new = op.clone(ir.InsertionPoint(block))
            forget(new)
            pieces.remap(new, mapped)
            mapped.update(zip(op.results, new.results, strict=True))
        ir.Operation.create(
            "func.return", operands=[mapped[v] for v in results], ip=ir.InsertionPoint(block)
        )
    if not module.operation.verify():
        raise NotSeparable("the matched ops do not stand on their own")
    return _text(module)


_CONSTANT = frozenset(
    [
        "torch.vtensor.literal",
        "torch.prim.ListConstruct",
        "torch_c.from_builtin_tensor",
        "torch_c.to_builtin_tensor",
        "arith.constant",
        "tensor.empty",
        "linalg.fill",
        "torch.aten.transpose.int",
        "torch.aten.t",
        "torch.aten.permute",
        "torch.aten.view",
        "torch.aten.reshape",
        "torch.aten.unsqueeze",
    ]
)
_LARGE = 1024
#: A large constant in a piece's text, which has another name there.
_RESOURCE = re.compile(r"dense_resource<([^>]+)> : (tensor<[0-9x]*[a-z]+\d+>)")


def _is_constant(op: ir.Operation) -> bool:
    """Whether the compiler knows what ``op`` gives, so that it belongs to the piece."""
    return _constants([op]) is not None


def _constants(roots: Iterable[ir.Operation]) -> set[ir.Operation] | None:
    """The ops that ``roots`` are computed by, when the compiler knows what they all give."""
    found = set(roots)
    left = list(found)
    while left:
        op = left.pop()
        if not _can_be_constant(op):
            return None
        for value in op.operands:
            owner = pieces.owner(value)
            if owner is None:
                return None
            if owner not in found:
                found.add(owner)
                left.append(owner)
    return found


def _can_be_constant(op: ir.Operation) -> bool:
    if op.name not in _CONSTANT and not op.name.startswith("torch.constant."):
        return False
    value = op.attributes.get("value")
    if value is not None and program.is_resource(value):
        # Integers are mostly indices, for which other values would not do.
        return str(ir.ShapedType(value.type).element_type) in _MADE_UP
    return True


def _cone(match: Match) -> list[ir.Operation]:
    """The matched ops and the constants that they read."""
    block = match.root.operation.block
    found: set[ir.Operation] = set()
    for op in (*match.inner, *match.others, match.root):
        if op.operation.block != block:
            raise NotSeparable("the matched ops stand in different blocks")
        found.add(op.operation)
    for op in list(found):
        for value in pieces.read_by(op):
            owner = pieces.owner(value)
            if owner is not None and owner not in found:
                found |= _constants([owner]) or set()
    return [op for op in found if op.block == block]


def _text(module: ir.Module) -> str:
    """A module's text without the values of large constants, which are numbered in order."""
    text = str(module.operation.get_asm(large_resource_limit=_LARGE, assume_verified=True))
    kept = set(re.findall(r'^\s*([\w.$-]+|"[^"]+"): "0x', text, re.MULTILINE))
    kept = {name.strip('"') for name in kept}
    names: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        name = found[1].strip('"')
        if name in kept:
            return found[0]
        return f"dense_resource<{names.setdefault(name, f'piece_{len(names)}')}> : {found[2]}"

    return re.sub(r"\{-#\s*#-\}\s*$", "", _RESOURCE.sub(rename, text))


_MADE_UP = {"f16": "float16", "f32": "float32", "f64": "float64"}


def filled(text: str) -> str:
    """A piece with values for the constants that lost theirs: positive, all alike in size."""
    import numpy as np

    blobs: dict[str, str] = {}
    for found in _RESOURCE.finditer(text):
        name, type_ = found[1].strip('"'), builtin_type(found[2])
        if not name.startswith("piece_") or name in blobs or type_ is None:
            continue
        count = math.prod(size or 0 for size in type_.sizes)
        rng = np.random.default_rng(len(blobs))
        values = rng.uniform(0.01, 0.1, count).astype(_MADE_UP[type_.element])
        blobs[name] = f'{name}: "0x40000000{values.tobytes().hex().upper()}"'
    if not blobs:
        return text
    listed = ", ".join(blobs.values())
    at = text.rfind("builtin: {")
    if text.rfind("{-#") >= 0 and at > text.rfind("{-#"):
        at += len("builtin: {")
        return f"{text[:at]} {listed},{text[at:]}"
    return text + "\n{-# dialect_resources: { builtin: { " + listed + " } } #-}\n"
