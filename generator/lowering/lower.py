"""Lowering a rule's rewrite, for one set of symbol values, to MLIR text.

A rewrite depends on a match only through types and constants. It is therefore lowered once for
each distinct combination (:func:`lower`), parsed once, and cloned into place for every match: the
text is the same that the generator writes into specs, and what a reader sees in a trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.language.evaluate import (
    FUNCTIONS,
    Evaluator,
    Refused,
    advanced,
    aligned,
    arith,
    describe,
    dtype,
    extremum,
    integer,
    sequence,
)
from mlirules.language.functions import SIMPLE, SPECIAL, TENSOR
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.notation.parser import parse_expression, parse_statement
from mlirules.language.rule import BodyText, Line, Rule
from mlirules.language.unify import NoMatch
from mlirules.language.values import DType, Dyn, Opaque, Scalar, Tensor, dtype_named


class LoweringError(Exception):
    """A rewrite that makes no sense for a match that it accepted: the rule is at fault."""

    def __init__(self, line: Line, message: str, node: ast.Node | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.node = node


@dataclass(frozen=True)
class Argument:
    """One value that a lowered rewrite takes: which bound value, and in which form.

    ``form`` is ``raw`` (as matched), ``tensor`` (a builtin tensor), ``i64``, ``f64`` or ``i1``.
    """

    path: str
    form: str
    ssa: str
    type: str


@dataclass
class Lowered:
    """A rewrite as a function: ``text`` is a module that holds one ``func.func @rewrite``."""

    text: str
    arguments: list[Argument]
    # Ops of the text that take an attribute of the match: (slot name, bound name).
    slots: list[tuple[str, str]]
    env: dict[str, Any]


INDEX = DType("index")
_TORCH_SCALARS = {
    "int": ("i64", "!torch.int"),
    "float": ("f64", "!torch.float"),
    "bool": ("i1", "!torch.bool"),
}


@dataclass(frozen=True)
class Val:
    """A run-time scalar: an SSA value with its element type (in PyTorch's sense)."""

    ssa: str
    dtype: DType


@dataclass(frozen=True)
class Affine:
    """A linear combination of loop indices."""

    terms: tuple[tuple[str, int], ...]
    offset: Any = 0  # int or Dyn

    @property
    def plain(self) -> str | None:
        """The loop index that this is, when it is just one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0:
            return self.terms[0][0]
        return None


@dataclass(frozen=True)
class Local:
    """A tensor that the rewrite made: its type and its SSA value (a builtin tensor)."""

    tensor: Tensor
    ssa: str


def lower(
    rule: Rule, env: dict[str, Any], results: Sequence[tuple[str | None, Any, str]]
) -> Lowered:
    """Lower a rule's rewrite for one environment.

    ``results`` describes the root's results: name, value (a Tensor, a Scalar...) and MLIR type.
    Raises :class:`NoMatch` where a line of the rewrite has no value for this match, and
    :class:`LoweringError` where the rule itself is at fault.
    """
    return _Lowering(rule, env, results).run()


def _as_bound(bound: Any, result: Any) -> Any:
    if isinstance(bound, Tensor) and isinstance(result, Tensor) and not result.torch:
        return replace(result, dtype=bound.dtype)
    return result


class _Lowering(Evaluator):
    def __init__(
        self, rule: Rule, env: dict[str, Any], results: Sequence[tuple[str | None, Any, str]]
    ) -> None:
        super().__init__(env)
        self.rule = rule
        self.env = env
        # The sign of a result's integers is the declared one, which binding has put in.
        self.results = [(n, _as_bound(env.get(n or ""), v), t) for n, v, t in results]
        self.result_names = {n: (v, t) for n, v, t in self.results if n}
        self.lines: list[str] = []
        self.arguments: dict[tuple[str, str], Argument] = {}
        self.locals: dict[str, Any] = {}
        # Operands that a statement `y = x` passes on, by their SSA value.
        self.forwarded: dict[str, Tensor] = {}
        self.memo: dict[Any, str] = {}
        self.counter = 0
        self.slots: list[tuple[str, str]] = []
        self.line: Line = rule.rewrite[0][0]
        self.body: _Generic | None = None

    # -- plumbing

    def fresh(self, stem: str = "v") -> str:
        self.counter += 1
        return f"%{stem}_{self.counter}"

    def emit(self, text: str) -> None:
        self.lines.append(text)

    def scalar_emit(self, text: str) -> None:
        """Emit an op on scalars: into the body being built, or at function level."""
        (self.body.lines if self.body is not None else self.lines).append(text)

    def argument(self, path: str, form: str, type_: str) -> str:
        key = (path, form)
        if key not in self.arguments:
            stem = re.sub(r"\W", "_", path)
            suffix = "" if form == "raw" else "_" + form
            self.arguments[key] = Argument(path, form, f"%arg_{stem}{suffix}", type_)
        return self.arguments[key].ssa

    def run(self) -> Lowered:
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

    def result(self, name: str | None, value: Any, type_: str) -> tuple[str, str]:
        if name is None:
            raise LoweringError(self.line, "a result of the root has no name")
        made = self.made(name)
        if made is None:
            raise LoweringError(self.line, f"the rewrite does not define {name!r}")
        if isinstance(made, tuple):  # ("raw", ssa, type)
            _, ssa, found = made
            if found != type_:
                raise NoMatch(
                    self.line, f"{name} would be {found}, not {type_}", expected=type_, found=found
                )
            return ssa, type_
        if isinstance(value, Tensor):
            return self.to_type(self.as_local(made, name), value, type_), type_
        if isinstance(value, (Scalar, Dyn)):
            kind = value.kind if isinstance(value, Scalar) else "int"
            builtin, _ = _TORCH_SCALARS[kind]
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
                made = ("raw", *self.raw(made))
        return made

    def as_local(self, made: Any, name: str) -> Local:
        if isinstance(made, Local):
            return made
        if isinstance(made, (Val, int, float)):
            raise LoweringError(self.line, f"{name!r} is a tensor: write {name}[...] = ...")
        raise LoweringError(self.line, f"{name!r} is not a tensor")

    def to_type(self, local: Local, wanted: Tensor, type_: str) -> str:
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

    def cast_shape(self, local: Local, dims: Sequence[Any]) -> str:
        """``local`` with its type's static and dynamic dims as in ``dims``."""
        have = local.tensor
        assert have.dims is not None
        if len(have.dims) != len(dims):
            raise NoMatch(
                self.line,
                f"{have.name} has rank {len(have.dims)}, not {len(dims)}",
                expected=f"rank {len(dims)}",
                found=f"rank {len(have.dims)}",
            )
        wanted = Tensor(have.name, tuple(dims), have.dtype, False)
        for a, b in zip(have.dims, dims, strict=True):
            if isinstance(a, int) and isinstance(b, int) and a != b:
                raise NoMatch(
                    self.line,
                    f"a dim of {have.name} is {a}, not {b}",
                    expected=str(b),
                    found=str(a),
                )
        if wanted.builtin_type() == have.builtin_type():
            return local.ssa
        out = self.fresh("c")
        self.emit(
            f"{out} = tensor.cast {local.ssa} : {have.builtin_type()} to {wanted.builtin_type()}"
        )
        return out

    # -- names and values

    def name(self, node: ast.Name) -> Any:
        if node.id in self.locals:
            made = self.locals[node.id]
            if isinstance(made, tuple):
                return self.raw_to_local(node.id, made)
            return made
        if self.body is not None and node.id in self.body.indices:
            return self.body.indices[node.id]
        return super().name(node)

    def raw_to_local(self, name: str, made: tuple[str, str, str]) -> Any:
        """A torch value that the rewrite made, usable in index equations."""
        _, ssa, type_ = made
        if ssa in self.forwarded:
            return self.local(self.forwarded[ssa])
        tensor = tensor_of_type(name, type_)
        if tensor is None:
            return Opaque(name, type_)
        if not tensor.torch:
            return Local(tensor, ssa)
        out = self.fresh("b")
        builtin = Tensor(name, tensor.dims, tensor.dtype, False)
        self.emit(f"{out} = torch_c.to_builtin_tensor {ssa} : {type_} -> {builtin.builtin_type()}")
        return Local(builtin, out)

    def local(self, value: Any, what: str = "") -> Local:
        """A tensor value in builtin form."""
        if isinstance(value, Local):
            return value
        if isinstance(value, Tensor):
            if value.name in self.result_names:
                raise LoweringError(self.line, f"{value.name} is read before it is defined")
            if value.dims is None or value.dtype is None:
                raise Refused(f"the rank or element type of {value.name} is not known")
            builtin = Tensor(value.name, value.dims, value.dtype, False)
            form = "tensor" if value.torch else "raw"
            return Local(builtin, self.argument(value.name, form, builtin.builtin_type()))
        raise Refused(f"{what or describe(value)} is not a tensor")

    def index(self, value: Any) -> str:
        """An int or run-time integer as an SSA value of index type, at function level."""
        if isinstance(value, bool):
            value = int(value)
        if value in self.memo:
            return self.memo[value]
        if isinstance(value, int):
            out = self.fresh("i")
            self.emit(f"{out} = arith.constant {value} : index")
        elif isinstance(value, Val):
            if value.dtype == INDEX:
                return value.ssa
            out = self.fresh("i")
            self.emit(f"{out} = arith.index_cast {value.ssa} : {value.dtype.mlir} to index")
        elif isinstance(value, Dyn):
            out = self.dyn(value)
        else:
            raise Refused(f"{describe(value)} is not an integer")
        self.memo[value] = out
        return out

    def dyn(self, value: Dyn) -> str:
        if value.op == "dim":
            name, axis = value.args
            source = self.env.get(str(name))
            if source is None:
                source = self.element_of(str(name))
            held = self.local(source)
            at = self.index(int(str(axis)))
            out = self.fresh("d")
            self.emit(f"{out} = tensor.dim {held.ssa}, {at} : {held.tensor.builtin_type()}")
            return out
        if value.op == "local":
            return str(value.args[0])
        if value.op == "int":
            ssa = self.argument(str(value.args[0]), "i64", "i64")
            out = self.fresh("i")
            self.emit(f"{out} = arith.index_cast {ssa} : i64 to index")
            return out
        if value.op == "result":
            raise Refused(
                f"dim {value.args[1]} of the result {value.args[0]} is dynamic and nothing in the "
                "match gives its size"
            )
        if value.op == "?":
            raise Refused("a dynamic dim has no known source")
        op = {
            "+": "addi",
            "-": "subi",
            "*": "muli",
            "//": "floordivsi",
            "%": "remsi",
            "max": "maxsi",
            "min": "minsi",
        }[value.op]
        a, b = (self.index(v) for v in value.args)
        out = self.fresh("i")
        self.emit(f"{out} = arith.{op} {a}, {b} : index")
        return out

    def element_of(self, path: str) -> Any:
        """A bound list's element, by the name it goes by in templates (``xs#0``)."""
        if "#" in path:
            base, at = path.rsplit("#", 1)
            return sequence(self.env[base])[int(at)]
        raise Refused(f"{path} has no value")

    # -- statements

    def statement(self, statement: ast.Statement | BodyText) -> None:
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
                ssa, type_ = self.raw(found)
                if isinstance(found, Tensor):
                    self.forwarded[ssa] = found
                self.locals[target] = ("raw", ssa, type_)
                return
        if isinstance(value, ast.Name) and value.id in self.locals:
            self.locals[target] = self.locals[value.id]
            return
        found = self.eval(value)
        if found is None:
            self.locals[target] = ("raw", *self.torch_constant(None))
            return
        if isinstance(found, Dyn):
            found = Val(self.index(found), INDEX)
        self.locals[target] = found

    def conditional_static(self, node: ast.Conditional) -> bool:
        found = self.eval(node.condition)
        if not isinstance(found, bool):
            raise Refused("the condition is not known at compile time", node.condition)
        return found

    def raw(self, value: Any) -> tuple[str, str]:
        """A bound value as it stands in the IR: SSA and type."""
        if isinstance(value, Tensor):
            type_ = value.torch_type() if value.torch else value.builtin_type()
            return self.argument(value.name, "raw", type_), type_
        if isinstance(value, Opaque):
            return self.argument(value.name, "raw", value.type), value.type
        if isinstance(value, Scalar):
            type_ = _TORCH_SCALARS[value.kind][1]
            return self.argument(value.name, "raw", type_), type_
        if isinstance(value, Dyn) and value.op == "int":
            return self.argument(str(value.args[0]), "raw", "!torch.int"), "!torch.int"
        raise Refused(f"{describe(value)} is not a value of the program")

    # -- op equations

    def op_equation(self, statement: ast.OpEquation) -> None:
        names = statement.results
        types = []
        for name in names:
            if name is None:
                raise LoweringError(self.line, "give every result of a new op a name")
            types.append(self.declared_type(name, statement))
        values = self.op(statement.call, types)
        for name, (ssa, type_) in zip(names, values, strict=True):
            assert name is not None
            self.locals[name] = ("raw", ssa, type_)

    def declared_type(self, name: str, node: ast.Node) -> str:
        if name in self.result_names:
            return self.result_names[name][1]
        declared = self.rule.types.get(name)
        if declared is None:
            raise LoweringError(self.line, f"declare the type of {name!r} in `types:`", node)
        decl = declared[1]
        if decl.kind in _TORCH_SCALARS:
            return _TORCH_SCALARS[decl.kind][1]
        if decl.kind == "list" and decl.of is not None and decl.of.kind in _TORCH_SCALARS:
            return f"!torch.list<{decl.of.kind}>"
        if decl.dims is None or decl.element is None:
            raise LoweringError(declared[0], f"the type of {name!r} must be written out")
        dims: list[Any] = []
        for dim in decl.dims:
            if isinstance(dim.value, int):
                dims.append(dim.value)
            elif dim.value is None:
                dims.append(Dyn("?", ()))
            elif dim.pack:
                dims.extend(sequence(self.env[dim.value]))
            else:
                dims.append(self.env[dim.value])
        element = dtype_named(decl.element) or self.env.get(decl.element)
        if not isinstance(element, DType):
            raise LoweringError(declared[0], f"the element type of {name!r} has no value")
        if decl.kind == "vtensor":
            return Tensor(name, tuple(dims), element).torch_type()
        return Tensor(name, tuple(dims), element, False).builtin_type()

    def op(self, call: ast.Call, types: list[str]) -> list[tuple[str, str]]:
        torch = call.fn.startswith(("torch.", "torch_c."))
        operands: list[tuple[str, str]] = []
        for arg in call.args:
            if isinstance(arg, ast.Pack):
                operands.extend(self.operand(v, torch) for v in self.pack(arg))
            else:
                operands.append(self.operand_expr(arg, torch))
        attrs = [f"{key} = {self.attribute(self.eval(expr))}" for key, expr in call.attrs]
        out = [self.fresh("t") for _ in types]
        text = f'"{call.fn}"({", ".join(s for s, _ in operands)})'
        if attrs:
            text += " {" + ", ".join(attrs) + "}"
        text += f" : ({', '.join(t for _, t in operands)}) -> ({', '.join(types)})"
        # One group of results, so that every op can be written the same way.
        self.emit(f"{', '.join(out)} = {text}")
        return list(zip(out, types, strict=True))

    def operand_expr(self, arg: ast.Expr, torch: bool) -> tuple[str, str]:
        if isinstance(arg, ast.Name) and isinstance(self.locals.get(arg.id), tuple):
            _, ssa, type_ = self.locals[arg.id]
            if torch or not type_.startswith("!torch.vtensor"):
                return ssa, type_
        return self.operand(self.eval(arg), torch)

    def operand(self, value: Any, torch: bool) -> tuple[str, str]:
        if isinstance(value, (Tensor, Local)):
            if not torch:
                held = self.local(value)
                return held.ssa, held.tensor.builtin_type()
            if isinstance(value, Tensor):
                return self.raw(value)
            as_torch = Tensor(value.tensor.name, value.tensor.dims, value.tensor.dtype, True)
            out = self.fresh("t")
            self.emit(
                f"{out} = torch_c.from_builtin_tensor {value.ssa} : "
                f"{value.tensor.builtin_type()} -> {as_torch.torch_type()}"
            )
            return out, as_torch.torch_type()
        if not torch:
            if isinstance(value, Val):
                return value.ssa, value.dtype.mlir
            if isinstance(value, (int, Dyn)) and not isinstance(value, bool):
                return self.index(value), "index"
            raise Refused(f"{describe(value)} cannot be an operand of this op")
        return self.torch_constant(value)

    def torch_constant(self, value: Any) -> tuple[str, str]:
        if isinstance(value, (Scalar, Opaque)) or (isinstance(value, Dyn) and value.op == "int"):
            return self.raw(value)
        if isinstance(value, Dyn):
            ssa = self.index(value)
            i64, out = self.fresh("i"), self.fresh("k")
            self.emit(f"{i64} = arith.index_cast {ssa} : index to i64")
            self.emit(f"{out} = torch_c.from_i64 {i64}")
            return out, "!torch.int"
        if isinstance(value, list):
            items = [
                self.torch_constant(v)
                if not isinstance(v, (Tensor, Local))
                else self.operand(v, True)
                for v in value
            ]
            kinds = {t for _, t in items}
            if not kinds:
                of = "int"
            elif all(t.startswith("!torch.vtensor") for t in kinds):
                of = "vtensor"
            elif len(kinds) == 1:
                of = kinds.pop().removeprefix("!torch.")
            else:
                raise Refused(f"a list of different types: {', '.join(sorted(kinds))}")
            out = self.fresh("k")
            args, types = ", ".join(s for s, _ in items), ", ".join(t for _, t in items)
            made = f"!torch.list<{of}>"
            self.emit(f'{out} = "torch.prim.ListConstruct"({args}) : ({types}) -> {made}')
            return out, made
        key = ("torch", type(value).__name__, repr(value))
        kind, attr = {
            type(None): ("none", ""),
            bool: ("bool", str(value).lower()),
            int: ("int", str(value)),
            float: ("float", float_text(value) if isinstance(value, float) else ""),
            str: ("str", quoted(value) if isinstance(value, str) else ""),
        }.get(type(value), ("", ""))
        if not kind:
            raise Refused(f"{describe(value)} cannot be a torch constant")
        if key not in self.memo:
            out = self.fresh("k")
            self.emit(f"{out} = torch.constant.{kind} {attr}".rstrip())
            self.memo[key] = out
        return self.memo[key], f"!torch.{kind}"

    def attribute(self, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return f"{value} : i64"
        if isinstance(value, float):
            return f"{float_text(value)} : f64"
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, list) and all(type(v) is int for v in value):
            return "[" + ", ".join(f"{v} : i64" for v in value) + "]"
        raise Refused(f"{describe(value)} cannot be an attribute")

    # -- bodies of raw MLIR

    def body_text(self, text: str) -> None:
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
        for row in text.rstrip().splitlines():
            self.emit(row)
        for name in assigned:
            type_ = self.body_type(name)
            if type_ is not None:
                ssa = renamed.get(name, f"%b_{name}")
                if isinstance(type_, Tensor):
                    self.locals[name] = Local(type_, ssa)
                else:
                    defined.append((name, type_))
                    self.locals[name] = Val(ssa, DType(type_))

    def body_type(self, name: str) -> Tensor | str | None:
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
            found = tensor_of_type(name, self.declared_type(name, declared[1]))
            assert found is not None
            return Tensor(name, found.dims, found.dtype, False)
        return None

    def body_operand(self, name: str) -> str:
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

    def spelled(self, value: Any, source: str) -> str:
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

    # -- tensor functions

    def tensor_function(self, call: ast.Call, target: str) -> Any:
        low, high, _ = TENSOR[call.fn]
        if not low <= len(call.args) <= high:
            raise Refused(f"{call.fn} takes {low} to {high} values", call)
        args = self.items(call.args)
        match call.fn:
            case "reshape":
                shape = sequence(args[1]) if len(args) > 1 else self.target_dims(target)
                return self.reshape(self.local(args[0]), shape, target)
            case "pad":
                return self.pad(self.local(args[0]), *args[1:], target=target)
            case "concatenate":
                return self.concatenate(sequence(args[0]), integer(args[1]), target)
            case "window":
                held, axis, *window = self.local(args[0]), integer(args[1]), *args[2:]
                dims = list(held.tensor.dims or ())
                start, size, step = window
                offsets, strides = [0] * len(dims), [1] * len(dims)
                offsets[axis], strides[axis], dims[axis] = start, integer(step), size
                return self.slice(held, offsets, dims, strides)
            case "stack":
                axis = integer(args[1])
                parts = [self.local(v) for v in sequence(args[0])]
                lifted: list[Any] = []
                for part in parts:
                    dims = list(part.tensor.dims or ())
                    lifted.append(self.reshape(part, [*dims[:axis], 1, *dims[axis:]], target))
                return self.concatenate(lifted, axis, target)
            case "converted":
                return [self.converted(self.local(v), dtype(args[1])) for v in sequence(args[0])]
            case "spread":
                shape = sequence(args[1])
                return [self.spread(self.local(v), shape) for v in sequence(args[0])]
            case "meshgrid":
                return self.meshgrid([self.local(v) for v in sequence(args[0])], args[1] is True)
            case "split":
                return self.split(self.local(args[0]), sequence(args[1]), integer(args[2]))
            case "unstack":
                source, axis = self.local(args[0]), integer(args[1])
                count = integer(source.tensor.dims[axis] if source.tensor.dims else 0)
                return self.split(source, [1] * count, axis, drop=[axis])
            case "einsum":
                return self.einsum(args[0], sequence(args[1]), target)
            case "cumsum" | "cumprod":
                return self.scan(call.fn, self.local(args[0]), integer(args[1]), target)
            case "literal":
                return self.literal(call, target)
            case "wide":
                return wide(dtype(args[0]))
        raise LoweringError(self.line, f"unknown function {call.fn}", call)

    def target_dims(self, target: str) -> list[Any]:
        if target in self.result_names and isinstance(self.result_names[target][0], Tensor):
            dims = self.result_names[target][0].dims
            if dims is not None:
                return self.unified_dims(target, list(dims))
        raise Refused(f"the shape of {target} is not known: write it out")

    def unified_dims(self, target: str, dims: list[Any]) -> list[Any]:
        """A result's dims with the sources that unification found for its dynamic ones."""
        declared = self.rule.types.get(target)
        if declared is None or declared[1].dims is None:
            return dims
        decls = list(declared[1].dims)
        spread: list[Any] = []
        for d in decls:
            value = self.env.get(d.value) if isinstance(d.value, str) else d.value
            if d.pack:
                size = len(dims) - (len(decls) - 1)
                spread.extend(value if isinstance(value, list) else [None] * size)
            else:
                spread.append(value)
        if len(spread) != len(dims):
            return dims
        return [
            s if isinstance(d, Dyn) and isinstance(s, (int, Dyn)) else d
            for d, s in zip(dims, spread, strict=True)
        ]

    def reshape(self, source: Local, shape: list[Any], name: str) -> Local:
        """``source`` in another shape; row-major order is kept."""
        assert source.tensor.dims is not None
        have: list[Any] = list(source.tensor.dims)
        shape = [
            v
            if isinstance(v, (int, Dyn))
            else Dyn("local", (self.index(v),))
            if isinstance(v, Val)
            else self.not_a_dim(v)
            for v in shape
        ]
        if -1 in shape:
            at = shape.index(-1)
            rest: Any = 1
            for i, v in enumerate(shape):
                if i != at:
                    rest = arith("*", rest, v)
            total: Any = 1
            for v in have:
                total = arith("*", total, v)
            if rest == 0:
                raise Refused("cannot infer a dim beside an empty one")
            shape[at] = (
                total
                if rest == 1
                else (
                    total // rest
                    if isinstance(total, int) and isinstance(rest, int)
                    else _cancel(have, [v for i, v in enumerate(shape) if i != at])
                    or arith("//", total, rest)
                )
            )
        result = Tensor(name, tuple(shape), source.tensor.dtype, False)
        if _same_dims(have, shape):
            return Local(result, self.cast_shape(source, shape))
        both_static = all(isinstance(v, int) for v in [*have, *shape])
        if both_static and math.prod(have) != math.prod(shape):
            raise Refused(f"{math.prod(have)} elements cannot be reshaped to {describe(shape)}")
        if not have or not shape:
            return self.reshape_scalar(source, shape, result)
        groups = _reassociate(have, shape)
        if groups is not None and all(len(a) == 1 for a, _ in groups):
            return Local(result, self.expand(source, shape, [b for _, b in groups], result))
        if groups is not None and all(len(b) == 1 for _, b in groups):
            return Local(result, self.collapse(source, [a for a, _ in groups], result))
        if groups is not None and both_static:
            middle = [math.prod(have[i] for i in a) for a, _ in groups]
        else:
            middle = [_one_product(have)]
            groups = [(list(range(len(have))), list(range(len(shape))))]
        flat = Tensor(name, tuple(middle), source.tensor.dtype, False)
        held = source
        if len(have) != len(middle):
            held = Local(flat, self.collapse(source, [a for a, _ in groups], flat))
        if len(shape) != len(middle):
            return Local(result, self.expand(held, shape, [b for _, b in groups], result))
        return Local(result, self.cast_shape(held, shape))

    def reshape_scalar(self, source: Local, shape: list[Any], result: Tensor) -> Local:
        """Between rank 0 and dims that are all 1."""
        assert source.tensor.dims is not None
        ones = Tensor(result.name, (1,) * max(len(shape), source.tensor.rank), result.dtype, False)
        out = self.fresh("s")
        if shape:
            self.emit(
                f"{out} = tensor.expand_shape {source.ssa} [] output_shape {list(ones.dims or ())} "
                f": {source.tensor.builtin_type()} into {ones.builtin_type()}"
            )
            return Local(result, self.cast_shape(Local(ones, out), shape))
        held = self.cast_shape(source, ones.dims or ())
        self.emit(
            f"{out} = tensor.collapse_shape {held} [] : {ones.builtin_type()} into "
            f"{result.builtin_type()}"
        )
        return Local(result, out)

    def not_a_dim(self, value: Any) -> Any:
        raise Refused(f"{describe(value)} is not a dim")

    def collapse(self, source: Local, groups: list[list[int]], result: Tensor) -> str:
        out = self.fresh("s")
        if not source.tensor.dims:
            return source.ssa
        collapsed = []
        for group, dim in zip(groups, result.dims or (), strict=True):
            inner: list[Any] = [source.tensor.dims[i] for i in group]
            collapsed.append(
                math.prod(inner)
                if all(isinstance(v, int) for v in inner)
                else dim
                if isinstance(dim, Dyn)
                else Dyn("?", ())
            )
        exact = Tensor(result.name, tuple(collapsed), result.dtype, False)
        self.emit(
            f"{out} = tensor.collapse_shape {source.ssa} {groups_text(groups)} : "
            f"{source.tensor.builtin_type()} into {exact.builtin_type()}"
        )
        if exact.builtin_type() != result.builtin_type():
            return self.cast_shape(Local(exact, out), result.dims or ())
        return out

    def expand(
        self, source: Local, shape: list[Any], groups: list[list[int]], result: Tensor
    ) -> str:
        assert source.tensor.dims is not None
        wanted = []
        for dim, group in zip(source.tensor.dims, groups, strict=True):
            sizes = [shape[i] for i in group]
            wanted.append(
                math.prod(sizes)
                if all(isinstance(v, int) for v in sizes)
                else dim
                if isinstance(dim, Dyn)
                else Dyn("?", ())
            )
        ssa = self.cast_shape(source, wanted)
        held = Tensor(source.tensor.name, tuple(wanted), source.tensor.dtype, False)
        sizes_text = ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in shape)
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.expand_shape {ssa} {groups_text(groups)} output_shape "
            f"[{sizes_text}] : {held.builtin_type()} into {result.builtin_type()}"
        )
        return out

    def pad(self, source: Local, low: Any, high: Any, value: Any, *, target: str) -> Local:
        assert source.tensor.dims is not None and source.tensor.dtype is not None
        rank = len(source.tensor.dims)
        lows, highs = sequence(low), sequence(high)
        if len(lows) != rank or len(highs) != rank:
            raise Refused(f"pad needs {rank} amounts before and {rank} after")
        # An amount below 0 cuts; of one known only at run time, both are done.
        cut_low = [extremum("max", (0, arith("-", 0, v))) for v in lows]
        cut_high = [extremum("max", (0, arith("-", 0, v))) for v in highs]
        lows = [extremum("max", (0, v)) for v in lows]
        highs = [extremum("max", (0, v)) for v in highs]
        if any(cut_low) or any(cut_high):
            sizes = [
                arith("-", arith("-", d, a), b)
                for d, a, b in zip(source.tensor.dims, cut_low, cut_high, strict=True)
            ]
            source = self.slice(source, cut_low, sizes, [1] * rank)
        assert source.tensor.dims is not None and source.tensor.dtype is not None
        if not any(lows) and not any(highs):
            return source
        dims = tuple(
            arith("+", arith("+", d, a), b)
            for d, a, b in zip(source.tensor.dims, lows, highs, strict=True)
        )
        result = Tensor(target, dims, source.tensor.dtype, False)
        fill = self.to_val(value, source.tensor.dtype)
        low_text, high_text = (
            "[" + ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in side) + "]"
            for side in (lows, highs)
        )
        out = self.fresh("p")
        args = ", ".join(f"%x{i}: index" for i in range(rank))
        self.emit(f"{out} = tensor.pad {source.ssa} low{low_text} high{high_text} {{")
        self.emit(f"^bb0({args}):")
        self.emit(f"  tensor.yield {fill.ssa} : {source.tensor.dtype.mlir}")
        self.emit(f"}} : {source.tensor.builtin_type()} to {result.builtin_type()}")
        return Local(result, out)

    def slice(
        self,
        source: Local,
        offsets: list[Any],
        sizes: list[Any],
        strides: list[int],
        drop: Sequence[int] = (),
    ) -> Local:
        """A strided window of a tensor; the axes in ``drop`` (of size 1) disappear."""
        dims = tuple(s for i, s in enumerate(sizes) if i not in drop)
        have = source.tensor
        result = Tensor(have.name, dims, have.dtype, False)
        if any(isinstance(s, int) and s == 0 for s in sizes):
            # Where nothing is taken there is no place to start from in a tensor without elements.
            out = self.fresh("e")
            dynamic = ", ".join(self.index(s) for s in dims if not isinstance(s, int))
            self.emit(f"{out} = tensor.empty({dynamic}) : {result.builtin_type()}")
            return Local(result, out)
        # An empty window may start anywhere, but its start must lie inside the tensor.
        offsets = [
            0 if s == 0 and isinstance(s, int) else o for o, s in zip(offsets, sizes, strict=True)
        ]
        text = [
            "[" + ", ".join(str(v) if isinstance(v, int) else self.index(v) for v in values) + "]"
            for values in (offsets, sizes, strides)
        ]
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.extract_slice {source.ssa}{text[0]} {text[1]} {text[2]} : "
            f"{have.builtin_type()} to {result.builtin_type()}"
        )
        return Local(result, out)

    def converted(self, source: Local, element: DType) -> Local:
        """``source`` cast to an element type, by an index equation."""
        if source.tensor.dtype == element:
            return source
        return self.mapped(source, f"made[...] = cast(part[...], {element.name})")

    def spread(self, source: Local, shape: list[Any]) -> Local:
        """``source`` broadcast to ``shape``."""
        dims = list(source.tensor.dims or ())
        source = self.reshape(source, [1] * (len(shape) - len(dims)) + dims, source.tensor.name)
        self.locals["sizes"] = shape
        try:
            return self.mapped(source, "made[...] = part[...] for ... < sizes")
        finally:
            del self.locals["sizes"]

    def mapped(self, source: Local, text: str) -> Local:
        """The tensor ``made`` by an index equation over the tensor ``part``."""
        self.locals["part"] = source
        try:
            return self.equated(text)
        finally:
            del self.locals["part"]

    def equated(self, text: str) -> Local:
        """The tensor ``made`` by an index equation over what is there."""
        equation = parse_statement(text)
        assert isinstance(equation, ast.IndexEquation)
        self.index_equation(equation)
        made = self.locals.pop("made")
        assert isinstance(made, Local)
        return made

    def scan(self, what: str, source: Local, axis: int, target: str) -> Local:
        """Running sums or products along an axis, each with its own element."""
        element, dims = source.tensor.dtype, list(source.tensor.dims or ())
        assert element is not None
        if not 0 <= axis < len(dims):
            raise Refused(f"axis {axis} is outside a rank-{len(dims)} tensor")
        if element.is_bool or element.is_complex:
            raise Refused(f"{what} takes numbers, not {element.name}: cast first")
        start = 0 if what == "cumsum" else 1
        sums = self.filled(dims, start, element)
        last = self.filled(dims[:axis] + dims[axis + 1 :], start, element)
        result = Tensor(target, tuple(dims), element, False)
        types = f"{result.builtin_type()}, {last.tensor.builtin_type()}"
        op = f"arith.{'add' if what == 'cumsum' else 'mul'}{'f' if element.is_float else 'i'}"
        out, rest, a, b, r = (self.fresh(hint) for hint in ("s", "l", "a", "b", "r"))
        self.emit(
            f"{out}, {rest} = iree_linalg_ext.scan dimension({axis}) inclusive(true) "
            f"ins({source.ssa} : {source.tensor.builtin_type()}) "
            f"outs({sums.ssa}, {last.ssa} : {types}) {{"
        )
        self.emit(f"^bb0({a}: {element.mlir}, {b}: {element.mlir}):")
        self.emit(f"  {r} = {op} {a}, {b} : {element.mlir}")
        self.emit(f"  iree_linalg_ext.yield {r} : {element.mlir}")
        self.emit(f"}} -> {types}")
        return Local(result, out)

    def filled(self, dims: list[Any], value: int, element: DType) -> Local:
        """A tensor that holds one number everywhere."""
        self.locals["sizes"] = dims
        try:
            return self.equated(f"made[I...] = cast({value}, {element.name}) for I... < sizes")
        finally:
            del self.locals["sizes"]

    def meshgrid(self, parts: list[Local], columns_first: bool) -> list[Local]:
        """Vectors spread over the grid that they span."""
        order = list(range(len(parts)))
        if columns_first and len(parts) > 1:
            order[:2] = [1, 0]
        sizes: list[Any] = []
        for i in order:
            if parts[i].tensor.rank > 1:
                raise Refused("meshgrid takes vectors")
            sizes.append((parts[i].tensor.dims or (1,))[0])
        out = []
        for i, part in enumerate(parts):
            shape: list[Any] = [1] * len(parts)
            shape[order.index(i)] = (part.tensor.dims or (1,))[0]
            out.append(self.spread(self.reshape(part, shape, "part"), sizes))
        return out

    def split(
        self, source: Local, sizes: list[Any], axis: int, drop: Sequence[int] = ()
    ) -> list[Local]:
        """Windows of ``sizes`` that follow each other along ``axis``."""
        dims = list(source.tensor.dims or ())
        if not 0 <= axis < len(dims):
            raise Refused(f"axis {axis} is outside a rank-{len(dims)} tensor")
        parts: list[Local] = []
        start: Any = 0
        for size in sizes:
            window = [*dims[:axis], size, *dims[axis + 1 :]]
            offsets = [0] * axis + [start] + [0] * (len(dims) - axis - 1)
            parts.append(self.slice(source, offsets, window, [1] * len(dims), drop))
            start = arith("+", start, size)
        total = dims[axis]
        if isinstance(total, int) and isinstance(start, int) and start != total:
            raise Refused(f"parts of {start} in all do not make up a dim of {total}")
        return parts

    def concatenate(self, items: list[Any], axis: int, target: str) -> Local:
        parts = [self.local(v) for v in items]
        if not parts:
            raise Refused("nothing to concatenate")
        rank = parts[0].tensor.rank
        if not rank:
            raise Refused("tensors of rank 0 cannot be concatenated")
        axis %= rank
        dims: list[Any] = list(parts[0].tensor.dims or ())
        for part in parts[1:]:
            if part.tensor.rank != rank:
                raise Refused("tensors of different ranks")
            if part.tensor.dtype != parts[0].tensor.dtype:
                raise Refused("tensors of different element types")
            for i, d in enumerate(part.tensor.dims or ()):
                if i == axis:
                    dims[i] = arith("+", dims[i], d)
                elif isinstance(dims[i], Dyn) and isinstance(d, int):
                    dims[i] = d
        held = []
        for part in parts:
            wanted = [d if i == axis else dims[i] for i, d in enumerate(part.tensor.dims or ())]
            held.append(
                (
                    self.cast_shape(part, wanted),
                    Tensor("", tuple(wanted), part.tensor.dtype, False).builtin_type(),
                )
            )
        result = Tensor(target, tuple(dims), parts[0].tensor.dtype, False)
        if len(held) == 1:
            return Local(result, held[0][0])
        out = self.fresh("s")
        self.emit(
            f"{out} = tensor.concat dim({axis}) {', '.join(s for s, _ in held)} : "
            f"({', '.join(t for _, t in held)}) -> {result.builtin_type()}"
        )
        return Local(result, out)

    def einsum(self, text: Any, items: list[Any], target: str) -> Any:
        """PyTorch's einsum as the index equation that it is."""
        if not isinstance(text, str):
            raise Refused(f"{describe(text)} is not an equation")
        parts = [self.local(v) for v in items]
        left, arrow, right = text.replace(" ", "").partition("->")
        labels = [re.findall(r"\.\.\.|[A-Za-z]", part) for part in left.split(",")]
        if len(labels) != len(parts):
            raise Refused(f"{text!r} takes {len(labels)} tensors, not {len(parts)}")
        every = [c for part in labels for c in part]
        # Without an arrow: what stands once, in the alphabet's order, after the ellipsis.
        once = sorted(c for c in set(every) if every.count(c) == 1 and c != "...")
        out = (
            re.findall(r"\.\.\.|[A-Za-z]", right) if arrow else (["..."] * ("..." in every) + once)
        )
        sizes: dict[str, Any] = {}
        placed: list[list[tuple[str, Any]]] = []
        for part, source in zip(labels, parts, strict=True):
            dims = list(source.tensor.dims or ())
            rest = len(dims) - len(part) + ("..." in part)
            if rest < 0 or ("..." not in part and rest):
                raise Refused(f"{''.join(part)} does not name {len(dims)} dims")
            at = part.index("...") if "..." in part else len(part)
            after = dims[at + rest :] if "..." in part else []
            placed.append(
                [
                    *zip(part[:at], dims[:at], strict=True),
                    *([("...", None)] if "..." in part else []),
                    *zip(part[at + 1 :], after, strict=True),
                ]
            )
            for label, dim in placed[-1]:
                if sizes.get(label, 1) == 1:
                    sizes[label] = dim

        def index(label: str, dim: Any = None) -> ast.Expr:
            if label == "...":
                return ast.Pack(0, 0, None)
            if dim == 1 and sizes[label] != 1:
                return ast.Literal(0, 0, 0)  # broadcast, as PyTorch does
            return ast.Name(0, 0, f"{label}'")

        value: ast.Expr | None = None
        operands = list(enumerate(zip(parts, placed, strict=True)))
        if len(operands) > 2:
            # IREE does not vectorise a contraction whose last factor is the smaller one.
            operands.sort(key=lambda item: len(item[1][1]))
        for n, (source, places) in operands:
            name = f"{target}'{n}"
            self.locals[name] = source
            read: ast.Expr = ast.Access(
                0, 0, ast.Name(0, 0, name), tuple(index(c, d) for c, d in places)
            )
            assert source.tensor.dtype is not None
            read = ast.Call(0, 0, wide(source.tensor.dtype).name, (read,))
            value = read if value is None else ast.Binary(0, 0, "*", value, read)
        assert value is not None
        op = "+=" if set(every) - set(out) else "="
        self.index_equation(
            ast.IndexEquation(0, 0, target, tuple(index(c) for c in out), op, value)
        )
        return self.locals[target]

    def literal(self, call: ast.Call, target: str) -> Local:
        value = self.result_names.get(target, (None, ""))[0]
        if not isinstance(value, Tensor) or not isinstance(call.args[0], ast.Name):
            raise Refused("literal(v) defines a result from an attribute of the match")
        builtin = Tensor(target, value.dims, value.dtype, False)
        assert builtin.dtype is not None
        out, slot = self.fresh("l"), f"slot{len(self.slots)}"
        zero = (
            "false"
            if builtin.dtype.is_bool
            else (
                "0.0"
                if builtin.dtype.is_float
                else "(0.0, 0.0)"
                if builtin.dtype.is_complex
                else "0"
            )
        )
        self.emit(
            f'{out} = arith.constant {{mlirules.slot = "{slot}"}} dense<{zero}> : '
            f"{builtin.builtin_type()}"
        )
        self.slots.append((slot, call.args[0].id))
        return Local(builtin, out)

    # -- run-time scalars

    def argument_of(self, value: Any) -> Any:
        return value.tensor if isinstance(value, Local) else value

    def call(self, node: ast.Call) -> Any:
        fn = node.fn
        if fn in TENSOR:
            if fn == "wide":
                return wide(dtype(self.eval(node.args[0])))
            raise Refused(f"{fn} gives a tensor: define it in an equation of its own", node)
        target = self.names.get(fn) if fn not in SIMPLE else None
        as_type = target if isinstance(target, DType) else dtype_named(fn)
        if as_type is not None:
            if len(node.args) != 1:
                raise Refused(f"{fn}(x) converts one value", node)
            return self.convert(self.eval(node.args[0]), as_type)
        if fn == "indexed":
            return self.indexed(*self.items_of(node))
        if fn in ("max", "min", "sum", "product"):
            args = self.items(node.args)
            if len(args) > 1 and any(isinstance(a, list) for a in args):
                return self.itemwise(fn, args)
            if fn in ("sum", "product") and len(args) == 1 and isinstance(args[0], list):
                out: Any = int(fn == "product")
                for value in args[0]:
                    out = (
                        value
                        if out == int(fn == "product")
                        else self.binary("+" if fn == "sum" else "*", out, value)
                    )
                return out
        if fn == "cast":
            return self.convert(self.eval(node.args[0]), dtype(self.eval(node.args[1])))
        if fn in SPECIAL or fn in SIMPLE:
            args = self.items(node.args)
            if any(isinstance(a, (Val, Affine, Scalar)) for a in args) or fn not in FUNCTIONS:
                if fn in SIMPLE and len(args) != SIMPLE[fn].arity:
                    if fn in ("max", "min") and len(args) > 2:
                        out = args[0]
                        for other in args[1:]:
                            out = self.simple(fn, [out, other])
                        return out
                    raise Refused(f"{fn} takes {SIMPLE[fn].arity} values", node)
                return self.special(fn, args) if fn in SPECIAL else self.simple(fn, args)
        return super().call(node)

    def itemwise(self, fn: str, args: list[Any]) -> list[Any]:
        """``max`` or ``min`` of lists, item by item; what is not a list goes with every item."""
        lengths = {len(a) for a in args if isinstance(a, list)}
        if len(lengths) > 1:
            raise Refused(f"{fn} of lists of {' and '.join(map(str, sorted(lengths)))} items")
        out = []
        for i in range(lengths.pop()):
            values = [a[i] if isinstance(a, list) else a for a in args]
            if any(isinstance(v, (Val, Affine, Scalar)) for v in values):
                item = values[0]
                for other in values[1:]:
                    item = self.simple(fn, [item, other])
                out.append(item)
            else:
                out.append(extremum(fn, values))
        return out

    def items_of(self, node: ast.Call) -> list[Any]:
        low, high, _ = SPECIAL[node.fn]
        if not low <= len(node.args) <= high:
            raise Refused(f"{node.fn} takes {low} values", node)
        return [self.eval(a) for a in node.args]

    def indexed(self, loops: Any, indices: Any, source: Any) -> list[Any]:
        """The indices that PyTorch's x[indices] reads for loops over its result."""
        if self.body is None or not isinstance(source, (Tensor, Local)):
            raise Refused("indexed(I, indices, x) stands among the indices of a tensor")
        body = self.body
        self.body = None
        held, tensors = (
            self.local(source),
            [None if v is None else self.local(v) for v in sequence(indices)],
        )
        self.body = body
        dims = list(held.tensor.dims or ())
        at, rank = advanced([t.tensor if t is not None else None for t in tensors], len(dims))
        items = sequence(loops)
        own, rest = items[at : at + rank], items[:at] + items[at + rank :]
        out: list[Any] = []
        for axis, dim in enumerate(dims):
            index = tensors[axis] if axis < len(tensors) else None
            if index is None:
                if not rest:
                    raise Refused(f"{len(items)} indices are too few for {describe(indices)}")
                out.append(rest.pop(0))
                continue
            read = body.read_at(index, aligned(own, index.tensor))
            below = self.compare("<", read, self.to_val(0, read.dtype))
            size = self.convert(dim, read.dtype)
            wrapped = self.runtime_binary("+", read, size)
            out.append(self.to_val(self.special("select", [below, wrapped, read]), INDEX))
        return out

    def access(self, node: ast.Access, base: Any, items: Sequence[ast.Expr]) -> Any:
        if isinstance(base, (Tensor, Local)):
            if self.body is None:
                return self.extract(self.local(base), self.items(items))
            return self.body.read(node, base, items)
        return super().access(node, base, items)

    def extract(self, source: Local, where: list[Any]) -> Val:
        assert source.tensor.dtype is not None and source.tensor.dims is not None
        if len(where) != len(source.tensor.dims):
            raise Refused(
                f"{source.tensor.name} has rank {len(source.tensor.dims)}, not {len(where)}"
            )
        at = ", ".join(self.to_val(v, INDEX).ssa for v in where)
        out = self.fresh("e")
        self.scalar_emit(
            f"{out} = tensor.extract {source.ssa}[{at}] : {source.tensor.builtin_type()}"
        )
        return Val(out, source.tensor.dtype)

    def unary(self, op: str, value: Any) -> Any:
        if isinstance(value, Affine):
            if op == "-":
                return self.affine("*", value, -1)
            value = self.to_val(value, INDEX)
        if isinstance(value, Scalar):
            value = self.to_val(value, None)
        if not isinstance(value, Val):
            return super().unary(op, value)
        out = self.fresh()
        if op == "not":
            if not value.dtype.is_bool:
                raise Refused(f"'not' takes a truth value, not {value.dtype}")
            one = self.const(True, DType("i1"))
            self.scalar_emit(f"{out} = arith.xori {value.ssa}, {one} : i1")
            return Val(out, value.dtype)
        if value.dtype.is_float:
            self.scalar_emit(f"{out} = arith.negf {value.ssa} : {value.dtype.mlir}")
        else:
            zero = self.const(0, value.dtype)
            self.scalar_emit(f"{out} = arith.subi {zero}, {value.ssa} : {value.dtype.mlir}")
        return Val(out, value.dtype)

    def logical(self, op: str, left: ast.Expr, right: ast.Expr) -> Any:
        a = self.eval(left)
        if isinstance(a, bool):
            if a == (op == "or"):
                return a
            return self.eval(right)
        b = self.eval(right)
        if isinstance(b, bool):
            return b if b == (op == "or") else a
        return self.simple(
            "bitand" if op == "and" else "bitor",
            [self.to_val(a, DType("i1")), self.to_val(b, DType("i1"))],
        )

    def conditional(self, condition: Any, then: ast.Expr, otherwise: ast.Expr) -> Any:
        if isinstance(condition, bool):
            return self.eval(then if condition else otherwise)
        return self.special("select", [condition, self.eval(then), self.eval(otherwise)])

    def binary(self, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, list) or isinstance(b, list) or op in ("in", "not in"):
            return super().binary(op, a, b)
        some_symbolic = isinstance(a, (Affine, Dyn)) or isinstance(b, (Affine, Dyn))
        if some_symbolic and all(isinstance(v, (Affine, int, Dyn)) for v in (a, b)):
            linear = self.affine(op, a, b)
            if linear is not None:
                return linear
        runtime = (Val, Affine, Scalar)
        if isinstance(a, runtime) or isinstance(b, runtime):
            return self.runtime_binary(op, a, b)
        return super().binary(op, a, b)

    def affine(self, op: str, a: Any, b: Any) -> Any:
        """A linear combination of loop indices, or None when the result is not linear."""
        if not isinstance(a, Affine) and not isinstance(b, Affine):
            return super().binary(op, a, b)
        if op == "*":
            if isinstance(a, Affine) and isinstance(b, Affine):
                return None
            linear, factor = (a, b) if isinstance(a, Affine) else (b, a)
            if not isinstance(factor, int):
                return None
            terms = tuple((n, c * factor) for n, c in linear.terms if factor)
            return Affine(terms, arith("*", linear.offset, factor))
        if op not in ("+", "-"):
            return None
        sign = 1 if op == "+" else -1
        first = a if isinstance(a, Affine) else Affine((), a)
        second = b if isinstance(b, Affine) else Affine((), b)
        sums = dict(first.terms)
        for name, c in second.terms:
            sums[name] = sums.get(name, 0) + sign * c
        return Affine(
            tuple((n, c) for n, c in sums.items() if c),
            arith(op, first.offset, second.offset),
        )

    def runtime_binary(self, op: str, a: Any, b: Any) -> Val:
        a, b = self.paired(a, b)
        t = a.dtype
        if op in ("==", "!=", "<", "<=", ">", ">="):
            return self.compare(op, a, b)
        out = self.fresh()
        if t.is_complex:
            name = {"+": "add", "-": "sub", "*": "mul", "/": "div"}.get(op)
            if name is None:
                raise Refused(f"{op} is not defined on {t}")
            self.scalar_emit(f"{out} = complex.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op in ("+", "-", "*"):
            if t.is_bool:
                raise Refused(f"{op} is not defined on bool: cast it")
            name = {"+": "add", "-": "sub", "*": "mul"}[op] + ("f" if t.is_float else "i")
            self.scalar_emit(f"{out} = arith.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "/":
            if not t.is_float:
                raise Refused(f"/ on {t}: cast to a float type, or use // or truncdiv")
            self.scalar_emit(f"{out} = arith.divf {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "//":
            if t.is_float:
                q = self.runtime_binary("/", a, b)
                return self.simple("floor", [q])
            name = "divui" if t.is_unsigned else "floordivsi"
            self.scalar_emit(f"{out} = arith.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, t)
        if op == "%":
            return self.modulo(a, b)
        raise Refused(f"unknown operator {op}")

    def modulo(self, a: Val, b: Val) -> Val:
        """The remainder with the sign of the divisor, as PyTorch's remainder and Python's %."""
        r = self.simple("rem", [a, b])
        if a.dtype.is_unsigned:
            return r
        zero = Val(self.const(0, a.dtype), a.dtype)
        nonzero = self.compare("!=", r, zero)
        differ = self.simple("bitxor", [self.compare("<", r, zero), self.compare("<", b, zero)])
        fixed = self.runtime_binary("+", r, b)
        return self.special("select", [self.simple("bitand", [nonzero, differ]), fixed, r])

    def compare(self, op: str, a: Val, b: Val) -> Val:
        t, out = a.dtype, self.fresh()
        bool_ = DType("i1")
        if t.is_complex:
            if op not in ("==", "!="):
                raise Refused(f"{op} is not defined on {t}")
            name = "eq" if op == "==" else "neq"
            self.scalar_emit(f"{out} = complex.{name} {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, bool_)
        if t.is_float:
            name = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}[op]
            self.scalar_emit(f"{out} = arith.cmpf {name}, {a.ssa}, {b.ssa} : {t.mlir}")
            return Val(out, bool_)
        sign = "u" if t.is_unsigned else "s"
        name = {
            "==": "eq",
            "!=": "ne",
            "<": sign + "lt",
            "<=": sign + "le",
            ">": sign + "gt",
            ">=": sign + "ge",
        }[op]
        self.scalar_emit(f"{out} = arith.cmpi {name}, {a.ssa}, {b.ssa} : {t.mlir}")
        return Val(out, bool_)

    def paired(self, a: Any, b: Any) -> tuple[Val, Val]:
        """Two operands as run-time scalars of one type; constants take the other's type."""
        if isinstance(a, Scalar):
            a = self.to_val(a, None)
        if isinstance(b, Scalar):
            b = self.to_val(b, None)
        ta = a.dtype if isinstance(a, Val) else INDEX if isinstance(a, (Affine, Dyn)) else None
        tb = b.dtype if isinstance(b, Val) else INDEX if isinstance(b, (Affine, Dyn)) else None
        if ta is None and tb is None:
            raise Refused(f"{describe(a)} and {describe(b)} are not run-time values")
        if ta is None:
            ta = tb
        elif tb is None:
            tb = ta
        elif ta != tb:
            if ta == INDEX and tb.is_int:
                ta = tb
            elif tb == INDEX and ta.is_int:
                tb = ta
            else:
                raise Refused(f"{ta} and {tb} do not mix: cast one of them")
        return self.to_val(a, ta), self.to_val(b, tb)

    def simple(self, fn: str, given: list[Any]) -> Val:
        function = SIMPLE[fn]
        args: list[Val] = (
            list(self.paired(*given)) if function.arity == 2 else [self.to_val(given[0], None)]
        )
        t = args[0].dtype
        if function.to_bool:
            return self.classify(fn, args[0])
        if fn == "pow" and t.is_int:
            return self.integer_power(args[0], args[1])
        if fn == "rem" and t.name == "f64":
            return self.remainder_f64(args[0], args[1])
        if t.is_float:
            op = function.float_op
        elif t.is_bool:
            op = function.bool_op or function.unsigned_op
        elif t.is_unsigned:
            op = function.unsigned_op
            if fn == "abs":
                return args[0]
        elif t.is_complex:
            op = {
                "exp": "complex.exp",
                "log": "complex.log",
                "sqrt": "complex.sqrt",
                "sin": "complex.sin",
                "cos": "complex.cos",
                "tanh": "complex.tanh",
                "pow": "complex.pow",
            }.get(fn, "")
            if fn == "abs":
                out = self.fresh()
                self.scalar_emit(f"{out} = complex.abs {args[0].ssa} : {t.mlir}")
                return Val(out, DType(f"f{t.width // 2}"))
        else:
            op = function.signed_op
            if fn in ("floor", "ceil", "round", "trunc"):
                return args[0]
        if not op:
            raise Refused(f"{fn} is not defined on {t}")
        out = self.fresh()
        self.scalar_emit(f"{out} = {op} {', '.join(a.ssa for a in args)} : {t.mlir}")
        return Val(out, t)

    def integer_power(self, base: Val, exponent: Val) -> Val:
        """A power of integers, wrapping as products do; IREE cannot lower ``math.ipowi``.

        Squares and multiplies as often as the exponent has bits. Below an exponent of 0 only 1
        and -1 have whole powers, and the others give 0.
        """
        t, m = base.dtype, base.dtype.mlir
        one, zero = Val(self.const(1, t), t), Val(self.const(0, t), t)
        w, e, b, r = (self.fresh(stem) for stem in ("while", "e", "b", "r"))
        more, odd, bit, product, power, square, rest = (self.fresh() for _ in range(7))
        for line in (
            f"{w}:3 = scf.while ({e} = {exponent.ssa}, {b} = {base.ssa}, {r} = {one.ssa}) : "
            f"({m}, {m}, {m}) -> ({m}, {m}, {m}) {{",
            f"  {more} = arith.cmpi {'ugt' if t.is_unsigned else 'sgt'}, {e}, {zero.ssa} : {m}",
            f"  scf.condition({more}) {e}, {b}, {r} : {m}, {m}, {m}",
            "} do {",
            f"^bb0({e}: {m}, {b}: {m}, {r}: {m}):",
            f"  {bit} = arith.andi {e}, {one.ssa} : {m}",
            f"  {odd} = arith.cmpi ne, {bit}, {zero.ssa} : {m}",
            f"  {product} = arith.muli {r}, {b} : {m}",
            f"  {power} = arith.select {odd}, {product}, {r} : {m}",
            f"  {square} = arith.muli {b}, {b} : {m}",
            f"  {rest} = arith.shrui {e}, {one.ssa} : {m}",
            f"  scf.yield {rest}, {square}, {power} : {m}, {m}, {m}",
            "}",
        ):
            self.scalar_emit(line)
        found = Val(f"{w}#2", t)
        if t.is_unsigned:
            return found
        minus = Val(self.const(-1, t), t)
        parity = self.compare("==", self.simple("bitand", [exponent, one]), zero)
        unit = self.special(
            "select",
            [
                self.compare("==", base, one),
                one,
                self.special(
                    "select",
                    [
                        self.compare("==", base, minus),
                        self.special("select", [parity, one, minus]),
                        zero,
                    ],
                ),
            ],
        )
        return self.special("select", [self.compare("<", exponent, zero), unit, found])

    def remainder_f64(self, x: Val, y: Val) -> Val:
        """``fmod`` of f64 without the runtime's, which CPU lacks: exact while |x / y| < 2**104.

        One fma takes the whole quotient away exactly; a second one what a quotient of more than
        53 bits leaves; the last step mends a quotient that was rounded away from zero.
        """
        r = x
        for _ in range(2):
            q = self.simple("trunc", [self.runtime_binary("/", r, y)])
            r = self.special("fma", [self.unary("-", q), y, r])
        below = self.compare(
            "<",
            self.runtime_binary("*", r, self.simple("copysign", [1.0, x])),
            Val(self.const(0.0, x.dtype), x.dtype),
        )
        up = self.simple("copysign", [self.simple("abs", [y]), x])
        r = self.special("select", [below, self.runtime_binary("+", r, up), r])
        whole = self.simple("bitand", [self.simple("isinf", [y]), self.simple("isfinite", [x])])
        return self.simple("copysign", [self.special("select", [whole, x, r]), x])

    def classify(self, fn: str, x: Val) -> Val:
        if not x.dtype.is_float:
            return Val(self.const(fn == "isfinite", DType("i1")), DType("i1"))
        out = self.fresh()
        if fn == "isnan":
            self.scalar_emit(f"{out} = arith.cmpf uno, {x.ssa}, {x.ssa} : {x.dtype.mlir}")
            return Val(out, DType("i1"))
        magnitude = self.simple("abs", [x])
        inf = self.const(math.inf, x.dtype)
        op = "oeq" if fn == "isinf" else "olt"
        self.scalar_emit(f"{out} = arith.cmpf {op}, {magnitude.ssa}, {inf} : {x.dtype.mlir}")
        return Val(out, DType("i1"))

    def special(self, fn: str, args: list[Any]) -> Val:
        low, high, _ = SPECIAL[fn]
        if not low <= len(args) <= high:
            raise Refused(f"{fn} takes {low} values")
        out = self.fresh()
        if fn == "select":
            if isinstance(args[0], bool):
                return self.to_val(args[1] if args[0] else args[2], None)
            c = self.to_val(args[0], DType("i1"))
            if not any(isinstance(v, (Val, Affine, Scalar, Dyn)) for v in args[1:]):
                raise Refused("select between two constants: cast one of them")
            a, b = self.paired(args[1], args[2])
            self.scalar_emit(f"{out} = arith.select {c.ssa}, {a.ssa}, {b.ssa} : {a.dtype.mlir}")
            return Val(out, a.dtype)
        if fn == "sign":
            x = self.to_val(args[0], None)
            zero, one = self.const(0, x.dtype), self.const(1, x.dtype)
            if x.dtype.is_unsigned:
                return self.special(
                    "select",
                    [self.compare("!=", x, Val(zero, x.dtype)), Val(one, x.dtype), x],
                )
            minus = self.const(-1, x.dtype)
            above = self.compare(">", x, Val(zero, x.dtype))
            below = self.compare("<", x, Val(zero, x.dtype))
            inner = self.special("select", [below, Val(minus, x.dtype), x])
            return self.special("select", [above, Val(one, x.dtype), inner])
        if fn == "bitcast":
            x, t = self.to_val(args[0], None), dtype(args[1])
            if x.dtype.mlir == t.mlir:
                return Val(x.ssa, t)
            self.scalar_emit(f"{out} = arith.bitcast {x.ssa} : {x.dtype.mlir} to {t.mlir}")
            return Val(out, t)
        if fn in ("real", "imag"):
            x = self.to_val(args[0], None)
            op = {"real": "re", "imag": "im"}[fn]
            if not x.dtype.is_complex:
                raise Refused(f"{fn} takes a complex number, not {x.dtype}")
            self.scalar_emit(f"{out} = complex.{op} {x.ssa} : {x.dtype.mlir}")
            return Val(out, DType(f"f{x.dtype.width // 2}"))
        if fn == "fma":
            a, b = self.paired(args[0], args[1])
            c = self.to_val(args[2], a.dtype)
            if not a.dtype.is_float:
                raise Refused(f"fma is not defined on {a.dtype}")
            self.scalar_emit(f"{out} = math.fma {a.ssa}, {b.ssa}, {c.ssa} : {a.dtype.mlir}")
            return Val(out, a.dtype)
        if fn == "complex":
            re_, im = self.paired(args[0], args[1])
            t = DType(f"complex{2 * re_.dtype.width}")
            self.scalar_emit(f"{out} = complex.create {re_.ssa}, {im.ssa} : {t.mlir}")
            return Val(out, t)
        raise Refused(f"{fn} cannot stand here")

    def const(self, value: int | float | bool, t: DType) -> str:
        """A scalar constant of type ``t``."""
        if t.is_float:
            text = float_text(float(value), t)
        elif t.is_bool:
            text = "true" if value else "false"
        elif t.is_complex:
            part = DType(f"f{t.width // 2}")
            out = self.fresh("k")
            self.scalar_emit(
                f"{out} = complex.constant [{float_text(float(value), part)} : {part.mlir}, "
                f"0.0 : {part.mlir}] : {t.mlir}"
            )
            return out
        else:
            if isinstance(value, float) and not value.is_integer():
                raise Refused(f"{value} is not a {t}: cast it")
            number = int(value)
            if t != INDEX:
                low, high = int(t.lowest), int(t.highest)
                if not low <= number <= high:
                    raise Refused(f"{number} does not fit in {t}")
                if t.is_unsigned and number >= 1 << (t.width - 1):
                    number -= 1 << t.width
            text = str(number)
        holder = self.body.constants if self.body is not None else self.memo
        key = ("const", text, t.mlir)
        if key not in holder:
            out = self.fresh("k")
            line = f"{out} = arith.constant {text} : {t.mlir}"
            if t.is_bool:
                line = f"{out} = arith.constant {text}"
            if self.body is not None:
                self.body.head.append(line)
            else:
                self.lines.append(line)
            holder[key] = out
        return holder[key]

    def to_val(self, value: Any, t: DType | None) -> Val:
        """A value as a run-time scalar, of type ``t`` where given (constants convert)."""
        if isinstance(value, bool):
            if t is None:
                t = DType("i1")
            return Val(self.const(value, t), t)
        if isinstance(value, (int, float)):
            if t is None:
                raise Refused(f"the type of {value} is not known here: cast it")
            return Val(self.const(value, t), t)
        if isinstance(value, Scalar):
            builtin = _TORCH_SCALARS[value.kind][0]
            ssa = self.argument(value.name, builtin, builtin)
            held = Val(ssa, DType({"i64": "si64"}.get(builtin, builtin)))
            return held if t is None or t == held.dtype else self.convert(held, t)
        if isinstance(value, Dyn):
            ssa = self.index(value)
            value = Val(ssa, INDEX)
        if isinstance(value, Affine):
            value = Val(self.affine_ssa(value), INDEX)
        if isinstance(value, Val):
            if t is None or value.dtype == t:
                return value
            if INDEX in (t, value.dtype) and (t.is_int or value.dtype.is_int or t == INDEX):
                return self.convert(value, t)
            raise Refused(f"{value.dtype} where {t} is needed: cast it")
        raise Refused(f"{describe(value)} is not a number")

    def affine_ssa(self, value: Affine) -> str:
        assert self.body is not None
        total: str | None = None
        for name, c in value.terms:
            ssa = self.body.index_ssa(name)
            if c != 1:
                out = self.fresh("i")
                self.scalar_emit(f"{out} = arith.muli {ssa}, {self.const(c, INDEX)} : index")
                ssa = out
            if total is None:
                total = ssa
            else:
                out = self.fresh("i")
                self.scalar_emit(f"{out} = arith.addi {total}, {ssa} : index")
                total = out
        if total is None or value.offset != 0:
            offset = (
                self.const(value.offset, INDEX)
                if isinstance(value.offset, int)
                else self.index(value.offset)
            )
            if total is None:
                return offset
            out = self.fresh("i")
            self.scalar_emit(f"{out} = arith.addi {total}, {offset} : index")
            total = out
        return total

    def convert(self, value: Any, t: DType) -> Val:
        """``value`` converted to ``t`` as PyTorch converts."""
        if isinstance(value, (bool, int, float)):
            if t.is_bool:
                value = bool(value)
            elif t.is_float or t.is_complex:
                value = float(value)
            elif isinstance(value, float):
                if not math.isfinite(value):
                    raise Refused(f"{value} is not a {t}")
                value = int(value)
            else:
                value = int(value)
                span = 1 << t.width
                value = (value - int(t.lowest)) % span + int(t.lowest)
            return self.to_val(value, t)
        if not isinstance(value, (Val, Scalar, Dyn, Affine)):
            raise Refused(f"{describe(value)} cannot be converted to {t}")
        x = (
            self.to_val(value, None)
            if not isinstance(value, (Dyn, Affine))
            else self.to_val(value, INDEX)
        )
        s = x.dtype
        if s == t:
            return x

        def one(op: str, ssa: str, a: str, b: str) -> str:
            got = self.fresh()
            self.scalar_emit(f"{got} = {op} {ssa} : {a} to {b}")
            return got

        if s.mlir == t.mlir:
            return Val(x.ssa, t)
        if t.is_bool:
            zero = Val(self.const(0, s), s)
            return self.compare("!=", x, zero)
        if s.is_complex:
            if t.is_complex:
                a, b = self.special("real", [x]), self.special("imag", [x])
                part = DType(f"f{t.width // 2}")
                return self.special("complex", [self.convert(a, part), self.convert(b, part)])
            return self.convert(self.special("real", [x]), t)
        if t.is_complex:
            part = DType(f"f{t.width // 2}")
            re_ = self.convert(x, part)
            return self.special("complex", [re_, Val(self.const(0, part), part)])
        if INDEX in (s, t):
            if s.is_float or t.is_float:
                return self.convert(self.convert(x, DType("si64")), t)
            unsigned = s.is_unsigned if s != INDEX else t.is_unsigned
            return Val(
                one(
                    "arith.index_castui" if unsigned else "arith.index_cast", x.ssa, s.mlir, t.mlir
                ),
                t,
            )
        if s.is_float and t.is_float:
            if s.width == t.width:  # f16 <-> bf16
                wide_ = one("arith.extf", x.ssa, s.mlir, "f32")
                return Val(one("arith.truncf", wide_, "f32", t.mlir), t)
            op = "arith.extf" if t.width > s.width else "arith.truncf"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if s.is_float:
            op = "arith.fptoui" if t.is_unsigned else "arith.fptosi"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if t.is_float:
            op = "arith.uitofp" if s.is_unsigned else "arith.sitofp"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        if t.width > s.width:
            op = "arith.extui" if s.is_unsigned else "arith.extsi"
            return Val(one(op, x.ssa, s.mlir, t.mlir), t)
        return Val(one("arith.trunci", x.ssa, s.mlir, t.mlir), t)

    # -- index equations

    def index_equation(self, equation: ast.IndexEquation) -> None:
        generic = _Generic(self, equation)
        try:
            self.body = generic
            generic.build()
        finally:
            self.body = None
        self.locals[equation.target] = generic.finish()


@dataclass
class _Read:
    """One operand of a generic: a tensor read at linear combinations of loop indices."""

    source: Local
    items: list[Affine]
    arg: str


@dataclass
class _Part:
    """The body of one op under construction."""

    reads: list[_Read] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    constants: dict[Any, str] = field(default_factory=dict)
    index_values: dict[str, str] = field(default_factory=dict)


@dataclass
class _Generic:
    """Builds one ``linalg`` op from an index equation."""

    low: _Lowering
    equation: ast.IndexEquation
    loops: list[str] = field(default_factory=list)
    indices: dict[str, Any] = field(default_factory=dict)
    reads: list[_Read] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    constants: dict[Any, str] = field(default_factory=dict)
    index_values: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    # The indices whose range the rule gives.
    bounded: set[str] = field(default_factory=set)
    broadcast: list[str] = field(default_factory=list)
    # Ranges that a read in the body gives (`j` in x[idx[i], j]), for want of an operand's.
    gathered: dict[str, Any] = field(default_factory=dict)
    target_items: list[Affine] = field(default_factory=list)
    value: Any = None

    # -- loop indices

    def build(self) -> None:
        low, eq = self.low, self.equation
        low.body = None  # symbols first: loop indices are what no symbol names
        known = {**low.env, **low.locals}
        for name in low.result_names:
            if name not in low.locals:
                known.pop(name, None)
        accesses = [(eq.target, eq.indices)] + [
            (n.base.id, n.items)
            for n in walk(eq.value)
            if isinstance(n, ast.Access) and isinstance(n.base, ast.Name)
        ]
        for _, items in list(accesses):
            accesses += [
                (n.base.id, n.items)
                for item in items
                for n in walk(item)
                if isinstance(n, ast.Access)
                and isinstance(n.base, ast.Name)
                and (n.base.id, n.items) not in accesses
            ]
        tensors = [(n, i) for n, i in accesses if n == eq.target or self.is_tensor(known.get(n))]
        packs: dict[str, int] = {}
        for bound in eq.bounds:
            limit = low.eval(bound.limit)
            if isinstance(limit, Val):
                # A size that the data gives.
                limit = Dyn("local", (low.index(limit),))
            if bound.pack:
                values = sequence(limit, f"the limit of {bound.id}...")
                packs[bound.id] = len(values)
                for i, v in enumerate(values):
                    self.ranges[f"{bound.id}.{i}"] = v
            else:
                self.ranges[bound.id] = limit
        self.bounded = set(self.ranges)
        self.find_packs(tensors, known, packs)
        for _, written in tensors:
            for index in written:
                for n in walk(index):
                    if isinstance(n, ast.Pack) and n.id is None:
                        self.add_broadcast(tensors, known)
                    elif isinstance(n, (ast.Pack, ast.Name)) and n.id and n.id not in known:
                        if n.id in packs:
                            self.add_pack(n.id, packs[n.id])
                        elif isinstance(n, ast.Pack):
                            raise Refused(f"the length of {n.id}... is not known", n)
                        elif dtype_named(n.id) is None:
                            self.add_loop(n.id)
        low.body = self
        places = self.expand_items(eq.indices, eq.target, None)
        if self.scatters(places):
            self.places = places
            self.coordinates = self.take_part()
            self.parallel = list(self.loops)
            self.value = low.eval(eq.value)
            return
        for i, place in enumerate(places):
            item = Affine((), place) if isinstance(place, int) else place
            if (
                not isinstance(item, Affine)
                or (item.terms and item.plain is None)
                or (not item.terms and item.offset != 0)
            ):
                raise LoweringError(
                    low.line,
                    f"index {i} of the target {eq.target} must be a loop index or 0",
                    eq.indices[min(i, len(eq.indices) - 1)],
                )
            self.target_items.append(item)
        self.order_loops()
        self.value = low.eval(eq.value)

    # Of an equation that scatters: where each value goes, and the body that computes it.
    places: list[Any] = field(default_factory=list)
    coordinates: _Part | None = None

    def scatters(self, items: list[Any]) -> bool:
        """Whether the equation writes at chosen places of what the target already holds."""
        if self.equation.target not in self.low.locals:
            return False
        names = [i.plain for i in items if isinstance(i, Affine) and i.plain is not None]
        zeros = [i for i in items if i == 0 or i == Affine(())]
        return (
            self.equation.op == "="
            or len(set(names)) < len(names)
            or len(names) + len(zeros) < len(items)
        )

    def take_part(self) -> _Part:
        """What the body holds so far, which is left empty."""
        part = _Part(self.reads, self.lines, self.head, self.constants, self.index_values)
        self.put_part(_Part())
        return part

    def put_part(self, part: _Part) -> None:
        self.reads, self.lines, self.head = part.reads, part.lines, part.head
        self.constants, self.index_values = part.constants, part.index_values

    @staticmethod
    def is_tensor(value: Any) -> bool:
        return isinstance(value, (Tensor, Local)) or (
            isinstance(value, tuple) and len(value) == 3 and value[0] == "raw"
        )

    def tensor_rank(self, name: str, known: dict[str, Any]) -> int | None:
        if name == self.equation.target:
            return self.target_rank()
        value = known.get(name)
        if isinstance(value, tuple):
            value = tensor_of_type(name, value[2])
        if isinstance(value, Local):
            value = value.tensor
        return value.rank if isinstance(value, Tensor) and value.dims is not None else None

    def target_tensor(self) -> Tensor | None:
        low, name = self.low, self.equation.target
        made = low.locals.get(name)
        if isinstance(made, Local):
            return made.tensor
        if isinstance(made, tuple):
            return tensor_of_type(name, made[2])
        found = low.result_names.get(name, (None, ""))[0]
        if isinstance(found, Tensor):
            if found.dims is None or found.dtype is None:
                return found
            return Tensor(name, tuple(low.unified_dims(name, list(found.dims))), found.dtype, False)
        declared = low.rule.types.get(name)
        if declared is not None and name not in low.env:
            return tensor_of_type(name, low.declared_type(name, declared[1]))
        return None

    def target_rank(self) -> int | None:
        found = self.target_tensor()
        return found.rank if found is not None and found.dims is not None else None

    def find_packs(
        self,
        tensors: list[tuple[str, tuple[ast.Expr, ...]]],
        known: dict[str, Any],
        packs: dict[str, int],
    ) -> None:
        progress = True
        while progress:
            progress = False
            for name, items in tensors:
                rank = self.tensor_rank(name, known)
                if rank is None:
                    continue
                unknown: list[str] = []
                size = 0
                inside: set[str] = set()
                for item in items:
                    if isinstance(item, ast.Pack):
                        if item.id is None:
                            unknown.append("...")
                        elif item.id in known and isinstance(known[item.id], list):
                            size += len(known[item.id])
                        elif item.id in packs:
                            size += packs[item.id]
                        else:
                            unknown.append(item.id)
                    else:
                        names = {n.id for n in walk(item) if isinstance(n, (ast.Name, ast.Pack))}
                        spread = {
                            n
                            for n in names
                            if n and n not in known and n not in packs and self.maybe_pack(n)
                        }
                        if spread and not any(
                            isinstance(n, (ast.Call, ast.Access)) for n in walk(item)
                        ):
                            # `O * stride + K * dilation`: arithmetic on packs, item by item.
                            inside |= spread
                            unknown.append("=")
                        elif any(
                            isinstance(n, ast.Call) and n.fn in FUNCTIONS for n in walk(item)
                        ) or names & set(packs):
                            length = self.static_length(item, known, packs)
                            if length is None:
                                unknown.append("?")
                            else:
                                size += length
                        else:
                            size += 1
                if unknown == ["="] and rank >= size:
                    packs.update((n, rank - size) for n in inside)
                    progress = True
                elif len(unknown) == 1 and unknown[0] not in ("...", "?", "="):
                    if rank - size < 0:
                        raise Refused(f"{name} has rank {rank}: too few dims for its indices")
                    packs[unknown[0]] = rank - size
                    progress = True

    def static_length(
        self, item: ast.Expr, known: dict[str, Any], packs: dict[str, int]
    ) -> int | None:
        """How many indices an item stands for, tried with placeholder indices."""
        names = {n.id for n in walk(item) if isinstance(n, (ast.Name, ast.Pack)) and n.id}
        trial: dict[str, Any] = dict(self.low.env)
        for name in names:
            if name in packs:
                trial[name] = [0] * packs[name]
            elif name not in known and dtype_named(name) is None:
                if any(isinstance(n, ast.Pack) and n.id == name for n in walk(item)):
                    return None
                if self.maybe_pack(name):
                    return None
                trial[name] = 0
        try:
            value = Evaluator(trial).eval(item)
        except Refused:
            return 1 if not any(isinstance(n, ast.Call) for n in walk(item)) else None
        return len(value) if isinstance(value, list) else 1

    def maybe_pack(self, name: str) -> bool:
        eq = self.equation
        nodes = [n for i in eq.indices for n in walk(i)] + list(walk(eq.value))
        return any(isinstance(n, ast.Pack) and n.id == name for n in nodes) or any(
            b.pack and b.id == name for b in eq.bounds
        )

    def add_loop(self, name: str) -> None:
        if name not in self.indices:
            self.loops.append(name)
            self.indices[name] = Affine(((name, 1),))

    def add_pack(self, name: str, size: int) -> None:
        if name in self.indices:
            return
        members = [f"{name}.{i}" for i in range(size)]
        for m in members:
            self.loops.append(m)
        self.indices[name] = [Affine(((m, 1),)) for m in members]

    def add_broadcast(
        self, tensors: list[tuple[str, tuple[ast.Expr, ...]]], known: dict[str, Any]
    ) -> None:
        if self.broadcast or "..." in self.indices:
            return
        size = 0
        for name, items in tensors:
            if not any(isinstance(i, ast.Pack) and i.id is None for i in items):
                continue
            rank = self.tensor_rank(name, known)
            if rank is None:
                continue
            if name == self.equation.target:
                size = rank - (len(items) - 1)
                break
            size = max(size, rank - (len(items) - 1))
        if size < 0:
            raise Refused("too few dims for the indices")
        self.broadcast = [f"....{i}" for i in range(size)]
        self.loops.extend(self.broadcast)
        self.indices["..."] = [Affine(((m, 1),)) for m in self.broadcast]

    def expand_items(self, items: Sequence[ast.Expr], name: str, source: Local | None) -> list[Any]:
        """The indices of an access, packs spliced in and `...` aligned at the right."""
        out: list[Any] = []
        for item in items:
            if isinstance(item, ast.Pack) and item.id is None:
                pack: list[Any] = list(self.indices.get("...", []))
                if source is not None:
                    assert source.tensor.dims is not None
                    size = len(source.tensor.dims) - (len(items) - 1)
                    if size < 0 or size > len(pack):
                        raise Refused(f"{name} has rank {len(source.tensor.dims)}: too many dims")
                    pack = pack[len(pack) - size :]
                    at = len(out)
                    dims = source.tensor.dims[at : at + size]
                    pack = [
                        Affine(()) if d == 1 and self.loop_size(p.terms[0][0]) != 1 else p
                        for d, p in zip(dims, pack, strict=True)
                    ]
                out.extend(pack)
                continue
            value = self.low.pack(item) if isinstance(item, ast.Pack) else self.low.eval(item)
            out.extend(value) if isinstance(value, list) else out.append(value)
        return out

    def loop_size(self, name: str) -> Any:
        """What is known of a `...` loop's size before the operands are: from the target's type."""
        if name in self.ranges:
            return self.ranges[name]
        target = self.target_tensor()
        if target is None or target.dims is None:
            return self.broadcast_size(name)
        items = self.equation.indices
        before = (
            next(i for i, x in enumerate(items) if isinstance(x, ast.Pack) and x.id is None)
            if any(isinstance(x, ast.Pack) and x.id is None for x in items)
            else None
        )
        if before is None:
            return self.broadcast_size(name)
        return target.dims[before + self.broadcast.index(name)]

    def broadcast_size(self, name: str) -> Any:
        """The size of a `...` loop when the target's type is not known: the first that is not 1."""
        place = len(self.broadcast) - self.broadcast.index(name)
        best: Any = 1
        for node in walk(self.equation.value):
            if not isinstance(node, ast.Access) or not isinstance(node.base, ast.Name):
                continue
            value = self.low.name(node.base)
            if isinstance(value, Local):
                value = value.tensor
            if not isinstance(value, Tensor) or value.dims is None:
                continue
            at = next(
                (i for i, x in enumerate(node.items) if isinstance(x, ast.Pack) and x.id is None),
                None,
            )
            if at is None:
                continue
            size = len(value.dims) - (len(node.items) - 1)
            if place <= size:
                d = value.dims[at + size - place]
                if d != 1 and (best == 1 or isinstance(d, int)):
                    best = d
        return best

    def order_loops(self) -> None:
        """Parallel loops in the target's order, then the reduction loops as they came."""
        parallel = [a.terms[0][0] for a in self.target_items if a.terms]
        if len(set(parallel)) != len(parallel):
            raise LoweringError(self.low.line, "a loop index stands twice in the target")
        self.parallel = parallel
        self.loops = parallel + [n for n in self.loops if n not in parallel]
        if self.equation.op == "=" and len(self.loops) > len(parallel):
            extra = ", ".join(n for n in self.loops if n not in parallel)
            # A broadcast loop that the target lacks, or an index that only reads use.
            raise LoweringError(
                self.low.line,
                f"the index {extra} is not in the target: reduce over it with +=, max= or the like",
            )

    parallel: list[str] = field(default_factory=list)

    def index_ssa(self, name: str) -> str:
        if name not in self.index_values:
            self.index_values[name] = self.low.fresh("x")
        return self.index_values[name]

    def preamble(self) -> list[str]:
        """The ops that give loop indices their values, and the constants."""
        return [
            f"{ssa} = linalg.index {self.loops.index(name)} : index"
            for name, ssa in self.index_values.items()
        ] + self.head

    # -- reads

    def read(self, node: ast.Access, base: Any, items: Sequence[ast.Expr]) -> Val:
        low = self.low
        low.body = None
        source = low.local(base)
        low.body = self
        name = source.tensor.name
        values = self.expand_items(items, name, source)
        if len(values) != source.tensor.rank:
            raise Refused(f"{name} has rank {source.tensor.rank}, but {len(values)} indices", node)
        return self.read_at(source, values)

    def read_at(self, source: Local, values: list[Any]) -> Val:
        """An element of a tensor: through an operand where the indices are linear."""
        low, dims = self.low, source.tensor.dims
        assert dims is not None and source.tensor.dtype is not None
        linear: list[Affine] = []
        for value in values:
            if isinstance(value, Affine):
                linear.append(value)
            elif isinstance(value, (int, Dyn)) and not isinstance(value, bool):
                linear.append(Affine((), value))
            else:
                break
        if len(linear) == len(values) and self.readable(linear):
            for have in self.reads:
                if have.source == source and have.items == linear:
                    return Val(have.arg, source.tensor.dtype)
            arg = low.fresh("in")
            self.reads.append(_Read(source, linear, arg))
            return Val(arg, source.tensor.dtype)
        for value, dim in zip(values, dims, strict=True):
            if isinstance(value, Affine) and value.plain is not None:
                self.gathered.setdefault(value.plain, dim)
        return low.extract(source, values)

    @staticmethod
    def readable(items: list[Affine]) -> bool:
        """Whether an access can be an operand's indexing map (perhaps of a slice)."""
        for item in items:
            if any(c < 1 for _, c in item.terms):
                return False
            if isinstance(item.offset, int) and item.offset < 0:
                return False
            if len(item.terms) > 1 and item.offset != 0:
                return False
        return True

    # -- the op

    def find_ranges(self) -> None:
        target = self.target_tensor()
        items = self.target_items or [
            i if isinstance(i, Affine) else Affine(()) for i in self.places
        ]
        later: list[str] = []
        for name in self.loops:
            if name in self.ranges:
                continue
            found: list[Any] = []
            for read in self.reads:
                assert read.source.tensor.dims is not None
                for item, dim in zip(read.items, read.source.tensor.dims, strict=True):
                    if item.plain == name:
                        found.append(dim)
            # Where values are scattered, the target need not be as large as what is read.
            if target is not None and target.dims is not None and not (self.places and found):
                for item, dim in zip(items, target.dims, strict=False):
                    if item.plain == name:
                        found.append(dim)
            static = [d for d in found if isinstance(d, int)]
            sourced = [d for d in found if isinstance(d, Dyn) and d.op not in ("result", "?")]
            if static:
                self.ranges[name] = static[0]
            elif sourced:
                self.ranges[name] = sourced[0]
            elif found:
                self.ranges[name] = found[0]
            elif name in self.gathered:
                self.ranges[name] = self.gathered[name]
            else:
                later.append(name)
        for name in later:
            size = self.window_range(name)
            if size is not None:
                self.ranges[name] = size
            else:
                shown = name.split(".")[0] or "..."
                raise LoweringError(
                    self.low.line,
                    f"nothing says how far the index {shown} runs: add `for {shown} < N`",
                )

    def window_range(self, name: str) -> Any:
        """How far an index runs that is only read in a window, as `i` in x[i*s + u*d].

        As far as the tensor allows: floor((size - 1 - last of the others) / step) + 1.
        """
        for read in self.reads:
            assert read.source.tensor.dims is not None
            for item, dim in zip(read.items, read.source.tensor.dims, strict=True):
                terms = dict(item.terms)
                if name not in terms or any(n not in self.ranges for n in terms if n != name):
                    continue
                room = arith("-", arith("-", dim, 1), item.offset)
                for other, c in terms.items():
                    if other != name:
                        room = arith("-", room, arith("*", arith("-", self.ranges[other], 1), c))
                return arith("+", arith("//", room, terms[name]), 1)
        return None

    def operand(self, read: _Read) -> tuple[Local, list[Affine]]:
        """A read as an operand: sliced where the access has steps, offsets or constants."""
        low = self.low
        source = read.source
        assert source.tensor.dims is not None
        counts: dict[str, int] = {}
        for item in read.items:
            for n, _ in item.terms:
                counts[n] = counts.get(n, 0) + 1
        offsets: list[Any] = []
        sizes: list[Any] = []
        strides: list[int] = []
        drop: list[int] = []
        items: list[Affine] = []
        changed = False

        def take(offset: Any, size: Any, stride: int) -> None:
            offsets.append(offset)
            sizes.append(size)
            strides.append(stride)

        for at, (item, dim) in enumerate(zip(read.items, source.tensor.dims, strict=True)):
            if not item.terms:
                if dim == 1 and item.offset == 0:
                    take(0, 1, 1)
                    items.append(item)
                    continue
                take(item.offset, 1, 1)
                drop.append(at)
                changed = True
                continue
            if len(item.terms) == 1 and item.plain is None:
                name, step = item.terms[0]
                take(item.offset, self.ranges[name], step)
                items.append(Affine(((name, 1),)))
                changed = True
                continue
            if (
                item.plain in self.bounded
                and self.ranges[item.plain] != dim
                and (isinstance(dim, Dyn))
            ):
                # The tensor may be larger than the range that the rule gives.
                take(0, self.ranges[item.plain], 1)
                items.append(item)
                changed = True
                continue
            if item.plain is not None and isinstance(dim, int):
                wanted = self.ranges[item.plain]
                if isinstance(wanted, int) and wanted < dim:
                    # The loop stops before the tensor ends.
                    take(0, wanted, 1)
                    items.append(item)
                    changed = True
                    continue
                if isinstance(wanted, int) and wanted > dim:
                    raise NoMatch(
                        low.line,
                        f"{source.tensor.name} has {dim} where {wanted} are read",
                        expected=str(wanted),
                        found=str(dim),
                    )
                if isinstance(wanted, Dyn):
                    take(0, wanted, 1)
                    items.append(item)
                    changed = True
                    continue
            take(0, dim, 1)
            items.append(item)
        if changed:
            source = low.slice(source, offsets, sizes, strides, drop)
        assert source.tensor.dims is not None
        wanted_dims = [
            self.ranges[i.plain] if i.plain is not None else d
            for i, d in zip(items, source.tensor.dims, strict=True)
        ]
        # A dim that is dynamic here but static elsewhere takes the static size.
        refined = [
            w if isinstance(w, int) else d
            for w, d in zip(wanted_dims, source.tensor.dims, strict=True)
        ]
        ssa = low.cast_shape(source, refined)
        tensor = Tensor(source.tensor.name, tuple(refined), source.tensor.dtype, False)
        return Local(tensor, ssa), items

    def finish(self) -> Local:
        low, eq = self.low, self.equation
        low.body = None
        if self.coordinates is not None:
            self.reads = [*self.coordinates.reads, *self.reads]
        self.find_ranges()
        if self.coordinates is not None:
            self.reads = self.reads[len(self.coordinates.reads) :]
        target = self.target_tensor()
        low.body = self
        hint = target.dtype if target is not None else None
        value = self.value
        if isinstance(value, Scalar):
            value = low.to_val(value, None)
        if not isinstance(value, Val) or (value.dtype == INDEX and hint is not None):
            if isinstance(value, (Affine, Dyn)) and (hint is None or hint.is_int):
                value = low.convert(value, hint or DType("si64"))
            else:
                value = low.to_val(value, hint)
        assert isinstance(value, Val)
        element = value.dtype
        if hint is not None and hint != element:
            raise LoweringError(
                low.line, f"{eq.target} holds {hint}, but the equation gives {element}: cast it"
            )
        if self.coordinates is not None and not self.covers():
            return self.scatter(value, element)
        low.body = None
        kept = [a for a in self.target_items if a.terms]
        dims = [self.ranges[a.terms[0][0]] for a in kept]
        out_type = Tensor(eq.target, tuple(dims), element, False)
        operands = [self.operand(r) for r in self.reads]
        result = self.emit(value, element, out_type, operands)
        if len(kept) != len(self.target_items):
            full = [self.ranges[a.terms[0][0]] if a.terms else 1 for a in self.target_items]
            return low.reshape(result, full, eq.target)
        return result

    # -- equations that scatter

    def covers(self) -> bool:
        """Whether the places are simply the whole target, each once."""
        held = self.target_tensor()
        places = [p if isinstance(p, Affine) else Affine((), 1) for p in self.places]
        names = [p.plain for p in places if p.plain is not None]
        if held is None or len(names) != len(places) or len(set(names)) != len(names):
            return False
        ranges = [self.ranges[n] for n in names]
        if ranges != list(held.dims or ()) or set(names) != set(self.loops):
            return False
        self.target_items, self.parallel, self.loops = places, names, names
        return True

    def scatter(self, value: Val, element: DType) -> Local:
        """Values written at computed places of what the target holds, in the loops' order."""
        low, eq = self.low, self.equation
        low.body = None
        held = low.name(ast.Name(0, 0, eq.target))
        if not isinstance(held, Local) or held.tensor.dims is None:
            raise LoweringError(low.line, f"{eq.target} is not a tensor")
        places = [p if isinstance(p, (Affine, Val)) else Affine((), p) for p in self.places]
        if len(places) != len(held.tensor.dims):
            raise Refused(f"{eq.target} has rank {held.tensor.rank}, but {len(places)} indices")
        if eq.op == "=" and (window := self.window(places)) is not None:
            return self.insert(held, value, element, window)
        slices = self.whole_slices(held, places)
        self.loops = [n for n in self.loops if n not in slices] + slices
        # IREE puts a fill of unknown size on the stack of the scatter's dispatch: a constant is
        # said in the scatter's region then, and what the updates hold does not matter.
        constant = (
            not (self.reads or self.index_values)
            and self.only_constant()
            and any(not isinstance(self.ranges[n], int) for n in self.loops)
        )
        updates = None if constant else self.loop_tensor(self.loops, value, element, "=")
        assert self.coordinates is not None
        spelled = self.take_part()
        self.put_part(self.coordinates)
        batch = self.loops[: len(self.loops) - len(slices)]
        depth = len(places) - len(slices)
        dims = list(held.tensor.dims)
        low.body = self
        place: Any = 0
        for item, dim in zip(places[:depth], dims[:depth], strict=True):
            scaled = low.binary("*", place, dim) if place != 0 else 0
            at = low.to_val(item, INDEX) if isinstance(item, Val) else item
            place = at if scaled == 0 else low.binary("+", scaled, at)
        linear = low.convert(low.to_val(place, INDEX), DType("si64"))
        where = self.loop_tensor(batch, linear, DType("si64"), "=")
        if updates is None:
            low.body = self
            updates = self.loop_tensor(self.loops, low.convert(linear, element), element, "=")
        low.body = None
        batch_dims = [self.ranges[n] for n in batch]
        slice_dims = [self.ranges[n] for n in slices]
        if not batch:
            batch_dims = [1]
            updates = low.reshape(updates, [1, *slice_dims], "updates")
        where = low.reshape(where, [*batch_dims, 1], "where")
        flat = low.reshape(held, [_one_product(dims[:depth]), *slice_dims], eq.target)
        update_type = updates.tensor.builtin_type()
        where_type, flat_type = where.tensor.builtin_type(), flat.tensor.builtin_type()
        new, old = Val(low.fresh("new"), element), Val(low.fresh("old"), element)
        self.put_part(spelled if constant else _Part())
        low.body = self
        given = value if constant else new
        final = given if eq.op == "=" else self.combine(eq.op, old, given)
        low.body = None
        out = low.fresh("sc")
        low.emit(
            f"{out} = iree_linalg_ext.scatter dimension_map = [0] unique_indices(false) "
            f"ins({updates.ssa}, {where.ssa} : {update_type}, {where_type}) "
            f"outs({flat.ssa} : {flat_type}) {{"
        )
        low.emit(f"^bb0({new.ssa}: {element.mlir}, {old.ssa}: {element.mlir}):")
        for line in [*self.head, *self.lines]:
            low.emit("  " + line)
        low.emit(f"  iree_linalg_ext.yield {final.ssa} : {element.mlir}")
        low.emit(f"}} -> {flat_type}")
        return low.reshape(Local(flat.tensor, out), dims, eq.target)

    def loop_tensor(self, loops: list[str], value: Val, element: DType, op: str) -> Local:
        """The body so far as a tensor over ``loops``."""
        low, eq, parallel = self.low, self.equation, self.parallel
        all_loops = self.loops
        low.body = None
        self.equation = replace(eq, op=op)
        self.loops, self.parallel = loops, loops
        shape = Tensor("v", tuple(self.ranges[n] for n in loops), element, False)
        try:
            return self.emit(value, element, shape, [self.operand(r) for r in self.reads])
        finally:
            self.equation, self.parallel, self.loops = eq, parallel, all_loops

    def whole_slices(self, held: Local, places: list[Affine | Val]) -> list[str]:
        """The last loops that run over whole dims of the target and choose no place elsewhere."""
        assert self.coordinates is not None and held.tensor.dims is not None
        used = set(self.coordinates.index_values)
        for read in self.coordinates.reads:
            used |= {n for item in read.items for n, _ in item.terms}
        counts: dict[str, int] = {}
        for item in places:
            for n, _ in item.terms if isinstance(item, Affine) else ():
                counts[n] = counts.get(n, 0) + 1
        out: list[str] = []
        for item, dim in reversed(list(zip(places, held.tensor.dims, strict=True))):
            name = item.plain if isinstance(item, Affine) else None
            if name is None or name in used or counts[name] > 1 or self.ranges[name] != dim:
                break
            out.insert(0, name)
        # Something must choose the place.
        return out if len(out) < len(places) else out[1:]

    def window(self, places: list[Affine | Val]) -> list[Affine] | None:
        """The places as a strided window of the target, or None when they are not one."""
        linear = [p for p in places if isinstance(p, Affine)]
        names = [n for p in linear for n, _ in p.terms]
        if len(linear) != len(places) or sorted(names) != sorted(self.loops):
            return None
        if any(len(p.terms) > 1 or any(c < 1 for _, c in p.terms) for p in linear):
            return None
        return linear

    def insert(self, held: Local, value: Val, element: DType, window: list[Affine]) -> Local:
        """A strided window of the target replaced."""
        low = self.low
        self.loops = [n for p in window for n, _ in p.terms]
        if any(self.ranges[n] == 0 for n in self.loops):
            # An empty window may start beyond the end, which tensor.insert_slice does not allow.
            return held
        source = self.loop_tensor(self.loops, value, element, "=")
        rows = [
            (p.offset, self.ranges[p.terms[0][0]], p.terms[0][1]) if p.terms else (p.offset, 1, 1)
            for p in window
        ]
        text = " ".join(
            "[" + ", ".join(str(v) if isinstance(v, int) else low.index(v) for v in column) + "]"
            for column in zip(*rows, strict=True)
        )
        out = low.fresh("ins")
        type_ = held.tensor.builtin_type()
        low.emit(
            f"{out} = tensor.insert_slice {source.ssa} into {held.ssa}{text} : "
            f"{source.tensor.builtin_type()} into {type_}"
        )
        return Local(Tensor(self.equation.target, held.tensor.dims, element, False), out)

    def emit(
        self,
        value: Val,
        element: DType,
        out_type: Tensor,
        operands: list[tuple[Local, list[Affine]]],
    ) -> Local:
        low, eq = self.low, self.equation
        identity = [Affine(((n, 1),)) for n in self.loops]
        if (
            eq.op == "="
            and len(operands) == 1
            and not self.lines
            and value.ssa == self.reads[0].arg
            and operands[0][1] == identity
        ):
            held = operands[0][0]
            return Local(Tensor(eq.target, held.tensor.dims, element, False), held.ssa)
        reducing = eq.op != "="
        if reducing:
            init = self.initial(element, out_type)
            if any(self.ranges[n] == 0 for n in self.loops if n not in self.parallel):
                # Nothing is combined; IREE's tiling divides by the extent of such a loop.
                return Local(out_type, init)
        elif eq.op == "=" and not operands and not self.index_values and self.only_constant():
            low.lines.extend(self.head)
            empty = self.empty(out_type)
            out = low.fresh("f")
            low.emit(
                f"{out} = linalg.fill ins({value.ssa} : {element.mlir}) outs({empty} : "
                f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
            )
            return Local(out_type, out)
        else:
            init = self.empty(out_type)
        named = self.named(value, operands) if reducing else None
        if named is not None:
            out = low.fresh("m")
            ins = ", ".join(o.ssa for o, _ in operands)
            types = ", ".join(o.tensor.builtin_type() for o, _ in operands)
            low.emit(
                f"{out} = {named} ins({ins} : {types}) outs({init} : "
                f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
            )
            return Local(out_type, out)
        covered = {i.plain for _, items in operands for i in items if i.plain is not None} | set(
            self.parallel
        )
        missing = [n for n in self.loops if n not in covered]
        shape_only: list[tuple[Local, list[Affine]]] = []
        if missing:
            window = Tensor("window", tuple(self.ranges[n] for n in missing), element, False)
            shape_only.append(
                (Local(window, self.empty(window)), [Affine(((n, 1),)) for n in missing])
            )
        out_arg = low.fresh("acc")
        lines = [*self.preamble(), *self.lines]
        final = value
        if reducing:
            low.body = self
            final = self.combine(eq.op, Val(out_arg, element), value)
            low.body = None
            lines = [*self.preamble(), *self.lines]
        all_in = operands + shape_only
        maps = [self.map_text(items) for _, items in all_in]
        maps.append(self.map_text([Affine(((n, 1),)) for n in self.parallel]))
        iterators = ['"parallel"' if n in self.parallel else '"reduction"' for n in self.loops]
        args = [
            f"{r.arg}: {r.source.tensor.dtype.mlir}" for r in self.reads if r.source.tensor.dtype
        ]
        args += [f"%window_{i}: {element.mlir}" for i in range(len(shape_only))]
        args.append(f"{out_arg}: {element.mlir}")
        ins_text = ""
        if all_in:
            ins = ", ".join(o.ssa for o, _ in all_in)
            types = ", ".join(o.tensor.builtin_type() for o, _ in all_in)
            ins_text = f"ins({ins} : {types}) "
        out = low.fresh("g")
        low.emit(
            f"{out} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = "
            f"[{', '.join(iterators)}]}} {ins_text}outs({init} : {out_type.builtin_type()}) {{"
        )
        low.emit(f"^bb0({', '.join(args)}):")
        for line in lines:
            low.emit("  " + line)
        low.emit(f"  linalg.yield {final.ssa} : {element.mlir}")
        low.emit(f"}} -> {out_type.builtin_type()}")
        return Local(out_type, out)

    def only_constant(self) -> bool:
        return not self.lines and all("arith.constant" in h for h in self.head)

    def combine(self, op: str, acc: Val, value: Val) -> Val:
        low = self.low
        t = acc.dtype
        match op:
            case "+=":
                if t.is_bool:
                    raise Refused("+= on bool: use or=, or cast")
                return low.runtime_binary("+", acc, value)
            case "*=":
                return low.runtime_binary("*", acc, value)
            case "max=":
                return low.simple("max", [acc, value])
            case "min=":
                return low.simple("min", [acc, value])
            case "and=":
                return low.simple("bitand", [acc, value])
            case "or=":
                return low.simple("bitor", [acc, value])
            case _:
                return low.simple("bitxor", [acc, value])

    def initial(self, element: DType, out_type: Tensor) -> str:
        """The tensor that a reduction starts from: what is there, or the op's identity."""
        low, eq = self.low, self.equation
        made = low.locals.get(eq.target)
        if made is not None:
            have = low.name(ast.Name(0, 0, eq.target))
            if not isinstance(have, Local):
                raise LoweringError(low.line, f"{eq.target} is not a tensor")
            if len(self.target_items) != len([a for a in self.target_items if a.terms]):
                assert have.tensor.dims is not None
                have = low.reshape(have, list(out_type.dims or ()), eq.target)
            return low.cast_shape(have, out_type.dims or ())
        identity: Any = {
            "+=": 0,
            "*=": 1,
            "max=": element.lowest,
            "min=": element.highest,
            "and=": -1 if element.is_int else True,
            "or=": 0,
            "xor=": 0,
        }[eq.op]
        if element.is_bool:
            identity = bool(identity)
        if element.is_unsigned and identity == -1:
            identity = element.highest
        fill = low.const(identity, element)
        empty = self.empty(out_type)
        out = low.fresh("f")
        low.emit(
            f"{out} = linalg.fill ins({fill} : {element.mlir}) outs({empty} : "
            f"{out_type.builtin_type()}) -> {out_type.builtin_type()}"
        )
        return out

    def empty(self, type_: Tensor) -> str:
        low = self.low
        dynamic = [low.index(d) for d in type_.dims or () if not isinstance(d, int)]
        key = ("empty", type_.builtin_type(), tuple(dynamic))
        if key not in low.memo:
            out = low.fresh("e")
            low.emit(f"{out} = tensor.empty({', '.join(dynamic)}) : {type_.builtin_type()}")
            low.memo[key] = out
        return low.memo[key]

    def map_text(self, items: list[Affine]) -> str:
        dims = ", ".join(f"d{i}" for i in range(len(self.loops)))
        return f"affine_map<({dims}) -> ({', '.join(self.expr_text(i) for i in items)})>"

    def expr_text(self, item: Affine) -> str:
        parts = []
        for name, c in item.terms:
            d = f"d{self.loops.index(name)}"
            parts.append(d if c == 1 else f"{d} * {c}")
        return " + ".join(parts) or "0"

    def named(self, value: Val, operands: list[tuple[Local, list[Affine]]]) -> str | None:
        """The named op that this is, where one exists and says the same."""
        eq = self.equation
        if eq.op != "+=" or len(operands) != 2 or not self.is_product(eq.value):
            return None
        if self.index_values or any(d == Affine(()) for _, items in operands for d in items):
            return None
        names = [[i.plain for i in items] for _, items in operands]
        a, b = operands[0][0].tensor, operands[1][0].tensor
        if a.dtype is None or b.dtype is None:
            return None
        if value.dtype.is_unsigned or a.dtype.is_unsigned or b.dtype.is_unsigned:
            return None
        out = list(self.parallel)
        red = [n for n in self.loops if n not in self.parallel]
        if all(n is not None for part in names for n in part):
            if len(red) == 1:
                k = red[0]
                if len(out) == 2 and names == [[out[0], k], [k, out[1]]]:
                    return "linalg.matmul"
                if len(out) == 3 and names == [[out[0], out[1], k], [out[0], k, out[2]]]:
                    return "linalg.batch_matmul"
                if len(out) == 1 and names == [[out[0], k], [k]]:
                    return "linalg.matvec"
                if len(out) == 1 and names == [[k], [k, out[0]]]:
                    return "linalg.vecmat"
                if not out and names == [[k], [k]]:
                    return "linalg.dot"
            return None
        return self.named_convolution(out, red, operands)

    def named_convolution(
        self, out: list[str], red: list[str], operands: list[tuple[Local, list[Affine]]]
    ) -> str | None:
        (_, xi), (_, wi) = operands
        if len(out) == 4 and len(red) == 2 and len(xi) == 4 and len(wi) == 3:
            # Depthwise: the channel is a parallel index of both operands.
            name, n, c = "depthwise_conv_2d_nchw_chw", out[0], out[1]
            u, v, filters = red[0], red[1], [out[1], *red]
        elif len(out) == 4 and len(red) == 3 and len(xi) == 4 and len(wi) == 4:
            name, n = "conv_2d_nchw_fchw", out[0]
            c, u, v = red
            filters = [out[1], c, u, v]
        else:
            return None
        i, j = out[2:]
        if [p.plain for p in wi] != filters or [p.plain for p in xi[:2]] != [n, c]:
            return None
        strides, dilations = [], []
        for item, o, k in ((xi[2], i, u), (xi[3], j, v)):
            terms = dict(item.terms)
            if set(terms) != {o, k} or item.offset != 0:
                return None
            strides.append(terms[o])
            dilations.append(terms[k])
        return (
            f"linalg.{name} {{dilations = dense<"
            f"{dilations}> : tensor<2xi64>, strides = dense<{strides}> : tensor<2xi64>}}"
        )

    @staticmethod
    def is_product(value: ast.Expr) -> bool:
        def leaf(node: ast.Expr) -> bool:
            if isinstance(node, ast.Call) and (
                (len(node.args) == 1 and "." not in node.fn) or node.fn == "cast"
            ):
                node = node.args[0]
            return isinstance(node, ast.Access)

        return (
            isinstance(value, ast.Binary)
            and value.op == "*"
            and leaf(value.left)
            and leaf(value.right)
        )


# ---- helpers ---------------------------------------------------------------------------------


def wide(t: DType) -> DType:
    """The type to accumulate in, as PyTorch does on CPU."""
    if t.is_float:
        return DType("f32") if t.width < 32 else t
    if t.is_complex:
        return t
    return DType("si64")


def quoted(text: str) -> str:
    """A string attribute."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def float_text(value: float, t: DType | None = None) -> str:
    """A float as MLIR reads it back without loss; infinities and NaN by their bits."""
    name = t.name if t is not None else "f64"
    if math.isfinite(value):
        if name == "f64":
            text = repr(value)
        else:
            text = f"{value:.17e}" if value != int(value) else repr(value)
            limit = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
            if name in limit and abs(value) > limit[name]:
                # PyTorch rounds a number that is too large to infinity.
                return float_text(math.copysign(math.inf, value), t)
        if "e" in text and "." not in text.split("e")[0]:
            text = text.replace("e", ".0e")
        return text
    bits = {
        "f16": (0x7C00, 0xFC00, 0x7E00),
        "bf16": (0x7F80, 0xFF80, 0x7FC0),
        "f32": (0x7F800000, 0xFF800000, 0x7FC00000),
        "f64": (0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000),
        "f8E5M2": (0x7C, 0xFC, 0x7E),
    }.get(name)
    if bits is None:
        # Types without infinity: their largest number.
        if math.isnan(value):
            raise Refused(f"{name} has no such number")
        return repr(math.copysign(448.0 if "E4M3FN" in name else 240.0, value))
    index = 2 if math.isnan(value) else 0 if value > 0 else 1
    digits = {"f16": 4, "bf16": 4, "f32": 8, "f64": 16, "f8E5M2": 2}[name]
    return f"0x{bits[index]:0{digits}X}"


def groups_text(groups: list[list[int]]) -> str:
    """A reassociation as MLIR spells it."""
    return "[" + ", ".join("[" + ", ".join(map(str, g)) + "]" for g in groups) + "]"


def tensor_of_type(name: str, type_: str) -> Tensor | None:
    """A tensor from its MLIR type text, or None. Dynamic dims get a source of their own."""
    found = re.fullmatch(r"!torch\.vtensor<\[(.*)\],(.+)>", type_)
    if found:
        dims = [d for d in found.group(1).split(",") if d]
        element = dtype_named(found.group(2))
        torch = True
    else:
        found = re.fullmatch(r"tensor<((?:[0-9?]+x)*)([^x].*)>", type_)
        if not found:
            return None
        dims = [d for d in found.group(1).split("x") if d]
        text = found.group(2)
        element = dtype_named("s" + text if re.fullmatch(r"i(8|16|32|64)", text) else text)
        torch = False
    if element is None:
        return None
    return Tensor(
        name,
        tuple(int(d) if d != "?" else Dyn("dim", (name, i)) for i, d in enumerate(dims)),
        element,
        torch,
    )


def _same_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(
        x == y or (isinstance(x, Dyn) != isinstance(y, Dyn) and len(a) == 1)
        for x, y in zip(a, b, strict=True)
    )


def _one_product(dims: Sequence[Any]) -> Any:
    out: Any = 1
    for d in dims:
        out = arith("*", out, d)
    return out


def _cancel(have: list[Any], used: list[Any]) -> Any:
    """The product of ``have`` over ``used`` where factors cancel exactly, else None."""
    rest = list(have)
    for v in used:
        if v in rest:
            rest.remove(v)
        elif v != 1:
            return None
    return _one_product(rest)


def _reassociate(have: list[Any], want: list[Any]) -> list[tuple[list[int], list[int]]] | None:
    """Groups of dims of equal product, smallest first; None when they cannot be told apart."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(have) and j < len(want):
        a, b = [i], [j]
        p, q = have[i], want[j]
        i, j = i + 1, j + 1
        while p != q:
            if isinstance(p, Dyn) or isinstance(q, Dyn):
                return None
            if p < q:
                if i == len(have) or isinstance(have[i], Dyn):
                    return None
                p *= have[i]
                a.append(i)
                i += 1
            else:
                if j == len(want) or isinstance(want[j], Dyn):
                    return None
                q *= want[j]
                b.append(j)
                j += 1
        if p == 0 and (i < len(have) or j < len(want)) and len(groups) == 0:
            return None
        groups.append((a, b))
    if not groups:
        return None
    # What is left over are dims of size 1: they join the last group.
    for k in range(i, len(have)):
        if have[k] != 1:
            return None
        groups[-1][0].append(k)
    for k in range(j, len(want)):
        if want[k] != 1:
            return None
        groups[-1][1].append(k)
    many_to_many = any(len(a) > 1 and len(b) > 1 for a, b in groups)
    if many_to_many and any(isinstance(v, Dyn) for v in [*have, *want]):
        return None
    return groups
