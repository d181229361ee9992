"""What ops and functions take: as an editor lists it while one is written."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from mlirules.drivers.iree import ops
from mlirules.drivers.iree.compiler import ir
from mlirules.language import functions as scalars
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.checks.expressions import RUNTIME_ARITY
from mlirules.language.rulefiles import LIBRARY

__all__ = ["Signature", "of_function", "of_op", "operand_names"]

#: By the names of ops.
Operands: TypeAlias = Mapping[str, tuple[str, ...]]

_MATCHED = re.compile(r"=\s*([a-z][a-z0-9_]*(?:\.\w+)+)\(([^()]*)\)")
_EXPECTED = re.compile(r"expected (\d+) (?:or more )?operands?")


@dataclass(frozen=True)
class Signature:
    """A name and what stands between its brackets."""

    name: str
    parameters: tuple[str, ...]
    documentation: str = ""
    #: Further values may follow, or the last ones be left out.
    open: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)}{', ...' if self.open else ''})"


def operand_names() -> Operands:
    """The operands of ops as the shipped rules name them now, first by those that convert them.

    To be asked once for many ops: every rule is looked at for whether it was edited.
    """
    listed = sorted(LIBRARY.rglob("*.yaml"), key=lambda f: ("to-linalg" not in f.parts, str(f)))
    states = [(file, file.stat()) for file in listed]
    return _named(tuple((file, said.st_mtime_ns, said.st_size) for file, said in states))


@functools.lru_cache(maxsize=1)
def _named(files: tuple[tuple[Path, int, int], ...]) -> Operands:
    found: dict[str, tuple[str, ...]] = {}
    for file, _, _ in files:
        text = file.read_text(encoding="utf-8")
        start = text.find("\nmatch:")
        head = text[start : text.find("\nrewrite:", start)] if start >= 0 else ""
        for made in _MATCHED.finditer(head):
            words = tuple(part.strip() for part in made[2].split(",")) if made[2].strip() else ()
            named = all(re.fullmatch(r"[A-Za-z]\w*", word) for word in words)
            if named and len({*words}) == len(words):
                found.setdefault(made[1], words)
    return MappingProxyType(found)


def of_op(name: str, named: Operands) -> Signature | None:
    """What an op of the installed compiler takes; None where there is no such op.

    The names come from the shipped rules (``named``, of :func:`operand_names`) or from the
    compiler's bindings; where neither has the op, from the number of operands that its verifier
    asks for.
    """
    if not ops.is_registered_op(name):
        return None
    documentation = ops.op_documentation(name)
    words = named.get(name)
    if words is None:
        words = _bound(name)
    if words is not None:
        return Signature(name, words, documentation)
    count = _verified(name)
    letters = tuple("abcdefghijklmnop"[: min(count, 16)]) if count is not None else ()
    return Signature(name, letters, documentation, open=count is None)


def _bound(name: str) -> tuple[str, ...] | None:
    """The positional parameters of an op's Python class: its operands, after result types."""
    dialect = name.partition(".")[0]
    try:
        module = importlib.import_module(f"iree.compiler.dialects.{dialect}")
    except ImportError:
        return None
    for found in vars(module).values():
        if isinstance(found, type) and getattr(found, "OPERATION_NAME", "") == name:
            try:
                listed = inspect.signature(found).parameters.values()
            except (TypeError, ValueError):
                return None
            return tuple(
                p.name.rstrip("_")
                for p in listed
                if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in ("self", "results", "result")
            )
    return None


@functools.lru_cache(maxsize=4096)
def _verified(name: str) -> int | None:
    """How many operands an op's verifier asks for, where it says so."""
    context = ops.shared_context()
    said: list[str] = []

    def note(diagnostic: ir.Diagnostic) -> bool:
        said.append(diagnostic.message)
        return True

    handler = context.attach_diagnostic_handler(note)
    try:
        with context, ir.Location.unknown():
            ir.Operation.create(name).verify()
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        said.append(str(error))
    finally:
        handler.detach()
    counts = [int(found[1]) for found in map(_EXPECTED.search, said) if found]
    return counts[0] if counts else None


def of_function(name: str) -> Signature | None:
    """What a function of the notation takes; None where there is none of that name."""
    function = FUNCTIONS.get(name)
    if function is not None:
        example = re.search(rf"\b{re.escape(name)}\(([^()]*)\)", function.example)
        words = [w.strip() for w in example[1].split(",")] if example and example[1] else []
        low, high = function.arity
        while len(words) < low:
            words.append("abcdefgh"[len(words) % 8])
        parameters = tuple(words[: max(low, min(high, len(words)))])
        said = f"{function.doc}\n\n`{function.example}`"
        return Signature(name, parameters, said, open=high > len(parameters))
    if name in RUNTIME_ARITY:
        low, high = RUNTIME_ARITY[name]
        kind = "of numbers" if name in scalars.SIMPLE else "of the rewrite"
        letters = tuple("xyzuvwabcdef"[:low])
        return Signature(name, letters, f"A function {kind}, at run time.", open=high > low)
    return None
