"""Checks of what a config rule sets on GPUs: threads, matrix instructions, shared memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlirules.language.checks.config_findings import Findings
from mlirules.language.config.model import (
    PRODUCT_LOOP,
    Basis,
    MmaKind,
    SubConfig,
    basis_counts,
    levels_of,
    mma_name,
)
from mlirules.language.config.op import ConfigRule, element_bits, extent, plain_names
from mlirules.language.faults import did_you_mean
from mlirules.language.source import Path_

_VIRTUAL = ("VMFMA_", "VDMFMA_")

_MMA = re.compile(
    r"^(?P<set>V?D?[A-Z]+\d?(?:_[A-Z]+)*)_(?P<acc>[A-Z]+\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(?:x\d+B?)?_(?P<lhs>[A-Z]+\d+[A-Z0-9]*)(?:_(?P<rhs>[A-Z]+\d+[A-Z0-9]*))?$"
)


@dataclass(frozen=True)
class Mma:
    """A matrix instruction by its name: shape and element types."""

    m: int
    n: int
    k: int
    lhs: str
    rhs: str
    acc: str


def mma_of(name: str) -> Mma | None:
    """What a matrix instruction's name says, or None when it is not spelt like one."""
    found = _MMA.match(name)
    if found is None:
        return None
    lhs = _element(found["lhs"])
    rhs = _element(found["rhs"]) if found["rhs"] else lhs
    return Mma(int(found["m"]), int(found["n"]), int(found["k"]), lhs, rhs, _element(found["acc"]))


def _element(word: str) -> str:
    return re.sub(r"^(BF|F|I)(?=\d)", lambda m: m[0].lower(), word)


class GpuChecks(Findings):
    """Checks of GPU settings, and of the products inside an attention."""

    def gpu(self, rule: ConfigRule) -> None:
        """Threads, subgroups and instructions against the targets' limits."""
        settings = self.doc.set
        size = settings.workgroup_size
        if set(self.kinds) & {"cuda", "hip"} and settings.pipeline in (
            "TileAndFuse",
            "VectorDistribute",
        ):
            for key in ("workgroup_size", "subgroup_size"):
                if getattr(settings, key) is None:
                    self.fault(
                        ("set", "pipeline"),
                        "missing-key",
                        f"the key {key!r} is missing",
                        f"{settings.pipeline} needs `{key}:`",
                    )
        if "vulkan" in self.kinds and size is None:
            self.fault(
                ("set", "pipeline"),
                "missing-key",
                "the key 'workgroup_size' is missing",
                f"{settings.pipeline} needs `workgroup_size:`",
            )
        if settings.pipeline in ("MatmulPromoteVectorize", "CooperativeMatrixVectorize"):
            for key in ("pipeline_depth", "store_stage"):
                if getattr(settings, key) is None:
                    self.fault(
                        ("set", "pipeline"),
                        "missing-key",
                        f"the key {key!r} is missing",
                        f"{settings.pipeline} needs `{key}:`, for example 1",
                    )
        for facts in self.facts:
            if (
                settings.subgroup_size is not None
                and facts.subgroup_sizes
                and (settings.subgroup_size not in facts.subgroup_sizes)
            ):
                sizes = ", ".join(map(str, facts.subgroup_sizes))
                self.fault(
                    ("set", "subgroup_size"),
                    "subgroup-size",
                    f"{facts.name} has no subgroups of {settings.subgroup_size}",
                    f"it has {sizes}",
                )
            if size is not None and facts.max_threads and math.prod(size) > facts.max_threads:
                self.fault(
                    ("set", "workgroup_size"),
                    "workgroup-size",
                    f"{math.prod(size)} threads; {facts.name} has at most "
                    f"{facts.max_threads} in a workgroup",
                    key=True,
                )
            for i, (n, most) in enumerate(zip(size or (), facts.max_workgroup, strict=False)):
                if n > most:
                    self.fault(
                        ("set", "workgroup_size", i),
                        "workgroup-size",
                        f"{n} threads along one side; {facts.name} has at most {most}",
                    )
        self.padded(rule)
        self.basis(rule, settings.subgroup_basis, ("set", "subgroup_basis"))
        self.basis(rule, settings.lane_basis, ("set", "lane_basis"))
        if settings.subgroup_basis is not None and size and settings.subgroup_size:
            wanted = math.prod(basis_counts(settings.subgroup_basis).values())
            have = math.prod(size) // settings.subgroup_size
            if math.prod(size) % settings.subgroup_size or wanted != have:
                self.fault(
                    ("set", "subgroup_basis"),
                    "subgroup-basis",
                    f"{wanted} subgroups of {settings.subgroup_size} are "
                    f"{wanted * settings.subgroup_size} threads, but the workgroup has "
                    f"{math.prod(size)}",
                    f"workgroup_size: [{wanted * settings.subgroup_size}, 1, 1]",
                    key=True,
                )
        self.promoted(rule, settings.promote_operands, ("set", "promote_operands"))
        if settings.mma_kind is not None:
            self.mma(rule, settings.mma_kind, ("set", "mma_kind"), types=True)
            self.mma_tiles(rule)

    def padded(self, rule: ConfigRule) -> None:
        """Padding names loops; a convolution as a product has a pipeline that makes it one."""
        settings = self.doc.set
        if rule.as_product:
            if settings.pipeline != "TileAndFuse":
                self.fault(
                    ("set", "pipeline"),
                    "pipeline",
                    f"{settings.pipeline} computes no convolution as a matrix product",
                    "TileAndFuse does",
                )
            if PRODUCT_LOOP in rule.loops and PRODUCT_LOOP not in rule.reductions:
                self.fault(
                    ("match", "compute"),
                    "loops",
                    f"{PRODUCT_LOOP!r} is the product's loop over all sums",
                    "name that loop of the result otherwise",
                )
        elif settings.padding_conv:
            self.fault(
                ("set", "padding_conv"),
                "set-key",
                "padding_conv is for convolutions as matrix products",
                "pipeline_options: {use_igemm_convolution: true}",
                key=True,
            )
        for key, loops in (("padding", rule.tile_loops), ("padding_conv", rule.loops)):
            for loop, size in getattr(settings, key).items():
                if loop not in loops:
                    self.fault(
                        ("set", key, loop),
                        "tile-dim",
                        f"there is no loop {loop!r}",
                        did_you_mean(loop, loops) or "it has " + ", ".join(loops),
                        key=True,
                    )
                tile = settings.tiles.get("workgroup", {}).get(loop, 0)
                if tile and size % tile and key == "padding":
                    self.fault(
                        ("set", key, loop),
                        "tile-divides",
                        f"{size} is not a multiple of {tile}, {loop!r}'s workgroup tile",
                    )
        if settings.promotion_types and (
            len(settings.promotion_types) != len(settings.promote_operands)
        ):
            self.fault(
                ("set", "promotion_types"),
                "operand",
                f"{len(settings.promotion_types)} ways for "
                f"{len(settings.promote_operands)} promoted operands",
                key=True,
            )

    def promoted(self, rule: ConfigRule, given: Sequence[int], path: Path_) -> None:
        """Promoted operands are there."""
        inputs = len(rule.operands) or 24
        for i, position in enumerate(given):
            if not 0 <= position < inputs:
                self.fault(
                    (*path, i),
                    "operand",
                    f"there is no operand {position}",
                    f"positions are 0 to {inputs - 1}",
                )

    def basis(self, rule: ConfigRule, basis: Basis | dict[str, int] | None, path: Path_) -> None:
        """A basis names loops of the op."""
        if basis is None:
            return
        names = [*basis_counts(basis), *(basis.over if isinstance(basis, Basis) else ())]
        for name in names:
            if name not in rule.loops:
                self.fault(
                    path,
                    "tile-dim",
                    f"the op has no loop {name!r}",
                    did_you_mean(name, rule.loops) or "it has " + ", ".join(rule.loops),
                    key=True,
                )

    def mma(
        self, rule: ConfigRule, given: str | MmaKind, path: Path_, *, types: bool = False
    ) -> None:
        """A matrix instruction is spelt right, the targets have it, and the types are its own."""
        name = mma_name(given)
        place = path if isinstance(given, str) else (*path, "name")
        parsed = mma_of(name)
        if parsed is None:
            self.fault(
                place,
                "mma-kind",
                f"{name[:60]!r} is no matrix instruction",
                "for example MFMA_F32_16x16x16_F16 or NV_MMA_SYNC_F32_16x8x16_F16",
            )
            return
        for facts in self.facts:
            # Virtual ones are made of the target's own, and are not in its list.
            virtual = name.startswith(_VIRTUAL) and any(
                known.startswith("MFMA_") for known in facts.mma_kinds
            )
            if not virtual and name not in facts.mma_kinds:
                listed = sorted(facts.mma_kinds)
                self.fault(
                    place,
                    "mma-kind",
                    f"{facts.name} has no matrix instruction {name}",
                    did_you_mean(name, listed) or "it has " + (", ".join(listed) or "none"),
                )
                return
        if types and rule.match.op in ("contraction", "convolution"):
            have = tuple(o.element for o in rule.operands)
            need = (parsed.lhs, parsed.rhs, parsed.acc)
            if have[:2] != need[:2] or element_bits(have[2]) > element_bits(need[2]):
                self.fault(
                    place,
                    "mma-kind",
                    f"{name} multiplies {need[0]} by {need[1]} into {need[2]}; the op "
                    f"multiplies {have[0]} by {have[1]} into {have[2]}",
                )

    def mma_tiles(self, rule: ConfigRule) -> None:
        """Each subgroup's share of a workgroup tile is a whole number of instructions."""
        settings = self.doc.set
        if rule.match.op != "contraction" or settings.mma_kind is None:
            return
        mma = mma_of(mma_name(settings.mma_kind))
        if mma is None:
            return
        lhs, rhs, out = rule.operands
        inner = {
            "m": [
                n for n in plain_names(out) if n in plain_names(lhs) and n not in plain_names(rhs)
            ],
            "n": [
                n for n in plain_names(out) if n in plain_names(rhs) and n not in plain_names(lhs)
            ],
        }
        counts = basis_counts(settings.subgroup_basis) if settings.subgroup_basis else {}
        for side, names in inner.items():
            if not names or settings.pipeline != "VectorDistribute":
                continue
            loop = names[-1]
            tile = settings.tiles.get("workgroup", {}).get(loop, 0)
            share = getattr(mma, side) * counts.get(loop, 1)
            if tile % share:
                self.fault(
                    ("set", "tiles", "workgroup", loop),
                    "tile-divides",
                    f"{tile} is not a multiple of {share}: {counts.get(loop, 1)} subgroups "
                    f"of {getattr(mma, side)} rows or columns of the instruction",
                )
        if settings.pipeline == "VectorDistribute":
            for loop, tile in settings.tiles.get("reduction", {}).items():
                if tile % mma.k:
                    self.fault(
                        ("set", "tiles", "reduction", loop),
                        "tile-divides",
                        f"{tile} is not a multiple of {mma.k}, the depth of the instruction",
                    )
        self.shared(rule, mma)

    def shared(self, rule: ConfigRule, mma: Mma) -> None:
        """Promoted operands must fit into the shared memory of each target."""
        settings = self.doc.set
        sizes = {
            **settings.tiles.get("workgroup", {}),
            **{
                loop: tile * (mma.k if settings.pipeline == "TileAndFuse" else 1)
                for loop, tile in settings.tiles.get("reduction", {}).items()
            },
        }
        need = 0
        for position in settings.promote_operands:
            if not 0 <= position < len(rule.operands):
                continue  # a fault of its own, or an op whose operands are not known
            operand = rule.operands[position]
            count = math.prod(extent(i, sizes) for i in operand.indices)
            need += count * element_bits(operand.element) // 8
        for facts in self.facts:
            if facts.shared_bytes and need > facts.shared_bytes:
                self.fault(
                    ("set", "promote_operands"),
                    "shared-memory",
                    f"the promoted operands take {need} bytes of shared memory; "
                    f"{facts.name} has {facts.shared_bytes}",
                    "make the workgroup or reduction tiles smaller",
                    key=True,
                )

    def decomposition(self, rule: ConfigRule) -> None:
        """The two products inside an attention."""
        parts = self.doc.set.decomposition
        if parts is None:
            return
        path: Path_ = ("set", "decomposition")
        if rule.match.op not in ("attention", "operation"):
            self.fault(
                path,
                "decomposition",
                f"a {rule.match.op} is not decomposed",
                "decomposition configs are for attention",
                key=True,
            )
            return
        for name in ("qk", "pv"):
            part: SubConfig | None = getattr(parts, name)
            if part is None:
                continue
            for level in part.tiles:
                known = levels_of(self.kinds[0], self.doc.set.pipeline)
                if level not in known:
                    self.fault(
                        (*path, name, "tiles", level),
                        "tile-level",
                        f"{self.kinds[0]} has no tile level {level!r}",
                        did_you_mean(level, known) or "it has " + ", ".join(known),
                        key=True,
                    )
            for level, sizes in part.tiles.items():
                for loop in sizes:
                    if loop not in rule.loops:
                        self.fault(
                            (*path, name, "tiles", level, loop),
                            "tile-dim",
                            f"the op has no loop {loop!r}",
                            "it has " + ", ".join(rule.loops),
                            key=True,
                        )
            for i, loop in enumerate(part.over):
                if loop not in rule.loops:
                    self.fault(
                        (*path, name, "over", i),
                        "tile-dim",
                        f"the op has no loop {loop!r}",
                        "it has " + ", ".join(rule.loops),
                    )
            self.basis(rule, part.subgroup_basis, (*path, name, "subgroup_basis"))
            self.basis(rule, part.lane_basis, (*path, name, "lane_basis"))
            self.promoted(rule, part.promote_operands, (*path, name, "promote_operands"))
            if part.mma_kind is not None:
                self.mma(rule, part.mma_kind, (*path, name, "mma_kind"))
            if self.kinds == ["cpu"] and (part.mma_kind or part.subgroup_basis):
                self.fault(
                    (*path, name),
                    "set-key",
                    "cpu has no matrix instructions or subgroups",
                    "give `tiles:` only",
                    key=True,
                )
