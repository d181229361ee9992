"""The learned cost model: what forms of convolutions and products take on CPUs, from measurements.

A file holds what was learned on one CPU: for each kind of op and each of its forms a rough time

    launch + flops / speed + bytes / bandwidth

of what :func:`~mlirules.drivers.measure.forms.rough` counts, and regression trees over
:data:`~mlirules.drivers.measure.forms.FEATURES` whose sum is the logarithm of the factor that is
missing. ``benchmarks/cost_model.py`` measures and fits; files that ship lie in
``specs/targets/learned``, those made on a machine in its cache folder, and these go first. They are
called by what the CPU has and the compiler's name of the one that they were measured on, as
``avx512-znver5.json``: the target's own is taken, else what was measured on this machine, else one
of CPUs with vectors as long, for AMD's of AMD's if there is one, for others of others. Evaluated
without numpy, which takes longer to load than a network's convolutions to decide.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from mlirules.drivers.iree import cpu
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure.forms import (
    FEATURES,
    FORMS,
    SIZES,
    Convolution,
    Work,
    features,
    forms,
    kind,
    rough,
    transforms,
)
from mlirules.drivers.measure.machine import machine
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.support import cache, package

__all__ = [
    "MARGINS",
    "SHIPPED",
    "Form",
    "Model",
    "choice",
    "for_target",
    "name_of",
    "of_kinds",
    "own",
    "read",
]

#: What another form must gain over those that the default pipeline has without it: `yields` and
#: `margin` of its stages, and what packing products must gain, which makes a compile longer.
MARGINS = {"kernel": 0.03, "plain": 0.1, "unpacked": 0.05}
#: By the bytes of a CPU's vectors.
_CLASSES = {64: "avx512", 32: "avx2", 16: "neon"}
#: Where among the features those stand that must be within what was measured.
_SIZES = tuple(FEATURES.index(name) for name in SIZES)
SHIPPED = package.SPECS / "targets" / "learned"
#: A leaf, or ``[feature, limit, below, above]``: ``below`` is for what is at most the limit.
Tree: TypeAlias = "float | tuple[int, float, Tree, Tree]"


@dataclass(frozen=True)
class Form:
    """How long one form of a kind of op takes."""

    #: Microseconds of a launch, 10^9 operations and 10^9 bytes a second.
    launch_us: float
    gflops: float
    gbs: float
    trees: tuple[Tree, ...]

    def seconds(self, work: Work, name: str, numbers: Sequence[float], lanes: int) -> float:
        """What an op takes in this form."""
        flops, moved = rough(work, name, lanes)
        return self.rough(flops, moved) * math.exp(sum(_leaf(t, numbers) for t in self.trees))

    def rough(self, flops: float, moved: float) -> float:
        """Seconds before anything that was learned."""
        return 1e-6 * self.launch_us + 1e-9 * flops / self.gflops + 1e-9 * moved / self.gbs


@dataclass(frozen=True)
class Model:
    """What was learned on a CPU."""

    path: Path
    #: What it was measured on: shown with decisions. ``machine`` also says how many cores.
    processor: str
    machine: str
    commit: str
    samples: int
    vector_bytes: int
    #: What the compiler was told besides the target's flags: products are packed by these.
    flags: tuple[str, ...]
    #: By kinds: the least and largest of :data:`forms.SIZES` among the samples.
    ranges: dict[str, tuple[tuple[float, float], ...]]
    learned: dict[str, dict[str, Form]]
    #: Kinds whose weights were in no cache, where a network's layer finds them.
    cold: frozenset[str] = frozenset()
    #: Whether the CPU that is asked for takes its vectors in halves.
    halves: bool = False

    def seconds(self, work: Work) -> dict[str, float]:
        """What an op takes in each form that the model knows; empty for what it was not made for:
        sizes beyond those that were measured."""
        which = kind(work)
        numbers = features(work, self.vector_bytes // 4)
        known, limits = self.learned.get(which), self.ranges.get(which)
        if known is None or limits is None:
            return {}
        if not all(
            low <= numbers[n] <= high for n, (low, high) in zip(_SIZES, limits, strict=True)
        ):
            return {}
        lanes = self.vector_bytes // 4
        return {
            form: known[form].seconds(work, form, numbers, lanes)
            for form in forms(work)
            if form in known
        }

    def choices(self, work: Work) -> dict[str, float]:
        """What the op takes in each form that the default pipeline chooses among.

        Where the kernel takes Winograd's form itself it is faster than IREE's code for it. Filters
        four times as large come from memory in a network: figures of filters in a cache say
        nothing of them.
        """
        found = self.seconds(work)
        lanes = self.vector_bytes // 4
        by_kernel = isinstance(work, Convolution) and transforms(work, lanes, halves=self.halves)
        if by_kernel or kind(work) not in self.cold:
            found.pop("winograd", None)
        return found

    def __str__(self) -> str:
        where = "shipped" if self.path.is_relative_to(SHIPPED) else f"made here: {self.path}"
        return f"{self.path.stem}, measured on {self.processor} ({where})"


def choice(seconds: dict[str, float]) -> str:
    """The form that the default pipeline takes.

    The fastest, or the kernel where it is slower by no more than the pipeline's margin; where there
    can be none, what the compiler has.
    """
    held = [form for form in seconds if form != "plain" or "kernel" not in seconds]
    fastest = min(held, key=seconds.__getitem__)
    for form, margin in MARGINS.items():
        if form in held and seconds[form] <= (1 + margin) * seconds[fastest]:
            return form
    return fastest


def _leaf(tree: Tree, numbers: Sequence[float]) -> float:
    while isinstance(tree, tuple):
        tree = tree[2] if numbers[tree[0]] <= tree[1] else tree[3]
    return tree


def name_of(target: Target, *, like: bool = False) -> str | None:
    """What the file for a cpu is called; ``like``: a pattern for those with vectors as long."""
    has = _CLASSES.get(cpu.vector_bytes(target.architecture))
    if has is None:
        return None
    return f"{has}-*.json" if like else f"{has}-{cpu.name(target.architecture)}.json"


def own() -> Path:
    """Where models that were made on this machine are kept."""
    return cache.directory() / "learned"


def for_target(target: Target) -> Model | None:
    """The model for a target; None where nothing was learned for the like. Raises MlirulesError."""
    model = _for_target(target)
    if model is None:
        return None
    whole, unit = cpu.vector_bytes(target.architecture), cpu.unit_bytes(target.architecture)
    return replace(model, halves=unit < whole)


def _for_target(target: Target) -> Model | None:
    if target.kind != "cpu" or (exact := name_of(target)) is None:
        return None
    pattern = name_of(target, like=True)
    assert pattern is not None
    here = _here(target)
    for folder in (own(), SHIPPED):
        listed = sorted(folder.glob(pattern), key=lambda path: _nearness(path.name, exact))
        found = None
        for path in listed:
            model = _read(path, path.stat().st_mtime_ns)
            # The compiler may call the machine that a file was measured on otherwise than the
            # file: a virtual one hides what its name hangs on.
            if (path.name == exact and folder == SHIPPED) or (here and model.machine == machine()):
                return model
            # The user's folder may have come from another machine.
            if folder == SHIPPED:
                found = found or model
        if found is not None:
            return found
    return None


def _here(target: Target) -> bool:
    """Whether this machine is one that a target means: no other CPU is named."""
    named = target.architecture
    general = named.startswith("x86-64")  # what CPUs have, and no CPU
    return not named or general or cpu.name(named) == cpu.name("")


def _nearness(name: str, exact: str) -> tuple[bool, bool, str]:
    """How far a file's CPU is from the one asked for, for sorting."""
    return name != exact, ("-znver" in name) != ("-znver" in exact), name


@functools.lru_cache(maxsize=16)
def _read(path: Path, _changed: int) -> Model:
    return read(path)


def read(path: Path) -> Model:
    """The model in a file. Raises MlirulesError, located, where it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MlirulesError.at(str(path), f"cannot be read: {error.strerror}") from None
    try:
        said = json.loads(text)
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        raise _fault(path, f"is no JSON: {error}", line, column) from None
    try:
        return _model(path, said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise _fault(path, what, *_place(text, what)) from None


def _fault(path: Path, what: str, line: int, column: int) -> MlirulesError:
    return MlirulesError(
        Fault(
            Span(str(path), line, column),
            "learned-model",
            what,
            "`python benchmarks/cost_model.py fit` makes it again",
        )
    )


def _place(text: str, what: str) -> tuple[int, int]:
    """The line of the form or field that a message names; the first where none is."""
    named = what.partition(":")[0]
    for number, line in enumerate(text.splitlines(), 1):
        at = line.find(f'"{named}"')
        if at >= 0:
            return number, at + 1
    return 1, 1


def _model(path: Path, said: dict[str, Any]) -> Model:
    if list(said["features"]) != list(FEATURES):
        raise ValueError("features: are not those that this version computes")
    learned, ranges = _kinds(said["kinds"])
    return Model(
        path,
        str(said["processor"]),
        str(said["machine"]),
        str(said["commit"]),
        int(said["samples"]),
        int(said["vector_bytes"]),
        tuple(map(str, said["flags"])),
        ranges,
        learned,
        frozenset(map(str, said.get("cold", ()))),
    )


def of_kinds(said: dict[str, Any], vector_bytes: int) -> Model:
    """A model of what a file says of kinds, which is in no file yet."""
    learned, ranges = _kinds(said)
    return Model(Path("model.json"), "", "", "", 0, vector_bytes, (), ranges, learned)


_Ranges: TypeAlias = dict[str, tuple[tuple[float, float], ...]]


def _kinds(said: dict[str, Any]) -> tuple[dict[str, dict[str, Form]], _Ranges]:
    learned: dict[str, dict[str, Form]] = {}
    ranges: _Ranges = {}
    for which, known in said.items():
        if which not in FORMS:
            raise ValueError(f"{which}: no such kind of op")
        low_high = [known["range"][name] for name in SIZES]
        ranges[which] = tuple((float(low), float(high)) for low, high in low_high)
        learned[which] = {}
        for form, parts in known["forms"].items():
            if form not in FORMS[which]:
                raise ValueError(f"{form}: no form of a {which}")
            launch, gflops, gbs = (float(parts[key]) for key in ("launch_us", "gflops", "gbs"))
            if min(launch, gflops, gbs) <= 0:
                raise ValueError(f"{form}: a speed must be above 0")
            trees = tuple(_tree(tree, form, 0) for tree in parts["trees"])
            learned[which][form] = Form(launch, gflops, gbs, trees)
    return learned, ranges


#: Trees that are deeper were not made by the fit.
_DEEPEST = 12


def _tree(said: Any, form: str, depth: int) -> Tree:
    if isinstance(said, int | float) and math.isfinite(said) and abs(said) < 10:
        return float(said)
    if not (isinstance(said, list) and len(said) == 4 and depth < _DEEPEST):
        raise ValueError(f"{form}: a tree holds {str(said)[:40]}")
    which, limit, below, above = said
    if not (isinstance(which, int) and 0 <= which < len(FEATURES)):
        raise ValueError(f"{form}: a tree asks for feature {which}")
    return which, float(limit), _tree(below, form, depth + 1), _tree(above, form, depth + 1)
