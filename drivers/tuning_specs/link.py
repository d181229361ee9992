"""Linking several specs and rule sets into one spec, nothing of them lost.

Entries that rules can say are ordered by what they mean. Others are carried through as they stand,
with all that they use; a spec whose entry point does more than try entries goes through the
compiler's own linker, as a module beside the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.tuning_specs.check import Kept, Source
from mlirules.drivers.tuning_specs.overlap import Overlap, overlaps
from mlirules.drivers.tuning_specs.steps import symbol_of
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.generator.render import render
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import Fault, MlirulesError, did_you_mean


@dataclass
class Linked:
    """Several sources as one list of entries, in the order in which they are tried."""

    rules: list[ConfigRule]
    overlaps: list[Overlap]
    #: Rules left out because an earlier one takes every op they are for.
    dropped: list[tuple[ConfigRule, ConfigRule]] = field(default_factory=list)
    #: The sources in order, with what is kept of each among its rules.
    groups: list[list[ConfigRule | Kept]] = field(default_factory=list)
    #: Sources that change nothing.
    empty: list[str] = field(default_factory=list)

    @property
    def kept(self) -> list[Kept]:
        """What is carried through as it stands."""
        return [one for group in self.groups for one in group if isinstance(one, Kept)]


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
    special case before the general one. What is kept as it stands stays where it is among the
    rules of its source.

    Raises :class:`MlirulesError` with every such pair.
    """
    groups = _grouped(sources, _named_apart(sources))
    if precedence == "last":
        groups.reverse()
    rules = [r for group in groups for r in group if isinstance(r, ConfigRule)]
    known = [rule.name for rule in rules]
    for name in prefer:
        if name not in known:
            raise MlirulesError.at(
                "--prefer",
                f"there is no rule {name!r}",
                code="prefer",
                suggestion=did_you_mean(name, known),
            )
    first = [next(r for r in rules if r.name == name) for name in dict.fromkeys(prefer)]
    if first:
        names = {r.name for r in first}
        rest = [[r for r in g if isinstance(r, Kept) or r.name not in names] for g in groups]
        groups = [[*first], *rest]
    rules = [r for group in groups for r in group if isinstance(r, ConfigRule)]
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
    return Linked(
        [r for r in rules if r.name not in dropped],
        [o for o in found if o.second.name not in dropped],
        [*dropped.values()],
        [[r for r in g if isinstance(r, Kept) or r.name not in dropped] for g in groups],
        [s.path for s in sources if not s.rules and not s.kept],
    )


def _grouped(
    sources: Sequence[Source], rules: Sequence[ConfigRule]
) -> list[list[ConfigRule | Kept]]:
    out, at = [], 0
    for source in sources:
        group: list[ConfigRule | Kept] = list(rules[at : at + len(source.rules)])
        for kept in reversed(source.kept):
            group.insert(kept.before, kept)
        out.append(group)
        at += len(source.rules)
    return out


def _named_apart(sources: Sequence[Source]) -> list[ConfigRule]:
    """All rules; where two have one name, the later one gets a number: entries need their own."""
    taken = {rule.name for source in sources for rule in source.rules}
    used: set[str] = set()
    counts: dict[str, int] = {}
    out = []
    for source in sources:
        for rule in source.rules:
            name = rule.name
            while name in used or (name != rule.name and name in taken):
                counts[rule.name] = counts.get(rule.name, 1) + 1
                name = f"{rule.name}-{counts[rule.name]}"
            used.add(name)
            if name != rule.name:
                rule = replace(rule, doc=rule.doc.model_copy(update={"rule": name}))
            out.append(rule)
    return out


def linked_text(linked: Linked, target: str | None, name: str = "linked_configs") -> str:
    """The linked spec. Raises :class:`MlirulesError` when its rules are for several kinds."""
    kinds = sorted(set().union(*(rule.kinds for rule in linked.rules)))
    if target is None and len(kinds) > 1:
        raise MlirulesError.at(
            "--target",
            f"the rules are for {', '.join(kinds)}; a spec is for one kind",
            code="target",
            suggestion=f"for example --target {kinds[0]}",
        )
    kind = target.partition(":")[0] if target else (kinds or ["cpu"])[0]
    if any(one.entry is None for one in linked.kept):
        return _noted(linked, *_by_compiler(linked, kind))
    entries = [entry for group in linked.groups for entry in group]
    text = _noted(linked, tuning.tuning_spec(_written(entries), name=name, kind=kind))
    if linked.kept:
        compiler.parse(text, "the linked spec")
    return text


def _noted(linked: Linked, spec: str, count: int = 0) -> str:
    """A spec with what became of the entries; ``count``: so many specs the compiler linked."""
    return render(
        "linked-spec.mlir.j2",
        overlaps=linked.overlaps,
        dropped=linked.dropped,
        empty=linked.empty,
        count=count,
        spec=spec,
    )


def _by_compiler(linked: Linked, kind: str) -> tuple[str, int]:
    """The sources as modules of one, linked by the compiler, and how many these are."""
    modules: list[str] = []
    for group in linked.groups:
        gathered: list[ConfigRule | Kept] = []
        for one in [*group, None]:
            if one is not None and not (isinstance(one, Kept) and one.entry is None):
                gathered.append(one)
                continue
            if gathered:
                name = f"spec_{len(modules)}"
                text = tuning.tuning_spec(_written(gathered), name=name, kind=kind)
                modules.append(text)
                gathered = []
            if one is not None:
                modules.append(_module(one, f"spec_{len(modules)}"))
    module = compiler.parse(render("specs-to-link.mlir.j2", modules=modules), "the linked spec")
    compiler.run_passes(module, "builtin.module(iree-codegen-link-tuning-specs)")
    return str(module), len(modules)


def _module(kept: Kept, name: str) -> str:
    """A part of a spec as a module of its own."""
    text = str(kept.part.module.get_asm(use_local_scope=True))
    named = re.match(r'module(?: @(?:"[^"]*"|[\w.$-]+))?', text)
    assert named is not None
    return f"// As it stands in {kept.span}.\nmodule @{name}{text[named.end() :]}\n"


def _written(entries: Sequence[ConfigRule | Kept]) -> list[ConfigRule | tuning.Verbatim]:
    """Entries as they are written: kept ones with all that they use, each under a name of its own.

    What several of them use is written once.
    """
    taken = {tuning.ENTRY}
    for entry in entries:
        if isinstance(entry, ConfigRule):
            taken |= set(tuning.matchers(entry))
    out: list[ConfigRule | tuning.Verbatim] = []
    copies: dict[ir.Operation, _Copies] = {}
    for entry in entries:
        if isinstance(entry, ConfigRule):
            out.append(entry)
            continue
        assert entry.entry is not None
        symbols = entry.entry.symbols
        copy = copies.setdefault(symbols.module, _Copies(symbols.own, taken))
        texts = copy.take([entry.entry.matcher, entry.entry.action])
        out.append(
            tuning.Verbatim(
                copy.names[entry.entry.matcher],
                copy.names[entry.entry.action],
                "\n".join(texts),
                str(entry.span),
            )
        )
    return out


class _Copies:
    """Symbols of a module, copied into a spec under names that are free there."""

    def __init__(self, own: dict[str, ir.Operation], taken: set[str]) -> None:
        self.own = own
        self.taken = taken
        self.names: dict[str, str] = {}

    def take(self, wanted: Sequence[str]) -> list[str]:
        """The text of symbols and of all that they use, what was taken before left out."""
        found: dict[str, ir.Operation] = {}
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            if name in found or name in self.names or name not in self.own:
                continue
            found[name] = self.own[name]
            waiting += sorted(_uses(self.own[name]))
        for name in found:
            fresh, number = name, 0
            while fresh in self.taken or re.match(r"apply(_decomposed)?_config", fresh):
                number += 1
                fresh = f"{name}_kept{number}"
            self.taken.add(fresh)
            self.names[name] = fresh
        return [self.renamed(op) for op in found.values()]

    def renamed(self, op: ir.Operation) -> str:
        """An op as text, with the new names of the symbols that it defines and uses."""
        copy = op.clone().operation
        table = ir.SymbolTable
        changes = {n: self.names[n] for n in {*_uses(op), symbol_of(op)} if n in self.names}
        # In two steps, so that a new name that was another's old one is not renamed again.
        for step, (old, new) in enumerate(changes.items()):
            self.rename(table, copy, old, f"__mlirules_{step}__")
            changes[old] = new
        for step, new in enumerate(changes.values()):
            self.rename(table, copy, f"__mlirules_{step}__", new)
        text = str(copy.get_asm(use_local_scope=True))
        return "\n".join("  " + line for line in text.split("\n"))

    @staticmethod
    def rename(table: type[ir.SymbolTable], op: ir.Operation, old: str, new: str) -> None:
        """Give a symbol another name inside an op."""
        if symbol_of(op) == old:
            op.attributes["sym_name"] = ir.StringAttr.get(new, op.context)
        table.replace_all_symbol_uses(old, new, op)


# The bindings do not go over what an attribute is made of.
_REFERENCE = re.compile(r'@(?:"([^"]*)"|([\w.$-]+))')


def _uses(op: ir.Operation) -> set[str]:
    """The symbols that an op refers to, and those that the ops inside of it do."""
    found: set[str] = set()
    for inner in (op, *ops_below(op)):
        for key, value in inner.attributes.items():
            if key == "sym_name" or isinstance(value, ir.StringAttr):
                continue
            found |= {m[1] or m[2] for m in _REFERENCE.finditer(str(value))}
    return found
