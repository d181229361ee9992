"""Native code that rules bring: what runs as it is written, and so needs consent."""

from __future__ import annotations

import re
from pathlib import Path

from mlirules.language.consent import Need, ships
from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, InFile, Rule

__all__ = ["native"]

#: MLIR that addresses memory, calls or links machine code, however it is spelt in a body.
_LOW = re.compile(
    r"(?<![\w.%$@])(llvm|memref|ptr|hal|vm|vmvx|stream|spirv|nvvm|nvgpu|rocdl|amdgpu|gpu|emitc|"
    r"x86vector|arm_sve|arm_sme|arm_neon|iree_codegen|bufferization)\.\w[\w.]*"
)


def native(rule: InFile) -> Need | None:
    """The native code that a rule brings; None where it has none, or ships."""
    if not isinstance(rule, Rule) or ships(rule.path):
        return None
    path = Path(rule.path)
    for i, variant in enumerate(rule.variants):
        if variant.doc.object is not None and variant.doc.object.source is not None:
            at = ("kernel", "variants", i, "object", "source")
            what = f"compiles and runs the C of {variant.doc.object.source}"
            return Need(rule.source.span_at(at), what, path)
    if rule.variants:
        body = rule.variants[0].body
        assert body is not None
        return Need(body.span, "runs a kernel's body as it is written, without bounds", path)
    for line, made in rule.rewrite:
        found = None
        if isinstance(made, BodyText):
            found = _LOW.search(made.text)
        elif isinstance(made, ast.OpEquation):
            one_of = rule.one_of.get(made.call.fn)
            ops = one_of.ops if one_of is not None else (made.call.fn,)
            found = next(filter(None, map(_LOW.match, ops)), None)
        if found is not None:
            what = f"writes {found.group()}, which runs as it is written"
            return Need(line.span, what, path)
    return None
