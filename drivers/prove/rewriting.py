"""A rule's rewrite as tensors: its equations, tensor functions and ops, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove import arrays
from mlirules.drivers.prove.conditions import is_zero
from mlirules.drivers.prove.equations import Equation, Hint
from mlirules.drivers.prove.expr import Int, Undecided
from mlirules.drivers.prove.lists import in_order
from mlirules.drivers.prove.scalars import E
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array
from mlirules.drivers.prove.world import World
from mlirules.language.functions import TENSOR
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, dtype, sequence
from mlirules.language.rule import BodyText, Line, Rule
from mlirules.language.values import DType, Tensor, dtype_named


@dataclass(frozen=True)
class Reading:
    """What the lines of a rewrite mean, and what of it is taken on trust."""

    #: What an op makes of operands.
    call: Callable[..., list[Any]]
    #: The rule stands for what an op means: what it needs holds.
    assume: bool
    #: Equations are held to what they must not do.
    checked: bool = False
    #: What raw MLIR makes; None: it is not modelled.
    body: Callable[..., dict[str, Any]] | None = None


class Rewrite:
    """The lines of a rule's rewrite, one after the other."""

    def __init__(
        self,
        world: World,
        rule: Rule,
        env: dict[str, object],
        hints: dict[str, Hint],
        reading: Reading,
        unused: frozenset[str] = frozenset(),
    ) -> None:
        self.world, self.rule, self.call = world, rule, reading.call
        #: What says what raw MLIR makes.
        self.body = reading.body
        self.env = env
        self.locals: dict[str, object] = {}
        self.hints = hints
        self.assume, self.checked = reading.assume, reading.checked
        #: Results that nothing reads: whatever they are given.
        self.unused = unused
        #: The line that is at work: where a verdict stands.
        self.line: Line | None = None

    def names(self) -> dict[str, object]:
        """What names stand for at this line."""
        return {**self.env, **self.locals}

    def run(self) -> dict[str, object]:
        """Every line; what each name was given."""
        for line, statement in self.rule.rewrite:
            self.line = line
            self.statement(statement)
        return self.locals

    def statement(self, statement: ast.Statement | BodyText) -> None:
        """One line."""
        self.world.limits.check()
        match statement:
            case ast.IndexEquation(target=target) if target in self.unused:
                return
            case ast.IndexEquation():
                self.equation(statement)
            case ast.Assignment(target=target, value=value):
                self.locals[target] = self.assigned(target, value)
            case ast.OpEquation():
                self.op(statement)
            case BodyText(text=text):
                if self.body is None:
                    raise Undecided("raw MLIR (`body:`) is not modelled")
                self.locals |= self.body(self.world, self.names(), self.hint, text)
            case _:
                raise Undecided("a root that is erased")

    def hint(self, name: str) -> Hint:
        """What is known of a name's tensor before its line runs."""
        if name in self.hints:
            return self.hints[name]
        declared = self.rule.types.get(name)
        if declared is None or name in self.env:
            return None, None
        return declared_type(Symbols(self.world, self.names()), declared[1])

    def equation(self, eq: ast.IndexEquation) -> None:
        """An index equation."""
        env = self.names()
        if eq.target not in self.locals:
            env.pop(eq.target, None)
        dims, t = self.hint(eq.target)
        held = self.locals.get(eq.target)
        if isinstance(held, Array):
            dims, t = held.shape, held.dtype
        made = Equation(
            self.world, eq, env, (dims, t), assume=self.assume, checked=self.checked
        ).made()
        self.locals[eq.target] = made

    def assigned(self, target: str, value: ast.Expr) -> Any:
        """``y = x``, a tensor function, a number."""
        symbols = Symbols(self.world, self.names())
        if isinstance(value, ast.Conditional):
            chosen = symbols.eval(value.condition)
            if not isinstance(chosen, bool):
                raise Undecided("a condition that is not known")
            return self.assigned(target, value.then if chosen else value.otherwise)
        if isinstance(value, ast.Call) and value.fn in TENSOR and value.fn != "wide":
            return self.tensor_function(symbols, value, target)
        return symbols.eval(value)

    def tensor_function(self, symbols: Symbols, call: ast.Call, target: str) -> Any:
        """A function that gives a tensor."""
        args = symbols.items(call.args)

        def tensor(value: object) -> Array:
            if isinstance(value, Array):
                return value
            if isinstance(value, E):
                raise Undecided("a scalar as a tensor")
            raise Refused("not a tensor")

        match call.fn:
            case "reshape":
                if len(args) > 1:
                    shape = sequence(args[1])
                else:
                    dims, _ = self.hint(target)
                    if dims is None:
                        raise Undecided("a reshape to sizes that nothing says")
                    shape = list(dims)
                return arrays.reshaped(symbols, tensor(args[0]), shape, assume=self.assume)
            case "pad":
                return arrays.padded(symbols, tensor(args[0]), args[1], args[2], args[3])
            case "window":
                axis = symbols.concrete(args[1], 0, tensor(args[0]).rank)
                return arrays.windowed(symbols, tensor(args[0]), axis, *args[2:])
            case "concatenate":
                xs = [tensor(x) for x in sequence(args[0])]
                axis = symbols.concrete(args[1], 0, xs[0].rank if xs else 0)
                return arrays.concatenated(symbols, xs, axis, assume=self.assume)
            case "stack":
                xs = [tensor(x) for x in sequence(args[0])]
                axis = symbols.concrete(args[1], 0, xs[0].rank + 1 if xs else 1)
                lifted = [
                    arrays.reshaped(
                        symbols,
                        x,
                        [*x.shape[:axis], 1, *x.shape[axis:]],
                        assume=self.assume,
                    )
                    for x in xs
                ]
                return arrays.concatenated(symbols, lifted, axis, assume=self.assume)
            case "converted":
                return [arrays.cast(tensor(x), dtype(args[1])) for x in sequence(args[0])]
            case "spread":
                return [
                    arrays.spread(symbols, tensor(x), sequence(args[1])) for x in sequence(args[0])
                ]
            case "split":
                x, axis = tensor(args[0]), symbols.concrete(args[2], 0, tensor(args[0]).rank)
                out, start = [], 0
                for size in sequence(args[1]):
                    out.append(arrays.windowed(symbols, x, axis, start, size, 1))
                    start = start + size
                return out
        raise Undecided(f"the function {call.fn}")

    def op(self, statement: ast.OpEquation) -> None:
        """An op equation: what the op means by the conversion rules."""
        results = [r for r in statement.results if r is not None]
        hints = [self.hint(r) if r else (None, None) for r in statement.results]
        if statement.pack:
            raise Undecided("a list of results")
        made = self.call(self.world, statement.call, self.names(), hints, assume=self.assume)
        for name, value, (dims, t) in zip(statement.results, made, hints, strict=True):
            if name is None:
                continue
            if isinstance(value, Array):
                self.as_declared(name, value, dims, t)
            self.locals[name] = value
        del results

    def as_declared(
        self, name: str, value: Array, dims: Sequence[Int] | None, t: DType | None
    ) -> None:
        """Hold a result against the type that the rule declares for it."""
        if dims is not None:
            if len(dims) != value.rank:
                raise Undecided(f"{name} has rank {value.rank}, not {len(dims)}")
            for a, b in zip(value.shape, dims, strict=True):
                if self.world.same(a, b):
                    continue
                if not self.assume:
                    raise Undecided(f"{name} has a size {a}, declared as {b}")
                self.world.assume(is_zero(a - b))
        if t is not None and not (value.dtype is t or value.dtype == t):
            raise Undecided(f"{name} holds {value.dtype}, declared as {t}")


def declared_type(symbols: Symbols, decl: ast.TypeDecl) -> Hint:
    """Sizes and element type of a declared type, as far as its symbols are known."""
    t: DType | None = None
    if decl.element is not None:
        found = symbols.names.get(decl.element)
        if isinstance(found, (DType, Tensor)):
            t = dtype(found)
        elif found is None:
            t = dtype_named(decl.element)
    if decl.dims is None:
        return None, t
    dims: list[Int] = []
    for d in decl.dims:
        if isinstance(d.value, int):
            dims.append(d.value)
        elif d.value is None or d.value not in symbols.names or symbols.names[d.value] is None:
            return None, t
        elif d.pack:
            dims += [symbols.whole(v, "a size") for v in sequence(in_order(symbols.names[d.value]))]
        else:
            dims.append(symbols.whole(symbols.names[d.value], "a size"))
    return dims, t
