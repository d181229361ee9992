"""What raw MLIR means, where it is linalg's named ops on tensors: the index equations of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove.equations import Equation, Hint
from mlirules.drivers.prove.expr import Undecided
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array
from mlirules.drivers.prove.world import World
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression, parse_statement

#: ``linalg.softmax`` along the axis ``d``, in the element type of its operand.
SOFTMAX = (
    "m[drop(I, d)] max= x[I...]",
    "e[I...] = exp(x[I...] - m[drop(I, d)])",
    "s[drop(I, d)] += e[I...]",
    "y[I...] = e[I...] / s[drop(I, d)]",
)


@dataclass(frozen=True)
class Start:
    """A tensor that a named op begins from: nothing, or one number everywhere."""

    value: float | None


class Body:
    """The lines of one ``body:``. What is not listed here is not decided."""

    def __init__(self, world: World, names: dict[str, object], hint: Callable[[str], Hint]) -> None:
        self.world, self.names, self.hint = world, names, hint
        self.made: dict[str, object] = {}

    def run(self, text: str) -> dict[str, object]:
        """Every line; the tensors that each name was given."""
        for line in text.splitlines():
            if line.strip():
                self.line(line.strip())
        return {name: v for name, v in self.made.items() if isinstance(v, Array)}

    def line(self, line: str) -> None:
        """One op."""
        target, equals, written = line.partition(" = ")
        op = written.replace("(", " ").split(" ", 1)[0]
        if not equals or not target.startswith("%"):
            raise Undecided(f"raw MLIR is not modelled: {line}")
        name = target[1:].strip()
        match op:
            case "tensor.empty":
                self.made[name] = Start(None)
            case "tensor.dim":
                self.made[name] = None
            case "arith.constant":
                self.made[name] = self.constant(written.split()[1])
            case "tensor.cast":
                self.made[name] = self.value(written.split()[1])
            case "linalg.fill":
                (value,) = self.operands(written)
                if not isinstance(value, float):
                    raise Undecided(f"raw MLIR is not modelled: {line}")
                self.made[name] = Start(value)
            case "linalg.softmax":
                (x,) = self.operands(written)
                axis = self.number(_between(written, "dimension(", ") ins"))
                self.made[name] = self.equations(SOFTMAX, {"x": x, "d": axis}, "y", (None, None))
            case "linalg.matmul":
                self.made[name] = self.product(name, written)
            case "linalg.transpose":
                (x,) = self.operands(written)
                order = [int(p) for p in _between(written, "permutation = [", "]").split(",")]
                here = ", ".join(f"i{n}" for n in range(len(order)))
                there = ", ".join(f"i{n}" for n in order)
                self.made[name] = self.equations(
                    (f"y[{there}] = x[{here}]",), {"x": x}, "y", (None, None)
                )
            case _:
                raise Undecided(f"raw MLIR (`body:`) with {op} is not modelled")

    def product(self, name: str, written: str) -> Array:
        """``linalg.matmul``, its factors converted to the type that it adds up in."""
        a, b = self.operands(written)
        if not isinstance(begin := self.value(_between(written, "outs(", " :")), Start):
            raise Undecided("a product added to something")
        if begin.value != 0:
            raise Undecided("a product that does not start from 0")
        maps = ["m, k", "k, n", "m, n"]
        if "indexing_maps" in written:
            maps = [
                part.partition("-> (")[2].partition(")")[0]
                for part in written.split("affine_map<")[1:]
            ]
        given, t = self.hint(name)
        if t is None:
            raise Undecided(f"the element type of {name} is not declared")
        text = f"y[{maps[2]}] += cast(a[{maps[0]}], U) * cast(b[{maps[1]}], U)"
        return self.equations((text,), {"a": a, "b": b, "U": t}, "y", (given, t))

    def equations(
        self, lines: Sequence[str], names: dict[str, Any], target: str, hint: Hint
    ) -> Array:
        """Index equations on some operands."""
        env = dict(names)
        for text in lines:
            parsed = parse_statement(text)
            assert isinstance(parsed, ast.IndexEquation)
            own = hint if parsed.target == target else (None, None)
            env[parsed.target] = Equation(
                self.world, parsed, env, own, assume=False, checked=True
            ).made()
        found: Array = env[target]
        return found

    def operands(self, written: str) -> list[Any]:
        """What stands in ``ins``."""
        return [self.value(n) for n in _between(written, "ins(", " :").split(",")]

    def value(self, name: str) -> Any:
        """What an SSA name stands for."""
        name = name.strip().removeprefix("%")
        if name in self.made:
            return self.made[name]
        if name in self.names:
            return self.names[name]
        raise Undecided(f"nothing says what %{name} is")

    def number(self, text: str) -> int:
        """A number, or ``$(...)`` of the rule's names."""
        text = text.strip()
        if text.isdigit():
            return int(text)
        inner = text.removeprefix("$(").removesuffix(")").removeprefix("$")
        found = Symbols(self.world, self.names).eval(parse_expression(inner))
        if not isinstance(found, int):
            raise Undecided(f"{text} is not a number")
        return found

    def constant(self, text: str) -> float | None:
        """A number; None for what is none."""
        try:
            return float(text)
        except ValueError:
            return None


def run(world: World, names: dict[str, object], hint: Callable[[str], Hint], text: str) -> Any:
    """The tensors that a ``body:`` makes, by name."""
    return Body(world, names, hint).run(text)


def _between(text: str, start: str, end: str) -> str:
    _, found, rest = text.partition(start)
    inner, closed, _ = rest.partition(end)
    if not found or not closed:
        raise Undecided(f"raw MLIR is not modelled: {text}")
    return inner
