"""Small programs around a rule's pattern: what stands at each place of it, and its MLIR.

A :class:`Program` says of every value that the pattern reads or makes what it is; :func:`emit`
writes the function that holds exactly those ops. Variants of a program are programs with another
value at one place, which is what tests made from a rule are (``drivers.quality.synthesis``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlirules.language.notation import ast
from mlirules.language.rule import OpPattern, Rule

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class Leaf:
    """A value of a program.

    ``kind`` is ``tensor`` (``dims``: None where dynamic; the whole is None for an unknown rank),
    ``constant``, ``list`` (made in place of ``items``), or ``argument`` (of any other ``type``).
    """

    kind: str
    dims: tuple[int | None, ...] | None = ()
    element: str = "f32"
    torch: bool = True
    value: Constant = None
    items: tuple[Leaf, ...] = ()
    type: str = ""

    def mlir(self) -> str:
        """The value's type."""
        if self.kind == "tensor":
            if self.dims is None:
                return "!torch.vtensor" if self.torch else f"tensor<*x{self.element}>"
            shown = ["?" if d is None else str(d) for d in self.dims]
            if self.torch:
                return f"!torch.vtensor<[{','.join(shown)}],{self.element}>"
            return "tensor<" + "".join(f"{d}x" for d in shown) + f"{self.element}>"
        if self.kind == "constant":
            return _CONSTANTS[type(self.value)][1]
        return self.type


_CONSTANTS: dict[type, tuple[str, str]] = {
    bool: ("torch.constant.bool", "!torch.bool"),
    int: ("torch.constant.int", "!torch.int"),
    float: ("torch.constant.float", "!torch.float"),
    str: ("torch.constant.str", "!torch.str"),
    type(None): ("torch.constant.none", "!torch.none"),
}


def constant(value: Constant) -> Leaf:
    """A torch constant."""
    return Leaf("constant", value=value)


def list_of(items: tuple[Leaf, ...], type_: str = "") -> Leaf:
    """A list made in place; without ``type_`` its type is that of the first item."""
    if items and items[0].kind == "tensor" and "optional" not in type_:
        type_ = "!torch.list<vtensor>"  # whatever its items become
    if not type_:
        inner = items[0].mlir() if items else "!torch.int"
        short = "vtensor" if inner.startswith("!torch.vtensor") else inner.removeprefix("!torch.")
        type_ = f"!torch.list<{short}>"
    return Leaf("list", items=items, type=type_)


@dataclass(frozen=True)
class Program:
    """What stands at every place of a rule's pattern.

    ``values`` maps a name of the pattern, or the path of an operand without one (``1/0`` is the
    first operand of the second op), to what stands there; a pack is a list. ``results`` maps the
    path of an op to the types of its results, ``attributes`` to its attributes as MLIR text.
    ``cut``: operands that an argument replaces, where the pattern wants the result of an op.
    ``kept``: values that the function returns as well, so that they have one more use.
    """

    values: dict[str, Leaf]
    results: dict[str, tuple[Leaf, ...]]
    attributes: dict[str, str] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    def with_value(self, name: str, leaf: Leaf) -> Program:
        """The same program with another value at one place."""
        return replace(self, values={**self.values, name: leaf})

    def with_result(self, path: str, at: int, leaf: Leaf) -> Program:
        """The same program with another type of one result."""
        types = list(self.results[path])
        types[at] = leaf
        return replace(self, results={**self.results, path: tuple(types)})


def emit(rule: Rule, program: Program, name: str = "made") -> str:
    """The program as MLIR text: one function, every free value an argument."""
    return _Emitter(rule, program).text(name)


class _Emitter:
    def __init__(self, rule: Rule, program: Program) -> None:
        self.rule = rule
        self.program = program
        self.arguments: list[tuple[str, str]] = []
        self.rows: list[str] = []
        self.named: dict[str, tuple[str, str]] = {}
        self.made: dict[int, list[tuple[str, str]]] = {}
        self.by_result: dict[str, tuple[int, int]] = {}
        self.count = 0
        for n, pattern in enumerate(rule.match[:-1]):
            for i, result in enumerate(pattern.equation.results):
                if result:
                    self.by_result[result] = (n, i)

    def text(self, name: str) -> str:
        last = len(self.rule.match) - 1
        returned = list(self.op(last, self.rule.root))
        returned += [self.named[n] for n in sorted(self.program.kept) if n in self.named]
        arguments = ", ".join(f"{ssa}: {type_}" for ssa, type_ in self.arguments)
        types = ", ".join(type_ for _, type_ in returned)
        head = f"func.func @{name}({arguments})" + (f" -> ({types})" if returned else "")
        values = ", ".join(ssa for ssa, _ in returned)
        end = f"return {values} : {types}" if returned else "return"
        return "\n".join([head + " {", *(f"  {row}" for row in self.rows), f"  {end}", "}", ""])

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"%{stem}{self.count}"

    def op(self, number: int, pattern: OpPattern) -> list[tuple[str, str]]:
        if number not in self.made:
            self.made[number] = self.call(str(number), pattern.equation.call)
            for name, value in zip(pattern.equation.results, self.made[number], strict=False):
                if name:
                    self.named.setdefault(name, value)
        return self.made[number]

    def call(self, path: str, call: ast.Call) -> list[tuple[str, str]]:
        operands: list[tuple[str, str]] = []
        for i, arg in enumerate(call.args):
            operands += self.operand(f"{path}/{i}", arg)
        types = [leaf.mlir() for leaf in self.program.results[path]]
        return self.row(call.fn, operands, types, self.program.attributes.get(path, ""))

    def row(
        self, op: str, operands: list[tuple[str, str]], types: list[str], attributes: str = ""
    ) -> list[tuple[str, str]]:
        results = [(self.fresh(), type_) for type_ in types]
        left = ", ".join(ssa for ssa, _ in results)
        given = ", ".join(ssa for ssa, _ in operands)
        taken = ", ".join(type_ for _, type_ in operands)
        made = ", ".join(types)
        self.rows.append(
            (f"{left} = " if results else "")
            + f'"{op}"({given}) {attributes}'.rstrip()
            + f" : ({taken}) -> ({made})"
        )
        return results

    def operand(self, path: str, arg: ast.Expr) -> list[tuple[str, str]]:
        if isinstance(arg, ast.Name) and arg.id in self.by_result and arg.id not in self.cut_names:
            number, result = self.by_result[arg.id]
            return [self.op(number, self.rule.match[number])[result]]
        if isinstance(arg, (ast.Name, ast.Pack)):
            name = arg.id or path
            if isinstance(arg, ast.Pack):
                return [self.value(leaf) for leaf in self.program.values[name].items]
            if name not in self.named:
                self.named[name] = self.value(self.program.values[name])
            return [self.named[name]]
        if isinstance(arg, ast.Call) and path not in self.program.cut:
            return self.call(path, arg)[:1]
        if isinstance(arg, ast.ListExpr) and path not in self.program.values:
            items: list[tuple[str, str]] = []
            for i, item in enumerate(arg.items):
                items += self.operand(f"{path}/{i}", item)
            type_ = self.program.values[f"{path}:list"].type
            return self.row("torch.prim.ListConstruct", items, [type_])
        return [self.value(self.program.values[path])]

    @property
    def cut_names(self) -> frozenset[str]:
        return self.program.cut

    def value(self, leaf: Leaf) -> tuple[str, str]:
        if leaf.kind == "constant":
            op, type_ = _CONSTANTS[type(leaf.value)]
            if leaf.value is None:
                return self.row(op, [], [type_])[0]
            return self.row(op, [], [type_], f"{{value = {_attribute(leaf.value)}}}")[0]
        if leaf.kind == "list":
            items = [self.value(item) for item in leaf.items]
            return self.row("torch.prim.ListConstruct", items, [leaf.type])[0]
        ssa = f"%a{len(self.arguments)}"
        self.arguments.append((ssa, leaf.mlir()))
        return ssa, leaf.mlir()


def _attribute(value: Constant) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{value:e} : f64"
    return f'"{value}"'
