"""Entries of a tuning spec as config rules: what they match and set, with the same meaning.

The rule that is made points into the spec, so that every check of config rules finds the faults of
specs as well, each at its place in the ``.mlir`` file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.iree import compiler
from mlirules.drivers.tuning_specs.attributes import Attr
from mlirules.drivers.tuning_specs.maps import first_use, groups, indices, loop_names, steps
from mlirules.drivers.tuning_specs.reader import Limit, Spec, SpecEntry
from mlirules.drivers.tuning_specs.settings import SettingsReader
from mlirules.drivers.tuning_specs.sizes import Limits
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.config.op import ConfigRule, TargetOracle
from mlirules.language.config_loader import config_of
from mlirules.language.faults import Fault, MlirulesError, did_you_mean
from mlirules.language.source import SourceFile
from mlirules.language.typetexts import builtin_type

#: Loops of named ops, which a spec may match by name alone.
NAMED_LOOPS = {
    "linalg.matmul": 3,
    "linalg.batch_matmul": 4,
    "linalg.matvec": 2,
    "linalg.vecmat": 2,
    "linalg.batch_matvec": 3,
    "linalg.batch_vecmat": 3,
    "linalg.mmt4d": 6,
    "linalg.batch_mmt4d": 7,
    "linalg.conv_2d_nhwc_hwcf": 7,
    "linalg.conv_2d_nchw_fchw": 7,
    "linalg.depthwise_conv_2d_nhwc_hwc": 6,
    "linalg.pooling_nhwc_sum": 6,
    "linalg.pooling_nhwc_max": 6,
    "linalg.pooling_nchw_sum": 6,
    "linalg.pooling_nchw_max": 6,
}

#: Ops that the compiler takes in a matcher when it reads a spec, and refuses when it uses it.
NOT_IN_MATCHERS = frozenset(
    {
        "transform.annotate",
        "transform.get_consumers_of_result",
        "transform.get_result",
        "transform.select",
        "transform.structured.match",
        "transform.verify",
    }
)


@dataclass
class Imported:
    """An entry as a rule; ``rule`` is None when it cannot be one, and ``faults`` say why."""

    entry: SpecEntry
    rule: ConfigRule | None = None
    faults: list[Fault] = field(default_factory=list)


def import_entries(
    spec: Spec, *, target: str | None = None, facts: TargetOracle | None = None
) -> list[Imported]:
    """Each entry of a spec as a checked config rule, or the faults that prevent it.

    ``target`` is what the spec is for; without it the kind is told from its attributes.
    """
    out = []
    taken: dict[str, int] = {}
    for entry in spec.entries:
        maker = _Maker(spec, entry, target)
        made = Imported(entry)
        try:
            source = maker.source(_rule_name(entry.rule or entry.matcher, taken))
            if source is not None:
                made.rule = config_of(source, facts=facts, tests=False)
                maker.faults += _differences(spec, entry, made.rule)
        except MlirulesError as error:
            maker.faults += error.faults
        made.faults = list(dict.fromkeys(maker.faults))
        if made.faults:
            made.rule = None
        out.append(made)
    return out


def _differences(spec: Spec, entry: SpecEntry, rule: ConfigRule) -> Iterator[Fault]:
    """Where the attributes that a rule sets are not those of the entry it was made from."""
    kind = min(rule.kinds)
    context = spec.module.context
    pairs = [("compilation info", tuning.compilation_info(rule, kind), entry.config_value)]
    if entry.decomposition_value is not None:
        pairs.append(
            (
                "decomposition config",
                tuning.decomposition_config(rule, kind),
                entry.decomposition_value,
            )
        )
    for what, made, original in pairs:
        if compiler.ir.Attribute.parse(made, context) != original:
            yield Fault(
                spec.span(entry.offset),
                "round-trip",
                f"the rule would set another {what}: {' '.join(made.split())}",
                "this entry cannot be said as a config rule",
            )


def _rule_name(matcher: str, taken: dict[str, int]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", matcher.removeprefix("match_").lower()).strip("-") or "entry"
    name = name[:90].strip("-")
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}-{taken[name]}"


class _Maker(SettingsReader):
    """Builds the rule: what is matched."""

    def source(self, name: str) -> SourceFile | None:
        """The rule as a file's plain data, whose places are the spec's; None with its faults."""
        entry, asks = self.entry, self.asks
        self.mark((), entry.offset)
        for path in (("rule",), ("tests",), ("match",), ("targets",), ("targets", 0)):
            self.mark(path, entry.offset)
        self.mark(("match", "op"), asks.root or entry.offset)
        self.data = {
            "rule": name,
            "kind": "config",
            "summary": f"What @{entry.matcher} of {self.spec.path} matches.",
            "reason": f"It stands in {self.spec.path}.",
        }
        for one in entry.kept:
            if one.what in NOT_IN_MATCHERS and one in asks.unread:
                self.fault(
                    one.offset,
                    "matcher-op",
                    f"{one.what} in a matcher: foreach_match refuses it at use",
                    "ask for operands (transform.get_operand), types and sizes",
                )
                continue
            self.fault(
                one.offset,
                "spec-op",
                f"{one.what} is nothing that a config rule can say",
                "a rule asks for a class of op, element types, sizes and types, and sets "
                "attributes of the op; `spec link` keeps the entry as it stands",
            )
        if entry.config is None:
            known = ("compilation_info", "decomposition_config")
            near = [did_you_mean(name, known) for name in entry.does.annotations]
            self.fault(
                entry.use,
                "no-config",
                f"@{entry.matcher} sets no compilation_info",
                next(filter(None, near), "")
                or f"yield one, and annotate the op with it in @{entry.action}",
            )
        if self.faults or entry.config is None:
            return None
        self.match(entry.config)
        if not self.faults:
            self.settings(entry.config)
        if self.faults:
            return None
        if not asks.guarded:
            self.data["match"]["configured"] = True
        self.data["tests"] = []
        self.made.data = self.data
        return self.made

    # -- what is matched

    def match(self, config: Attr) -> None:
        """The `match:` of the rule."""
        entry, asks = self.entry, self.asks
        match asks.op_class:
            case "operation":
                if not self.by_mask():
                    self.by_name(config)
            case "contraction" | "convolution" | "attention":
                self.by_maps()
                if asks.names and "match" in self.data:
                    self.named()
            case "plain-attention":
                self.fault(
                    asks.root,
                    "never-matches",
                    "attention is iree_linalg_ext.online_attention by the time "
                    "configurations are chosen: this can never match",
                    "use transform.iree.match.online_attention",
                )
            case _:
                self.fault(
                    entry.offset,
                    "spec-op",
                    f"@{entry.matcher} does not say which op it is for",
                    "begin with transform.iree.match.contraction, .convolution, "
                    ".online_attention or transform.match.operation_name",
                )

    def one_name(self) -> str | None:
        """The op's name; None, with a fault, where the matcher takes several."""
        if len(self.asks.names) == 1:
            return self.asks.names[0]
        self.fault(
            self.asks.root,
            "spec-op",
            "several op names in one matcher",
            "write one matcher for each",
        )
        return None

    def named(self) -> None:
        """An op's name beside its class."""
        name = self.one_name()
        if name is not None:
            self.data["match"]["name"] = name
            self.mark(("match", "name"), self.asks.root)

    def by_mask(self) -> bool:
        """An attention with a mask: no matcher tells its maps, so its operands' types have to do.

        Read with the order that attentions have: batch, then queries, keys or values, then width.
        False when the entry is something else.
        """
        types = {limit.operand: limit.type for limit in self.asks.limits if limit.type}
        read = {i: builtin_type(text) for i, text in types.items()}
        # Of sizes nothing is asked.
        found = {i: t for i, t in read.items() if t is not None and t.sizes and not any(t.sizes)}
        if self.asks.names != ["iree_linalg_ext.online_attention"] or set(types) != {
            *tuning.MASKED,
            7,
        }:
            return False
        shapes = {i: len(t.sizes) for i, t in found.items()}
        rank = shapes.get(0, 0)
        if not 2 <= rank <= 4 or shapes != {**dict.fromkeys(tuning.MASKED, rank), 7: rank - 1}:
            return False
        batch = [["b", "h"], ["b"], []][4 - rank]
        own = {"q": "md", "k": "sd", "v": "sn", "w": "ms", "o": "mn"}
        sides = {role: [*batch, *names] for role, names in own.items()}
        reads = [f"{role}[{', '.join(names)}]" for role, names in sides.items()]
        self.loops = [*batch, "m", "n", "d", "s"]
        elements = {i: t.element for i, t in found.items()}
        named = dict(zip("qkvwo", (elements[i] for i in (*tuning.MASKED, 7)), strict=True))
        compute = f"{reads[4]} = attention({', '.join(reads[:4])})"
        self.data["match"] = {"op": "attention", "compute": compute, "types": named}
        for key in ("compute", "types", *(f"types.{role}" for role in named)):
            self.mark(("match", *key.split(".")), self.asks.root)
        if self.loops != first_use(compute, self.loops):
            self.data["match"]["loops"] = list(self.loops)
            self.mark(("match", "loops"), self.asks.root)
        limits = Limits(self)
        roles = dict(zip((*tuning.MASKED, 5), "qkvwo", strict=True))
        for limit in self.asks.limits:
            role = roles.get(limit.operand)
            if limit.type:
                continue
            if role is None or (limit.dim or 0) >= rank:
                self.never(limit, f"operand {limit.operand} has no dim {limit.dim}")
            else:
                limits.add(
                    sides[role][limit.dim or 0], limit.offset, limit.low, limit.high, limit.multiple
                )
        dims = limits.as_data()
        if dims:
            self.data["match"]["dims"] = dims
        self.masked = True
        return True

    def by_name(self, config: Attr) -> None:
        """An op by its name, the types of its operands, and what leads to it."""
        asks = self.asks
        name = self.one_name()
        if name is None:
            return
        rank = asks.loops or NAMED_LOOPS.get(name) or self.rank(config)
        self.loops = [f"d{i}" for i in range(rank)]
        types: list[str | None] = []
        limits: list[dict[str, int]] = []
        for limit in asks.limits:
            if not limit.type:
                low = {"min": limit.low, "max": limit.high, "multiple_of": limit.multiple}
                given = {k: v for k, v in low.items() if v is not None}
                self.mark(("match", "limits", len(limits)), limit.offset)
                limits.append({"operand": limit.operand, "dim": limit.dim or 0, **given})
                continue
            types += [None] * (limit.operand + 1 - len(types))
            if types[limit.operand] not in (None, limit.type):
                self.fault(
                    limit.offset,
                    "spec-op",
                    f"operand {limit.operand} is asked to be {types[limit.operand]} as well",
                    "ask for its type once",
                )
            types[limit.operand] = limit.type
            self.mark(("match", "operands", limit.operand), limit.offset)
        self.mark(("match", "name"), asks.root)
        self.mark(("match", "loops"), asks.root)
        self.data["match"] = {"op": "operation", "name": name, "loops": list(self.loops)}
        if types:
            self.data["match"]["operands"] = types
        if limits:
            self.data["match"]["limits"] = limits
        if asks.program:
            self.data["match"]["program"] = asks.program
            self.mark(("match", "program"), asks.root)

    def rank(self, config: Attr) -> int:
        """The number of loops, by the longest tile list."""
        lowering = config.get("lowering_config")
        lists = [a.numbers() for a in lowering.walk()] if lowering is not None else []
        return max([len(n) for n in lists if n], default=1)

    def by_maps(self) -> None:
        """An op by its class and maps."""
        if not self.asks.maps:
            self.fault(
                self.asks.root,
                "no-maps",
                "the matcher does not say which indexing maps",
                "without them tile lists have no dims: give indexing_maps",
            )
            return
        wanted = {"attention": 7}.get(self.asks.op_class, 3)
        if len(self.asks.maps) != wanted:
            self.fault(
                self.asks.root,
                "never-matches",
                f"{len(self.asks.maps)} indexing maps; this op has {wanted}",
            )
            return
        names = loop_names(self.asks.op_class, self.asks.maps)
        if names is None:
            self.fault(
                self.asks.root,
                "never-matches",
                f"these maps are no {self.asks.op_class}: this can never match",
            )
            return
        self.loops = names
        roles = {"attention": ("q", "k", "v", "o")}.get(self.asks.op_class, ("a", "b", "c"))
        kept = [0, 1, 2, 4] if self.asks.op_class == "attention" else [0, 1, 2]
        sides = {
            role: indices(self.asks.maps[i], names) for role, i in zip(roles, kept, strict=True)
        }
        reads = [f"{role}[{', '.join(items)}]" for role, items in sides.items()]
        if self.asks.op_class == "attention":
            compute = f"{reads[3]} = attention({', '.join(reads[:3])})"
        else:
            compute = f"{reads[2]} += {reads[0]} * {reads[1]}"
        types = list(self.asks.types.values())
        if self.asks.op_class == "attention":
            query, key, value, scale, output, largest, total = types
            named = dict(zip(roles, (query, key, value, output), strict=True))
            extra = {"scale": (scale, query), "max": (largest, output), "sum": (total, output)}
            named.update({k: have for k, (have, usual) in extra.items() if have != usual})
        else:
            named = dict(zip(roles, types, strict=True))
        self.data["match"] = {"op": self.asks.op_class, "compute": compute, "types": named}
        self.mark(("match", "compute"), self.asks.root)
        for role in named:
            self.mark(("match", "types", role), self.asks.root)
        if names != first_use(compute, names):
            self.data["match"]["loops"] = list(names)
            self.mark(("match", "loops"), self.asks.root)
        self.dims(sides, roles, named)

    def dims(
        self, sides: dict[str, list[str]], roles: Sequence[str], types: dict[str, str]
    ) -> None:
        """Sizes of the loops, from all conditions."""
        limits = Limits(self)
        named = groups(self.asks.op_class, self.asks.maps, self.loops)
        for group, sizes, at in self.asks.sizes:
            if self.asks.op_class == "convolution" and group >= len(named):
                self.steps(group - len(named), sizes, at)
                continue
            loops = named[group] if group < len(named) else []
            if len(loops) != len(sizes):
                self.fault(
                    at,
                    "never-matches",
                    f"{len(sizes)} sizes for {len(loops)} dims: this can never match",
                )
                continue
            for loop, size in zip(loops, sizes, strict=True):
                if size != -1:  # any size
                    limits.add(loop, at, size, size)
        position = {3: None, 4: 3} if self.asks.op_class == "attention" else {}
        for limit in self.asks.limits:
            place = position.get(limit.operand, limit.operand)
            if place is None or place >= len(roles):
                self.fault(
                    limit.offset,
                    "never-matches",
                    f"the op's operand {limit.operand} has no dims to ask about",
                )
                continue
            indices = sides[roles[place]]
            if limit.type:
                self.typed(limit, indices, types[roles[place]], limits)
                continue
            dim = limit.dim or 0
            if dim >= len(indices):
                self.never(limit, f"operand {limit.operand} has {len(indices)} dims")
            elif indices[dim] not in self.loops:
                self.fault(
                    limit.offset,
                    "spec-op",
                    f"dim {dim} is the sum of several loops",
                    "ask the filter or the result for the loop's size",
                )
            else:
                limits.add(indices[dim], limit.offset, limit.low, limit.high, limit.multiple)
        dims = limits.as_data()
        if dims:
            self.data["match"]["dims"] = dims

    def steps(self, which: int, sizes: Sequence[int], at: int) -> None:
        """Strides or dilations of a convolution: its maps say them as well."""
        what = ("strides", "dilations")[which]
        have = steps(self.asks.maps)[which]
        if len(have) != len(sizes):
            self.fault(
                at,
                "never-matches",
                f"{len(sizes)} {what} for {len(have)} dims: this can never match",
            )
        elif any(asked not in (-1, step) for asked, step in zip(sizes, have, strict=True)):
            self.fault(
                at,
                "never-matches",
                f"the maps have the {what} {have}: this can never match",
            )

    def typed(self, limit: Limit, indices: Sequence[str], element: str, limits: Limits) -> None:
        """A condition on an operand's type."""
        found = builtin_type(limit.type)
        if found is None:
            self.fault(limit.offset, "spec-op", f"{limit.type} is no tensor type")
            return
        sizes = found.sizes
        if found.element != element:
            self.never(limit, f"its elements are {element} by the matcher above")
        elif len(sizes) != len(indices):
            self.never(limit, f"operand {limit.operand} has {len(indices)} dims, not {len(sizes)}")
        else:
            for index, size in zip(indices, sizes, strict=True):
                if size is not None:
                    if index in self.loops:
                        limits.add(index, limit.offset, size, size)
                    else:
                        self.fault(limit.offset, "spec-op", "a dim is the sum of several loops")

    def never(self, limit: Limit, message: str) -> None:
        """Note a condition that no op fulfils."""
        self.fault(limit.offset, "never-matches", f"{message}: this can never match")
