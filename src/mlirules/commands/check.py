"""``mlirules check``: every fault of rule files and pipelines, located, without applying them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mlirules.commands import verdicts
from mlirules.commands.common import Json, TrustNative, out, progress, say_json, split
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import (
    EXIT_CHECK_FAILED,
    EXIT_INPUT_WRONG,
    Fault,
    MlirulesError,
)

if TYPE_CHECKING:
    from mlirules.language.rule import Rule
    from mlirules.language.source import SourceFile

EXAMPLE = "mlirules check torch/to-linalg my-rules/"


def command(
    paths: Annotated[
        list[str] | None,
        Argument(
            help="Rule files, folders, shipped rule sets or pipeline files; "
            "default: all that ships."
        ),
    ] = None,
    alone: Annotated[
        bool, Option("--alone", help="Leave out what concerns rules taken together.")
    ] = False,
    against: Annotated[
        list[str] | None,
        Option(help="Rule sets that the rules run beside: says which of yours never get a turn."),
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help="Exit with 1 when there is a warning.")
    ] = False,
    prove: Annotated[
        bool, Option("--prove", help="Prove the rules, too (see `mlirules prove`).")
    ] = False,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Check rules and pipelines: schema, notation, types, op names, the tests' MLIR, the PDLL.

    Rules that stand without a fault are looked at together: shadowed ones, overlaps of equal
    benefit, loops, conditions that can never hold, attributes that the compiler does not have.
    Those are warnings, each with a program. Sizes that coincide in all tests, and tests that
    compare no numbers, are remarks. With --prove a rule that is refuted is a fault, one that is not
    proven a remark. Exits with 2 when there is a fault.
    """
    name = None if against else verdicts.key(paths or [], alone=alone)
    known = None if name is None else verdicts.kept(name)
    faults, files = _check(paths or [], alone) if known is None else known
    if name is not None and known is None:
        verdicts.keep(name, faults, files)
    if against and not any(fault.severity == "error" for fault in faults):
        faults += _against(paths or [], split(against))
    if prove and not any(fault.severity == "error" for fault in faults):
        from mlirules.commands import prove as proofs
        from mlirules.language.rulefiles import LIBRARY

        faults += proofs.faults(paths or [str(LIBRARY)])
    found = [fault for fault in faults if fault.severity != "note"]
    remarks = len(faults) - len(found)
    if as_json:
        say_json({"files": files, "faults": [fault.as_json() for fault in faults]})
    elif faults:
        for fault in faults:
            out.print(fault.render() + "\n", markup=False, highlight=False, soft_wrap=True)
    if not as_json:
        _sum_up(found, remarks, files)
    if any(fault.severity == "error" for fault in found):
        raise Exit(EXIT_INPUT_WRONG)
    if found and strict:
        raise Exit(EXIT_CHECK_FAILED)


def _sum_up(found: list[Fault], remarks: int, files: int) -> None:
    also = f"; {remarks} remarks" if remarks else ""
    if not found:
        out.print(f"{files} files, no faults{also}", style="green", highlight=False)
        return
    bad = len({fault.span.path for fault in found})
    warnings = sum(fault.severity == "warning" for fault in found)
    style = "red" if warnings < len(found) else "yellow"
    beside = f", {warnings} of them warnings" if warnings else ""
    out.print(
        f"{len(found)} faults in {bad} of {files} files{beside}{also}",
        style=style,
        highlight=False,
    )


def _against(paths: list[str], others: list[str]) -> list[Fault]:
    """Rules that do not apply to their own tests' programs beside the rules of other sets."""
    from mlirules.drivers.iree import compiler
    from mlirules.drivers.quality.remarks import shadowed_by
    from mlirules.language.loader import kind_of, load_rules

    mine = [file for file, source in _files(paths)[0].items() if kind_of(source) != "config"]
    if not mine:
        return []
    beside = load_rules(others, ops=compiler.op_oracle)
    return shadowed_by(load_rules(mine, ops=compiler.op_oracle), beside)


def _check(paths: list[str], alone: bool) -> tuple[list[Fault], int]:
    from mlirules.drivers.quality.check import check_source
    from mlirules.drivers.quality.stages import pipeline_faults
    from mlirules.language.loader import kind_of
    from mlirules.language.pipeline import PIPELINES
    from mlirules.language.rulefiles import LIBRARY

    rules, pipelines, faults = _files(paths or [str(LIBRARY), str(PIPELINES)])
    count = len(rules) + len(pipelines) + len({fault.span.path for fault in faults})
    rewriting: dict[Path, list[Rule]] = {}
    with progress("checking", len(rules) + len(pipelines)) as step:
        for file, source in rules.items():
            step(file.stem)
            said, held = check_source(source)
            faults += said
            if held:
                rewriting[file] = held
        for file in pipelines:
            step(file.stem)
            faults += pipeline_faults(file)
    if not alone:
        configs = [file for file, source in rules.items() if kind_of(source) == "config"]
        faults += _unconfigured(configs, _wrong(faults))
    # What one file cannot say keeps nothing from being told of the others.
    wrong = _wrong(faults)
    rewriting = {file: held for file, held in rewriting.items() if str(file) not in wrong}
    if rewriting:
        rules_by_file, said = _as_one_set(rewriting)
        faults += said
        if not alone and not said:
            faults += _untrue(rules_by_file)
            if not _wrong(faults):
                faults += _together(paths, rules_by_file)
    return faults, count


def _wrong(faults: list[Fault]) -> set[str]:
    return {fault.span.path for fault in faults if fault.severity == "error"}


def _unconfigured(files: list[Path], wrong: set[str]) -> list[Fault]:
    """What config rules of the user's own do not do to their own tests' programs."""
    from mlirules.drivers.quality.config_test import run_config_test
    from mlirules.drivers.tuning_specs.compile import config_set
    from mlirules.language import consent

    own = [str(file) for file in files if str(file) not in wrong and not consent.ships(file)]
    return [
        fault
        for rule in (config_set(own) if own else ())
        for test in rule.tests
        for fault in run_config_test(rule, test, devices=[], compiled=False).faults
    ]


def _untrue(read: Mapping[Path, Sequence[Rule]]) -> list[Fault]:
    """What rules do not do to their own tests' programs; those that ship are tested before that."""
    from mlirules.drivers.quality.remarks import untrue
    from mlirules.language import consent

    own = [rule for file, rules in read.items() if not consent.ships(file) for rule in rules]
    for order, rule in enumerate(own):
        rule.order = order
    return [fault for rule in own for fault in untrue(rule)]


def _files(paths: list[str]) -> tuple[dict[Path, SourceFile], list[Path], list[Fault]]:
    """The files of rules, read, those of pipelines, and the faults of what cannot be read."""
    from mlirules.language.reading import load_yaml
    from mlirules.language.rulefiles import rule_files

    rules: dict[Path, SourceFile] = {}
    pipelines: dict[Path, None] = {}
    faults: list[Fault] = []
    for file in dict.fromkeys(f for path in paths for f in rule_files(path, pipelines=True)):
        try:
            source = load_yaml(file)
        except MlirulesError as error:
            faults += error.faults
            continue
        data = source.data
        if isinstance(data, dict) and "pipeline" in data and "rule" not in data:
            pipelines[file] = None
        else:
            rules[file] = source
    return rules, list(pipelines), faults


def _together(paths: list[str], read: Mapping[Path, Sequence[Rule]]) -> list[Fault]:
    """Findings about the rules of each set: those of one stage of a pipeline stand together."""
    from mlirules.drivers.apply.engine import chosen
    from mlirules.drivers.quality.analysis import analyse
    from mlirules.language.pipeline import PIPELINES, Pipeline
    from mlirules.language.rulefiles import LIBRARY, rule_files

    known = {rule.name: rule for rules in read.values() for rule in rules}
    weighed: set[tuple[str, ...]] = set()
    wanted: set[tuple[str, ...]] = set()
    for pipeline in sorted(PIPELINES.glob("*.yaml")):
        for stage in Pipeline.load(pipeline).stages:
            files = dict.fromkeys(f for name in stage.rules for f in rule_files(name))
            rules = [rule for file in files for rule in read.get(file, ())]
            names = tuple(rule.name for rule in chosen(rules, stage.only, stage.skip))
            (weighed if stage.driver in ("cost", "saturate") else wanted).add(names)
    weighed -= wanted
    # A stage that another one holds as well says nothing new.
    sets = sorted(s for s in wanted if s and not any(set(s) < set(other) for other in wanted))
    costs = sorted(s for s in weighed if s)
    staged = {name for s in (*sets, *costs) for name in s}
    left: dict[object, dict[str, None]] = {}
    for path in paths or [str(LIBRARY)]:
        for file in rule_files(path):
            for rule in read.get(file, ()):
                if rule.name not in staged:
                    inside = file.is_relative_to(LIBRARY)
                    key = file.relative_to(LIBRARY).parts[:2] if inside else path
                    left.setdefault(key, {})[rule.name] = None
    found: list[Fault] = []
    for group in (*sets, *left.values()):
        found += analyse(_in_order(known, group))
    for group in costs:
        # Of rules that match at one op the cost driver takes the cheapest, whatever the order, and
        # saturation takes all.
        about = analyse(_in_order(known, group))
        found += [fault for fault in about if fault.code != "overlap"]
    return list(dict.fromkeys(found))


def _as_one_set(
    given: Mapping[Path, Sequence[Rule]],
) -> tuple[dict[Path, list[Rule]], list[Fault]]:
    """The rules of files without a fault as one set, and the faults of all of them together.

    Those are names that stand twice, and PDLL that does not compile.
    """
    from mlirules.generator.emit import pdll
    from mlirules.language.loader import join

    known: dict[str, Rule] = {}
    twice = [f for file, rules in given.items() for rule in rules for f in join(known, rule, file)]
    read: dict[Path, list[Rule]] = {}
    for rule in known.values():
        read.setdefault(Path(rule.path), []).append(rule)
    if twice:
        return read, twice
    try:
        pdll.compile_pdll(pdll.pdll(list(known.values())))
    except MlirulesError as error:
        return read, error.faults
    return read, []


def _in_order(known: Mapping[str, Rule], names: Iterable[str]) -> list[Rule]:
    """The rules of these names as one set, in their order."""
    rules = [known[name] for name in names]
    for order, rule in enumerate(rules):
        rule.order = order
    return rules
