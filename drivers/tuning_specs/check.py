"""Checking tuning specs beyond what the compiler does.

The compiler accepts many specs that do nothing or the wrong thing. A spec is therefore read back
into config rules, whose checks find its faults at their places in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlirules.drivers.iree import bytecode, compiler
from mlirules.drivers.iree import target_facts as targetfacts
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.tuning_specs.compile import config_set
from mlirules.drivers.tuning_specs.importer import Imported, import_entries
from mlirules.drivers.tuning_specs.overlap import overlaps, relation
from mlirules.drivers.tuning_specs.reader import (
    DEFAULT_ENTRY,
    ENTRY,
    Part,
    Spec,
    SpecEntry,
    read_spec,
)
from mlirules.drivers.tuning_specs.settings import UPGRADE
from mlirules.drivers.tuning_specs.upgrade import needs_upgrade
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.rulefiles import rule_files


@dataclass
class Kept:
    """What no rule can say: an entry, or a part of a spec whose entry point does more."""

    part: Part
    entry: SpecEntry | None  # None: the whole part
    before: int  # how many rules of the source stand before it
    span: Span


@dataclass
class Source:
    """A spec or a set of config rules, as rules."""

    path: str
    rules: list[ConfigRule] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Why entries could not be read, where that is no fault of theirs; `link` keeps them.
    unread: list[Fault] = field(default_factory=list)
    #: What is kept as it stands.
    kept: list[Kept] = field(default_factory=list)
    #: How many entries there are, those that are no rules among them.
    entries: int = 0
    #: What the spec was read from; None for rules.
    spec: Spec | None = field(default=None, repr=False)

    @property
    def errors(self) -> list[Fault]:
        """The faults that make it unfit."""
        return [f for f in self.faults if f.severity == "error"]


def is_spec(path: str | Path) -> bool:
    """Whether a path names a spec in MLIR rather than config rules in YAML."""
    return Path(path).suffix in (".mlir", ".mlirbc")


def spec_files(path: str) -> list[str]:
    """The spec files that a path names: itself, or those of a folder without rules; else none."""
    if is_spec(path):
        return [path]
    folder = Path(path)
    if not folder.is_dir() or any(folder.rglob("*.yaml")):
        return []
    return sorted(str(file) for file in folder.rglob("*.mlir*") if is_spec(file))


def load_sources(path: str, *, target: str | None = None) -> list[Source]:
    """What a path names, a folder of specs one by one."""
    files = spec_files(path)
    return [load_source(file, target=target) for file in files or [path]]


def load_source(path: str, *, target: str | None = None) -> Source:
    """A ``.mlir`` spec, or config rules by file, folder or shipped name, with all its faults."""
    if target is not None:
        Target.parse(target)
    if is_spec(path):
        return check_spec(path, target=target)
    made = Source(path)
    try:
        rule_files(path)  # a name that leads nowhere is said once, not for each rule
        made.rules = config_set([path])
    except MlirulesError as error:
        made.faults = error.faults
        return made
    if target is not None:
        kept = [rule for rule in made.rules if rule.fits(target)]
        if not kept:
            made.faults.append(
                Fault(
                    made.rules[0].source.span_at(("targets",)),
                    "target",
                    f"no rule of {path} is for {target}",
                )
            )
        made.rules = kept
    made.entries = len(made.rules)
    return made


def spec_text(path: str) -> str:
    """The text of a spec; bytecode as the compiler spells it.

    Raises :class:`MlirulesError` for a file that cannot be read.
    """
    try:
        data = Path(path).read_bytes()
        if data.startswith(BYTECODE):
            return str(bytecode.parse(data, compiler.context())) + "\n"
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError, compiler.ir.MLIRError) as error:
        reason = error.strerror if isinstance(error, OSError) else "neither UTF-8 text nor bytecode"
        raise MlirulesError(Fault(Span(path), "file", f"cannot be read: {reason}")) from None


#: What MLIR bytecode begins with.
BYTECODE = b"ML\xefR"


def check_spec(path: str, text: str | None = None, *, target: str | None = None) -> Source:
    """Read and check one ``.mlir`` spec; without ``target`` its kind is told from its attributes.

    An entry that can never hit because an earlier one takes its ops is a fault, too.
    """
    made = Source(path)
    try:
        text = text if text is not None else spec_text(path)
        spec = read_spec(text, path)
    except MlirulesError as error:
        made.faults = [_explained(f) for f in error.faults]
        if text is not None and not made.faults[0].suggestion and needs_upgrade(text):
            made.faults[0] = replace(made.faults[0], suggestion=UPGRADE)
        return made
    made.spec = spec
    made.entries = len(spec.entries)
    made.faults += _structure(spec)
    imported = {
        id(one.entry): one for one in import_entries(spec, target=target, facts=targetfacts.facts)
    }
    for part in spec.parts:
        for unread in part.whole:
            fault = Fault(
                spec.span(unread.offset),
                "spec-entry",
                f"{unread.what}: the entry point does more than try entries",
                "`spec link` keeps the whole spec as it stands",
            )
            made.unread.append(fault)
            made.faults.append(replace(fault, severity="warning"))
        if part.whole:
            made.kept.append(Kept(part, None, len(made.rules), spec.span(part.offset)))
        for entry in part.entries:
            one = imported[id(entry)]
            found = list(_entry_faults(spec, one, target))
            kept = bool(found) and all(map(_is_unread, (f for f in found if f.severity == "error")))
            for fault in found:
                if _is_unread(fault):
                    made.unread.append(fault)
                    fault = replace(
                        fault,
                        severity="warning",
                        message=fault.message + "; the entry is not checked",
                    )
                made.faults.append(fault)
            if one.rule is not None:
                if not part.whole:
                    made.rules.append(one.rule)
            elif kept and not part.whole:
                made.kept.append(Kept(part, entry, len(made.rules), spec.span(entry.offset)))
    uses = {one.rule.name: one.entry.use for one in imported.values() if one.rule is not None}
    for overlap in overlaps(made.rules):
        made.faults.append(
            Fault(
                spec.span(uses[overlap.second.name]),
                "overlap",
                overlap.message
                + (
                    ""
                    if overlap.agrees
                    else "; they set different configurations, and only the first takes effect"
                ),
                "keep one of them, or make their sizes exclude each other",
                # A special case before the general one is meant; the other way round it is lost.
                "error" if overlap.dead and not overlap.agrees else "warning",
            )
        )
    made.faults = sorted(
        dict.fromkeys(made.faults), key=lambda f: (f.span.line, f.span.column, f.code)
    )
    return made


def _is_unread(fault: Fault) -> bool:
    """Whether a fault says that an entry cannot be a rule, not that it is wrong."""
    return fault.code in ("spec-op", "round-trip") or (
        fault.code == "no-config" and not fault.suggestion.startswith("did you mean")
    )


#: What the compiler says of a spec's form, and what to do about it.
_HINTS = {
    "Missing named sequence '__kernel_config'": "name the entry sequence @__kernel_config",
    "Missing attribute 'iree_codegen.tuning_spec_entrypoint'": (
        f"write `attributes {{ {ENTRY} }}` after @__kernel_config's types"
    ),
    "must contain exactly two operations": "leave only foreach_match and yield in the entry point",
    "Must return one 'any_op'": "return the result of foreach_match: -> !transform.any_op",
    "unresolved matcher symbol": "define the named sequence, or mend its name",
    "unresolved action symbol": "define the named sequence, or mend its name",
    "mismatching number of matcher results": "let the matcher yield what the action takes",
    "does not expect matcher symbol to consume": "write {transform.readonly} in the matcher",
    "LoweringPipeline to be one of": "name one of these",
    "with_named_sequence": "write `attributes { transform.with_named_sequence }` on the module",
}


def _explained(fault: Fault) -> Fault:
    """A fault of the compiler's, with a suggestion where its meaning is known."""
    for said, hint in _HINTS.items():
        if said in fault.message and not fault.suggestion:
            return replace(fault, suggestion=hint)
    return fault


def _structure(spec: Spec) -> list[Fault]:
    if not spec.parts:
        return [_no_entry(spec)]
    faults = []
    for part in spec.parts:
        if not part.declared:
            faults.append(
                Fault(
                    spec.span(part.offset),
                    "no-entry",
                    f"@{part.entry} has no attribute {ENTRY}: as a tuning "
                    "spec it would be refused; only as a transform library it is run",
                    f"write `attributes {{ {ENTRY} }}` on the entry sequence",
                    "error" if part.strict else "warning",
                )
            )
        elif not part.strict and not part.empty:
            faults.append(
                Fault(
                    spec.span(part.offset),
                    "not-strict",
                    f"the module has no {DEFAULT_ENTRY}, so the form of @{part.entry} is not "
                    "verified",
                    f"add {DEFAULT_ENTRY} to the module's attributes",
                    "warning",
                )
            )
        if part.empty:
            faults.append(
                Fault(
                    spec.span(part.offset),
                    "no-entries",
                    f"@{part.entry} tries no entry: this changes nothing",
                    "a placeholder; leave it out",
                    "warning",
                )
            )
    return faults


def _no_entry(spec: Spec) -> Fault:
    held = {op.name for op in ops_below(spec.module.operation)}
    if any(name.startswith("pdl.") for name in held):
        return Fault(
            Span(spec.path, 1, 1),
            "no-spec",
            "it holds PDL patterns, which are no tuning spec",
            "iree-compile takes them by --iree-preprocessing-pdl-spec-filename",
        )
    if "transform.named_sequence" in held:
        return Fault(
            Span(spec.path, 1, 1),
            "no-entry",
            f"no named sequence has the attribute {ENTRY}, and none tries entries: as a tuning "
            "spec it would be refused",
            f"write `attributes {{ {ENTRY} }}` on the entry sequence",
        )
    return Fault(
        Span(spec.path, 1, 1),
        "no-spec",
        "it holds no named sequence: this is no tuning spec",
        "a program is what `spec coverage` and `spec diff` take",
    )


def _entry_faults(spec: Spec, one: Imported, target: str | None) -> list[Fault]:
    entry = one.entry
    faults = list(one.faults)
    if entry.consumes:
        faults.append(
            Fault(
                spec.span(entry.offset),
                "consumes",
                f"@{entry.matcher} consumes its operand: foreach_match refuses it at use",
                "write {transform.readonly}",
            )
        )
    if not entry.asks.guarded:
        faults.append(
            Fault(
                spec.span(entry.offset),
                "no-guard",
                f"@{entry.matcher} does not ask for "
                "has_no_lowering_config: which of several specs wins then depends on how they "
                "are included",
                "begin it with transform.iree.match.has_no_lowering_config",
                "warning",
            )
        )
    for name in entry.asks.names:
        if not compiler.is_registered_op(name):
            faults.append(
                Fault(
                    spec.span(entry.asks.root),
                    "never-matches",
                    f"there is no op {name!r}",
                    compiler.op_suggestion(name),
                )
            )
        elif name == "iree_linalg_ext.attention":
            faults.append(
                Fault(
                    spec.span(entry.asks.root),
                    "never-matches",
                    "attention is iree_linalg_ext.online_attention by the time configurations "
                    "are chosen: this can never match",
                    "name that op",
                )
            )
        elif name.startswith("linalg.") and name != "linalg.generic" and _for_gpu(one, target):
            faults.append(
                Fault(
                    spec.span(entry.asks.root),
                    "never-matches",
                    f"on this target a {name} is a linalg.generic by the time configurations "
                    "are chosen: this can never match",
                    "use transform.iree.match.contraction or .convolution",
                )
            )
    return faults


def _for_gpu(one: Imported, target: str | None) -> bool:
    """Whether an entry is for a target on which products are generics by then."""
    if target is not None:
        return target.partition(":")[0] != "cpu"
    config = one.entry.config
    lowering = config.get("lowering_config") if config is not None else None
    return lowering is not None and lowering.tag in (
        "iree_gpu.lowering_config",
        "iree_codegen.lowering_config",
    )


def round_trip(rules: Sequence[ConfigRule]) -> list[Fault]:
    """Rules whose generated entries do not mean what the rules mean; a fault each."""
    faults = []
    for kind in sorted(set().union(*(rule.kinds for rule in rules))):
        chosen = [rule for rule in rules if kind in rule.kinds and rule.match.op != "generic"]
        if not chosen:
            continue
        spec = read_spec(tuning.tuning_spec(chosen, kind=kind), "<generated>")
        for rule, back in zip(
            chosen, import_entries(spec, target=chosen[0].doc.targets[0]), strict=True
        ):
            if (
                back.rule is None
                or relation(rule, back.rule) != "same"
                or any(
                    attributes(rule, kind) != attributes(back.rule, kind)
                    for attributes in (tuning.compilation_info, tuning.decomposition_config)
                )
            ):
                faults.append(
                    Fault(
                        rule.span,
                        "round-trip",
                        f"{rule.name}: the entry made from the rule "
                        "does not read back as the same rule",
                    )
                )
    return faults
