"""Programs that a stage was seen to leave as they are, kept: finding nothing takes longest.

A saturating stage grows all forms of a program before it can say that none is cheaper by enough.
Most programs end so, and the same one does every time that it is compiled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from mlirules.drivers.apply.run import Options, Outcome
from mlirules.drivers.iree import compiler, cpu
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops
from mlirules.language.library import Entry
from mlirules.language.stage import Stage, as_data
from mlirules.support import cache, package

__all__ = ["Verdict"]

_KIND = "settled"
#: How many programs are remembered.
_LIMIT = 2000
#: Literals of more elements would take long to print; weights are resources, which have names.
_MOST = 4096


@dataclass(frozen=True)
class Verdict:
    """Whether a stage leaves a program alone, by the content of both."""

    key: str

    @staticmethod
    def of(
        stage: Stage, entries: Sequence[Entry], module: ir.Module, options: Options, known: object
    ) -> Verdict | None:
        """The verdict on a module; ``known`` is what its forms are weighed by.

        None where nothing can be said beforehand: part of a run, or constants that are not named.
        """
        if options.max_rewrites is not None or options.bound is not None or _is_large(module):
            return None
        parts = [
            module.operation.get_asm(large_resource_limit=0),
            json.dumps(as_data(stage)),
            *(f"{e.path} {e.name} {e.digest}" for e in entries),
            options.target,
            str(options.cpu),
            str(cpu.divided(options.cpu)),
            repr(known),
            compiler.revision(),
            package.code(),
        ]
        return Verdict(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32])

    def left(self) -> list[str] | None:
        """What was told when the program was left alone; None: it was not, or is new."""
        found = cache.kept(_KIND, self.key)
        return None if found is None else [str(note) for note in json.loads(found)]

    def keep(self, done: Outcome) -> None:
        """Remember a run that left all alone; one that ended early might do more another time."""
        if not done.total and not done.early:
            cache.keep(_KIND, self.key, json.dumps(done.notes).encode(), limit=_LIMIT)


def _is_large(module: ir.Module) -> bool:
    for op in open_ops(module):
        if op.name in ("torch.vtensor.literal", "arith.constant"):
            value = op.attributes["value"]
            if not isinstance(value, ir.DenseElementsAttr):
                continue
            if len(value) > _MOST and not value.is_splat:
                return True
    return False
