"""Both sides of a rule: what it finds and what it puts there, as tensors, on one path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove.binding import Binder, NoFit, element_of, given, sizes_of
from mlirules.drivers.prove.bodies import run as run_body
from mlirules.drivers.prove.conditions import is_zero
from mlirules.drivers.prove.equations import Equation, Hint
from mlirules.drivers.prove.expr import Int, Node, Undecided, atom
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.rewriting import Reading, Rewrite, declared_type
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array, Unknown
from mlirules.drivers.prove.world import Impossible, OutOfTime, World
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.operands import Refused
from mlirules.language.rule import Line, OpPattern, Rule
from mlirules.language.values import dtype_named


class At(Exception):
    """Something undecided at a line of the rule."""

    def __init__(self, line: Line | None, reason: str, *, time: bool = False) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason
        #: Whether only the time was over.
        self.time = time


@dataclass
class Sides:
    """A rule on one path: the results that are replaced, before and after."""

    before: dict[str, object]
    after: dict[str, object]


class Case:
    """One path through a rule. See the module's docstring."""

    def __init__(
        self,
        world: World,
        rule: Rule,
        meanings: Meanings,
        *,
        swapped: int | None = None,
        dropped: int | None = None,
    ) -> None:
        self.world, self.rule, self.meanings = world, rule, meanings
        self.swapped, self.dropped = swapped, dropped
        self.env: dict[str, Any] = {}
        self.line: Line | None = None
        self.let = list(rule.let)
        self.where = [w for i, w in enumerate(rule.where) if i != dropped]
        self.strings = [
            str(n.value)
            for _, w in rule.where
            for n in walk(w)
            if isinstance(n, ast.Literal) and isinstance(n.value, str)
        ] + [
            str(n.value)
            for _, _, expr, _ in rule.let
            if expr is not None
            for n in walk(expr)
            if isinstance(n, ast.Literal) and isinstance(n.value, str)
        ]

    def run(self) -> Sides:
        """Both sides. Raises :class:`At` where the model does not reach."""
        try:
            self.find()
            roots = self.roots()
            before = {r: self.env[r] for r in roots}
            after = self.rewritten(before)
        except Undecided as undecided:
            over = isinstance(undecided, OutOfTime)
            raise At(self.line, undecided.reason, time=over) from None
        except Refused as refused:
            if "outside a list" in refused.message or "empty list" in refused.message:
                # The rule itself refuses such a match.
                raise Impossible(refused.message) from None
            raise At(self.line, f"the rule refuses, or the model: {refused}") from None
        except NoFit as no:
            raise At(self.line, str(no)) from None
        return Sides(before, after)

    # -- what the rule finds

    def find(self) -> None:
        """The match, its names, its conditions."""
        if self.rule.index_match:
            self.equations()
        else:
            made = {r for p in self.rule.match for r in p.equation.results if r}
            for pattern in self.rule.match:
                self.line = pattern.line
                for arg in pattern.equation.call.args:
                    self.leaves(arg, made)
            # Conditions on operands alone come first: what they leave out is not run.
            self.settle()
            for n, pattern in enumerate(self.rule.match):
                self.line = pattern.line
                self.op(n, pattern)
        self.settle(last=True)
        if not self.world.possible():
            raise Impossible("contradictory conditions")

    def settle(self, *, last: bool = False) -> None:
        """The names and conditions that can be told by now, each once."""
        progress = True
        while progress:
            progress = False
            for entry in list(self.let):
                name, line, expr, value = entry
                if expr is not None and not last and not self.known(expr):
                    continue
                self.line = line
                self.let.remove(entry)
                progress = True
                try:
                    self.env[name] = value if expr is None else self.symbols().eval(expr)
                except Refused as refused:
                    raise Impossible(str(refused)) from None
            for where in list(self.where):
                line, expr = where
                if not last and not self.known(expr):
                    continue
                self.line = line
                self.where.remove(where)
                progress = True
                self.condition(line, expr)

    def condition(self, line: Line, expr: ast.Expr) -> None:
        """A condition of the rule: paths on which it does not hold are no cases of it."""
        try:
            found = self.symbols().eval(expr)
        except Refused as refused:
            raise Impossible(f"{line}: {refused}") from None
        if not isinstance(found, bool):
            raise Undecided("a condition that is known only at run time")
        if not found:
            raise Impossible(str(line))

    def symbols(self) -> Symbols:
        """Expressions in the rule's environment."""
        return Symbols(self.world, self.env, matching=True)

    def known(self, expr: ast.Expr) -> bool:
        """Whether all that an expression names is known."""
        for n in walk(expr):
            if isinstance(n, (ast.Name, ast.Pack)) and n.id:
                if n.id not in self.env and dtype_named(n.id) is None:
                    return False
                held = self.env.get(n.id)
                if isinstance(held, Unknown) and held.settle is None:
                    return False
        return True

    def op(self, at: int, pattern: OpPattern) -> None:
        """One op of the match."""
        call = pattern.equation.call
        args = list(call.args)
        if self.swapped == at:
            args[0], args[1] = args[1], args[0]
        self.line = pattern.line
        hints = [self.hint(r) for r in pattern.equation.results]
        if pattern.equation.pack:
            raise Undecided("a list of results")
        call = ast.Call(
            call.pos,
            call.end,
            call.fn,
            tuple(self.wild(a, at, i) for i, a in enumerate(args)),
            call.attrs,
        )
        made = self.meanings.call(self.world, call, self.env, hints, assume=True)
        for name, value in zip(pattern.equation.results, made, strict=True):
            if name is None:
                continue
            self.env[name] = value
            if isinstance(value, Array) and name in self.rule.types:
                self.typed(name, self.rule.types[name][1], value)
        for key, held in self.world.chosen.items():
            # What an operand without a type turned out to be.
            if key.startswith("operand "):
                name = key.removeprefix("operand ")
                if isinstance(self.env.get(name), Unknown):
                    self.env[name] = held
        self.settle()

    def wild(self, arg: ast.Expr, at: int, place: int) -> ast.Expr:
        """``_`` as an operand with a name of its own."""
        if isinstance(arg, ast.Wildcard):
            name = f"_{at}.{place}"
            self.env.setdefault(name, Unknown(name))
            return ast.Name(arg.pos, arg.end, name)
        if isinstance(arg, ast.ListExpr):
            return ast.ListExpr(
                arg.pos,
                arg.end,
                tuple(self.wild(a, at, 100 * (place + 1) + i) for i, a in enumerate(arg.items)),
            )
        return arg

    def hint(self, name: str | None) -> Hint:
        """What the rule's types say of a result before its op is asked."""
        if name is None or name not in self.rule.types:
            return None, None
        decl = self.rule.types[name][1]
        if decl.element is not None:
            element_of(self.world, name, decl, self.env)
        dims, t = declared_type(self.symbols(), decl)
        return dims, t

    def typed(self, name: str, decl: ast.TypeDecl, value: Array) -> None:
        """A result that has the type which the rule asks for: other programs are no cases."""
        if decl.element is not None:
            known = self.env.get(decl.element) or dtype_named(decl.element)
            if known is not None and not (known is value.dtype or known == value.dtype):
                raise Impossible(f"{name} of another type")
        if decl.dims is None:
            return
        binder = Binder(self.world, self.rule, self.env, assume=True)
        try:
            binder.dims(name, decl.dims, value.shape)
        except NoFit as no:
            raise Impossible(str(no)) from None

    def leaves(self, arg: ast.Expr, made: set[str]) -> None:
        """The operands that no op of the match makes."""
        for n in self._names(arg):
            if n in self.env or n in made:
                continue
            if n in self.rule.types:
                self.env[n] = self.leaf(n, self.rule.types[n][1])
            else:
                self.env[n] = Unknown(n)

    def leaf(self, name: str, decl: ast.TypeDecl) -> Any:
        """An operand; one whose type names no size is made when something asks for it."""
        world = self.world
        tensor = decl.kind in ("vtensor", "tensor")
        open_dims = decl.dims is None or all(d.value is None for d in decl.dims)
        if not (decl.kind == "list" or (tensor and open_dims)):
            return given(world, name, decl, self.env, self.strings)
        if tensor:
            element_of(world, name, decl, self.env)

        def settle() -> Any:
            key = f"operand {name}"
            if key not in world.chosen:
                world.chosen[key] = given(world, name, decl, self.env, self.strings)
            return world.chosen[key]

        return Unknown(name, settle)

    def _names(self, arg: ast.Expr) -> list[str]:
        match arg:
            case ast.Name(id=name):
                return [name]
            case ast.ListExpr(items=items):
                return [n for i in items for n in self._names(i)]
            case ast.Call(args=args):
                return [n for a in args for n in self._names(a)]
            case ast.Pack():
                raise Undecided("a list of any length in the match")
        return []

    def equations(self) -> None:
        """A match by index equations."""
        targets = {eq.target for _, eq in self.rule.index_match}
        self.env["op"] = self.world.choose(
            "op", [*dict.fromkeys(s for s in self.strings if "." in s), "linalg.generic"][:2]
        )
        for _, eq in self.rule.index_match:
            for n in walk(eq.value):
                if isinstance(n, ast.Access) and isinstance(n.base, ast.Name):
                    name = n.base.id
                    if name in targets or name in self.env:
                        continue
                    if name not in self.rule.types:
                        raise Undecided(f"{name} has no type")
                    decl = self.rule.types[name][1]
                    self.env[name] = given(self.world, name, decl, self.env)
        self.settle()
        for line, eq in self.rule.index_match:
            self.line = line
            self.numbers(eq)
            declared = self.rule.types.get(eq.target)
            dims: Sequence[Int] | None = None
            t = None
            if declared is not None:
                decl = declared[1]
                t = element_of(self.world, eq.target, decl, self.env)
                dims = self.target_sizes(eq, decl)
            try:
                made = Equation(self.world, eq, self.env, (dims, t), assume=True).made()
                # What the equation computes must be defined on the element types.
                made.elem([atom(Node("var", f"at {i}", n)) for i, n in enumerate(made.shape)])
            except Refused as refused:
                raise Impossible(str(refused)) from None
            self.env[eq.target] = made
            if declared is not None:
                self.typed(eq.target, declared[1], made)
            self.settle()

    def target_sizes(self, eq: ast.IndexEquation, decl: ast.TypeDecl) -> Sequence[Int] | None:
        """The sizes of a target whose loops only its type bounds."""
        if decl.dims is None or any(d.pack for d in decl.dims):
            return declared_type(self.symbols(), decl)[0]
        return sizes_of(self.world, eq.target, decl, self.env)

    def numbers(self, eq: ast.IndexEquation) -> None:
        """Numbers that multiply a loop: at least 1, bound by their names."""
        from mlirules.drivers.prove.conditions import at_least_zero
        from mlirules.drivers.prove.expr import whole

        for n in walk(eq.value):
            if not isinstance(n, ast.Access):
                continue
            for item in n.items:
                for m in walk(item):
                    if isinstance(m, ast.Binary) and m.op == "*" and isinstance(m.right, ast.Name):
                        name = m.right.id
                        if name not in self.env:
                            self.env[name] = whole(name)
                            self.world.assume(at_least_zero(self.env[name] - 1))

    # -- what it puts there

    def roots(self) -> list[str]:
        """The names of the results that are replaced."""
        if self.rule.index_match:
            return [r for r in self.rule.root_results if r]
        out = [r for n in self.rule.other_roots for r in self.rule.match[n].equation.results if r]
        unused = {
            a.id
            for _, w in self.rule.where
            for n in walk(w)
            if isinstance(n, ast.Call) and n.fn == "unused"
            for a in n.args
            if isinstance(a, ast.Name)
        }
        return out + [r for r in self.rule.root_results if r and r not in unused]

    def rewritten(self, before: dict[str, object]) -> dict[str, object]:
        """The rewrite's results, held against the types of what they replace."""
        hints: dict[str, Hint] = {}
        for name, value in before.items():
            if isinstance(value, Array):
                hints[name] = (value.shape, value.dtype)
        env = dict(self.env)
        rewrite = Rewrite(
            self.world,
            self.rule,
            env,
            hints,
            Reading(self.meanings.call, assume=False, checked=True, body=run_body),
            unused=frozenset(r for r in self.rule.root_results if r and r not in before),
        )
        try:
            made = rewrite.run()
        finally:
            self.line = rewrite.line or self.line
        for name, value in before.items():
            if name not in made:
                raise Undecided(f"{name} is not made")
            new = made[name]
            if isinstance(value, Array):
                if not isinstance(new, Array):
                    raise Undecided(f"{name} is a tensor")
                if new.rank != value.rank:
                    raise Undecided(f"{name} has rank {new.rank}, not {value.rank}")
                for a, b in zip(new.shape, value.shape, strict=True):
                    if self.world.same(a, b):
                        continue
                    if self.world.decide(is_zero(a - b)):
                        continue
                    raise Undecided(f"{name} has a size {a}, not {b}")
                if not (new.dtype is value.dtype or new.dtype == value.dtype):
                    raise Undecided(f"{name} holds {new.dtype}, not {value.dtype}")
        return made
