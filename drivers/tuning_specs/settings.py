"""What a spec's entry sets, as the `set:` of a config rule, each part marked with its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mlirules.drivers.tuning_specs.attributes import Attr
from mlirules.drivers.tuning_specs.maps import groups
from mlirules.drivers.tuning_specs.reader import Spec, SpecEntry
from mlirules.language.config.model import CPU_LEVELS, GPU_LEVELS, PRODUCT_LOOP, SPIRV_LEVELS
from mlirules.language.faults import Fault, did_you_mean
from mlirules.language.source import Path_, Text

_OPTIONS = {
    "no_reduce_shared_memory_bank_conflicts",
    "use_igemm_convolution",
    "reorder_workgroups_strategy",
    "prefetch_num_stages",
}
_GPU_KEYS = (
    "promote_operands",
    "promotion_types",
    "mma_kind",
    "subgroup_basis",
    "lane_basis",
    "padding",
    "padding_conv",
    "workgroup_reordering_strategy",
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
#: What the compiler read before 3.13, and ignores now.
_OLDER = {
    "subgroup_m_count": "subgroup_basis",
    "subgroup_n_count": "subgroup_basis",
    "prefetch_shared_memory": "prefetch_num_stages",
    "thread_basis": "lane_basis",
}
UPGRADE = "an older release's spelling: `mlirules spec upgrade` rewrites it"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """What to do about a key that the compiler does not read."""
    if key in _OLDER:
        return f"{_OLDER[key]} took its place; {UPGRADE}"
    return did_you_mean(key, known) or "known: " + ", ".join(known)


class SettingsReader:
    """Builds a rule's plain data and the marks that lead back into the spec: what is set."""

    def __init__(self, spec: Spec, entry: SpecEntry, target: str | None) -> None:
        self.spec = spec
        self.entry = entry
        self.asks = entry.asks
        self.target = target
        self.faults: list[Fault] = []
        self.data: dict[str, Any] = {}
        self.made = spec.source.another()
        self.loops: list[str] = []
        #: An attention with a mask, whose maps no matcher tells.
        self.masked = False

    def fault(self, at: int, code: str, message: str, hint: str = "") -> None:
        """Note a fault at a place of the spec."""
        self.faults.append(Fault(self.spec.span(at), code, message, hint))

    def mark(self, path: Path_, at: int) -> None:
        """Say where in the spec a part of the rule comes from."""
        span = self.spec.span(at)
        text = Text(
            span.source_line[span.column - 1 :][: span.length], self.made, span.line, span.column
        )
        self.made.marks[path] = text
        self.made.key_marks[path] = text

    def settings(self, config: Attr) -> None:
        """The `set:` of the rule."""
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
        made: dict[str, object] = {"pipeline": name}
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
        self.annotations(made)
        self.data["targets"] = [self.target or self.guess(kind, lowering)]
        # The order of the model's keys, in which the file is written.
        order = ("rule", "kind", "summary", "reason", "targets", "match", "set")
        self.data = {key: self.data[key] for key in order}

    def annotations(self, made: dict[str, object]) -> None:
        """Attributes that are set beside the configuration."""
        given: dict[str, str] = {}
        for name, (value, at) in self.entry.does.annotations.items():
            text = "" if value is None else str(value)
            kernel = re.fullmatch(
                r'#iree_codegen\.ukernel_descriptor<"([^"\\\n]+)", (tensor|bitcode)>', text
            )
            if name == "iree_codegen.ukernel" and kernel:
                made["ukernel"] = {"name": kernel[1], "kind": kernel[2]}
                self.mark(("set", "ukernel"), at)
                continue
            given[name] = "" if text == "unit" else text
            self.mark(("set", "annotations", name), at)
        if given:
            made["annotations"] = given

    def product_loops(self) -> list[str]:
        """The loops of the matrix product that a convolution becomes."""
        equation = self.data["match"].get("compute", "")
        result = set(re.findall(r"\w+", equation.partition("]")[0].partition("[")[2]))
        return [*(n for n in self.loops if n in result), PRODUCT_LOOP]

    def guess(self, kind: str, lowering: Attr) -> str:
        """The kind of target, by the matrix instructions."""
        if kind != "gpu":
            return kind
        words = {str(a.value) for a in lowering.walk() if isinstance(a.value, str)}
        return "cuda" if any(w.startswith("NV_") for w in words) else "hip"

    def lowering(
        self, attr: Attr, path: Path_, made: dict[str, object], kind: str, loops: Sequence[str]
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
            elif kind == "gpu" and key == "workgroup_reordering_strategy" and path == ("set",):
                made["workgroup_reordering"] = [item.value for item in value.items]
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
                    unknown_key(key, known),
                )
        return tiles

    def tile_list(
        self, level: str, value: Attr, path: Path_, at: int, loops: Sequence[str]
    ) -> dict[str, int]:
        """A tile list by loop names, zeros left out."""
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
        """A matrix instruction."""
        name = str(value.items[0].value)
        self.mark(path, value.items[0].pos)
        self.mark((*path, "name"), value.items[0].pos)
        for key, (at, _) in value.keys.items():
            if key != "col_major":
                self.fault(at, "set-key", f"unknown key {key!r} of a matrix instruction")
        major = value.get("col_major")
        return {"name": name, "col_major": True} if major is not None and major.value else name

    def basis(self, value: Attr, at: int, over: Sequence[str]) -> dict[str, Any] | None:
        """Counts of subgroups or lanes over the loops."""
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
        """The tile lists of a SPIR-V pipeline by their levels."""
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

    def translation(self, attr: Attr, made: dict[str, object]) -> None:
        """The workgroup and options of a translation_info."""
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

    def option(self, key: str, at: int, value: Attr, made: dict[str, object]) -> None:
        """One option of a translation_info."""
        if key == "gpu_pipeline_options":
            options: dict[str, object] = {}
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
                        unknown_key(name, sorted(_OPTIONS)),
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

    def decomposition(self, attr: Attr, made: dict[str, object], kind: str) -> None:
        """How an attention's two products are configured."""
        self.mark(("set", "decomposition"), attr.pos)
        parts: dict[str, object] = {}
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
            part: dict[str, object] = {}
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
        if self.asks.op_class != "attention":
            return list(self.loops)
        named = groups("attention", self.asks.maps, self.loops)
        other = named[2] if name == "qk" else named[3]
        return [loop for loop in self.loops if loop not in other]

    def part_loops(self, config: Attr) -> list[str] | None:
        """The loops of one of the products, where only a basis tells them."""
        if self.asks.op_class == "attention" or self.masked:
            return None
        for part in config.walk():
            found = part.get("subgroup_basis") or part.get("lane_basis")
            lists = [i.numbers() for i in found.items] if found is not None else []
            if len(lists) == 2 and lists[1] is not None:
                named = [self.loops[m] for m in sorted(lists[1]) if m < len(self.loops)]
                return named if named != self.loops else None
        return None
