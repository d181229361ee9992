"""What `check` finds in pipeline files beyond their form: stages that could do nothing.

Reading a pipeline says what its keys may hold. Here its stages are held against the rules that
they name: rule sets that are not there, rules of a kind whose ops a phase does not have, filters
and expectations that fit no rule, keys of other drivers, flags that the compiler does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlirules.drivers.apply.engine import select
from mlirules.drivers.iree import compiler, targets
from mlirules.drivers.pipelines.transform import library
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.library import Entry
from mlirules.language.pipeline import Pipeline, beside
from mlirules.language.pipeline_file import stage_of
from mlirules.language.reading import load_yaml
from mlirules.language.rulefiles import holds_config, rule_files
from mlirules.language.source import Path_, SourceFile
from mlirules.language.stage import Stage

__all__ = ["pipeline_faults"]

#: The drivers that a key of a stage is for.
_KEYS = {
    "nodes": ("saturate",),
    "seconds": ("saturate",),
    "rounds": ("saturate",),
    "megabytes": ("saturate",),
    "margin": ("cost", "saturate"),
    "full": ("conversion",),
}
#: What the compiler's own conversions leave nothing of, behind which other phases come.
_INPUT = frozenset({"torch", "torch_c", "stablehlo", "chlo", "tosa"})


def pipeline_faults(path: Path) -> list[Fault]:
    """All faults of a pipeline file, located, in the order of its lines."""
    try:
        source = load_yaml(path)
        Pipeline.load(path)
    except MlirulesError as error:
        return error.faults
    found = [*_targets(source), *_flags(source)]
    names: dict[str, int] = {}
    for where, raw in _stages(source.data):
        stage = beside(stage_of(source, raw, where), path.parent)
        if stage.name in names:
            span = source.span_at((*where, "name"))
            said = f"two stages are named {stage.name}"
            hint = f"the other stands in line {names[stage.name]}; give each a name of its own"
            found.append(Fault(span, "pipeline", said, hint))
        elif stage.name is not None:
            names[stage.name] = source.span_at((*where, "name")).line
        found += _stage(source, where, raw, stage)
    return sorted(dict.fromkeys(found), key=lambda f: (f.span.line, f.span.column))


def _stages(data: Any) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """The stages that stand in the file itself, with their places."""
    for i, insertion in enumerate(data.get("insert") or ()):
        yield from ((("insert", i, "stages", j), s) for j, s in enumerate(insertion["stages"]))
    yield from ((("stages", i), stage) for i, stage in enumerate(data.get("stages") or ()))


def _targets(source: SourceFile) -> Iterator[Fault]:
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in targets.known()))
    for i, name in enumerate(source.data.get("targets") or ()):
        if name not in kinds:
            hint = did_you_mean(name.partition(":")[0], kinds) or "known: " + ", ".join(kinds)
            span = source.span_at(("targets", i))
            yield Fault(span, "target", f"there is no kind of target {name!r}", hint)


def _flags(source: SourceFile) -> Iterator[Fault]:
    for i, flag in enumerate(source.data.get("flags") or ()):
        name = "--" + flag.lstrip("-").partition("=")[0]
        if not flag.startswith("@") and not compiler.has_flag(name):
            span = source.span_at(("flags", i))
            said = f"iree-compile has no flag {name}"
            yield Fault(span, "flag", said, did_you_mean(name, compiler.known_flags()))


def _stage(source: SourceFile, where: Path_, raw: dict[str, Any], stage: Stage) -> Iterator[Fault]:
    for key, drivers in _KEYS.items():
        if key in raw and stage.driver not in drivers:
            named = " or ".join(f"`driver: {driver}`" for driver in drivers)
            yield Fault(
                source.span_at((*where, key), key=True),
                "no-effect",
                f"`{key}:` is read with {named} alone, and this stage has {stage.driver}",
                f"remove it, or write driver: {' or '.join(drivers)}",
            )
    files: list[Path] = []
    for i, name in enumerate(stage.rules):
        span = source.span_at((*where, "rules", i))
        try:
            held = rule_files(name)
        except MlirulesError as error:
            yield from (_at(span, fault) for fault in error.faults)
            return
        files += held
        configs = [file for file in held if holds_config(file)]
        if stage.phase == "configuration" and len(configs) < len(held):
            said = "are no config rules, and only those run in this phase"
            yield Fault(span, "phase", f"rules of {raw['rules'][i]} {said}", "see docs/configs.md")
            return
        if stage.phase != "configuration" and configs:
            said = f"{configs[0].stem} is a config rule, and those run in another phase"
            yield Fault(span, "phase", said, "write phase: configuration")
            return
    if stage.phase == "configuration":
        return
    try:
        entries = list(library(tuple(str(file) for file in files)).entries)
    except MlirulesError as error:
        yield from error.faults
        return
    unfit = list(_unfit(source, where, stage, entries))
    yield from unfit
    if unfit:
        return
    left = select(entries, stage.only, stage.skip)
    if not left:
        hint = "the filters leave out all rules of the stage"
        yield Fault(source.span_at(where), "no-effect", "the stage has no rule", hint)
    names = [entry.name for entry in left]
    for name in stage.expect_rules:
        if name not in names:
            span = source.span_at((*where, "expect_rules", name), key=True)
            said = f"the stage has no rule {name}, so it can never apply"
            yield Fault(span, "expect", said, did_you_mean(name, names))
    lost = [e for e in left if _INPUT.issuperset(op.partition(".")[0] for op in e.head.root_ops)]
    if stage.phase != "torch" and lost:
        root = min(lost[0].head.root_ops)
        which = f"{lost[0].name} looks" if len(lost) == 1 else f"{len(lost)} of its rules look"
        said = f"{which} at {root.partition('.')[0]} ops: none is left in phase {stage.phase}"
        span = source.span_at((*where, "phase"))
        yield Fault(span, "phase", said, f"write phase: torch, where {root} is found")


def _unfit(source: SourceFile, where: Path_, stage: Stage, entries: list[Entry]) -> Iterator[Fault]:
    """Filters that fit no rule."""
    for key in ("only", "skip"):
        for i, glob in enumerate(getattr(stage, key)):
            try:
                select(entries, [glob])
            except MlirulesError as error:
                yield from (_at(source.span_at((*where, key, i)), f) for f in error.faults)


def _at(span: Span, fault: Fault) -> Fault:
    return Fault(span, fault.code, fault.message, fault.suggestion)
