"""``mlirules explain``: why a rule did not apply."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from mlirules.commands import chain
from mlirules.commands.common import Json, Printer, TrustNative, err, out, say_json, warn
from mlirules.commands.options import Argument, BadParameter, Option
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean

if TYPE_CHECKING:
    from mlirules.drivers.iree.compiler import Op
    from mlirules.drivers.match.results import Diagnosis, Spot
    from mlirules.drivers.quality.explain import WhyNot
    from mlirules.language.rule import Rule

EXAMPLE = "mlirules explain torch-mm-to-linalg model.mlir"


def command(
    rule: Annotated[
        str, Argument(help="A rule's name, or a rule file; --driver saturate: sets, by commas.")
    ],
    model: Annotated[Path, Argument(help="The program, MLIR text.")],
    at: Annotated[
        str | None, Option(help="Only ops whose location holds this: a line or FILE:LINE.")
    ] = None,
    target: Annotated[
        str | None,
        Option(help="Config rules: whose dispatches; default: the rule's first. --phase: for what"),
    ] = None,
    phase: Annotated[
        str | None,
        Option(help="Hold the rule against the program as it is after this phase of the compiler."),
    ] = None,
    pipeline: Annotated[
        str | None, Option("--pipeline", "-p", help="--phase: a pipeline's name or file.")
    ] = None,
    driver: Annotated[
        str | None, Option(help="saturate: the chain of rules to the cheapest program instead.")
    ] = None,
    limit: Annotated[int, Option(min=1, help="Show so many different answers.")] = 20,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """For each op that the rule could start at: whether it applies, or the line that says no.

    The op at which the rule comes nearest to applying stands first. Ops with the same answer are
    shown once, with their number. A config rule is held against the dispatches that the compiler
    makes of the program. With --driver saturate: the steps from the program to the cheapest one
    that a set of rules comes to, with the ops of each before and after.
    """
    from mlirules.drivers.apply.programs import parsed, read_program
    from mlirules.drivers.pipelines.transform import engine_for
    from mlirules.drivers.prove.verdicts import badge
    from mlirules.drivers.quality.explain import diagnoses

    if driver is not None:
        if driver != "saturate" or phase is not None or pipeline is not None or at is not None:
            raise BadParameter("--driver saturate is all that goes here, with a set and a model")
        chain.explain(rule, model, target or "cpu", limit, as_json)
        return
    config = _config(rule)
    if config is not None:
        _explain_config(config, model, target, at, limit, as_json)
        return
    if phase is None and (target is not None or pipeline is not None):
        raise BadParameter("--target is for config rules, and like --pipeline for --phase")
    chosen = _rule(rule)
    text = read_program(model)
    if phase is not None:
        text = _reached(text, model, phase, target, pipeline)
        model = Path(f"{model} after {phase}")
    module = parsed(text, str(model))
    matcher = engine_for([chosen]).matchers[chosen.name]
    wanted = None if at is None else (lambda op: _fits(place(op, model), at))
    found = diagnoses(matcher, module, wanted)
    for diagnosis in found:
        for refusal in diagnosis.refusals:
            if refusal.error is not None:
                raise refusal.error
    if as_json:
        say_json([as_data(diagnosis, model) for diagnosis in found])
        return
    if not found:
        warn(f"{model} holds no op at {at}")
        return
    proof = badge(chosen)
    if proof is not None:
        out.print(Text(f"{chosen.name}: {proof}", style="dim"), soft_wrap=True)
    groups = grouped(found)
    lines = text.split("\n")
    for group in groups[:limit]:
        _show(chosen, group, model, lines)
    if len(groups) > limit:
        more = sum(map(len, groups[limit:]))
        out.print(Text(f"... {more} more ops, with {len(groups) - limit} more answers (--limit)"))


def _reached(text: str, model: Path, phase: str, target: str | None, pipeline: str | None) -> str:
    """The program as the pipeline's stages for a phase find it."""
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, Recipe, program_at

    line = None if pipeline is None else Pipeline.load(pipeline)
    chosen = Target.parse(target or (line.targets[0] if line else "cpu"))
    return program_at(Recipe(text, chosen, line, str(model)), phase, before=True)


def _rule(name: str) -> Rule:
    """A rule by file, or by name in the shipped library."""
    from mlirules.drivers.pipelines.transform import rule_set
    from mlirules.language.rulefiles import LIBRARY, asked_for, rule_files

    if Path(name).is_file() or (LIBRARY / f"{name}.yaml").is_file():
        return _only(rule_set((name,)))
    if Path(name).parent.is_dir() and "/" in name:  # a member of a family, as FOLDER/MEMBER
        with contextlib.suppress(MlirulesError):
            if asked_for(name, rule_files(name)) is not None:
                return rule_set((name,))[0]
    # Files are named for their op, rules for what they do: the text is quicker than the model.
    files = rule_files(LIBRARY)
    for file in files:
        if f"\nrule: {name}\n" in "\n" + file.read_text(encoding="utf-8"):
            return _only(rule_set((str(file),)))
    shipped = {rule.name: rule for rule in rule_set((str(LIBRARY),))}
    if name in shipped:  # one of several in its file
        return shipped[name]
    known = list(shipped)
    raise MlirulesError(
        Fault(
            Span(name),
            "no-rule",
            "is neither a rule file nor a shipped rule",
            did_you_mean(name, known),
        )
    )


def _only(rules: Sequence[Rule]) -> Rule:
    """The rule of a file; of a family somebody must say which."""
    if len(rules) == 1:
        return rules[0]
    names = ", ".join(rule.name for rule in rules)
    folder = Path(rules[0].path).parent
    raise MlirulesError(
        Fault(
            rules[0].span,
            "several-rules",
            f"the file holds {len(rules)} rules: {names}",
            f"say which: `mlirules explain {folder / rules[0].name} MODEL`",
        )
    )


def _config(name: str) -> Path | None:
    """The file of a config rule, by path or by the name of a shipped one; None for another rule."""
    from mlirules.language.rulefiles import LIBRARY, holds_config

    files = [Path(name), LIBRARY / f"{name}.yaml", LIBRARY / "configs" / f"{name}.yaml"]
    return next((f for f in files if f.is_file() and holds_config(f)), None)


def _explain_config(
    file: Path, model: Path, target: str | None, at: str | None, limit: int, as_json: bool
) -> None:
    from mlirules.drivers.apply.programs import read_program
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.tuning_specs.compile import config_set
    from mlirules.drivers.tuning_specs.explain import diagnoses

    (rule,) = config_set([file])
    chosen = Target.parse(target or rule.doc.targets[0])
    found = diagnoses(rule, read_program(model), chosen, path=str(model))
    if at is not None:
        found = [d for d in found if at in d.op.dispatch]
    if as_json:
        say_json(
            [
                {
                    "dispatch": d.op.dispatch,
                    "op": d.op.op,
                    "operands": d.op.shape,
                    "applies": d.refusal is None,
                    "target": str(chosen),
                    "line": d.refusal and d.refusal.part,
                    "place": d.fault and str(d.fault.span),
                    "message": d.refusal and d.refusal.message,
                }
                for d in found
            ]
        )
        return
    if not found:
        where = f" at {at}" if at else ""
        warn(f"{model} gives no dispatch that the compiler configures{where}")
    for d in found[:limit]:
        out.print(Text(f"{d.op.dispatch}: {d.op.op} of {d.op.shape}", style="bold"), soft_wrap=True)
        if d.fault is None:
            out.print(Text(f"  {rule.name} is for this op on {chosen}", style="green"))
            continue
        for line in d.fault.render().splitlines():
            out.print(Text("  " + line), soft_wrap=True)


def place(op: Op | Spot, path: Path) -> str:
    """Where an op (or its Spot) stands in the program: ``FILE:LINE:COLUMN``."""
    from mlirules.drivers.apply.programs import located

    shown = str(op.location).removeprefix("loc(").removesuffix(")").replace('"', "")
    return located(shown, str(path))


def _fits(where: str, wanted: str) -> bool:
    """Whether a place is the wanted one: ``LINE``, ``LINE:COLUMN``, ``FILE:LINE``, or all of it."""
    return f":{wanted}:" in f":{where}:"


def grouped(found: list[Diagnosis]) -> list[list[Diagnosis]]:
    """Diagnoses with the same answer together, in the order of their first."""
    groups: dict[tuple[tuple[int, str], ...], list[Diagnosis]] = {}
    for diagnosis in found:
        key = tuple((id(r.line), r.message) for r in diagnosis.refusals)
        groups.setdefault(key, []).append(diagnosis)
    return list(groups.values())


def as_data(diagnosis: Diagnosis, model: Path) -> dict[str, object]:
    """A diagnosis as plain data. The first refusal also stands at the top level."""
    op = diagnosis.op
    data: dict[str, object] = {
        "location": None if op is None else place(op, model),
        "op": None if op is None else op.name,
        "applies": diagnosis.applies,
        "passed": diagnosis.passed,
        "total": diagnosis.total,
    }
    refusals: list[dict[str, object]] = [
        {
            "line": None if r.line is None else str(r.line),
            "place": None if r.line is None else str(r.line.span),
            "message": r.message,
            "expected": r.expected,
            "found": r.found,
            "at": None if r.at is None else place(r.at, model),
        }
        for r in diagnosis.refusals
    ]
    return {**data, **(refusals[0] if refusals else {}), "refusals": refusals}


def shown(spot: Spot, lines: list[str]) -> str:
    """An op in one line: as the program's text has it, where its location leads there."""
    found = re.search(r'"-":(\d+):\d+', spot.location)
    at = int(found[1]) - 1 if found else -1
    if 0 <= at < len(lines) and spot.name.rpartition(".")[2] in lines[at]:
        return lines[at].strip()[:200]
    return spot.text[:200]


def _show(rule: Rule, group: list[Diagnosis], model: Path, lines: list[str]) -> None:
    from mlirules.drivers.match.results import Spot

    first = group[0]
    if isinstance(first.op, Spot):
        line = f"{place(first.op, model)}: {shown(first.op, lines)}"
        out.print(Text(line, style="bold"), soft_wrap=True)
    else:
        out.print(Text(str(model), style="bold"), soft_wrap=True)
    if first.applies:
        out.print(Text(f"  {rule.name} applies here", style="green"))
    else:
        show_refusals(rule, first, model, lines)
    if len(group) > 1:
        others = [d.op for d in group[1:4] if d.op is not None]
        places = ", ".join(place(op, model).rpartition("/")[2] for op in others)
        more = f", and {len(group) - 4} more" if len(group) > 4 else ""
        out.print(Text(f"  the same at {len(group) - 1} more: {places}{more}"), soft_wrap=True)


def show_refusals(
    rule: Rule,
    diagnosis: Diagnosis,
    model: Path,
    lines: list[str],
    console: Printer | None = None,
) -> None:
    """The reasons of one diagnosis: the first in full, those beside it in a line each."""
    from mlirules.drivers.match.results import Spot

    printer = console or out
    first, *rest = diagnosis.refusals
    for line in first.fault(rule).render().splitlines():
        printer.print(Text("  " + line), soft_wrap=True)
    if first.expected and first.found:
        printer.print(
            Text(f"      = expected {first.expected}; found {first.found}"), soft_wrap=True
        )
    if isinstance(first.at, Spot) and first.at != diagnosis.op:
        printer.print(
            Text(f"      = there: {place(first.at, model)}: {shown(first.at, lines)}"),
            soft_wrap=True,
        )
    for other in rest:
        fault = other.fault(rule)
        printer.print(Text(f"  also {fault.span}: {fault.message}"), soft_wrap=True)
    if not rest and diagnosis.passed:
        printer.print(
            Text(
                f"  the only reason: {diagnosis.passed} of {diagnosis.total} parts of the rule hold"
            ),
            soft_wrap=True,
        )


def show_why_not(reasons: list[WhyNot], model: Path, text: str) -> None:
    """The report of ``apply --why-not``, on stderr: a rule each, the nearest first."""
    from mlirules.drivers.match.results import Spot

    lines = text.split("\n")
    present = [(r, r.nearest) for r in reasons if r.nearest is not None]
    for reason, nearest in present:
        rule, spot = reason.rule, nearest.op
        assert isinstance(spot, Spot)  # reasons are settled
        applied = f", applied {reason.applied} times" if reason.applied else ""
        ops = f"{reason.candidates} op{'s' * (reason.candidates != 1)}"
        err.print(Text(f"{rule.name}: {ops} left alone{applied}; the nearest:", style="bold"))
        where = "in the result" if reason.made else place(spot, model)
        op = shown(spot, [] if reason.made else lines)
        err.print(Text(f"  {where}: {op}"), soft_wrap=True)
        if nearest.applies:
            others = ", ".join(reason.taken)
            err.print(Text(f"  it fits here, but {others or 'another rule'} goes first"))
        else:
            show_refusals(rule, nearest, model, lines, err)
    if absent := len(reasons) - len(present):
        err.print(f"{absent} more rules start at ops that the program does not hold")


def why_not_data(reasons: list[WhyNot], model: Path) -> list[dict[str, object]]:
    """The report of ``apply --why-not`` as plain data."""
    return [
        {
            "rule": r.rule.name,
            "candidates": r.candidates,
            "applied": r.applied,
            "made": r.made,
            "taken": r.taken,
            "nearest": None if r.nearest is None else as_data(r.nearest, model),
        }
        for r in reasons
    ]
