"""Checks of a config rule's pipeline, keys and tiles."""

from __future__ import annotations

import math

from mlirules.language.checks.config_findings import Findings
from mlirules.language.config.model import KEYS, PIPELINES, levels_of
from mlirules.language.config.op import ConfigRule, element_bits, extent
from mlirules.language.faults import did_you_mean
from mlirules.language.source import Path_

_PARALLEL = frozenset(
    {
        "distribution",
        "cache_parallel",
        "vector_common_parallel",
        "vector_inner_parallel",
        "workgroup",
        "thread",
    }
)
_REDUCTION = frozenset({"cache_reduction", "vector_reduction", "reduction", "partial_reduction"})
#: Levels from the outermost in: what stands later tiles what stands before.
_NESTED = (
    ("distribution", "cache_parallel", "vector_common_parallel"),
    ("cache_reduction", "vector_reduction"),
    ("workgroup", "thread"),
)

#: The compiler refuses an op that needs more than this many native vectors.
MAX_NATIVE_VECTORS = 512


class TileChecks(Findings):
    """Checks of ``set``: words first, then numbers."""

    def vocabulary(self) -> None:
        """Pipeline, keys and levels are those of the targets."""
        settings = self.doc.set
        for kind in self.kinds:
            if settings.pipeline not in PIPELINES[kind]:
                owners = [k for k, names in PIPELINES.items() if settings.pipeline in names]
                hint = did_you_mean(settings.pipeline, PIPELINES[kind]) or (
                    f"{kind} has " + ", ".join(PIPELINES[kind])
                )
                where = f"; it is one of {' and '.join(owners)}" if owners else ""
                self.fault(
                    ("set", "pipeline"),
                    "pipeline",
                    f"{kind} has no pipeline {settings.pipeline!r}{where}",
                    hint,
                )
                return
            given = settings.model_dump(exclude_defaults=True)
            for key in given:
                if key not in KEYS[kind] and key not in ("pipeline", "tiles"):
                    self.fault(
                        ("set", key),
                        "set-key",
                        f"{kind} has no {key!r}",
                        "known there: pipeline, tiles, " + ", ".join(sorted(KEYS[kind])),
                        key=True,
                    )
            levels = levels_of(kind, settings.pipeline)
            for level in settings.tiles:
                if level not in levels:
                    known = ", ".join(levels) or "none"
                    self.fault(
                        ("set", "tiles", level),
                        "tile-level",
                        f"{settings.pipeline} on {kind} has no tile level {level!r}",
                        did_you_mean(level, levels) or f"it has {known}",
                        key=True,
                    )

    def tiles(self, rule: ConfigRule) -> None:
        """Tiles name loops, divide what is around them, and fit into vectors."""
        settings = self.doc.set
        self.levels(rule, settings.tiles, ("set", "tiles"))
        for level in ("distribution", "workgroup", "block"):
            if level in levels_of(self.kinds[0], settings.pipeline) and not any(
                settings.tiles.get(level, {}).values()
            ):
                self.fault(
                    ("set", "tiles") if settings.tiles else ("set", "pipeline"),
                    "no-distribution",
                    f"no {level} tiles: the work would not be spread over workers",
                    f"give `{level}:` tiles of the parallel dims",
                    key=bool(settings.tiles),
                )
        for nest in _NESTED:
            self.nested(rule, [(n, settings.tiles[n]) for n in nest if n in settings.tiles])
        if self.kinds == ["cpu"]:
            self.vectors(rule)

    def levels(self, rule: ConfigRule, tiles: dict[str, dict[str, int]], path: Path_) -> None:
        """Each level tiles loops of its kind."""
        for level, sizes in tiles.items():
            for loop, size in sizes.items():
                place = (*path, level, loop)
                if loop not in rule.tile_loops:
                    listed = ", ".join(rule.tile_loops)
                    self.fault(
                        place,
                        "tile-dim",
                        f"the {'product' if rule.as_product else 'op'} has no loop {loop!r}",
                        did_you_mean(loop, rule.tile_loops) or f"it has {listed}",
                        key=True,
                    )
                elif not rule.operands or not size:
                    continue
                elif level in _PARALLEL and loop in rule.tile_reductions:
                    self.fault(
                        place,
                        "tile-kind",
                        f"{loop!r} is summed over; {level} tiles the dims of the result",
                        key=True,
                    )
                elif level in _REDUCTION and loop not in rule.tile_reductions:
                    self.fault(
                        place,
                        "tile-kind",
                        f"{loop!r} is a dim of the result; {level} tiles what is summed over",
                        key=True,
                    )

    def nested(self, rule: ConfigRule, levels: list[tuple[str, dict[str, int]]]) -> None:
        """What is inside divides what is around it."""
        for loop in rule.loops:
            outer_name, outer = "dim", rule.exact(loop)
            for name, sizes in levels:
                size = sizes.get(loop, 0)
                if not size:
                    continue
                if outer and name not in ("distribution", "workgroup") and outer % size:
                    self.fault(
                        ("set", "tiles", name, loop),
                        "tile-divides",
                        f"{size} does not divide the {outer_name} of {loop!r}, {outer}",
                    )
                outer_name, outer = f"{name} tile", size

    def vectors(self, rule: ConfigRule) -> None:
        """Ops on vectors that are too large are refused after minutes of work, or not at all."""
        if not rule.operands:
            return
        sizes = {
            loop: size
            for level in ("vector_common_parallel", "vector_reduction", "vector_inner_parallel")
            for loop, size in self.doc.set.tiles.get(level, {}).items()
            if size
        }
        if not sizes:
            return
        native = min((f.vector_bytes for f in self.facts if f.vector_bytes), default=64)
        limit = native * MAX_NATIVE_VECTORS
        needs = [
            (
                f"the vectors of {o.name!r}",
                math.prod(extent(i, sizes) for i in o.indices) * element_bits(o.element) // 8,
            )
            for o in rule.operands
        ]
        if rule.match.op in ("contraction", "convolution"):  # every product of it counts
            bits = element_bits(rule.operands[-1].element)
            needs.append(("the products of one vector step", math.prod(sizes.values()) * bits // 8))
        for what, size in needs:
            if size >= limit:
                self.fault(
                    ("set", "tiles"),
                    "vector-size",
                    f"{what} take {size} bytes; the compiler refuses {limit} and more",
                    "make the vector tiles smaller",
                    key=True,
                )
                return
