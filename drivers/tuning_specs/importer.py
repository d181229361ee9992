"""Entries of a tuning spec as config rules: what they match and set, with the same meaning.

The rule that is made points into the spec, so that every check of config rules finds the faults of
specs as well, each at its place in the ``.mlir`` file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.drivers.tuning_specs.attributes import Attr
from mlirules.drivers.tuning_specs.examples import example_tests
from mlirules.drivers.tuning_specs.reader import Limit, Spec, SpecEntry
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.config.model import CPU_LEVELS, GPU_LEVELS, PRODUCT_LOOP, SPIRV_LEVELS
from mlirules.language.config.rule import ConfigRule, TargetOracle, config_of
from mlirules.language.faults import Fault, MlirulesError, did_you_mean
from mlirules.language.source import Path_, SourceFile, Text

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

_OPTIONS = {
    "no_reduce_shared_memory_bank_conflicts",
    "use_igemm_convolution",
    "reorder_workgroups_strategy",
    "prefetch_num_stages",
}
#: A tensor whose sizes are not asked for, and its element type.
_ANY_TENSOR = re.compile(r"tensor<((?:\?x)+)([a-zA-Z]\w*)>")
_GPU_KEYS = (
    "promote_operands",
    "promotion_types",
    "mma_kind",
    "subgroup_basis",
    "lane_basis",
    "padding",
    "padding_conv",
)
_LOWERING = {
    "iree_cpu.lowering_config": "cpu",
    "iree_gpu.lowering_config": "gpu",
    "iree_codegen.lowering_config": "vulkan",
}
_PIPELINE = {
    "iree_cpu.pipeline": "cpu",
    "iree_gpu.pipeline": "gpu",
    "iree_gpu.spirv_pipeline": "vulkan",
}


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
                made.rule = config_of(source, facts=facts)
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


class _Maker:
    """Builds a rule's plain data and the marks that lead back into the spec."""

    def __init__(self, spec: Spec, entry: SpecEntry, target: str | None) -> None:
        self.spec = spec
        self.entry = entry
        self.target = target
        self.faults: list[Fault] = []
        self.data: dict[str, Any] = {}
        self.made = SourceFile(spec.path, spec.text)
        self.loops: list[str] = []
        #: An attention with a mask, whose maps no matcher tells.
        self.masked = False

    def fault(self, at: int, code: str, message: str, hint: str = "") -> None:
        self.faults.append(Fault(self.spec.span(at), code, message, hint))

    def mark(self, path: Path_, at: int) -> None:
        span = self.spec.span(at)
        text = Text(
            span.source_line[span.column - 1 :][: span.length], self.made, span.line, span.column
        )
        self.made.marks[path] = text
        self.made.key_marks[path] = text

    def source(self, name: str) -> SourceFile | None:
        entry = self.entry
        self.mark((), entry.offset)
        for path in (("rule",), ("tests",), ("match",), ("targets",), ("targets", 0)):
            self.mark(path, entry.offset)
        self.mark(("match", "op"), entry.root or entry.offset)
        self.data = {
            "rule": name,
            "kind": "config",
            "summary": f"What @{entry.matcher} of {self.spec.path} matches.",
            "reason": f"It stands in {self.spec.path}.",
        }
        for op, at in entry.strange:
            self.fault(
                at,
                "spec-op",
                f"{op} in a matcher is not understood",
                "a matcher asks for a class of op, element types, sizes and types",
            )
        if entry.config is None:
            self.fault(
                entry.use,
                "no-config",
                f"@{entry.matcher} sets no compilation_info",
                f"yield one, and annotate the op with it in @{entry.action}",
            )
        if self.faults or entry.config is None:
            return None
        self.match(entry.config)
        if not self.faults:
            self.settings(entry.config)
        if self.faults:
            return None
        self.data["tests"] = example_tests(self.data)
        self.made.data = self.data
        return self.made

    # -- what is matched

    def match(self, config: Attr) -> None:
        entry = self.entry
        match entry.op_class:
            case "operation":
                if not self.by_mask():
                    self.by_name(config)
            case "contraction" | "convolution" | "attention":
                self.by_maps()
            case "plain-attention":
                self.fault(
                    entry.root,
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

    def by_mask(self) -> bool:
        """An attention with a mask: no matcher tells its maps, so its operands' types have to do.

        Read with the order that attentions have: batch, then queries, keys or values, then width.
        False when the entry is something else.
        """
        entry = self.entry
        types = {limit.operand: limit.type for limit in entry.limits if limit.type}
        found = {i: _ANY_TENSOR.fullmatch(text) for i, text in types.items()}
        if entry.names != ["iree_linalg_ext.online_attention"] or set(types) != {*tuning.MASKED, 7}:
            return False
        shapes = {i: m[1].count("x") for i, m in found.items() if m is not None}
        rank = shapes.get(0, 0)
        if not 2 <= rank <= 4 or shapes != {**dict.fromkeys(tuning.MASKED, rank), 7: rank - 1}:
            return False
        batch = [["b", "h"], ["b"], []][4 - rank]
        own = {"q": "md", "k": "sd", "v": "sn", "w": "ms", "o": "mn"}
        sides = {role: [*batch, *names] for role, names in own.items()}
        reads = [f"{role}[{', '.join(names)}]" for role, names in sides.items()]
        self.loops = [*batch, "m", "n", "d", "s"]
        elements = {i: m[2] for i, m in found.items() if m is not None}
        named = dict(zip("qkvwo", (elements[i] for i in (*tuning.MASKED, 7)), strict=True))
        compute = f"{reads[4]} = attention({', '.join(reads[:4])})"
        self.data["match"] = {"op": "attention", "compute": compute, "types": named}
        for key in ("compute", "types", *(f"types.{role}" for role in named)):
            self.mark(("match", *key.split(".")), entry.root)
        if self.loops != _first_use(compute, self.loops):
            self.data["match"]["loops"] = list(self.loops)
            self.mark(("match", "loops"), entry.root)
        limits = _Limits(self)
        roles = dict(zip((*tuning.MASKED, 5), "qkvwo", strict=True))
        for limit in entry.limits:
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
        entry = self.entry
        if len(entry.names) != 1:
            self.fault(
                entry.root,
                "spec-op",
                "several op names in one matcher",
                "write one matcher for each",
            )
            return
        name = entry.names[0]
        rank = NAMED_LOOPS.get(name) or self.rank(config)
        self.loops = [f"d{i}" for i in range(rank)]
        types: list[str | None] = []
        for limit in entry.limits:
            if not limit.type:
                self.fault(
                    limit.offset,
                    "spec-op",
                    "sizes of an op that is matched by name have no dims to go to",
                    "match by class and maps, or by operand types",
                )
                continue
            types += [None] * (limit.operand + 1 - len(types))
            if types[limit.operand] not in (None, limit.type):
                self.never(
                    limit, f"operand {limit.operand} is asked to be {types[limit.operand]} as well"
                )
            types[limit.operand] = limit.type
            self.mark(("match", "operands", limit.operand), limit.offset)
        self.mark(("match", "name"), entry.root)
        self.mark(("match", "loops"), entry.root)
        self.data["match"] = {"op": "operation", "name": name, "loops": list(self.loops)}
        if types:
            self.data["match"]["operands"] = types

    def rank(self, config: Attr) -> int:
        """The number of loops, by the longest tile list."""
        lowering = config.get("lowering_config")
        lists = [a.numbers() for a in lowering.walk()] if lowering is not None else []
        return max([len(n) for n in lists if n], default=1)

    def by_maps(self) -> None:
        entry = self.entry
        if not entry.maps:
            self.fault(
                entry.root,
                "no-maps",
                "the matcher does not say which indexing maps",
                "without them tile lists have no dims: give indexing_maps",
            )
            return
        wanted = {"attention": 7}.get(entry.op_class, 3)
        if len(entry.maps) != wanted:
            self.fault(
                entry.root,
                "never-matches",
                f"{len(entry.maps)} indexing maps; this op has {wanted}",
            )
            return
        names = _loop_names(entry.op_class, entry.maps)
        if names is None:
            self.fault(
                entry.root,
                "never-matches",
                f"these maps are no {entry.op_class}: this can never match",
            )
            return
        self.loops = names
        roles = {"attention": ("q", "k", "v", "o")}.get(entry.op_class, ("a", "b", "c"))
        kept = [0, 1, 2, 4] if entry.op_class == "attention" else [0, 1, 2]
        sides = {role: _indices(entry.maps[i], names) for role, i in zip(roles, kept, strict=True)}
        reads = [f"{role}[{', '.join(items)}]" for role, items in sides.items()]
        if entry.op_class == "attention":
            compute = f"{reads[3]} = attention({', '.join(reads[:3])})"
        else:
            compute = f"{reads[2]} += {reads[0]} * {reads[1]}"
        types = list(entry.types.values())
        if entry.op_class == "attention":
            query, key, value, scale, output, largest, total = types
            named = dict(zip(roles, (query, key, value, output), strict=True))
            extra = {"scale": (scale, query), "max": (largest, output), "sum": (total, output)}
            named.update({k: have for k, (have, usual) in extra.items() if have != usual})
        else:
            named = dict(zip(roles, types, strict=True))
        self.data["match"] = {"op": entry.op_class, "compute": compute, "types": named}
        self.mark(("match", "compute"), entry.root)
        for role in named:
            self.mark(("match", "types", role), entry.root)
        if names != _first_use(compute, names):
            self.data["match"]["loops"] = list(names)
            self.mark(("match", "loops"), entry.root)
        self.dims(sides, roles, named)

    def dims(
        self, sides: dict[str, list[str]], roles: Sequence[str], types: dict[str, str]
    ) -> None:
        limits = _Limits(self)
        groups = _groups(self.entry.op_class, self.entry.maps, self.loops)
        for group, sizes, at in self.entry.sizes:
            loops = groups[group] if group < len(groups) else []
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
        position = {3: None, 4: 3} if self.entry.op_class == "attention" else {}
        for limit in self.entry.limits:
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

    def typed(self, limit: Limit, indices: Sequence[str], element: str, limits: _Limits) -> None:
        found = re.fullmatch(r"tensor<((?:(?:\?|\d+)x)*)(\w+)>", limit.type)
        if found is None:
            self.fault(limit.offset, "spec-op", f"{limit.type} is no tensor type")
            return
        sizes = found[1].split("x")[:-1]
        if found[2] != element:
            self.never(limit, f"its elements are {element} by the matcher above")
        elif len(sizes) != len(indices):
            self.never(limit, f"operand {limit.operand} has {len(indices)} dims, not {len(sizes)}")
        else:
            for index, size in zip(indices, sizes, strict=True):
                if size != "?":
                    if index in self.loops:
                        limits.add(index, limit.offset, int(size), int(size))
                    else:
                        self.fault(limit.offset, "spec-op", "a dim is the sum of several loops")

    def never(self, limit: Limit, message: str) -> None:
        self.fault(limit.offset, "never-matches", f"{message}: this can never match")

    # -- what is set

    def settings(self, config: Attr) -> None:
        lowering, translation = config.get("lowering_config"), config.get("translation_info")
        if lowering is None or translation is None:
            self.fault(
                config.pos,
                "no-config",
                "a compilation_info has a lowering_config and a translation_info",
            )
            return
        kind = _LOWERING.get(lowering.tag)
        pipeline = translation.get("pipeline")
        if kind is None or pipeline is None or not pipeline.items:
            self.fault(
                lowering.pos if kind is None else translation.pos,
                "no-config",
                f"#{lowering.tag} is no lowering config known here"
                if kind is None
                else "the translation_info names no pipeline",
            )
            return
        other = _PIPELINE.get(pipeline.tag)
        if other != kind:
            owner = {"gpu": "a cuda or hip", "cpu": "a cpu", "vulkan": "a vulkan"}
            self.fault(
                pipeline.pos,
                "pipeline",
                f"#{pipeline.tag} is {owner.get(str(other), 'an unknown')} pipeline, but "
                f"#{lowering.tag} is {owner[kind]} configuration",
                "both must be of the same kind of target",
            )
            return
        name = str(pipeline.items[0].value)
        self.mark(("set",), config.pos)
        self.mark(("set", "pipeline"), pipeline.items[0].pos)
        made: dict[str, Any] = {"pipeline": name}
        self.data["set"] = made
        loops = self.loops
        options = [item for attr in translation.walk() for item in attr.keys.items()]
        if any(key == "use_igemm_convolution" and value.value for key, (_, value) in options):
            loops = self.product_loops()
        tiles = (
            self.spirv(lowering, name)
            if kind == "vulkan"
            else self.lowering(lowering, ("set",), made, kind, loops)
        )
        if tiles:
            made["tiles"] = tiles
        self.translation(translation, made)
        if self.entry.decomposition is not None:
            self.decomposition(self.entry.decomposition, made, kind)
        self.data["targets"] = [self.target or self.guess(kind, lowering)]
        # The order of the model's keys, in which the file is written.
        order = ("rule", "kind", "summary", "reason", "targets", "match", "set")
        self.data = {key: self.data[key] for key in order}

    def product_loops(self) -> list[str]:
        """The loops of the matrix product that a convolution becomes."""
        equation = self.data["match"].get("compute", "")
        result = set(re.findall(r"\w+", equation.partition("]")[0].partition("[")[2]))
        return [*(n for n in self.loops if n in result), PRODUCT_LOOP]

    def guess(self, kind: str, lowering: Attr) -> str:
        if kind != "gpu":
            return kind
        words = {str(a.value) for a in lowering.walk() if isinstance(a.value, str)}
        return "cuda" if any(w.startswith("NV_") for w in words) else "hip"

    def lowering(
        self, attr: Attr, path: Path_, made: dict[str, Any], kind: str, loops: Sequence[str]
    ) -> dict[str, dict[str, int]]:
        """A lowering config's parts; returns the tiles, and puts the rest into ``made``."""
        parts = attr.keys
        if kind == "gpu" and attr.items:
            parts = attr.items[0].keys
            for flag in attr.items[0].items:
                if flag.value == "convert_acc_gemm":
                    made["convert_acc_gemm"] = True
                else:
                    self.fault(flag.pos, "set-key", f"unknown key {flag.value!r}")
        levels = CPU_LEVELS if kind == "cpu" else GPU_LEVELS
        tiles: dict[str, dict[str, int]] = {}
        self.mark((*path, "tiles"), attr.pos)
        for key, (at, value) in parts.items():
            self.mark((*path, key), at)
            if key in levels:
                tiles[key] = self.tile_list(key, value, (*path, "tiles", key), at, loops)
            elif kind == "gpu" and key == "promote_operands" and value.numbers() is not None:
                made[key] = value.numbers()
                for i, item in enumerate(value.items):
                    self.mark((*path, key, i), item.pos)
            elif kind == "gpu" and key in ("padding", "padding_conv") and path == ("set",):
                over = loops if key == "padding" else self.loops
                made[key] = self.tile_list(key, value, (*path, key), at, over)
            elif kind == "gpu" and key == "promotion_types" and path == ("set",):
                made[key] = [item.tag.removeprefix("iree_gpu.") for item in value.items]
            elif kind == "gpu" and key == "mma_kind" and value.items:
                made[key] = self.mma(value, (*path, key))
            elif kind == "gpu" and key in ("subgroup_basis", "lane_basis"):
                basis = self.basis(value, at, loops)
                if basis is not None:
                    made[key] = basis
            else:
                known = [*levels, *(_GPU_KEYS if kind == "gpu" else ())]
                self.fault(
                    at,
                    "set-key",
                    f"unknown key {key!r}: the compiler would ignore it in silence",
                    did_you_mean(key, known) or "known: " + ", ".join(known),
                )
        return tiles

    def tile_list(
        self, level: str, value: Attr, path: Path_, at: int, loops: Sequence[str]
    ) -> dict[str, int]:
        self.mark(path, at)
        sizes = value.numbers()
        if sizes is None:
            self.fault(value.pos, "tile-list", f"{level} must be a list of whole numbers")
            return {}
        if len(sizes) != len(loops):
            self.fault(
                value.pos,
                "tile-rank",
                f"{level} has {len(sizes)} sizes, but the op has {len(loops)} loops",
                "give one for each of " + ", ".join(loops),
            )
            return {}
        for loop, item in zip(loops, value.items, strict=True):
            self.mark((*path, loop), item.pos)
        return {loop: size for loop, size in zip(loops, sizes, strict=True) if size}

    def mma(self, value: Attr, path: Path_) -> object:
        name = str(value.items[0].value)
        self.mark(path, value.items[0].pos)
        self.mark((*path, "name"), value.items[0].pos)
        for key, (at, _) in value.keys.items():
            if key != "col_major":
                self.fault(at, "set-key", f"unknown key {key!r} of a matrix instruction")
        major = value.get("col_major")
        return {"name": name, "col_major": True} if major is not None and major.value else name

    def basis(self, value: Attr, at: int, over: Sequence[str]) -> dict[str, Any] | None:
        lists = [i.numbers() for i in value.items]
        counts, mapping = lists if len(lists) == 2 else (None, None)
        if (
            counts is None
            or mapping is None
            or len(counts) != len(self.loops)
            or not all(0 <= m < len(self.loops) for m in mapping)
        ):
            self.fault(
                value.pos,
                "tile-rank",
                f"a basis has counts for each of the {len(self.loops)} loops, then the "
                "loops that the op has",
                f"[{[1] * len(self.loops)}, {list(range(len(over)))}]",
            )
            return None
        self.mark(("set", "subgroup_basis"), at)
        plain = {loop: n for loop, n in zip(self.loops, counts, strict=True) if n != 1}
        named = [self.loops[m] for m in mapping]
        return plain if named == list(over) else {"counts": plain, "over": named}

    def spirv(self, attr: Attr, pipeline: str) -> dict[str, dict[str, int]]:
        levels = SPIRV_LEVELS.get(pipeline, ())
        lists = attr.get("tile_sizes")
        tiles: dict[str, dict[str, int]] = {}
        self.mark(("set", "tiles"), attr.pos)
        for key, (at, _) in attr.keys.items():
            if key != "tile_sizes":
                self.fault(at, "set-key", f"unknown key {key!r}", "known: tile_sizes")
        if lists is None:
            return tiles
        if len(lists.items) > len(levels):
            self.fault(
                lists.pos,
                "tile-level",
                f"{len(lists.items)} tile lists; {pipeline} has {len(levels)}",
                ", ".join(levels),
            )
            return tiles
        for level, item in zip(levels, lists.items, strict=False):
            tiles[level] = self.tile_list(
                level, item, ("set", "tiles", level), item.pos, self.loops
            )
        return tiles

    def translation(self, attr: Attr, made: dict[str, Any]) -> None:
        for key, (at, value) in attr.keys.items():
            self.mark(("set", key), at)
            if key == "workgroup_size" and value.numbers() is not None:
                made[key] = value.numbers()
                for i, item in enumerate(value.items):
                    self.mark(("set", key, i), item.pos)
            elif key == "subgroup_size":
                made[key] = value.value
                self.mark(("set", key), value.pos)
            elif key != "pipeline":
                self.fault(at, "set-key", f"unknown key {key!r} of a translation_info")
        for item in attr.items:
            for key, (at, value) in item.keys.items():
                self.option(key, at, value, made)

    def option(self, key: str, at: int, value: Attr, made: dict[str, Any]) -> None:
        if key == "gpu_pipeline_options":
            options: dict[str, Any] = {}
            for name, (where, given) in value.keys.items():
                self.mark(("set", "pipeline_options"), where)
                if name == "prefetch_num_stages":
                    made["prefetch_stages"] = given.value
                    self.mark(("set", "prefetch_stages"), where)
                elif name == "reorder_workgroups_strategy" and given.items:
                    options["reorder_workgroups"] = given.items[0].value
                elif name in _OPTIONS:
                    options[name] = given.value
                else:
                    self.fault(
                        where,
                        "set-key",
                        f"unknown pipeline option {name!r}",
                        did_you_mean(name, _OPTIONS),
                    )
            if options:
                made["pipeline_options"] = options
        elif key == "llvm_func_attrs":
            made["function_attributes"] = {k: a.value for k, (_, a) in value.keys.items()}
            self.mark(("set", "function_attributes"), at)
        elif key == "iree_codegen.denormal_fp_math_f32" and value.items:
            made["denormal_f32"] = value.items[0].value
        elif key in ("pipeline_depth", "store_stage"):
            made[key] = value.value
            self.mark(("set", key), at)
        else:
            self.fault(
                at,
                "set-key",
                f"unknown option {key!r} of a translation_info",
                "gpu_pipeline_options, llvm_func_attrs",
            )

    def decomposition(self, attr: Attr, made: dict[str, Any], kind: str) -> None:
        self.mark(("set", "decomposition"), attr.pos)
        parts: dict[str, Any] = {}
        for key, (at, value) in attr.keys.items():
            name = key.removesuffix("_attrs")
            config = value.get("lowering_config")
            if name not in ("qk", "pv") or config is None:
                self.fault(
                    at,
                    "decomposition",
                    f"{key!r} is no part of an attention",
                    "qk_attrs and pv_attrs, each with a lowering_config",
                )
                continue
            part: dict[str, Any] = {}
            over = self.part_loops(config)
            if over is not None:
                part["over"] = over
            path: Path_ = ("set", "decomposition", name)
            self.mark(path, at)
            tiles = self.lowering(config, path, part, kind, over or self.derived(name))
            if tiles:
                part["tiles"] = tiles
            parts[name] = part
        made["decomposition"] = parts

    def derived(self, name: str) -> list[str]:
        """The loops of one of the products, as they follow from the maps."""
        if self.masked:
            return [loop for loop in self.loops if loop != ("n" if name == "qk" else "d")]
        if self.entry.op_class != "attention":
            return list(self.loops)
        groups = _groups("attention", self.entry.maps, self.loops)
        other = groups[2] if name == "qk" else groups[3]
        return [loop for loop in self.loops if loop not in other]

    def part_loops(self, config: Attr) -> list[str] | None:
        """The loops of one of the products, where only a basis tells them."""
        if self.entry.op_class == "attention" or self.masked:
            return None
        for part in config.walk():
            found = part.get("subgroup_basis") or part.get("lane_basis")
            lists = [i.numbers() for i in found.items] if found is not None else []
            if len(lists) == 2 and lists[1] is not None:
                named = [self.loops[m] for m in sorted(lists[1]) if m < len(self.loops)]
                return named if named != self.loops else None
        return None


class _Limits:
    """Sizes of dims, collected from several conditions; what contradicts is a fault."""

    def __init__(self, maker: _Maker) -> None:
        self.maker = maker
        self.low: dict[str, int] = {}
        self.high: dict[str, int] = {}
        self.multiples: dict[str, list[int]] = {}
        self.order: dict[str, int] = {}

    def add(
        self, loop: str, at: int, low: int | None, high: int | None, multiple: int | None = None
    ) -> None:
        self.order.setdefault(loop, at)
        if low is not None:
            self.low[loop] = max(self.low.get(loop, low), low)
        if high is not None:
            self.high[loop] = min(self.high.get(loop, high), high)
        if multiple is not None:
            self.multiples.setdefault(loop, []).append(multiple)
        low, high = self.low.get(loop, 1), self.high.get(loop)
        step = _least_common(self.multiples.get(loop, []))
        if high is not None and (high < low or high // step * step < low):
            self.maker.fault(
                at,
                "never-matches",
                f"no size of {loop!r} fits this and what is asked above: this can never match",
            )
        self.maker.mark(("match", "dims", loop), at)

    def as_data(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for loop in sorted(self.order, key=self.maker.loops.index):
            low, high = self.low.get(loop), self.high.get(loop)
            if low is not None and low == high:
                out[loop] = low
                continue
            step = _least_common(self.multiples.get(loop, []))
            given = {"min": low, "max": high, "multiple_of": step if step > 1 else None}
            out[loop] = {k: v for k, v in given.items() if v is not None}
        return {loop: size for loop, size in out.items() if size != {}}


def _least_common(numbers: Sequence[int]) -> int:
    return math.lcm(*numbers) if numbers else 1


# ---- maps ----------------------------------------------------------------------------------


def _exprs(affine: Any) -> list[str]:
    """The results of a map as text over d0, d1, ..."""
    text = str(affine).partition("->")[2].strip()
    inner = text[1 : text.rindex(")")]
    return [part.strip() for part in inner.split(",") if part.strip()]


def _indices(affine: Any, names: Sequence[str]) -> list[str]:
    return [re.sub(r"\bd(\d+)\b", lambda m: names[int(m[1])], e) for e in _exprs(affine)]


def _used(affine: Any) -> list[set[int]]:
    return [{int(n) for n in re.findall(r"\bd(\d+)\b", e)} for e in _exprs(affine)]


def _groups_by_number(op_class: str, maps: Sequence[Any]) -> list[list[int]]:
    """The loops by what they do, in the order in which the matcher returns their sizes."""
    reads = [{d for together in _used(m) for d in together} for m in maps]
    rank = maps[0].n_dims
    if op_class == "contraction":
        wanted: list[tuple[bool, ...]] = [
            (True, True, True),
            (True, False, True),
            (False, True, True),
            (True, True, False),
        ]
        kinds = [tuple(d in reads[i] for i in range(3)) for d in range(rank)]
    elif op_class == "attention":
        wanted = [
            (True, True, True, True),
            (True, False, False, True),
            (False, False, True, True),
            (True, True, False, False),
            (False, True, True, False),
        ]
        kinds = [tuple(d in reads[i] for i in (0, 1, 2, 4)) for d in range(rank)]
    else:
        return _convolution_groups(maps, rank)
    return [[d for d in range(rank) if kinds[d] == w] for w in wanted]


def _convolution_groups(maps: Sequence[Any], rank: int) -> list[list[int]]:
    read = _used(maps[0])
    plain = {d for together in read if len(together) == 1 for d in together}
    summed = {d for together in read if len(together) > 1 for d in together}
    weights = {d for together in _used(maps[1]) for d in together}
    out = {d for together in _used(maps[2]) for d in together}
    groups = [
        (plain & out) - weights,  # batch
        summed & out,  # image
        (out & weights) - plain - summed,  # output channels
        summed - out,  # filter
        (plain & weights) - out,  # input channels
        plain & weights & out,  # depth
    ]
    return [[d for d in range(rank) if d in group] for group in groups]


def _groups(op_class: str, maps: Sequence[Any], names: Sequence[str]) -> list[list[str]]:
    return [[names[d] for d in group] for group in _groups_by_number(op_class, maps)]


_WORDS = {
    "contraction": ("b", "m", "n", "k"),
    "attention": ("b", "m", "n", "k1", "k2"),
    "convolution": ("n", "i", "f", "u", "c", "g"),
}


def _loop_names(op_class: str, maps: Sequence[Any]) -> list[str] | None:
    """Names of the loops by what they do; None when the maps are not those of the class."""
    groups = _groups_by_number(op_class, maps)
    rank = maps[0].n_dims
    names: list[str] = [""] * rank
    for word, group in zip(_WORDS[op_class], groups, strict=True):
        for number, d in enumerate(group):
            if op_class == "convolution" and word in "iu":
                names[d] = {"i": "ijl", "u": "uvw"}[word][number] if number < 3 else f"{word}{d}"
            elif len(group) == 1:
                names[d] = word
            else:
                names[d] = f"{word}_{number}" if word[-1].isdigit() else f"{word}{number}"
    if not all(names) or not groups[3]:
        return None
    return names


def _first_use(compute: str, names: Sequence[str]) -> list[str]:
    """The loops of an equation in the order of their first use."""
    seen = re.findall(r"\[([^\]]*)\]", compute)
    words = [w for part in seen for w in re.findall(r"[A-Za-z_]\w*", part)]
    return [w for w in dict.fromkeys(words) if w in names]
