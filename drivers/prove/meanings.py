"""What an op means: the equations of the conversion rules that ship, on symbolic operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirules.drivers.prove import scalars
from mlirules.drivers.prove.arrays import array, operand
from mlirules.drivers.prove.equations import Hint, Rewrite, declared_type
from mlirules.drivers.prove.expr import (
    Int,
    Node,
    Poly,
    Undecided,
    atom,
    dim,
    key_of,
    nodes_in,
    whole,
)
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import NUMBER, E, LazyType
from mlirules.drivers.prove.symbols import Array, Symbols, Unknown
from mlirules.drivers.prove.world import Impossible, World, is_zero
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.notation import ast
from mlirules.language.operands import Refused
from mlirules.language.rule import BodyText, Rule
from mlirules.language.values import DType, Tensor, dtype_named, dtype_of_code


class NoFit(Exception):
    """A conversion rule that does not say what this op means; ``sizes``: for its sizes alone."""

    def __init__(self, why: str, *, sizes: bool = False) -> None:
        super().__init__(why)
        self.sizes = sizes


#: Ops whose result is the same in each run only by chance.
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "exponential")
#: Ops whose result is a truth value.
_TO_BOOL = frozenset(
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor any all isnan isinf "
    "isfinite".split()
)
#: Ops that give the type that PyTorch combines their operands in.
_COMBINING = frozenset(
    "add sub mul rsub maximum minimum where matmul mm bmm linear addmm baddbmm neg relu abs "
    "transpose permute t view reshape _unsafe_view expand unsqueeze squeeze slice select cat "
    "contiguous clone tril triu flip masked_fill roll repeat repeat_interleave softmax "
    "_softmax _safe_softmax log_softmax gelu silu layer_norm rms_norm batch_norm convolution "
    "conv1d conv2d conv3d constant_pad_nd pow square amax amin detach alias dropout".split()
)
#: Ops that give a float: PyTorch's default one where their operands are integers.
_FLOATING = frozenset(
    "div exp log sqrt rsqrt sigmoid tanh erf sin cos reciprocal mean var std silu gelu".split()
)


def op_key(call: ast.Call) -> str:
    """An op's name; of a ``torch.operator`` the one that it carries."""
    if call.fn == "torch.operator":
        for name, value in call.attrs:
            if name == "name" and isinstance(value, ast.Literal):
                return str(value.value)
    return call.fn


@dataclass
class Meanings:
    """Conversion rules by the op that they convert."""

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    #: Ops that are taken as functions of which nothing is known.
    opaque: frozenset[str] = frozenset()
    #: The rule to be proven: it says nothing about its own op.
    without: str = ""
    #: The conversion rules that were asked, by name.
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Meanings:
        """Of all rules those that say what one op means."""
        found: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.kind != "conversion" or len(rule.match) != 1 or rule.index_match:
                continue
            found.setdefault(op_key(rule.root.equation.call), []).append(rule)
        for group in found.values():
            group.sort(key=lambda r: -r.benefit)
        return cls(found)

    # -- calls

    def call(
        self, world: World, call: ast.Call, names: dict[str, Any], hints: Sequence[Hint], *, assume: bool
    ) -> list[Any]:
        """The results of an op equation in an environment."""
        symbols = Symbols(world, names)
        args = [self.argument(world, symbols, a, assume) for a in call.args]
        attrs = {n: symbols.eval(v) for n, v in call.attrs if n != "name"}
        return self.results(world, op_key(call), args, attrs, hints, assume=assume)

    def argument(self, world: World, symbols: Symbols, arg: ast.Expr, assume: bool) -> Any:
        """An operand's value."""
        if isinstance(arg, ast.Wildcard):
            return Unknown("_")
        if isinstance(arg, ast.Name) and isinstance(symbols.names.get(arg.id), Unknown):
            return symbols.names[arg.id]
        if isinstance(arg, ast.ListExpr):
            out: list[Any] = []
            for item in arg.items:
                if isinstance(item, ast.Pack):
                    out.extend(symbols.pack(item))
                else:
                    out.append(self.argument(world, symbols, item, assume))
            return out
        if isinstance(arg, ast.Call) and "." in arg.fn:
            inner = [self.argument(world, symbols, a, assume) for a in arg.args]
            return self.results(world, op_key(arg), inner, {}, [(None, None)], assume=assume)[0]
        return symbols.eval(arg)

    def results(
        self,
        world: World,
        op: str,
        args: list[Any],
        attrs: dict[str, Any],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """What an op gives, by the first conversion rule that fits."""
        world.limits.check()
        if op in self.opaque:
            return self.applied(world, op, args, attrs, hints, assume=assume)
        rules = [r for r in self.rules.get(op, ()) if r.name != self.without]
        why: list[str] = []
        sizes = False
        for rule in rules:
            try:
                found = self.by(world, rule, args, attrs, hints, assume=assume)
            except NoFit as no:
                why.append(f"{rule.name}: {no}")
                sizes = sizes or no.sizes
                continue
            self.used.add(rule.name)
            return found
        if rules and sizes and assume:
            raise Impossible("sizes that no program can have")
        if not rules:
            return self.applied(world, op, args, attrs, hints, assume=assume)
        raise Undecided(f"no conversion rule says what {op} means here ({'; '.join(why[:2])})")

    def by(
        self,
        world: World,
        rule: Rule,
        args: list[Any],
        attrs: dict[str, Any],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """What a conversion rule makes of operands."""
        call = rule.root.equation.call
        if len(call.args) != len(args):
            raise NoFit("another number of operands")
        env: dict[str, Any] = {}
        binder = Binder(world, rule, env, assume=assume)
        for pattern, value in zip(call.args, args, strict=True):
            binder.operand(pattern, value)
        for name, pattern in call.attrs:
            if name == "name":
                continue
            if name not in attrs:
                raise NoFit(f"no attribute {name}")
            binder.operand(pattern, attrs[name])
        if rule.root.equation.pack:
            raise NoFit("a list of results")
        names = rule.root.equation.results
        if len(names) != len(hints):
            raise NoFit("another number of results")
        tensors = [v for v in _flat(args) if isinstance(v, Array)]
        inner: dict[str, Hint] = {}
        for at, (name, (dims, t)) in enumerate(zip(names, hints, strict=True)):
            if name is None:
                continue
            declared = rule.types.get(name)
            if declared is not None and declared[1].kind not in ("vtensor", "tensor"):
                continue
            if t is None:
                t = self.type_of(world, rule, name, env, args, at)
            if declared is not None and declared[1].element is not None:
                binder.element(declared[1].element, t)
            inner[name] = (dims, t)
            if dims is None:
                rank = tensors[0].rank if tensors else 0
                dims = [dim(f"result:{rule.name} {name}{i}") for i in range(rank)]
            env[name] = array(name, dims, t, _not_yet)
        binder.symbols_of_results(names, inner)
        self.let_and_where(world, rule, env)
        given = {k: v for k, v in env.items() if k not in inner or k in inner}
        rewrite = Rewrite(world, rule, given, inner, self.call, assume=assume)
        try:
            made = rewrite.run()
        except Refused as refused:
            raise NoFit(str(refused)) from None
        out = []
        for name in names:
            if name is None:
                out.append(Unknown("_"))
                continue
            if name not in made:
                raise Undecided(f"{rule.name} does not define {name}")
            value = made[name]
            if isinstance(value, Array):
                if any(
                    str(n.args[0]).startswith("result:")
                    for n in nodes_in(tuple(value.shape))
                    if n.op == "dim"
                ):
                    raise Undecided(f"{rule.name}: the sizes of {name} are not computed")
                t = inner[name][1]
                if t is not None and not (value.dtype is t or value.dtype == t):
                    raise Undecided(f"{rule.name} gives {value.dtype} where {t} is declared")
            out.append(value)
        return out

    def let_and_where(self, world: World, rule: Rule, env: dict[str, Any]) -> None:
        """A conversion rule's own names and conditions."""
        for name, _, expr, value in rule.let:
            try:
                env[name] = value if expr is None else Symbols(world, env).eval(expr)
            except Refused as refused:
                raise NoFit(str(refused)) from None
        for line, expr in rule.where:
            try:
                found = Symbols(world, env).eval(expr)
            except Refused as refused:
                raise NoFit(f"{line}: {refused}") from None
            if not isinstance(found, bool):
                raise Undecided(f"{rule.name}: {line} is known only at run time")
            if not found:
                raise NoFit(str(line))

    def type_of(
        self, world: World, rule: Rule, name: str, env: dict[str, Any], args: list[Any], at: int
    ) -> DType:
        """The element type of a result for which the program's type is not given."""
        declared = rule.types.get(name)
        if declared is not None and declared[1].element is not None:
            element = declared[1].element
            known = env.get(element) or dtype_named(element)
            if isinstance(known, DType):
                return known
        base = op_key(rule.root.equation.call)
        parts = base.split(".")
        short = parts[2] if base.startswith("torch.") and len(parts) > 2 else (
            parts[1] if len(parts) > 1 else base
        )
        tensors = [v for v in _flat(args) if isinstance(v, Array)]
        if at == 0 and short in _TO_BOOL:
            return scalars.BOOL
        if at == 0 and (short in _COMBINING or short in _FLOATING) and tensors:
            first = tensors[0].dtype
            assert first is not None
            values = [v for v in args if isinstance(v, (Array, int, float, Poly, E))]
            if short == "where":
                values = values[1:]
            if all(isinstance(v, Array) for v in values) and all(
                v.dtype is first and v.rank == tensors[0].rank for v in tensors
            ):
                found: DType = first
            else:
                found = Symbols(world, {}).do_promoted(*values)
            if short == "softmax" and len(args) > 2 and args[2] is not None:
                if isinstance(args[2], int):
                    code = dtype_of_code(args[2])
                    if code is not None:
                        return code
                raise Undecided(f"the element type of {name}")
            if short in _COMBINING or found.is_float:
                return found
        raise Undecided(f"{base}: the element type of its result is not declared")

    # -- what nothing is known of

    def applied(
        self,
        world: World,
        op: str,
        args: list[Any],
        attrs: dict[str, Any],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """An op as a function of which only that it is one is known."""
        if any(part in op for part in _RANDOM):
            raise Undecided(f"{op} is random")
        key = Node("operands", op, *(self.as_argument(world, a) for a in args), *(
            Node("attr", n, key_of(v) if not isinstance(v, Array) else "?")
            for n, v in sorted(attrs.items())
        ))
        out = []
        for at, (dims, t) in enumerate(hints):
            known = world.chosen.get(f"applied {key.key} {at}")
            if known is None:
                if not assume:
                    raise Undecided(f"no conversion rule says what {op} means")
                if dims is None or t is None:
                    raise Undecided(f"no conversion rule says what {op} means, nor its type")
                known = (list(dims), t)
                world.chosen[f"applied {key.key} {at}"] = known
            shape, t = known

            def elem(index: Sequence[Int], at: int = at, t: DType = t) -> E:
                return E("applied", (key, at, tuple(index)), t)

            out.append(array(op, shape, t, elem))
        return out

    def as_argument(self, world: World, value: Any) -> Any:
        """An operand by what it holds: equal tensors are equal operands."""
        if isinstance(value, Array):
            assert value.dtype is not None
            loops = tuple(
                Node("var", f"@{i}", s) for i, s in enumerate(value.shape)
            )
            element = Normal(world).of(value.elem([atom(v) for v in loops]))
            return Node("argument", loops, scalars.type_key(value.dtype), element)
        if isinstance(value, E):
            return Node("scalar", Normal(world).real(value))
        if isinstance(value, (list, tuple)):
            return tuple(self.as_argument(world, v) for v in value)
        if isinstance(value, Unknown):
            return Node("unknown", value.name) if value.name != "_" else self._nothing()
        return value

    @staticmethod
    def _nothing() -> Any:
        raise Undecided("an operand that the rule does not name")


def _not_yet(index: Sequence[Int]) -> E:
    raise Undecided("a result is read before it is made")


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _flat(v)
        else:
            yield v


class Binder:
    """Binds a rule's names and symbols to the values of one call."""

    def __init__(self, world: World, rule: Rule, env: dict[str, Any], *, assume: bool) -> None:
        self.world, self.rule, self.env, self.assume = world, rule, env, assume

    def operand(self, pattern: ast.Expr, value: Any) -> None:
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
                    raise Undecided(f"whether {value.name} is {wanted}")
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

    def settled(self, value: Unknown, decl: ast.TypeDecl | None) -> Any:
        """What an operand that nothing says anything of turns out to be, as this rule asks."""
        world = self.world
        key = f"operand {value.name}"
        if value.name == "_":
            if decl is None or decl.kind in ("any", "device"):
                return value
            raise Undecided("an operand that the rule does not name")
        if key in world.chosen:
            return world.chosen[key]
        if decl is None or decl.kind in ("any", "device", "generator"):
            return value
        made = given(world, value.name, decl, self.env)
        world.chosen[key] = made
        return made

    def declared(self, name: str, decl: ast.TypeDecl, value: Any) -> None:
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
        if known is not t and not known == t:
            raise NoFit(f"{symbol} is {known}, not {t}", sizes=False)

    def dims(self, name: str, decls: tuple[ast.DimDecl, ...], sizes: list[Int]) -> None:
        """Hold sizes against declared dims."""
        pack = next((i for i, d in enumerate(decls) if d.pack), None)
        fixed = len(decls) - (pack is not None)
        if len(sizes) != fixed and (pack is None or len(sizes) < fixed):
            raise NoFit(f"{name} has rank {len(sizes)}")
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


def given(world: World, name: str, decl: ast.TypeDecl, env: dict[str, Any], strings: Sequence[str] = ()) -> Any:
    """An operand of a declared type of which nothing else is known."""
    if decl.optional and world.choose(f"{name} is none", [False, True]):
        return None
    match decl.kind:
        case "vtensor" | "tensor":
            t = element_of(world, name, decl, env)
            return operand(name, sizes_of(world, name, decl, env), t)
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
            count = world.choose(f"the length of {name}", range(most + 1))
            if count < most:
                pass
            world.ranks.append(count)
            if decl.of.kind == "bool":
                return [world.choose(f"{name}[{i}] holds", [False, True]) for i in range(count)]
            return [whole(f"{name}[{i}]") for i in range(count)]
        case "none":
            return None
        case _:
            return Unknown(name)


def element_of(world: World, name: str, decl: ast.TypeDecl, env: dict[str, Any]) -> DType:
    """The element type of a given tensor: a symbol's, shared with all that name it."""
    if decl.element is None:
        return LazyType(world, f"type of {name}")
    known = env.get(decl.element) or dtype_named(decl.element)
    if isinstance(known, DType):
        return known
    env[decl.element] = LazyType(world, decl.element)
    found: DType = env[decl.element]
    return found


def sizes_of(world: World, name: str, decl: ast.TypeDecl, env: dict[str, Any]) -> list[Int]:
    """The sizes of a given tensor; its rank is a choice where its type leaves it open."""
    decls = decl.dims if decl.dims is not None else (ast.DimDecl(0, 0, None, True),)
    fixed = sum(1 for d in decls if not d.pack)
    out: list[Int] = []
    for d in decls:
        if d.pack:
            known = env.get(d.value) if isinstance(d.value, str) else None
            if known is None:
                most = max(world.limits.rank - fixed, 0)
                label = d.value if isinstance(d.value, str) else f"the dims of {name}"
                count = world.choose(f"rank of {label}", range(most + 1))
                world.ranks.append(count + fixed)
                stem = d.value if isinstance(d.value, str) else f"{name}."
                known = [dim(f"{stem}{i}") for i in range(count)]
                if isinstance(d.value, str):
                    env[d.value] = known
            out += known
        elif d.value is None:
            out.append(dim(f"{name}.{len(out)}"))
        elif isinstance(d.value, int):
            out.append(d.value)
        else:
            if env.get(d.value) is None:
                env[d.value] = dim(d.value)
            out.append(env[d.value])
    return out


__all__ = ["FUNCTIONS", "Binder", "BodyText", "Callable", "Meanings", "NoFit", "declared_type", "given"]
