"""Compiling with config rules, and proving that each took effect.

The spec goes in by the hook that works on the target. The compiler then says nothing about what
matched, and its remark that a strategy was applied appears in any case; so the configurations that
it chose are dumped, and every op that a rule is for must carry the rule's marker and the very
configuration that the rule sets.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree import target_facts as targetfacts
from mlirules.drivers.iree.compiler import CompileError, Job, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import Steps, flattened
from mlirules.drivers.tuning_specs.dag import Parsed
from mlirules.drivers.tuning_specs.match import refusal
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.config.op import ConfigRule
from mlirules.language.config_loader import load_configs
from mlirules.language.faults import CheckFailed, Fault, MlirulesError, Span

DUMP = "--iree-hal-dump-executable-configurations-to"


class NotApplied(CheckFailed):
    """A config rule that should have taken effect did not, or not as it is written."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(f.render() for f in faults))
        self.faults = list(faults)


@dataclass(frozen=True)
class ConfiguredOp:
    """An op as the compiler configured it."""

    dispatch: str  # the function that holds it
    op: str
    marker: str  # the config rule that hit it; empty: none
    lowering_config: str  # empty: none
    translation_info: str  # of the function
    decomposition_config: str
    shape: str  # operand types, as written in the dump
    operation: ir.Operation = field(repr=False, compare=False)


@dataclass
class Hit:
    """An entry that took effect: checked marker and configuration."""

    rule: ConfigRule
    op: ConfiguredOp


@dataclass
class ConfigReport:
    """What config rules did to a program."""

    hits: list[Hit] = field(default_factory=list)
    #: Rules for the target that no op of the program is for.
    unused: list[ConfigRule] = field(default_factory=list)
    ops: list[ConfiguredOp] = field(default_factory=list)
    spec: str = ""
    #: What else was done for the rules' sake, for people.
    notes: list[str] = field(default_factory=list)
    #: What the operations live in: without it they would dangle.
    modules: list[ir.Module] = field(default_factory=list, repr=False)

    def count(self, name: str) -> int:
        """How many ops a rule configured."""
        return sum(hit.rule.name == name for hit in self.hits)


def config_set(paths: Sequence[str | Path]) -> list[ConfigRule]:
    """Config rules by name or path, checked against what their targets can do.

    Raises :class:`MlirulesError`, also for what cannot be matched by the compiler's means.
    """
    rules = load_configs(paths, facts=targetfacts.facts)
    faults = [fault for rule in rules for fault in unmatchable(rule)]
    if faults:
        raise MlirulesError(faults)
    return rules


def unmatchable(rule: ConfigRule) -> list[Fault]:
    """Why no entry can be written for a rule; empty when one can."""
    try:
        tuning.matchers(rule)
    except MlirulesError as error:
        return error.faults
    return []


def hook(target: Target, spec: str | Path) -> str:
    """The flag by which a spec takes effect on a target."""
    return tuning.hook(target.kind, spec)


def for_target(rules: Sequence[ConfigRule], target: Target) -> list[ConfigRule]:
    """The rules that are for a target. Raises MlirulesError when none is."""
    fitting = [rule for rule in rules if rule.fits(target.name)]
    if rules and not fitting:
        listed = sorted({t for rule in rules for t in rule.doc.targets})
        raise MlirulesError(
            Fault(
                rules[0].source.span_at(("targets",)),
                "target",
                f"none of the {len(rules)} config rules is for {target}",
                "they are for " + ", ".join(listed),
            )
        )
    return fitting


#: Products are packed before configurations are chosen: what a rule sets is left on the function,
#: with the op gone that it is for, and compiling fails.
DATA_TILING = frozenset(
    {
        "--iree-opt-data-tiling",
        "--iree-dispatch-creation-data-tiling",
        "--iree-global-opt-data-tiling",
    }
)


def packs(rules: Sequence[ConfigRule], target: Target, flags: Sequence[str]) -> list[str]:
    """The flags that would pack the products which ``rules`` configure."""
    products = any(r.match.op == "contraction" for r in rules if r.fits(target.name))
    if target.kind != "cpu" or not products:
        return []
    return [f for f in flags if f.removesuffix("=true") in DATA_TILING]


def compile_with(
    text: str, job: Job | Target, rules: Sequence[ConfigRule]
) -> tuple[bytes, ConfigReport]:
    """Compile a program with config rules; they are tried in order, and the first that fits wins.

    Raises :class:`NotApplied` when an op that a rule is for did not get its configuration,
    :class:`MlirulesError` when no rule is for the target, and CompileError, located in the rule
    when its configuration does not compile.
    """
    job = Job.of(job)
    chosen = for_target(rules, job.target)
    with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
        extra, spec, dump = _prepared(chosen, job.target, Path(folder))
        try:
            binary = compiler.compile_job(text, replace(job, flags=(*job.flags, *extra)))
        except CompileError as error:
            raise _blamed(error, chosen, dump, job.flags) from error
        report = prove(dump, chosen, job.target)
    report.spec = spec
    return binary, report


def configure(text: str, job: Job | Target, rules: Sequence[ConfigRule] = ()) -> ConfigReport:
    """Like :func:`compile_with`, but only as far as configurations are chosen; quick."""
    job = Job.of(job)
    chosen = for_target(rules, job.target)
    with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
        extra, spec, dump = _prepared(chosen, job.target, Path(folder))
        asked = replace(job, flags=(*job.flags, *extra))
        compiler.lower_to(text, asked, "executable-configurations")
        report = prove(dump, chosen, job.target)
    report.spec = spec
    return report


def _prepared(
    rules: Sequence[ConfigRule], target: Target, folder: Path
) -> tuple[list[str], str, Path]:
    dump = folder / "configurations"
    flags = [f"{DUMP}={dump}"]
    if not rules:
        return flags, "", dump
    text = tuning.tuning_spec(rules, kind=target.kind)
    spec = folder / "spec.mlir"
    spec.write_text(text, encoding="utf-8")
    return [*flags, hook(target, spec)], text, dump


# ---- the proof -----------------------------------------------------------------------------


def dumped(folder: Path, context: ir.Context) -> Iterator[tuple[list[ConfiguredOp], ir.Module]]:
    """The ops of every dumped file that compute something, with the module that owns them."""
    for file in sorted(folder.glob("*.mlir")) if folder.is_dir() else ():
        module = compiler.parse(file.read_text(encoding="utf-8"), file.name, context)
        yield list(flattened(_ops(module.operation, "", ""))), module


def _ops(operation: ir.Operation, dispatch: str, info: str) -> Steps:
    for region in operation.regions:
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                attributes = op.attributes
                if op.name == "func.func":
                    name = str(attributes["sym_name"]).strip('"')
                    known = "translation_info" in attributes
                    found = str(attributes["translation_info"]) if known else ""
                    yield _ops(op, name, found)
                    continue
                if dispatch and op.name.startswith(("linalg.", "iree_linalg_ext.")):
                    yield ConfiguredOp(
                        dispatch,
                        op.name,
                        _text(op, tuning.MARKER).strip('"'),
                        _text(op, "lowering_config"),
                        info,
                        _text(op, "decomposition_config"),
                        ", ".join(str(v.type) for v in op.operands),
                        op,
                    )
                    continue  # what stands in its body is no work of its own
                if len(op.regions):
                    yield _ops(op, dispatch, info)


def _text(op: ir.Operation, key: str) -> str:
    return str(op.attributes[key]) if key in op.attributes else ""


def prove(folder: Path, rules: Sequence[ConfigRule], target: Target) -> ConfigReport:
    """Hold the dumped configurations against the rules. Raises :class:`NotApplied`."""
    context = compiler.context()
    report = ConfigReport()
    parsed = Parsed(context)
    faults: list[Fault] = []
    for ops, module in dumped(folder, context):
        report.modules.append(module)
        for op in ops:
            report.ops.append(op)
            due = next((r for r in rules if refusal(r, op.operation, parsed) is None), None)
            hit = next((r for r in rules if r.name == op.marker), None)
            if hit is not None:
                problems = list(_differences(hit, op, target, context))
                if due is not None and hit is not due:
                    problems.append(f"the rule {due.name} stands before it and is for this op")
                elif due is None:
                    refused = refusal(hit, op.operation, parsed)
                    said = refused.message if refused else ""
                    problems.append(f"the rule is not for this op: {said}")
                if not problems:
                    report.hits.append(Hit(hit, op))
                faults += [_fault(hit, op, p) for p in problems]
            elif due is not None:
                config = op.lowering_config or "none"
                spelt = (
                    "; its body computes the same in another spelling, which the compiler does not "
                    "recognise"
                    if due.match.op == "generic"
                    else ""
                )
                faults.append(
                    _fault(
                        due,
                        op,
                        f"the entry did not hit this op, which it is for{spelt}; its "
                        f"configuration is {config}",
                    )
                )
    if faults:
        raise NotApplied(faults)
    report.unused = [r for r in rules if not report.count(r.name)]
    return report


class NothingHit(NotApplied):
    """None of the config rules found an op."""


def nothing_hit(rules: Sequence[ConfigRule], left_out: Sequence[str], path: str) -> NothingHit:
    """The error of config rules none of which found an op: all they do is to cost flags."""
    cost = f", and the program would go without {', '.join(left_out)} for it" if left_out else ""
    return NothingHit(
        [
            Fault(
                rule.span,
                "not-applied",
                f"the config rule {rule.name} finds no op in the program{cost}",
                f"`mlirules explain {rule.path} {path}` says what each op has instead",
            )
            for rule in rules
        ]
    )


def _fault(rule: ConfigRule, op: ConfiguredOp, message: str) -> Fault:
    return Fault(rule.span, "not-applied", f"in {op.dispatch}, {op.op} of {op.shape}: {message}")


def _differences(
    rule: ConfigRule, op: ConfiguredOp, target: Target, context: ir.Context
) -> Iterator[str]:
    wanted = [
        ("lowering config", tuning.lowering_config(rule, target.kind), op.lowering_config),
        (
            "translation info",
            tuning.translation_info(rule.settings, target.kind),
            op.translation_info,
        ),
    ]
    for name, text in tuning.extra_attributes(rule).items():
        wanted.append((name, text or "unit", _text(op.operation, name)))
    parts = tuning.decomposition_config(rule, target.kind)
    if parts:
        wanted.append(("decomposition config", parts, op.decomposition_config))
    for what, want, have in wanted:
        if not have:
            yield f"the marker is there, but no {what}"
        elif ir.Attribute.parse(want, context) != ir.Attribute.parse(have, context):
            yield f"the {what} is {have}, not {want}"


_DUMPED = re.compile(r"configured_[\w.$-]+\.mlir")


CPU = Target("cpu")


def _blamed(
    error: CompileError, rules: Sequence[ConfigRule], dump: Path, flags: Sequence[str]
) -> CompileError:
    """The error, moved to the rules whose configurations it is about."""
    packing = "data tiling packs the op before its configuration takes effect"
    markers = re.compile(rf'{re.escape(tuning.MARKER)} = "([\w-]+)"')
    faults = []
    for fault in error.faults:
        name = os.path.basename(fault.span.path)  # noqa: PTH119
        file = dump / name
        named: list[ConfigRule] = []
        if _DUMPED.fullmatch(name) and file.is_file():
            found = set(markers.findall(file.read_text(encoding="utf-8")))
            named = [r for r in rules if r.name in found]
        if (
            not named
            and "failed to build pass pipeline" in fault.message
            and packs(rules, CPU, flags)
        ):
            products = [r for r in rules if packs([r], CPU, flags)]
            faults += [
                Fault(
                    r.source.span_at(("set",), key=True),
                    "config-packed",
                    f"{packing} ({', '.join(packs(rules, CPU, flags))})",
                    "compile without that flag, or leave the rule out",
                )
                for r in products
            ]
            continue
        if not named:
            faults.append(replace(fault, span=_outside(fault.span, dump)))
        for rule in named:
            dispatch = name.removeprefix("configured_").removesuffix(".mlir")
            faults.append(
                Fault(
                    rule.source.span_at(("set",), key=True),
                    "config-fails",
                    f"the configuration does not compile, in {dispatch}: {fault.message}",
                    fault.suggestion,
                )
            )
    return CompileError(error.kind, error.stderr, list(dict.fromkeys(faults)), error.op)


def _outside(span: Span, dump: Path) -> Span:
    """A place without the temporary folder, which is gone when it is read."""
    if str(dump.parent) in span.path:
        return replace(span, path=Path(span.path).name)
    return span
