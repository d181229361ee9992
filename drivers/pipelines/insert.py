"""A user's own rules in a pipeline: each kind where its ops are.

Fusions and kernels of torch ops (or of another input dialect) go before all other stages, so that
they see the program as it came. Conversions go before the first stage that converts, and once more
before the last one, for ops that decompositions make. Rules over linalg and what else conversions
make go behind that stage, rules over ops of flow after that phase. Config rules go where lowering
configurations are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import library, stage_entries
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.library import Entry
from mlirules.language.pipeline import Pipeline
from mlirules.language.rulefiles import holds_config, rule_files
from mlirules.language.stage import Stage

__all__ = ["config_files", "unapplied", "with_rules"]

#: What conversions make: rules over these find their ops behind them.
_LOWERED = frozenset({"linalg", "tensor", "arith", "math", "scf", "iree_linalg_ext"})


def with_rules(
    pipeline: Pipeline, sets: Sequence[str], target: Target, session: Session | None = None
) -> Pipeline:
    """``pipeline`` with the rules of ``sets`` (files, folders, shipped names) where they belong.

    Config rules are left to :func:`config_files`. Raises :class:`MlirulesError` for a rule that has
    no place: it is for other targets, or stands in the pipeline already.
    """
    files = [file for name in sets for file in rule_files(name)]
    paths = [str(file) for file in dict.fromkeys(files) if not holds_config(file)]
    if not paths:
        return pipeline
    session = session or current()
    entries = library(tuple(paths), session).entries
    stages = list(pipeline.stages)
    rewriting = [s for s in stages if s.phase != "configuration"]
    known = {e.name: e for s in rewriting for e in stage_entries(s, session)}
    faults = [fault for e in entries if (fault := _no_place(e, target, known)) is not None]
    if faults:
        raise MlirulesError(faults)
    torch = [n for n, stage in enumerate(stages) if stage.phase == "torch"]
    converting = [
        n for n in torch if any(e.kind == "conversion" for e in stage_entries(stages[n], session))
    ]
    first = min(torch, default=0)
    begin = converting[0] if converting else first
    end = converting[-1] if converting else (torch[-1] if torch else -1)
    dispatched = [e for e in entries if all(op.startswith("flow.") for op in e.head.root_ops)]
    lowered = [e for e in entries if _is_lowered(e)]
    raised = [e for e in entries if e not in lowered and e not in dispatched]
    conversions = [e for e in raised if e.kind == "conversion"]
    others = [e for e in raised if e.kind != "conversion"]
    places: dict[int, list[Stage]] = {}
    for at, chosen in (
        (first, others),
        (begin, conversions),
        *([(end, conversions)] if end > begin else []),
        (end + 1, lowered),
    ):
        if chosen:
            rules = [e.path for e in chosen]
            places.setdefault(at, []).append(Stage(phase="torch", rules=rules, driver="greedy"))
    made: list[Stage] = []
    for n in range(len(stages) + 1):
        made += places.get(n, [])
        made += stages[n : n + 1]
    if dispatched:
        rules = [e.path for e in dispatched]
        made.append(Stage(phase="flow", rules=rules, driver="greedy"))
    return replace(pipeline, stages=made)


def config_files(sets: Sequence[str]) -> list[str]:
    """The config rules among the rules of ``sets``."""
    files = [file for name in sets for file in rule_files(name)]
    return [str(file) for file in dict.fromkeys(files) if holds_config(file)]


def unapplied(
    sets: Sequence[str], applied: Collection[str], session: Session | None = None
) -> list[Fault]:
    """A warning for each rewriting rule of ``sets`` that is not among those that applied."""
    files = [file for name in sets for file in rule_files(name)]
    paths = [str(file) for file in dict.fromkeys(files) if not holds_config(file)]
    entries = library(tuple(paths), session).entries if paths else ()
    return [
        Fault(
            entry.rule.span,
            "not-applied",
            f"{entry.name} applied nowhere in the program",
            f"`mlirules explain {_named(entry)} MODEL` says which of its lines refuses",
            "warning",
        )
        for entry in entries
        if entry.name not in applied
    ]


def _named(entry: Entry) -> str:
    """What names a rule on the command line: its file, or the folder and its name in a family."""
    path = Path(entry.path)
    return str(path.parent / entry.name) if entry.rule.source.family else entry.path


def _is_lowered(entry: Entry) -> bool:
    return all(op.partition(".")[0] in _LOWERED for op in entry.head.root_ops)


def _no_place(entry: Entry, target: Target, known: dict[str, Entry]) -> Fault | None:
    first = known.get(entry.name)
    if first is not None:
        if first.path == entry.path:
            said, hint = "stands in the pipeline already", "leave it out of --rules"
        else:
            said = f"has the name of a rule of the pipeline ({first.path})"
            hint = "give it a name of its own; `benefit:` decides which goes first"
        return Fault(entry.rule.span, "no-place", f"{entry.name} {said}", hint)
    rule = entry.rule
    asked = [t.partition(":")[0] for v in rule.variants for t in v.doc.targets]
    asked = asked or [name.partition(":")[0] for name in rule.doc.targets]
    if asked and target.kind not in asked:
        said = f"{entry.name} is for {', '.join(sorted(set(asked)))}, the program for {target}"
        return Fault(
            rule.span, "no-place", said, f"--target {asked[0]}, or leave it out of --rules"
        )
    return None
