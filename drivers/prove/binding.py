"""Binding a rule's names and symbols to values, and operands of which only a type is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirules.drivers.prove.arrays import operand
from mlirules.drivers.prove.conditions import is_zero
from mlirules.drivers.prove.equations import Hint
from mlirules.drivers.prove.expr import Int, Poly, Undecided, dim, whole
from mlirules.drivers.prove.names import LEAST_RANK, NO_SCALARS, ONE_RANK, ONE_TYPE, short_name
from mlirules.drivers.prove.scalars import NUMBER, E, LazyType
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array, Unknown
from mlirules.drivers.prove.world import World
from mlirules.language.notation import ast
from mlirules.language.rule import Rule
from mlirules.language.values import DType, Tensor, dtype_named


class NoFit(Exception):
    """A conversion rule that does not say what this op means; ``sizes``: for its sizes alone."""

    def __init__(self, why: str, *, sizes: bool = False, refused: bool = False) -> None:
        super().__init__(why)
        self.sizes = sizes
        #: Whether PyTorch refuses such operands, too.
        self.refused = refused


def op_key(call: ast.Call) -> str:
    """An op's name; of a ``torch.operator`` the one that it carries."""
    if call.fn == "torch.operator":
        for name, value in call.attrs:
            if name == "name" and isinstance(value, ast.Literal):
                return str(value.value)
    return call.fn


class Binder:
    """Binds a rule's names and symbols to the values of one call."""

    def __init__(self, world: World, rule: Rule, env: dict[str, Any], *, assume: bool) -> None:
        self.world, self.rule, self.env, self.assume = world, rule, env, assume

    def operand(self, pattern: ast.Expr, value: object) -> None:
        """One operand of the pattern."""
        world = self.world
        match pattern:
            case ast.Wildcard():
                return
            case ast.Name(id=name):
                declared = self.rule.types.get(name)
                if isinstance(value, Unknown):
                    value = self.settled(value, declared[1] if declared else None)
                if name in self.env and not isinstance(self.env[name], Unknown):
                    if self.env[name] is not value and not Symbols(world, {}).equal(
                        self.env[name], value
                    ):
                        raise NoFit(f"{name} stands for two values")
                    return
                self.env[name] = value
                if declared is not None:
                    self.declared(name, declared[1], value)
            case ast.Literal(value=wanted):
                if isinstance(value, Unknown):
                    value = self.flag(value, wanted)
                if wanted is None or value is None:
                    if wanted is not value:
                        raise NoFit("none")
                    return
                if isinstance(value, (Array, list)):
                    raise NoFit("no constant")
                if isinstance(wanted, (bool, str)) or isinstance(value, (bool, str)):
                    if type(wanted) is not type(value) or wanted != value:
                        raise NoFit(f"{value} is not {wanted}")
                    return
                is_float = isinstance(value, (E, float))
                if is_float != isinstance(wanted, float):
                    raise NoFit(f"{value} is not {wanted}")
                if not Symbols(world, {}).equal(value, wanted):
                    raise NoFit(f"{value} is not {wanted}")
            case ast.ListExpr(items=items):
                if isinstance(value, Unknown) and value.settle is not None:
                    value = value.settle()
                if isinstance(value, Unknown):
                    raise Undecided("a list that is not known")
                if not isinstance(value, list):
                    raise NoFit("no list")
                pack = next((i for i, x in enumerate(items) if isinstance(x, ast.Pack)), None)
                if pack is None:
                    if len(items) != len(value):
                        raise NoFit("another length")
                    for item, v in zip(items, value, strict=True):
                        self.operand(item, v)
                    return
                after = len(items) - pack - 1
                if len(value) < len(items) - 1:
                    raise NoFit("another length")
                for item, v in zip(items[:pack], value[:pack], strict=True):
                    self.operand(item, v)
                named = items[pack]
                assert isinstance(named, ast.Pack)
                if named.id:
                    self.env[named.id] = value[pack : len(value) - after]
                for item, v in zip(items[pack + 1 :], value[len(value) - after :], strict=True):
                    self.operand(item, v)
            case ast.Unary(op="-", operand=ast.Literal(value=v)) if isinstance(v, (int, float)):
                self.operand(ast.Literal(0, 0, -v), value)
            case _:
                raise Undecided("an op inside an operand of a conversion rule")

    def flag(self, value: Unknown, wanted: object) -> Any:
        """An operand that nothing says anything of, where a flag is asked for: either one."""
        if not isinstance(wanted, bool) or value.name == "_" or value.settle is not None:
            raise Undecided(f"whether {value.name} is {wanted}")
        return self.world.choose(f"operand {value.name}", [False, True])

    def settled(self, value: Unknown, decl: ast.TypeDecl | None) -> Any:
        """What an operand that nothing says anything of turns out to be, as this rule asks."""
        world = self.world
        if value.settle is not None:
            return value if decl is None else value.settle()
        key = f"operand {value.name}"
        if value.name == "_":
            if decl is None or decl.kind in ("any", "device"):
                return value
            raise Undecided("an operand that the rule does not name")
        if key in world.chosen:
            return world.chosen[key]
        if decl is None or decl.kind in ("any", "device", "generator"):
            return value
        made = given(world, value.name, decl, self.env, scope=f"{value.name}:")
        world.chosen[key] = made
        return made

    def declared(self, name: str, decl: ast.TypeDecl, value: object) -> None:
        """Hold a value against its declared type."""
        if isinstance(value, Unknown):
            return
        if value is None:
            if decl.optional or decl.kind == "none":
                for d in decl.dims or ():
                    if isinstance(d.value, str):
                        self.env.setdefault(d.value, None)
                return
            if decl.kind == "any":
                return
            raise NoFit(f"{name} is none")
        match decl.kind:
            case "vtensor" | "tensor":
                if not isinstance(value, Array):
                    raise NoFit(f"{name} is no tensor")
                if decl.element is not None:
                    assert value.dtype is not None
                    self.element(decl.element, value.dtype)
                if decl.dims is not None:
                    self.dims(name, decl.dims, value.shape)
            case "list":
                if not isinstance(value, list):
                    raise NoFit(f"{name} is no list")
                assert decl.of is not None
                for item in value:
                    self.declared(name, decl.of, item)
            case "any":
                if isinstance(value, Tensor) and decl.constant:
                    raise NoFit("no constant")
            case "int":
                if isinstance(value, bool) or not isinstance(value, (int, Poly)):
                    raise NoFit(f"{name} is no int")
            case "float":
                if not isinstance(value, (float, E)):
                    raise NoFit(f"{name} is no float")
            case "number":
                if isinstance(value, bool) or not isinstance(value, (int, float, Poly, E)):
                    raise NoFit(f"{name} is no number")
            case "bool":
                if not isinstance(value, bool):
                    raise NoFit(f"{name} is no bool")
            case "str":
                if not isinstance(value, str):
                    raise NoFit(f"{name} is no string")
            case _:
                raise NoFit(f"{name} is no {decl.kind}")

    def element(self, symbol: str, t: DType) -> None:
        """Hold an element type against a symbol or a literal type."""
        known = self.env.get(symbol)
        if known is None:
            known = dtype_named(symbol)
        if known is None:
            self.env[symbol] = t
            return
        if known is not t and known != t:
            root = short_name(op_key(self.rule.root.equation.call))
            raise NoFit(f"{symbol} is {known}, not {t}", sizes=root in ONE_TYPE)

    def dims(self, name: str, decls: tuple[ast.DimDecl, ...], sizes: list[Int]) -> None:
        """Hold sizes against declared dims."""
        pack = next((i for i, d in enumerate(decls) if d.pack), None)
        fixed = len(decls) - (pack is not None)
        if len(sizes) != fixed and (pack is None or len(sizes) < fixed):
            root = short_name(op_key(self.rule.root.equation.call)) if self.rule.match else ""
            refused = root in ONE_RANK or (not sizes and root in NO_SCALARS)
            count, least = LEAST_RANK.get(root, (0, 0))
            if len(sizes) < least:
                first = self.rule.root.equation.call.args[:count]
                refused = refused or any(isinstance(a, ast.Name) and a.id == name for a in first)
            raise NoFit(f"{name} has rank {len(sizes)}", sizes=refused)
        if pack is not None:
            count = len(sizes) - fixed
            symbol = decls[pack].value
            middle = sizes[pack : pack + count]
            if isinstance(symbol, str):
                known = self.env.get(symbol)
                if known is None:
                    self.env[symbol] = middle
                else:
                    if len(known) != len(middle):
                        raise NoFit(f"{symbol}... has two lengths", sizes=True)
                    for a, b in zip(known, middle, strict=True):
                        self.one(symbol, a, b)
            sizes = sizes[:pack] + sizes[pack + count :]
            decls = decls[:pack] + decls[pack + 1 :]
        for d, size in zip(decls, sizes, strict=True):
            if d.expr is not None:
                raise Undecided(f"a computed size in the type of {name}")
            if d.value is None:
                continue
            if isinstance(d.value, int):
                if not self.world.decide(is_zero(size - d.value)):
                    raise NoFit(f"a size of {name} is not {d.value}")
                continue
            known = self.env.get(d.value)
            if known is None:
                self.env[d.value] = size
            else:
                self.one(d.value, known, size)

    def one(self, symbol: str, a: Int, b: Int) -> None:
        """Two sizes that must be equal."""
        if self.world.same(a, b):
            return
        if not self.world.decide(is_zero(a - b)):
            raise NoFit(f"{symbol} is {a} and {b}", sizes=True)

    def symbols_of_results(self, names: Sequence[str | None], hints: dict[str, Hint]) -> None:
        """Symbols that only the types of results name, where those are known."""
        for name in names:
            if name is None or name not in self.rule.types or name not in hints:
                continue
            decl = self.rule.types[name][1]
            dims, _ = hints[name]
            if decl.dims is not None and dims is not None:
                self.dims(name, decl.dims, list(dims))


def given(
    world: World,
    name: str,
    decl: ast.TypeDecl,
    env: dict[str, Any],
    strings: Sequence[str] = (),
    *,
    scope: str = "",
) -> Any:
    """An operand of a declared type of which nothing else is known.

    ``scope``: what the type's symbols are named after where they are not those of the rule that is
    proven: the same letter in two rules says nothing about its two values.
    """
    if decl.optional and world.choose(f"{name} is none", [False, True]):
        return None
    if name in world.limits.constants:
        return world.limits.constants[name]
    match decl.kind:
        case "vtensor" | "tensor":
            t = element_of(world, name, decl, env, scope=scope)
            return operand(name, sizes_of(world, name, decl, env, scope=scope), t)
        case "int":
            return whole(name)
        case "float":
            return E("num", (name,), NUMBER)
        case "number":
            if world.choose(f"{name} is a float", [True, False]):
                return E("num", (name,), NUMBER)
            return whole(name)
        case "bool":
            return world.choose(f"{name} holds", [False, True])
        case "str":
            return world.choose(f"the text {name}", [*dict.fromkeys(strings), "another text"])
        case "list":
            assert decl.of is not None
            if decl.of.kind not in ("int", "bool"):
                raise Undecided(f"{name} is a list of {decl.of.kind}")
            most = world.limits.rank
            world.limits.capped = True
            count = world.choose(f"the length of {name}", range(most + 1), range(most + 1))
            if decl.of.kind == "bool":
                return [world.choose(f"{name}[{i}] holds", [False, True]) for i in range(count)]
            return [whole(f"{name}[{i}]") for i in range(count)]
        case "none":
            return None
        case _:
            return Unknown(name)


def element_of(
    world: World, name: str, decl: ast.TypeDecl, env: dict[str, Any], *, scope: str = ""
) -> DType:
    """The element type of a given tensor: a symbol's, shared with all that name it."""
    if decl.element is None:
        return LazyType(world, f"type of {name}")
    known = env.get(decl.element) or dtype_named(decl.element)
    if isinstance(known, DType):
        return known
    env[decl.element] = LazyType(world, f"{scope}{decl.element}")
    found: DType = env[decl.element]
    return found


def sizes_of(
    world: World, name: str, decl: ast.TypeDecl, env: dict[str, Any], *, scope: str = ""
) -> list[Int]:
    """The sizes of a given tensor; its rank is a choice where its type leaves it open."""
    decls = decl.dims if decl.dims is not None else (ast.DimDecl(0, 0, None, True),)
    fixed = sum(1 for d in decls if not d.pack)
    out: list[Int] = []
    for d in decls:
        if d.pack:
            known = env.get(d.value) if isinstance(d.value, str) else None
            if known is None:
                most = max(world.limits.rank - fixed, 0)
                world.limits.capped = True
                named = isinstance(d.value, str)
                label = f"{scope}{d.value}" if named else f"the dims of {name}"
                counts = range(most + 1)
                count = world.choose(f"rank of {label}", counts, [n + fixed for n in counts])
                stem = label if named else f"{name}."
                known = [dim(f"{stem}{i}") for i in range(count)]
                if isinstance(d.value, str):
                    env[d.value] = known
            out += known
        elif d.expr is not None:
            raise Undecided(f"a computed size in the type of {name}")
        elif d.value is None:
            out.append(dim(f"{name}.{len(out)}"))
        elif isinstance(d.value, int):
            out.append(d.value)
        else:
            if env.get(d.value) is None:
                env[d.value] = dim(f"{scope}{d.value}")
            out.append(env[d.value])
    return out
