"""Lowering a rule's rewrite, for one set of symbol values, to MLIR text.

A rewrite depends on a match only through types and constants. It is therefore lowered once for
each distinct combination (:func:`lower`), parsed once, and cloned into place for every match: the
text is the same that the generator writes into specs, and what a reader sees in a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirules.generator.lowering.body import Bodies
from mlirules.generator.lowering.builder import Infer
from mlirules.generator.lowering.values import (
    INDEX,
    TORCH_SCALARS,
    Local,
    Lowered,
    LoweringError,
    Raw,
    Val,
)
from mlirules.language.functions import TENSOR
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, sequence
from mlirules.language.rule import BodyText, Rule
from mlirules.language.values import DType, Dyn, Opaque, Scalar, Tensor


def lower(
    rule: Rule,
    env: dict[str, object],
    results: Sequence[tuple[str | None, Any, str]],
    infer: Infer | None = None,
) -> Lowered:
    """Lower a rule's rewrite for one environment.

    ``results`` describes the root's results: name, value (a Tensor, a Scalar...) and MLIR type.
    ``infer`` says what ops give whose types nobody declared; without it they must be declared.
    Raises :class:`NoMatch` where a line of the rewrite has no value for this match, and
    :class:`LoweringError` where the rule itself is at fault.
    """
    return Lowering(rule, env, results, infer).run()


class Lowering(Bodies):
    """One rewrite, line by line, for one environment."""

    def run(self) -> Lowered:
        """Lower every line, then return what the root's results become."""
        for line, statement in self.rule.rewrite:
            self.line = line
            try:
                self.statement(statement)
            except Refused as refused:
                raise NoMatch(
                    line, refused.message, expected=str(line), node=refused.node
                ) from None
            except ValueError as error:
                raise NoMatch(line, str(error), expected=str(line)) from None
        try:
            returned = [self.result(name, value, type_) for name, value, type_ in self.results]
        except Refused as refused:
            raise NoMatch(
                self.line, refused.message, expected=str(self.line), node=refused.node
            ) from None
        ssa = ", ".join(s for s, _ in returned)
        types = ", ".join(t for _, t in returned)
        args = list(self.arguments.values())
        head = ", ".join(f"{a.ssa}: {a.type}" for a in args)
        body = "\n".join("  " + line for line in self.lines)
        back = f"return {ssa} : {types}" if returned else "return"
        text = f"func.func @rewrite({head}) -> ({types}) {{\n{body}\n  {back}\n}}\n"
        return Lowered(text, args, self.slots, self.env)

    def result(self, name: str | None, value: object, type_: str) -> tuple[str, str]:
        """The SSA value and type that replace one result of the root."""
        if name is None:
            raise LoweringError(self.line, "a result of the root has no name")
        made = self.made(name)
        if made is None:
            raise LoweringError(self.line, f"the rewrite does not define {name!r}")
        if isinstance(made, Raw):
            if made.type != type_:
                raise NoMatch(
                    self.line,
                    f"{name} would be {made.type}, not {type_}",
                    expected=type_,
                    found=made.type,
                )
            return made.ssa, type_
        if isinstance(value, Tensor):
            return self.to_type(self.as_local(made, name), value, type_), type_
        if isinstance(value, (Scalar, Dyn)):
            kind = value.kind if isinstance(value, Scalar) else "int"
            builtin, _ = TORCH_SCALARS[kind]
            wanted = {"int": "si64", "float": "f64", "bool": "i1"}[kind]
            found = self.to_val(made, DType(wanted))
            out = self.fresh("r")
            self.emit(f"{out} = torch_c.from_{builtin} {found.ssa}")
            return out, type_
        raise LoweringError(self.line, f"{name!r} has a type that no equation can give: {type_}")

    def made(self, name: str) -> Any:
        """What the rewrite made for a result; ``ys#1`` is an item of the list ``ys``."""
        base, at = name.rsplit("#", 1) if "#" in name else (name, "")
        made = self.locals.get(base)
        if at and made is not None:
            items = sequence(made, base)
            count = sum(1 for n, _, _ in self.results if n and n.startswith(base + "#"))
            if len(items) != count:
                raise NoMatch(
                    self.line,
                    f"{base} holds {len(items)} items, not {count}",
                    expected=str(count),
                    found=str(len(items)),
                )
            made = items[int(at)]
            if isinstance(made, Tensor):
                made = self.raw(made)
        return made

    def as_local(self, made: object, name: str) -> Local:
        """What the rewrite made for a result that is a tensor."""
        if isinstance(made, Local):
            return made
        if isinstance(made, (Val, int, float)):
            raise LoweringError(self.line, f"{name!r} is a tensor: write {name}[...] = ...")
        raise LoweringError(self.line, f"{name!r} is not a tensor")

    def to_type(self, local: Local, wanted: Tensor, type_: str) -> str:
        """A tensor in the type that the root's result has."""
        have, ssa = local.tensor, local.ssa
        if wanted.dims is None or wanted.dtype is None:
            raise NoMatch(self.line, f"the type of {wanted.name} is not known")
        if have.dtype != wanted.dtype:
            raise LoweringError(
                self.line,
                f"{wanted.name} holds {wanted.dtype}, but the rewrite gives {have.dtype}: cast it",
            )
        ssa = self.cast_shape(local, wanted.dims)
        if not wanted.torch:
            return ssa
        out = self.fresh("r")
        self.emit(f"{out} = torch_c.from_builtin_tensor {ssa} : {wanted.builtin_type()} -> {type_}")
        return out

    def statement(self, statement: ast.Statement | BodyText) -> None:
        """Lower one line."""
        match statement:
            case BodyText(text=text):
                self.body_text(text)
            case ast.OpEquation():
                self.op_equation(statement)
            case ast.IndexEquation():
                self.index_equation(statement)
            case ast.Assignment(target=target, value=value):
                self.assignment(target, value)

    def assignment(self, target: str, value: ast.Expr) -> None:
        """`y = x`: another name, a constant, or a tensor function."""
        if isinstance(value, ast.Conditional):
            chosen = value.then if self.conditional_static(value) else value.otherwise
            self.assignment(target, chosen)
            return
        if isinstance(value, ast.Call) and value.fn in TENSOR:
            self.locals[target] = self.tensor_function(value, target)
            return
        if isinstance(value, ast.Name) and value.id not in self.locals:
            found = self.env.get(value.id)
            if isinstance(found, (Tensor, Opaque, Scalar)) or (
                isinstance(found, Dyn) and found.op == "int"
            ):
                raw = self.raw(found)
                if isinstance(found, Tensor):
                    self.forwarded[raw.ssa] = found
                self.locals[target] = raw
                return
        if isinstance(value, ast.Name) and value.id in self.locals:
            self.locals[target] = self.locals[value.id]
            return
        found = self.eval(value)
        if found is None:
            self.locals[target] = self.torch_constant(None)
            return
        if isinstance(found, Dyn):
            found = Val(self.index(found), INDEX)
        self.locals[target] = found

    def conditional_static(self, node: ast.Conditional) -> bool:
        """A condition that must be known now."""
        found = self.eval(node.condition)
        if not isinstance(found, bool):
            raise Refused("the condition is not known at compile time", node.condition)
        return found
