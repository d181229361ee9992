"""The text of a rewrite as it grows: values by name, constants shared, dims as SSA values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mlirules.generator.lowering.dims import declared_dims
from mlirules.generator.lowering.indices import OPERATORS
from mlirules.generator.lowering.values import (
    INDEX,
    TORCH_SCALARS,
    Affine,
    Argument,
    Local,
    LoweringError,
    Raw,
    Val,
    tensor_of_type,
)
from mlirules.language.evaluate import Evaluator
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, describe, sequence
from mlirules.language.rule import Line, Rule
from mlirules.language.sizes import size
from mlirules.language.values import Dim, DType, Dyn, Opaque, Scalar, Tensor, dtype_named


@dataclass
class Read:
    """One operand of a structured op: a tensor read at linear combinations of loop indices."""

    source: Local
    items: list[Affine]
    arg: str


@dataclass
class Part:
    """The body of one op under construction."""

    reads: list[Read] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    constants: dict[object, str] = field(default_factory=dict)
    index_values: dict[str, str] = field(default_factory=dict)


@dataclass
class Body(Part, ABC):
    """The op whose body is being built: where scalar ops go while it is, and what indices mean."""

    indices: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def index_ssa(self, name: str) -> str:
        """The SSA value of a loop index."""

    @abstractmethod
    def read(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Val:
        """An element of a tensor that the equation names."""

    @abstractmethod
    def read_at(self, source: Local, values: list[object]) -> Val:
        """An element of a tensor, its indices evaluated."""


class Infer(Protocol):
    """Says what types values have that a rewrite makes and no line declares."""

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

        ``lines`` are the rewrite so far, ``arguments`` its arguments.
        """

    def value(
        self, lines: Sequence[str], arguments: Sequence[Argument], row: int
    ) -> list[str] | str:
        """The types of what the op in a row (from 0) of ``lines`` makes, or why not."""


def _as_bound(bound: object, result: object) -> Any:
    if isinstance(bound, Tensor) and isinstance(result, Tensor) and not result.torch:
        return replace(result, dtype=bound.dtype)
    return result


class Builder(Evaluator):
    """A rewrite being lowered: its lines, arguments and named values."""

    def __init__(
        self,
        rule: Rule,
        env: dict[str, Any],
        results: Sequence[tuple[str | None, Any, str]],
        infer: Infer | None = None,
    ) -> None:
        super().__init__(env)
        self.rule = rule
        self.env = env
        # The sign of a result's integers is the declared one, which binding has put in.
        self.results = [(n, _as_bound(env.get(n or ""), v), t) for n, v, t in results]
        self.result_names = {n: (v, t) for n, v, t in self.results if n}
        self.lines: list[str] = []
        self.arguments: dict[tuple[str, str], Argument] = {}
        self.locals: dict[str, object] = {}
        # Operands that a statement `y = x` passes on, by their SSA value.
        self.forwarded: dict[str, Tensor] = {}
        self.memo: dict[object, str] = {}
        self.counter = 0
        self.slots: list[tuple[str, str]] = []
        self.line: Line = rule.rewrite[0][0]
        self.body: Body | None = None
        # Says what ops give whose types nobody declared.
        self.infer = infer
        # What bodies make without a declared type: its SSA name, row and place among the results.
        self.untyped: dict[str, tuple[str, int, int]] = {}

    def fresh(self, stem: str = "v") -> str:
        """An SSA name not used before."""
        self.counter += 1
        return f"%{stem}_{self.counter}"

    def emit(self, text: str) -> None:
        """A line at function level."""
        self.lines.append(text)

    def scalar_emit(self, text: str) -> None:
        """Emit an op on scalars: into the body being built, or at function level."""
        (self.body.lines if self.body is not None else self.lines).append(text)

    def argument(self, path: str, form: str, type_: str) -> str:
        """A bound value as an argument of the rewrite, in one of its forms."""
        key = (path, form)
        if key not in self.arguments:
            stem = re.sub(r"\W", "_", path)
            suffix = "" if form == "raw" else "_" + form
            self.arguments[key] = Argument(path, form, f"%arg_{stem}{suffix}", type_)
        return self.arguments[key].ssa

    def cast_shape(self, local: Local, dims: Sequence[Dim]) -> str:
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

    def name(self, node: ast.Name) -> Any:
        """A name's value: what the rewrite made, a loop index, or a symbol of the match."""
        if node.id in self.locals:
            made = self.locals[node.id]
            if isinstance(made, Raw):
                return self.raw_to_local(node.id, made)
            return made
        if self.body is not None and node.id in self.body.indices:
            return self.body.indices[node.id]
        if node.id in self.untyped:
            return self.from_body(node)
        return super().name(node)

    def from_body(self, node: ast.Name) -> Any:
        """A value that a body makes and whose type no line declares."""
        ssa, row, at = self.untyped[node.id]
        rows = "\n".join(self.lines)
        found = (
            self.infer.value(rows.split("\n"), list(self.arguments.values()), row)
            if self.infer is not None
            else "its body does not say it"
        )
        if isinstance(found, str) or at >= len(found):
            why = found if isinstance(found, str) else f"its op has {len(found)} results"
            raise LoweringError(
                self.line, f"declare the type of {node.id!r} in `types:`: {why}", node
            )
        tensor = tensor_of_type(node.id, found[at])
        scalar = next((t for t in ("i1", "f16", "bf16", "f32", "f64") if t == found[at]), None)
        if tensor is not None and not tensor.torch:
            self.locals[node.id] = Local(tensor, ssa)
        elif scalar is not None or found[at] == "index":
            self.locals[node.id] = Val(ssa, INDEX if scalar is None else DType(scalar))
        else:
            self.locals[node.id] = Raw(ssa, found[at])
        return self.name(node)

    def raw_to_local(self, name: str, made: Raw) -> Any:
        """A torch value that the rewrite made, usable in index equations."""
        ssa, type_ = made.ssa, made.type
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

    def local(self, value: object, what: str = "") -> Local:
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

    def index(self, value: object) -> str:
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
        """A size known at run time as a value of index type."""
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
        op = OPERATORS[value.op]
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

    def raw(self, value: object) -> Raw:
        """A bound value as it stands in the IR."""
        if isinstance(value, Tensor):
            type_ = value.torch_type() if value.torch else value.builtin_type()
            return Raw(self.argument(value.name, "raw", type_), type_)
        if isinstance(value, Opaque):
            return Raw(self.argument(value.name, "raw", value.type), value.type)
        if isinstance(value, Scalar):
            type_ = TORCH_SCALARS[value.kind][1]
            return Raw(self.argument(value.name, "raw", type_), type_)
        if isinstance(value, Dyn) and value.op == "int":
            return Raw(self.argument(str(value.args[0]), "raw", "!torch.int"), "!torch.int")
        raise Refused(f"{describe(value)} is not a value of the program")

    def declared_type(self, name: str, *, item: bool = False) -> str | None:
        """The MLIR type that `types:` gives a value that the rewrite makes, or an ``item`` of it.

        None: nothing says it.
        """
        if name in self.result_names:
            return self.result_names[name][1]
        declared = self.rule.types.get(name)
        if declared is None:
            return None
        decl = declared[1]
        if item:
            if decl.kind != "list" or decl.of is None:
                raise LoweringError(declared[0], f"{name!r} is made as a list: list<...>")
            decl = decl.of
        if decl.kind in TORCH_SCALARS:
            return TORCH_SCALARS[decl.kind][1]
        if decl.kind == "list" and decl.of is not None and decl.of.kind in TORCH_SCALARS:
            return f"!torch.list<{decl.of.kind}>"
        if decl.dims is None or decl.element is None:
            raise LoweringError(declared[0], f"the type of {name!r} must be written out")
        dims: list[Dim] = []
        for dim in decl.dims:
            if isinstance(dim.value, int):
                dims.append(dim.value)
            elif dim.expr is not None:
                dims.append(size(dim.expr, self.env))
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

    def target_dims(self, target: str) -> list[Dim]:
        """The dims of a result, from the matched program."""
        if target in self.result_names and isinstance(self.result_names[target][0], Tensor):
            dims = self.result_names[target][0].dims
            if dims is not None:
                return self.unified_dims(target, list(dims))
        raise Refused(f"the shape of {target} is not known: write it out")

    def unified_dims(self, target: str, dims: list[Dim]) -> list[Dim]:
        """A result's dims with the sources that unification found for its dynamic ones."""
        spread = declared_dims(self.rule, self.env, target, len(dims))
        return [
            s if isinstance(d, Dyn) and isinstance(s, (int, Dyn)) else d
            for d, s in zip(dims, spread, strict=True)
        ]
