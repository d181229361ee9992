"""Checking tuning specs beyond what the compiler does, and linking several into one.

The compiler accepts many specs that do nothing or the wrong thing. A spec is therefore read back
into config rules, whose checks find its faults at their places in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree import target_facts as targetfacts
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning_specs.compile import config_set
from mlirules.drivers.tuning_specs.importer import Imported, import_entries
from mlirules.drivers.tuning_specs.overlap import Overlap, overlaps, relation
from mlirules.drivers.tuning_specs.reader import DEFAULT_ENTRY, ENTRY, Spec, read_spec
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.config.rule import ConfigRule
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.loader import rule_files


@dataclass
class Source:
    """A spec or a set of config rules, as rules."""

    path: str
    rules: list[ConfigRule] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Why entries could not be read, where that is no fault of theirs.
    unread: list[Fault] = field(default_factory=list)

    @property
    def errors(self) -> list[Fault]:
        """The faults that make it unfit."""
        return [f for f in self.faults if f.severity == "error"]


@dataclass
class Linked:
    """Several sources as one list of rules, in the order in which they are tried."""

    rules: list[ConfigRule]
    overlaps: list[Overlap]
    #: Rules left out because an earlier one takes every op they are for.
    dropped: list[tuple[ConfigRule, ConfigRule]] = field(default_factory=list)


def is_spec(path: str | Path) -> bool:
    """Whether a path names a spec in MLIR rather than config rules in YAML."""
    return Path(path).suffix in (".mlir", ".mlirbc")


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
    return made


def check_spec(path: str, text: str | None = None, *, target: str | None = None) -> Source:
    """Read and check one ``.mlir`` spec; without ``target`` its kind is told from its attributes.

    An entry that can never hit because an earlier one takes its ops is a fault, too.
    """
    made = Source(path)
    try:
        text = text if text is not None else Path(path).read_text(encoding="utf-8")
        spec = read_spec(text, path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        made.faults = [Fault(Span(path), "file", f"cannot be read: {reason}")]
        return made
    except MlirulesError as error:
        made.faults = [_explained(f) for f in error.faults]
        return made
    made.faults += _structure(spec)
    imported = import_entries(spec, target=target, facts=targetfacts.facts)
    for one in imported:
        for fault in _entry_faults(spec, one):
            if fault.code == "spec-op":  # the compiler may well understand it
                made.unread.append(fault)
                fault = replace(
                    fault, severity="warning", message=fault.message + "; the entry is not checked"
                )
            made.faults.append(fault)
        if one.rule is not None:
            made.rules.append(one.rule)
    uses = {one.rule.name: one.entry.use for one in imported if one.rule is not None}
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
    faults = []
    if not spec.entry_points:
        at = spec.text.find("@__kernel_config")
        line = spec.span(max(at, 0))
        faults.append(
            Fault(
                line,
                "no-entry",
                f"no named sequence has the attribute {ENTRY}: as a tuning "
                "spec it would be refused; only as a transform library it is run",
                f"write `attributes {{ {ENTRY} }}` on the entry sequence",
                "error" if spec.strict or at < 0 else "warning",
            )
        )
    elif not spec.strict:
        name, at = spec.entry_points[0]
        faults.append(
            Fault(
                spec.span(at),
                "not-strict",
                f"the module has no {DEFAULT_ENTRY}, so the form of @{name} is not verified",
                f"add {DEFAULT_ENTRY} to the module's attributes",
                "warning",
            )
        )
    if not spec.entries and not faults:
        faults.append(Fault(Span(spec.path, 1, 1), "no-entries", "no foreach_match has an entry"))
    return faults


def _entry_faults(spec: Spec, one: Imported) -> list[Fault]:
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
    if not entry.guarded:
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
    for name in entry.names:
        if not compiler.is_registered_op(name):
            faults.append(
                Fault(
                    spec.span(entry.root),
                    "never-matches",
                    f"there is no op {name!r}",
                    compiler.op_suggestion(name),
                )
            )
        elif name == "iree_linalg_ext.attention":
            faults.append(
                Fault(
                    spec.span(entry.root),
                    "never-matches",
                    "attention is iree_linalg_ext.online_attention by the time configurations "
                    "are chosen: this can never match",
                    "name that op",
                )
            )
        elif name.startswith("linalg.") and name != "linalg.generic" and not _for_cpu(one):
            faults.append(
                Fault(
                    spec.span(entry.root),
                    "never-matches",
                    f"on this target a {name} is a linalg.generic by the time configurations "
                    "are chosen: this can never match",
                    "use transform.iree.match.contraction or .convolution",
                )
            )
    return faults


def _for_cpu(one: Imported) -> bool:
    config = one.entry.config
    lowering = config.get("lowering_config") if config is not None else None
    return lowering is not None and lowering.tag == "iree_cpu.lowering_config"


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


def link(
    sources: Sequence[Source],
    *,
    precedence: str | None = None,
    prefer: Sequence[str] = (),
) -> Linked:
    """Rules of several sources in one order.

    ``precedence`` is ``first`` or ``last``: whose rule wins where two are for the same op.
    ``prefer`` names rules that win over all others, in order. Without either, rules that are for
    the same op and set different configurations are refused, unless they stand in one spec, the
    special case before the general one.

    Raises :class:`MlirulesError` with every such pair.
    """
    rules = _named_apart(sources)
    if precedence == "last":
        rules = [r for source in reversed(_grouped(sources, rules)) for r in source]
    known = [rule.name for rule in rules]
    for name in prefer:
        if name not in known:
            raise MlirulesError.at(
                "--prefer",
                f"there is no rule {name!r}",
                code="prefer",
                suggestion=did_you_mean(name, known),
            )
    rules = sorted(rules, key=lambda r: prefer.index(r.name) if r.name in prefer else len(prefer))
    found = overlaps(rules)
    open_ones = [
        o
        for o in found
        if not o.agrees
        and precedence is None
        and o.first.name not in prefer
        and (o.dead or o.first.path != o.second.path)  # in one spec their order is said
    ]
    if open_ones:
        raise MlirulesError(
            [
                Fault(
                    o.second.span,
                    "overlap",
                    f"{o.message}; they set different configurations",
                    f"say which wins: --precedence first (or last), or --prefer {o.first.name}",
                )
                for o in open_ones
            ]
        )
    dropped: dict[str, tuple[ConfigRule, ConfigRule]] = {}
    for overlap in found:
        if overlap.dead and overlap.first.name not in dropped:
            dropped.setdefault(overlap.second.name, (overlap.second, overlap.first))
    kept = [r for r in rules if r.name not in dropped]
    return Linked(kept, [o for o in found if o.second.name not in dropped], [*dropped.values()])


def _grouped(sources: Sequence[Source], rules: Sequence[ConfigRule]) -> list[list[ConfigRule]]:
    out, at = [], 0
    for source in sources:
        out.append(list(rules[at : at + len(source.rules)]))
        at += len(source.rules)
    return out


def _named_apart(sources: Sequence[Source]) -> list[ConfigRule]:
    """All rules; where two have one name, the later one gets its number: entries need their own."""
    taken: dict[str, int] = {}
    out = []
    for source in sources:
        for rule in source.rules:
            count = taken[rule.name] = taken.get(rule.name, 0) + 1
            if count > 1:
                doc = rule.doc.model_copy(update={"rule": f"{rule.name}-{count}"})
                rule = replace(rule, doc=doc)
            out.append(rule)
    return out


def linked_text(linked: Linked, target: str | None, name: str = "linked_configs") -> str:
    """The linked spec. Raises :class:`MlirulesError` when its rules are for several kinds."""
    kinds = sorted(set().union(*(rule.kinds for rule in linked.rules)))
    kind = target.partition(":")[0] if target else kinds[0]
    if target is None and len(kinds) > 1:
        raise MlirulesError.at(
            "--target",
            f"the rules are for {', '.join(kinds)}; a spec is for one kind",
            code="target",
            suggestion=f"for example --target {kinds[0]}",
        )
    text = tuning.tuning_spec(linked.rules, name=name, kind=kind)
    notes = [
        f"// {o.first.name} wins over {o.second.name} where both match: {o.example}"
        for o in linked.overlaps
    ]
    notes += [
        f"// {lost.name} is left out: {won.name} takes every op that it is for"
        for lost, won in linked.dropped
    ]
    return "".join(note + "\n" for note in notes) + text
