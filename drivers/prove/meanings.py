"""What an op means: the equations of the conversion rules that ship, on symbolic operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirules.drivers.prove import abstract, scalars
from mlirules.drivers.prove.arrays import array
from mlirules.drivers.prove.binding import Binder, NoFit, op_key
from mlirules.drivers.prove.conditions import at_least_zero
from mlirules.drivers.prove.definitions import definitions
from mlirules.drivers.prove.equations import Hint
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
from mlirules.drivers.prove.lists import in_order
from mlirules.drivers.prove.names import (
    BATCHED,
    COMBINING,
    CREATING,
    ELEMENTWISE,
    FLOATING,
    FLOATS_ONLY,
    INTEGERS,
    NO_BOOLS,
    POINTWISE,
    RANDOM,
    REFUSALS,
    TO_BOOL,
    short_name,
)
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.rewriting import Reading, Rewrite
from mlirules.drivers.prove.scalars import FLOATS, E, LazyType
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Applied, Array, Unknown
from mlirules.drivers.prove.world import Impossible, World
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.operands import Refused
from mlirules.language.rule import BodyText, Rule
from mlirules.language.values import DType, dtype_named, dtype_of_code


@dataclass
class Meanings:
    """Conversion rules by the op that they convert."""

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    #: Ops that are taken as functions of which nothing is known.
    opaque: frozenset[str] = frozenset()
    #: Definitions whose conditions say which programs PyTorch accepts.
    valid: frozenset[str] = frozenset()
    #: The rule to be proven: it says nothing about its own op.
    without: str = ""
    #: What PyTorch documents of ops that no conversion rule converts but to other ops.
    definitions: dict[str, list[Rule]] = field(default_factory=dict)
    #: Whether slices and functions of single elements are taken as some of their kind.
    mapped: bool = False
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
        defined, valid = definitions()
        written: dict[str, list[Rule]] = {}
        for rule in defined:
            written.setdefault(op_key(rule.root.equation.call), []).append(rule)
        return cls(found, valid=valid, definitions=written)

    def seen_from(
        self, rule: str, opaque: frozenset[str] = frozenset(), *, mapped: bool = False
    ) -> Meanings:
        """What ops mean to a rule, with some of them as functions."""
        return Meanings(self.rules, opaque, self.valid, rule, self.definitions, mapped)

    # -- calls

    def call(
        self,
        world: World,
        call: ast.Call,
        names: dict[str, object],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """The results of an op equation in an environment."""
        symbols = Symbols(world, names)
        args = [self.argument(world, symbols, a, assume) for a in call.args]
        attrs = {
            n: self.attribute(world, symbols, names, n, v) if assume else symbols.eval(v)
            for n, v in call.attrs
            if n != "name"
        }
        return self.results(world, op_key(call), args, attrs, hints, assume=assume)

    @staticmethod
    def attribute(
        world: World, symbols: Symbols, names: dict[str, object], name: str, value: ast.Expr
    ) -> Any:
        """An attribute of the match; one that the program gives is named by it."""
        if isinstance(value, ast.Name) and value.id not in names and name in INTEGERS:
            names[value.id] = whole(value.id)
            world.assume(at_least_zero(names[value.id]))
        return symbols.eval(value)

    def argument(self, world: World, symbols: Symbols, arg: ast.Expr, assume: bool) -> Any:
        """An operand's value."""
        if isinstance(arg, ast.Wildcard):
            return Unknown("_")
        if isinstance(arg, ast.Name) and isinstance(symbols.names.get(arg.id), (Unknown, Applied)):
            return symbols.names[arg.id]
        if isinstance(arg, ast.ListExpr):
            out: list[object] = []
            for item in arg.items:
                if isinstance(item, ast.Pack):
                    out.extend(symbols.pack(item))
                else:
                    out.append(self.argument(world, symbols, item, assume))
            return out
        if isinstance(arg, ast.Call) and "." in arg.fn:
            inner = [self.argument(world, symbols, a, assume) for a in arg.args]
            return self.results(world, op_key(arg), inner, {}, [(None, None)], assume=assume)[0]
        return in_order(symbols.eval(arg))

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
        if op == abstract.SLICE and self.mapped:
            return [abstract.sliced(world, args, self.as_argument, assume=assume)]
        if op in POINTWISE and self.mapped and hints[0][1] is not None:
            t = hints[0][1]
            return [abstract.pointwise(world, op, args, t, self.as_argument, assume=assume)]
        if op in self.opaque:
            return self.applied(world, op, args, attrs, hints, assume=assume)
        rules = [r for r in self.rules.get(op, ()) if r.name != self.without]
        rules = [*self.definitions.get(op, ()), *rules]
        if rules and any(isinstance(v, Applied) for v in _flat(args)):
            raise Undecided("an operand of which nothing is known")
        # What is written in raw MLIR says nothing here: then the op is a function.
        written = [r for r in rules if not any(isinstance(s, BodyText) for _, s in r.rewrite)]
        raw = len(written) < len(rules)
        why: list[str] = []
        sizes = False
        for rule in written:
            try:
                found = self.by(world, rule, args, attrs, hints, assume=assume)
            except NoFit as no:
                why.append(f"{rule.name}: {no}")
                sizes = sizes or no.sizes
                if no.refused and assume:
                    raise Impossible("a program that PyTorch refuses") from None
                continue
            self.used.add(rule.name)
            return found
        if not rules or raw:
            return self.applied(world, op, args, attrs, hints, assume=assume)
        if assume:
            if not sizes:
                world.limits.left_out.setdefault(op, why[0])
            raise Impossible("a program that no conversion rule lowers")
        raise Undecided(f"no conversion rule says what {op} means here ({'; '.join(why[:2])})")

    def by(
        self,
        world: World,
        rule: Rule,
        args: list[object],
        attrs: dict[str, object],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """What a conversion rule makes of operands."""
        call = rule.root.equation.call
        if len(call.args) != len(args):
            raise NoFit("another number of operands")
        env: dict[str, object] = {}
        binder = Binder(world, rule, env, assume=assume)
        for pattern, value in zip(call.args, args, strict=True):
            binder.operand(pattern, value)
        for attr, pattern in call.attrs:
            if attr == "name":
                continue
            if attr not in attrs:
                raise NoFit(f"no attribute {attr}")
            binder.operand(pattern, attrs[attr])
        if rule.root.equation.pack:
            raise NoFit("a list of results")
        names = rule.root.equation.results
        if len(names) != len(hints):
            raise NoFit("another number of results")
        bound = [
            env.get(p.id, v) if isinstance(p, ast.Name) else v
            for p, v in zip(call.args, args, strict=True)
        ]
        tensors = [v for v in _flat(bound) if isinstance(v, Array)]
        inner: dict[str, Hint] = {}
        root = op_key(call)
        if assume and root.startswith("torch.") and short_name(root) in ELEMENTWISE:
            # Their result has the sizes that the operands say, whatever is declared.
            hints = [(None, t) for _, t in hints]
        if not assume and root.startswith("torch."):
            # What a rewrite declares is held against what its op gives, not put in its place.
            hints = [
                (None, t) if n is not None and _broadcasts_to(rule, n) else (dims, t)
                for n, (dims, t) in zip(names, hints, strict=True)
            ]
        for at, (name, (dims, t)) in enumerate(zip(names, hints, strict=True)):
            if name is None:
                continue
            declared = rule.types.get(name)
            if declared is not None and declared[1].kind not in ("vtensor", "tensor"):
                continue
            if t is None:
                t = self.type_of(binder, name, args, at)
            if declared is not None and declared[1].element is not None:
                binder.element(declared[1].element, t)
            if dims is None and assume and declared is not None:
                # The program's own type says sizes that no operand says.
                dims = self.sizes_of(world, declared[1])
            inner[name] = (dims, t)
            if dims is None:
                rank = tensors[0].rank if tensors else 0
                dims = [dim(f"result:{rule.name} {name}{i}") for i in range(rank)]
            env[name] = array(name, dims, t, _not_yet)
        binder.symbols_of_results(names, inner)
        self.let_and_where(world, rule, env)
        rewrite = Rewrite(world, rule, env, inner, Reading(self.call, assume=assume))
        try:
            made = rewrite.run()
        except Refused as refused:
            raise NoFit(str(refused), sizes=_invalid(refused)) from None
        out: list[object] = []
        for name in names:
            if name is None:
                out.append(Unknown("_"))
                continue
            if name not in made:
                raise Undecided(f"{rule.name} does not define {name}")
            value = made[name]
            if isinstance(value, Array):
                for size in value.shape if assume else ():
                    if isinstance(size, Poly) and any(n.op == "int" for n in size.symbols):
                        # No program holds a tensor of a negative size.
                        world.assume(at_least_zero(size - world.limits.least), check=False)
                if any(
                    str(n.args[0]).startswith("result:")
                    for n in nodes_in(tuple(value.shape))
                    if n.op == "dim"
                ):
                    raise Undecided(f"{rule.name}: the sizes of {name} are not computed")
                t = inner[name][1]
                if t is not None and not (value.dtype is t or value.dtype == t):
                    if assume:
                        raise Impossible(f"{name} of another type")
                    raise Undecided(f"{rule.name} gives {value.dtype} where {t} is declared")
            out.append(value)
        return out

    @staticmethod
    def sizes_of(world: World, decl: ast.TypeDecl) -> list[Int] | None:
        """Sizes for a result of a fixed rank in the match."""
        if decl.dims is None or any(d.pack or d.value is None for d in decl.dims):
            return None
        named = [d.value for d in decl.dims]
        return [n if isinstance(n, int) else dim(world.fresh("size")) for n in named]

    def let_and_where(self, world: World, rule: Rule, env: dict[str, object]) -> None:
        """A conversion rule's own names and conditions."""
        for bound, _, expr, value in rule.let:
            try:
                env[bound] = value if expr is None else Symbols(world, env).eval(expr)
            except Refused as refused:
                raise NoFit(str(refused), sizes=_invalid(refused)) from None
        for line, expr in rule.where:
            try:
                found = Symbols(world, env).eval(expr)
            except Refused as refused:
                raise NoFit(f"{line}: {refused}", sizes=_invalid(refused)) from None
            if not isinstance(found, bool):
                raise Undecided(f"{rule.name}: {line} is known only at run time")
            if not found:
                root = short_name(op_key(rule.root.equation.call))
                floats = str(line).startswith("is_float(") and root in FLOATS_ONLY
                plain = str(line).startswith("not is_bool(") or str(line) == "T != i1"
                floats = floats or (plain and root in NO_BOOLS)
                valid = rule.name in self.valid
                raise NoFit(str(line), sizes=floats or valid, refused=valid)

    def type_of(self, binder: Binder, name: str, args: list[object], at: int) -> DType:
        """The element type of a result for which the program's type is not given."""
        world, rule, assume = binder.world, binder.rule, binder.assume
        args = [v.settle() if isinstance(v, Unknown) and v.settle is not None else v for v in args]
        declared = rule.types.get(name)
        if declared is not None and declared[1].element is not None:
            element = declared[1].element
            known = binder.env.get(element) or dtype_named(element)
            if isinstance(known, DType):
                return known
        base = op_key(rule.root.equation.call)
        short = short_name(base)
        if short in CREATING:
            return LazyType(world, f"type of {short} {world.fresh('t')}")
        tensors = [v for v in _flat(args) if isinstance(v, Array)]
        if at == 0 and short in TO_BOOL:
            return scalars.BOOL
        if at == 0 and (short in COMBINING or short in FLOATING) and tensors:
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
                if isinstance(args[2], Unknown):
                    return LazyType(world, f"type of {short} {args[2].name}", FLOATS)
                raise Undecided(f"the element type of {name}")
            if short in COMBINING or found.is_float:
                return found
        if assume:
            # Whichever the program declares: where the op gives another one, it is no program.
            return LazyType(world, f"type of {short} {world.fresh('t')}")
        raise Undecided(f"{base}: the element type of its result is not declared")

    # -- what nothing is known of

    def applied(
        self,
        world: World,
        op: str,
        args: list[object],
        attrs: dict[str, object],
        hints: Sequence[Hint],
        *,
        assume: bool,
    ) -> list[Any]:
        """An op as a function of which only that it is one is known."""
        if any(part in op for part in RANDOM):
            raise Undecided(f"{op} is random")
        key = Node(
            "operands",
            op,
            *(self.as_argument(world, a) for a in args),
            *(
                Node("attr", n, key_of(v) if not isinstance(v, Array) else "?")
                for n, v in sorted(attrs.items())
            ),
        )
        out: list[object] = []
        for at, (dims, t) in enumerate(hints):
            known = world.chosen.get(f"applied {key.key} {at}")
            if known is None:
                if not assume:
                    out.append(Applied(key, at))
                    continue
                if at == 0 and dims is None and short_name(op) in BATCHED:
                    first = args[0]
                    if isinstance(first, Unknown) and first.settle is not None:
                        first = first.settle()
                    if isinstance(first, Array) and first.rank:
                        more = range(1, first.rank)
                        dims = [first.shape[0], *(dim(f"size {i} of {key.key}") for i in more)]
                        t = first.dtype
                if dims is None or t is None:
                    out.append(Applied(key, at))
                    continue
                known = (list(dims), t)
                world.chosen[f"applied {key.key} {at}"] = known
            shape, t = known

            def elem(index: Sequence[Int], at: int = at, t: DType = t) -> E:
                return E("applied", (key, at, tuple(index)), t)

            out.append(array(op, shape, t, elem))
        return out

    def as_argument(self, world: World, value: object) -> Any:
        """An operand by what it holds: equal tensors are equal operands."""
        for key, held in world.chosen.items():
            # The rule's own operand, perhaps named before anything was asked of it.
            own = held is value and key.startswith("operand ")
            if own and isinstance(value, (Array, list)):
                return Node("unknown", key.removeprefix("operand "))
        if isinstance(value, Applied):
            return Node("result", value.call, value.at)
        if isinstance(value, Array):
            assert value.dtype is not None
            loops = tuple(Node("var", f"@{i}", s) for i, s in enumerate(value.shape))
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


def _broadcasts_to(rule: Rule, name: str) -> bool:
    """Whether a conversion rule gives a result the sizes that what it reads is broadcast to.

    Such a line would stretch to any sizes that are declared. Where the rule asks for the sizes of
    its result, they have to be given.
    """
    said = [e for _, _, e, _ in rule.let if e is not None] + [e for _, e in rule.where]
    plain = False
    for _, statement in rule.rewrite:
        match statement:
            case ast.IndexEquation(target=target, indices=(ast.Pack(id=None),)) if target == name:
                plain = True
                said += [statement.value, *(b.limit for b in statement.bounds)]
            case ast.IndexEquation(target=target):
                if target == name:
                    return False
                said += [statement.value, *(b.limit for b in statement.bounds)]
            case ast.OpEquation(call=call):
                said.append(call)
            case ast.Assignment(target=target, value=value):
                if target == name:
                    return False
                said.append(value)
    declared = rule.types.get(name)
    dims = declared[1].dims if declared is not None else None
    if any(d.value is not None for d in dims or ()):
        return False
    used = {n.id for e in said for n in walk_expression(e) if isinstance(n, ast.Name)}
    return plain and name not in used


def _invalid(refused: Refused) -> bool:
    """Whether PyTorch refuses the op, too: an axis that its operand does not have."""
    said = refused.message
    return any(t in said for t in REFUSALS)


def _not_yet(_index: Sequence[Int]) -> E:
    raise Undecided("a result is read before it is made")


def _flat(values: Iterable[object]) -> Iterable[Any]:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _flat(v)
        else:
            yield v
