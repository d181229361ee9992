"""Op equations: new ops of any dialect, their operands, types and attributes."""

from __future__ import annotations

from mlirules.generator.lowering.functions import Functions
from mlirules.generator.lowering.spelling import float_text, quoted
from mlirules.generator.lowering.values import (
    Local,
    LoweringError,
    Raw,
    Val,
)
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, describe, sequence
from mlirules.language.rule import REGIONS, WRITTEN, list_item
from mlirules.language.values import Attribute, Dyn, Opaque, Scalar, Tensor


class Ops(Functions):
    """Ops that a rewrite names."""

    def op_equation(self, statement: ast.OpEquation) -> None:
        """Lower `y = op(x)` for an op of any dialect."""
        names = [name for name in statement.results if name is not None]
        if len(names) != len(statement.results):
            raise LoweringError(self.line, "give every result of a new op a name")
        if statement.each is not None:
            self.op_for_every_item(statement, names[0])
            return
        for name, value in zip(names, self.op(statement.call, names), strict=True):
            self.locals[name] = value

    def op_for_every_item(self, statement: ast.OpEquation, target: str) -> None:
        """Lower `ys[i] = op(xs[i])`: an op for every item of the lists that the index is on."""
        index = str(statement.each)
        counts: dict[str, int] = {}
        for node in ast.walk_expression(statement.call):
            listed = list_item(node)
            if listed is not None and listed[1] == index:
                held = self.eval(ast.Name(node.pos, node.end, listed[0]))
                counts[listed[0]] = len(sequence(held, listed[0]))
        if len(set(counts.values())) != 1:
            said = ", ".join(f"{name} has {count} items" for name, count in counts.items())
            raise Refused(f"the lists differ in length: {said}", statement)
        made = []
        for i in range(min(counts.values())):
            self.env[index] = i
            made += self.op(statement.call, [target], item=True)
        self.env.pop(index, None)
        self.locals[target] = made

    def op(self, call: ast.Call, names: list[str], *, item: bool = False) -> list[Raw]:
        """A new op; its results, which go by these names (or are items of a list of the name)."""
        fn, attributes = call.fn, []
        if "." not in fn:
            fn = self.env[call.fn]
            written = self.env[call.fn + WRITTEN]
            if written == REGIONS:
                raise Refused(f"{call.fn} is {fn}, which has regions: it is not made anew", call)
            attributes = [written] if written else []
        torch = fn.startswith(("torch.", "torch_c."))
        operands: list[Raw] = []
        for arg in call.args:
            if isinstance(arg, ast.Pack):
                operands.extend(self.operand(v, torch) for v in self.pack(arg))
            else:
                operands.append(self.operand_expr(arg, torch))
        attrs = attributes + [
            f"{key} = {self.attribute(self.eval(expr))}" for key, expr in call.attrs
        ]
        text = f'"{fn}"({", ".join(o.ssa for o in operands)})'
        if attrs:
            text += " {" + ", ".join(attrs) + "}"
        text += f" : ({', '.join(o.type for o in operands)}) -> "
        types = self.types_of(call, fn, names, operands, ", ".join(attrs), item=item)
        out = [self.fresh("t") for _ in types]
        text += f"({', '.join(types)})"
        # One group of results, so that every op can be written the same way.
        self.emit(f"{', '.join(out)} = {text}")
        return [Raw(ssa, type_) for ssa, type_ in zip(out, types, strict=True)]

    def types_of(
        self,
        call: ast.Call,
        fn: str,
        names: list[str],
        operands: list[Raw],
        attributes: str,
        *,
        item: bool,
    ) -> list[str]:
        """The types of a new op's results: the roots', the declared ones, or what the op gives."""
        known = [self.declared_type(name, item=item) for name in names]
        if all(known):
            return [type_ for type_ in known if type_ is not None]
        node = ast.Node(call.pos, call.pos + len(call.fn))
        missing = " and ".join(
            repr(name) for name, type_ in zip(names, known, strict=True) if type_ is None
        )
        if self.infer is None:
            raise LoweringError(self.line, f"declare the type of {missing} in `types:`", node)
        arguments = list(self.arguments.values())
        found = self.infer.op(self.lines, arguments, fn, operands, attributes, known)
        if isinstance(found, str):
            raise LoweringError(
                self.line,
                f"the type of {missing} does not follow from {fn}: {found}\n"
                f"write it in `types:`, for example {names[0]}: " + _example(fn, item=item),
                node,
            )
        return [type_ or made for type_, made in zip(known, found, strict=True)]

    def operand_expr(self, arg: ast.Expr, torch: bool) -> Raw:
        """An operand as written."""
        made = self.locals.get(arg.id) if isinstance(arg, ast.Name) else None
        if isinstance(made, Raw) and (torch or not made.type.startswith("!torch.vtensor")):
            return made
        return self.operand(self.eval(arg), torch)

    def operand(self, value: object, torch: bool) -> Raw:
        """A value as an operand of a torch op or another."""
        if isinstance(value, Raw) and (torch or not value.type.startswith("!torch.vtensor")):
            return value
        if isinstance(value, Raw):
            value = self.raw_to_local("t", value)
        if isinstance(value, (Tensor, Local)):
            if not torch:
                held = self.local(value)
                return Raw(held.ssa, held.tensor.builtin_type())
            if isinstance(value, Tensor):
                return self.raw(value)
            as_torch = Tensor(value.tensor.name, value.tensor.dims, value.tensor.dtype, True)
            out = self.fresh("t")
            self.emit(
                f"{out} = torch_c.from_builtin_tensor {value.ssa} : "
                f"{value.tensor.builtin_type()} -> {as_torch.torch_type()}"
            )
            return Raw(out, as_torch.torch_type())
        if not torch:
            if isinstance(value, Val):
                return Raw(value.ssa, value.dtype.mlir)
            if isinstance(value, (int, Dyn)) and not isinstance(value, bool):
                return Raw(self.index(value), "index")
            if isinstance(value, Opaque) and value.type not in ("attribute", ""):
                given = self.raw(value)
                if not given.type.startswith("!torch."):
                    return given
            raise Refused(f"{describe(value)} cannot be an operand of this op")
        return self.torch_constant(value)

    def torch_constant(self, value: object) -> Raw:
        """A value known now as a torch constant or list."""
        if isinstance(value, (Scalar, Opaque)) or (isinstance(value, Dyn) and value.op == "int"):
            return self.raw(value)
        if isinstance(value, Dyn):
            ssa = self.index(value)
            i64, out = self.fresh("i"), self.fresh("k")
            self.emit(f"{i64} = arith.index_cast {ssa} : index to i64")
            self.emit(f"{out} = torch_c.from_i64 {i64}")
            return Raw(out, "!torch.int")
        if isinstance(value, list):
            items = [
                self.torch_constant(v)
                if not isinstance(v, (Tensor, Local, Raw))
                else self.operand(v, True)
                for v in value
            ]
            kinds = {item.type for item in items}
            if not kinds:
                of = "int"
            elif all(t.startswith("!torch.vtensor") for t in kinds):
                of = "vtensor"
            elif len(kinds) == 1:
                of = kinds.pop().removeprefix("!torch.")
            else:
                raise Refused(f"a list of different types: {', '.join(sorted(kinds))}")
            out = self.fresh("k")
            args, types = ", ".join(i.ssa for i in items), ", ".join(i.type for i in items)
            made = f"!torch.list<{of}>"
            self.emit(f'{out} = "torch.prim.ListConstruct"({args}) : ({types}) -> {made}')
            return Raw(out, made)
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
        return Raw(self.memo[key], f"!torch.{kind}")

    def attribute(self, value: object) -> str:
        """A value known now as an attribute."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return f"{value} : i64"
        if isinstance(value, float):
            return f"{float_text(value)} : f64"
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, list):
            return "[" + ", ".join(map(self.attribute, value)) + "]"
        if isinstance(value, (Attribute, Opaque)) and value.text:
            return value.text
        raise Refused(f"{describe(value)} cannot be an attribute")


def _example(fn: str, *, item: bool) -> str:
    """A declared type of what an op makes."""
    tensor = "vtensor" if fn.startswith("torch.") else "tensor"
    return f"list<{tensor}<... x T>>" if item else f"{tensor}<M x N x T>"
