"""The types of what a rewrite makes, where no rule line says them: the compiler knows its ops.

Of torch ops torch-mlir's shape and dtype functions say it, of others the op's own rule for its
results.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from mlirules.drivers.iree.compiler import PassManager, ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.values import type_info
from mlirules.generator.lowering.values import Argument, Raw

_REFINE = (
    "builtin.module(torch-reify-shape-calculations,inline{default-pipeline=},"
    "func.func(torch-simplify-shape-calculations),torch-reify-dtype-calculations,inline,"
    "func.func(torch-simplify-dtype-calculations))"
)
# What a result of a torch op may be; a tensor's shape and element type are found out.
_TENSOR = "!torch.vtensor"
_KINDS = (_TENSOR, "!torch.int", "!torch.float", "!torch.bool", "!torch.list<int>", "!torch.none")
_MARK = "mlirules.asked"


class Inference:
    """Asks the compiler; what it said is kept for the next rewrite of the same text."""

    def __init__(self, context: ir.Context) -> None:
        self.context = context
        self.known: dict[object, list[str] | str] = {}

    def op(
        self,
        lines: Sequence[str],
        arguments: Sequence[Argument],
        name: str,
        operands: Sequence[Raw],
        attributes: str,
        results: Sequence[str | None],
    ) -> list[str] | str:
        """The types of an op's results, of which some may be known, or why they are not.

        ``lines`` stand before the op and make its operands.
        """
        key = (tuple(lines), name, tuple(operands), attributes, tuple(results))
        if key not in self.known:
            ask = self._torch if name.startswith("torch.") else self._other
            try:
                with self.context:
                    self.known[key] = ask(lines, arguments, name, operands, attributes, results)
            except ir.MLIRError as error:
                self.known[key] = _told(error)
            except ValueError as error:
                self.known[key] = str(error).strip().splitlines()[0].strip()
        return self.known[key]

    def _torch(
        self,
        lines: Sequence[str],
        arguments: Sequence[Argument],
        name: str,
        operands: Sequence[Raw],
        attributes: str,
        results: Sequence[str | None],
    ) -> list[str] | str:
        types = ", ".join(o.type for o in operands)
        more = f", {attributes}" if attributes else ""
        call = f'"{name}"({", ".join(o.ssa for o in operands)}) {{{_MARK}{more}}} : ({types}) -> '
        said = ""
        for kinds in _kinds(results):
            names = ", ".join(f"%asked_{n}" for n in range(len(kinds)))
            op = f"{names} = {call}({', '.join(kinds)})"
            back = f"return {names} : {', '.join(kinds)}"
            try:
                module = ir.Module.parse(
                    _function([*lines, op, back], arguments, kinds), self.context
                )
                break
            except ir.MLIRError as error:
                said = _told(error)
        else:
            return said
        if _TENSOR not in kinds:
            return list(kinds)
        PassManager.parse(_REFINE, self.context).run(module.operation)
        for made in ops_below(module.operation):
            if _MARK in made.attributes:
                found = [type_info(r.type)[0] for r in made.results]
                open_ = [t for t in found if _unknown(t)]
                if open_:
                    return f"the compiler only knows that it is a {open_[0]}"
                return found
        return "the compiler makes something else of it"

    def _other(
        self,
        lines: Sequence[str],
        arguments: Sequence[Argument],
        name: str,
        operands: Sequence[Raw],
        attributes: str,
        results: Sequence[str | None],
    ) -> list[str] | str:
        types = [o.type for o in operands]
        back = f"return {', '.join(o.ssa for o in operands)} : {', '.join(types)}"
        text = _function([*lines, back if operands else "return"], arguments, types)
        module = ir.Module.parse(text, self.context)
        *_, last = module.body.operations[0].regions[0].blocks[0].operations
        given = ir.DictAttr(ir.Attribute.parse(f"{{{attributes}}}", self.context))
        with ir.InsertionPoint(last), ir.Location.unknown(self.context):
            made = ir.Operation.create(
                name,
                operands=list(last.operands),
                attributes={given[n].name: given[n].attr for n in range(len(given))},
                infer_type=True,
            )
        found = [type_info(r.type)[0] for r in made.results]
        if len(found) != len(results):
            return f"it has {len(found)} results, not {len(results)}"
        return found

    def value(
        self, lines: Sequence[str], arguments: Sequence[Argument], row: int
    ) -> list[str] | str:
        """The types of what the op in a row (from 0) of ``lines`` makes, or why not."""
        text = _function([*lines, "return"], arguments, [])
        try:
            module = ir.Module.parse(text, self.context)
        except ir.MLIRError as error:
            return _told(error)
        for op in ops_below(module.operation):
            if ir.FileLineColLoc(op.location).start_line == row + 2:
                return [type_info(r.type)[0] for r in op.results]
        return "no op of the body makes it"


def _told(error: Exception) -> str:
    """What the compiler says of a fault, without where in the text that it was given."""
    lines = str(error).strip().splitlines()
    told = next((line for line in lines if "error: " in line), lines[-1])
    said = told.rpartition("error: ")[2].strip()
    return re.sub(r'^(?:"-"|unknown):[\d:]*\s*', "", said)


def _kinds(results: Sequence[str | None]) -> Iterator[tuple[str, ...]]:
    """What an op's results may be, as far as it is known."""
    return itertools.product(*(_KINDS if kind is None else (kind,) for kind in results))


def _unknown(type_: str) -> bool:
    """Whether the rank or element type of a torch tensor is missing."""
    return type_ == _TENSOR or (
        type_.startswith(_TENSOR) and ("unk" in type_ or "<*" in type_ or "," not in type_)
    )


def _function(lines: Sequence[str], arguments: Sequence[Argument], results: Sequence[str]) -> str:
    """Lines as a function; the first of them is the text's second."""
    head = ", ".join(f"{a.ssa}: {a.type}" for a in arguments)
    body = "\n".join(lines)
    return f"func.func @asked({head}) -> ({', '.join(results)}) {{\n{body}\n}}\n"
