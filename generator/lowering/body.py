"""Bodies of raw MLIR: `$` spells a value, `%` names one."""

from __future__ import annotations

import re

from mlirules.generator.lowering.ops import Ops
from mlirules.generator.lowering.spelling import float_text, quoted
from mlirules.generator.lowering.values import (
    Local,
    Val,
    tensor_of_type,
)
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression
from mlirules.language.operands import Refused, describe
from mlirules.language.values import DType, Dyn, Scalar, Tensor


class Bodies(Ops):
    """MLIR text over the symbols of a rule."""

    def body_text(self, text: str) -> None:
        """Lower a raw body: values spelt and named, its own names kept apart."""
        defined: list[tuple[str, str]] = []

        def dollar(found: re.Match[str]) -> str:
            source = found.group(1) or found.group(2)
            return self.spelled(self.eval(parse_expression(source)), source)

        text = re.sub(
            r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\(([^()]*(?:\([^()]*\)[^()]*)*)\))", dollar, text
        )
        assigned: set[str] = set()
        for row in text.splitlines():
            found = re.match(r"\s*((?:%[\w]+(?::\d+)?\s*,\s*)*%[\w]+(?::\d+)?)\s*=", row)
            if found:
                assigned |= {p.strip().lstrip("%").split(":")[0] for p in found.group(1).split(",")}
        blocks = set(re.findall(r"%(\w+)\s*:", "\n".join(re.findall(r"\^\w+\(([^)]*)\)", text))))
        # What a loop counts, and what it carries from one turn to the next.
        blocks |= set(re.findall(r"\bscf\.for\s+%(\w+)", text))
        carried = "\n".join(re.findall(r"\biter_args\(([^)]*)\)", text))
        blocks |= set(re.findall(r"%(\w+)\s*=", carried))
        renamed: dict[str, str] = {}

        def percent(found: re.Match[str]) -> str:
            name = found.group(1)
            if name in blocks or name.isdigit():
                return found.group(0)
            if name in assigned:
                return renamed.setdefault(name, f"%b_{name}")
            if name not in renamed:
                renamed[name] = self.body_operand(name)
            return renamed[name]

        text = re.sub(r"%([A-Za-z_]\w*)", percent, text)
        first = sum(line.count("\n") + 1 for line in self.lines)
        for row in text.rstrip().splitlines():
            self.emit(row)
        untyped: dict[str, tuple[str, int, int]] = {}
        for n, row in enumerate(text.rstrip().splitlines()):
            found = re.match(r"\s*((?:%\w+\s*,\s*)*%\w+)\s*=", row)
            for at, ssa in enumerate(found.group(1).split(",") if found else ()):
                untyped[ssa.strip()] = (ssa.strip(), first + n, at)
        for name in assigned:
            type_ = self.body_type(name)
            if type_ is not None:
                ssa = renamed.get(name, f"%b_{name}")
                if isinstance(type_, Tensor):
                    self.locals[name] = Local(type_, ssa)
                else:
                    defined.append((name, type_))
                    self.locals[name] = Val(ssa, DType(type_))
            elif (ssa := renamed.get(name, f"%b_{name}")) in untyped:
                self.locals.pop(name, None)
                self.untyped[name] = untyped[ssa]

    def body_type(self, name: str) -> Tensor | str | None:
        """The type of a name that a body defines, or None for one that nothing else reads."""
        value = self.result_names.get(name, (None, ""))[0]
        if value is None:
            value = self.env.get(name)
        if isinstance(value, Tensor):
            return Tensor(name, value.dims, value.dtype, False)
        if isinstance(value, Scalar):
            return {"int": "si64", "float": "f64", "bool": "i1"}[value.kind]
        if isinstance(value, Dyn):
            return "si64"
        declared = self.rule.types.get(name)
        if declared is not None and declared[1].kind in ("tensor", "vtensor"):
            found = tensor_of_type(name, self.declared_type(name) or "")
            assert found is not None
            return Tensor(name, found.dims, found.dtype, False)
        return None

    def body_operand(self, name: str) -> str:
        """The SSA value that `%name` stands for."""
        value = self.name(ast.Name(0, 0, name))
        if isinstance(value, (Tensor, Local)):
            return self.local(value).ssa
        if isinstance(value, Val):
            return value.ssa
        if isinstance(value, Scalar):
            return self.to_val(value, None).ssa
        if isinstance(value, (int, Dyn)):
            return self.index(value)
        raise Refused(f"%{name} is {describe(value)}, not a value")

    def spelled(self, value: object, source: str) -> str:
        """A value as it is spelt inside MLIR text."""
        if isinstance(value, Local):
            return value.tensor.builtin_type()
        if isinstance(value, Tensor):
            return Tensor(value.name, value.dims, value.dtype, False).builtin_type()
        if isinstance(value, DType):
            return value.mlir
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            return float_text(value)
        if isinstance(value, Dyn):
            return "?"
        if isinstance(value, list):
            return ", ".join(self.spelled(v, source) for v in value)
        if isinstance(value, str):
            return quoted(value)
        raise Refused(f"${source} is {describe(value)}, which has no spelling in MLIR")
