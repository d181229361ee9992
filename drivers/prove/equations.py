"""Index equations as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirules.drivers.prove import scalars
from mlirules.drivers.prove.arrays import array
from mlirules.drivers.prove.conditions import at_least_zero, is_zero
from mlirules.drivers.prove.expr import Int, Node, Poly, Undecided, atom, dim
from mlirules.drivers.prove.lists import in_order
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import E, LazyType, to_type
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array
from mlirules.drivers.prove.world import Impossible, OutOfTime, World
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.functions import SIMPLE, SPECIAL, TENSOR
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.operands import Refused, sequence
from mlirules.language.packs import find_packs, maybe_packs
from mlirules.language.values import DType, Tensor, dtype_named

#: What a result of an op is known to be: its sizes, its rank, its element type.
Hint = tuple[Sequence[Int] | None, DType | None]


class Bodies(Symbols):
    """Expressions inside an index equation: tensors are read, indices are known."""

    def __init__(
        self, world: World, names: dict[str, Any], equation: Equation, *, trial: bool = False
    ) -> None:
        super().__init__(world, names)
        self.equation = equation
        #: Only places are asked for, so what stands there does not matter.
        self.trial = trial
        self.running = True

    def call(self, node: ast.Call) -> Any:
        """A function's value; of a function that the program gives only that it is one is known."""
        if (
            any(node.fn in known for known in (FUNCTIONS, SIMPLE, SPECIAL, TENSOR, self.names))
            or dtype_named(node.fn) is not None
        ):
            return super().call(node)
        normal = Normal(self.world)
        args = [scalars.to_type(v, None) for v in self.items(node.args)]
        known = f"what {node.fn} gives"
        if known not in self.world.chosen:
            declared = self.equation.hint[1]
            self.world.chosen[known] = declared or LazyType(self.world, known)
        key = Node("operands", node.fn, *(normal.of(a) for a in args))
        return E("applied", (key, 0, ()), self.world.chosen[known])

    def access(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Any:
        """An element, or an item of a list."""
        if isinstance(base, Array):
            return self.equation.read(self, base, items)
        if isinstance(base, Tensor):
            raise Undecided(f"{base.name} is read before it is known")
        return super().access(node, base, items)

    def pack(self, node: ast.Pack) -> list[Any]:
        """The indices that a pack stands for."""
        if node.id is None:
            return list(self.names["..."])
        return super().pack(node)


class Equation:
    """One index equation, in one environment."""

    def __init__(
        self,
        world: World,
        equation: ast.IndexEquation,
        env: dict[str, Any],
        hint: Hint,
        *,
        assume: bool,
        checked: bool = False,
    ) -> None:
        self.world, self.eq, self.env, self.hint = world, equation, env, hint
        self.assume, self.checked = assume, checked
        self.packs: dict[str, int] = {}
        self.loops: list[str] = []
        self.indices: dict[str, Any] = {}
        self.sizes: dict[str, Int] = {}
        self.rank = len(hint[0]) if hint[0] is not None else None
        self.accesses = self._accesses()

    def _accesses(self) -> list[tuple[str, tuple[ast.Expr, ...]]]:
        found: list[tuple[str, tuple[ast.Expr, ...]]] = [(self.eq.target, self.eq.indices)]
        stack: list[ast.Expr] = [*self.eq.indices, self.eq.value]
        for expr in stack:
            for n in walk(expr):
                if (
                    isinstance(n, ast.Access)
                    and isinstance(n.base, ast.Name)
                    and (n.base.id, n.items) not in found
                ):
                    found.append((n.base.id, n.items))
        return [
            (n, i)
            for at, (n, i) in enumerate(found)
            if at == 0 or isinstance(self.env.get(n), Array)
        ]

    def tensor_rank(self, at: int, name: str) -> int | None:
        """The rank of what is read, or of the target."""
        if at == 0:
            held = self.env.get(name)
            if isinstance(held, Array) and held.dims is not None:
                return held.rank
            return self.rank
        held = self.env[name]
        return int(held.rank)

    # -- which loops there are

    def find(self) -> None:
        """The loops, their ranges, and where the target is written."""
        symbols = Symbols(self.world, self.env)
        for bound in self.eq.bounds:
            limit = (
                symbols.items([bound.limit])[0]
                if not isinstance(bound.limit, ast.Pack)
                else (symbols.pack(bound.limit))
            )
            if bound.pack:
                values = sequence(limit, "the limit")
                self.packs[bound.id or "..."] = len(values)
                for i, v in enumerate(values):
                    self.sizes[f"{bound.id or '...'}.{i}"] = symbols.whole(v, "a size")
            else:
                self.sizes[bound.id] = symbols.whole(limit, "a size")
        known = set(self.env) - ({self.eq.target} if self.eq.target not in self.env else set())
        find_packs(
            self.eq,
            self.accesses,
            self.packs,
            {name: self.env[name] for name in known},
            rank=self.tensor_rank,
            length=lambda item: self._length(item, known),
        )
        for _, written in self.accesses:
            for index in written:
                for n in walk(index):
                    if isinstance(n, ast.Pack) and n.id is None:
                        self._add_broadcast()
                    elif isinstance(n, ast.Pack):
                        if n.id not in known:
                            assert n.id is not None
                            if n.id not in self.packs:
                                raise Undecided(f"the length of {n.id}... is not known")
                            self._add_pack(n.id)
                    elif isinstance(n, ast.Name) and n.id not in known:
                        if n.id in self.packs:
                            self._add_pack(n.id)
                        elif dtype_named(n.id) is None:
                            self._add_loop(n.id)

    def _add_loop(self, name: str) -> None:
        if name not in self.indices:
            self.loops.append(name)
            self.indices[name] = name

    def _add_pack(self, name: str) -> None:
        if name not in self.indices:
            members = [f"{name}.{i}" for i in range(self.packs[name])]
            self.loops += members
            self.indices[name] = members

    def _add_broadcast(self) -> None:
        if "..." in self.indices:
            return
        size = self.packs.get("...", -1)
        if size < 0:
            size = 0
            for at, (name, items) in enumerate(self.accesses):
                if not any(isinstance(i, ast.Pack) and i.id is None for i in items):
                    continue
                rank = self.tensor_rank(at, name)
                if rank is None:
                    continue
                others = self._plain_length(items)
                if at == 0:
                    size = rank - others
                    break
                size = max(size, rank - others)
        if size < 0:
            raise Refused("too few dims for the indices")
        self.packs["..."] = size
        self._add_pack("...")

    @staticmethod
    def _plain_length(items: tuple[ast.Expr, ...]) -> int:
        return len(items) - 1

    def _length(self, item: ast.Expr, known: set[str]) -> int | None:
        names = {n.id for n in walk(item) if isinstance(n, (ast.Name, ast.Pack)) and n.id}
        trial: dict[str, object] = dict(self.env)
        for name in names:
            if name in self.packs:
                trial[name] = [
                    atom(Node("var", f"trial {name} {i}", dim("trial")))
                    for i in range(self.packs[name])
                ]
            elif name not in known and dtype_named(name) is None:
                if name in maybe_packs(self.eq):
                    return None
                trial[name] = atom(Node("var", f"trial {name}", dim("trial")))
        body = Bodies(self.world, trial, self, trial=True)
        try:
            value = body.eval(item)
        except Refused:
            return 1 if not any(isinstance(n, ast.Call) for n in walk(item)) else None
        except Undecided:
            return None
        return len(value) if isinstance(value, list) else 1

    # -- reading

    def names_at(self, at: dict[str, Int]) -> dict[str, object]:
        """The environment with loop indices at these values."""
        names = dict(self.env)
        for name, members in self.indices.items():
            names[name] = [at[m] for m in members] if isinstance(members, list) else at[members]
        return names

    def expanded(self, body: Bodies, items: Sequence[ast.Expr], source: Array | None) -> list[Any]:
        """The indices of an access, packs spliced in and `...` aligned at the right."""
        out: list[object] = []
        for item in items:
            if isinstance(item, ast.Pack) and item.id is None:
                pack = list(body.names["..."])
                if source is not None:
                    size = source.rank - (len(items) - 1)
                    if size < 0 or size > len(pack):
                        raise Refused(f"{source.name} has rank {source.rank}: too many dims")
                    pack = pack[len(pack) - size :]
                    dims = source.shape[len(out) : len(out) + size]
                    pack = [body.stretched(d, p) for d, p in zip(dims, pack, strict=True)]
                out.extend(pack)
                continue
            value = in_order(body.pack(item) if isinstance(item, ast.Pack) else body.eval(item))
            out.extend(value) if isinstance(value, list) else out.append(value)
        return out

    def read(self, body: Bodies, source: Array, items: Sequence[ast.Expr]) -> E:
        """An element of a tensor."""
        values = self.expanded(body, items, source)
        if len(values) != source.rank:
            raise Refused(f"{source.name} has rank {source.rank}, but {len(values)} indices")
        if body.trial:
            return E("elem", ("trial", ()), source.dtype or scalars.INDEX)
        index: list[Int] = []
        for v, d in zip(values, source.shape, strict=True):
            if isinstance(v, E):
                if v.dtype is not scalars.INDEX and not v.dtype.is_int:
                    raise Refused("an index that is no integer")
                v = Normal(self.world).cast_to_integer(v, scalars.INDEX)
            if not isinstance(v, (int, Poly)):
                raise Undecided("an index that is no number")
            if self.checked and not self.world.within(v, d):
                raise Undecided(f"{source.name} is read at an index that may be out of bounds")
            index.append(v)
        return source.elem(index)

    # -- ranges

    def ranges(self) -> None:
        """How far each loop runs."""
        marks = {name: atom(Node("var", f"mark {name}", dim("mark"))) for name in self.loops}
        body = Bodies(self.world, self.names_at(dict(marks)), self, trial=True)
        back = {m.key: n for n, m in marks.items()}
        found: dict[str, list[Int]] = {n: [] for n in self.loops}
        windows: list[tuple[Int, Int]] = []
        broadcast: dict[str, list[Int]] = {}
        for at, (name, items) in enumerate(self.accesses):
            source = self.env.get(name) if at else None
            held = self.hint[0] if at == 0 else source.shape if source is not None else None
            if held is None:
                if at == 0:
                    continue
                raise Undecided(f"{name} is read before it is known")
            dims = list(held)
            values: list[object] = []
            for item in items:
                if isinstance(item, ast.Pack) and item.id is None:
                    members = self.indices["..."]
                    size = len(dims) - (len(items) - 1)
                    if size < 0 or size > len(members):
                        raise Refused("too many dims")
                    for m, d in zip(
                        members[len(members) - size :], dims[len(values) :], strict=False
                    ):
                        broadcast.setdefault(m, []).append(d)
                        values.append(None)
                    continue
                try:
                    value = body.pack(item) if isinstance(item, ast.Pack) else body.eval(item)
                    value = in_order(value)
                except Undecided:
                    value = None
                values.extend(value) if isinstance(value, list) else values.append(value)
            if len(values) != len(dims):
                if at == 0:
                    continue
                raise Refused(f"{name} has rank {len(dims)}, but {len(values)} indices")
            for value, d in zip(values, dims, strict=True):
                if isinstance(value, Poly):
                    plain = back.get(value.key)
                    if plain is not None and at and self.checked and plain in self.sizes:
                        continue  # the rule says how far: it is asked where the element is read
                    if plain is not None:
                        found[plain].append(d)
                    elif value.vars:
                        windows.append((value, d))
        for name in self.loops:
            stretched = broadcast.get(name, [])
            if name in self.sizes:
                for d in found[name]:
                    self.demand(d, self.sizes[name], name)
                continue
            if found[name]:
                self.sizes[name] = found[name][0]
                for d in found[name][1:]:
                    self.demand(d, found[name][0], name)
                for d in stretched:
                    self.fits(d, self.sizes[name])
                continue
            if stretched:
                self.sizes[name] = self.broadcast(stretched)
                continue
        for name in self.loops:
            if name in self.sizes:
                continue
            mark = marks[name]
            for value, d in windows:
                terms = dict(value.terms)
                ((mono, _),) = mark.terms.items()
                if mono not in terms:
                    continue
                others = [n for n in self.loops if n != name and mark_in(value, marks[n])]
                if any(n not in self.sizes for n in others):
                    continue
                room = d - 1 - (value - mark * terms[mono])
                room = Normal(self.world).replaced(
                    room, {next(iter(marks[n].vars)): self.sizes[n] - 1 for n in others}
                )
                self.sizes[name] = self.world.idiv(room, terms[mono]) + 1
                break
            else:
                raise Undecided(f"nothing says how far the index {name} runs")
        if self.assume:
            for value, d in windows:
                self.in_bounds(value, d, marks)

    def in_bounds(self, value: Poly, d: Int, marks: dict[str, Any]) -> None:
        """A program reads where something stands: the last index is below the size."""
        last: dict[Node, Int] = {}
        for name, mark in marks.items():
            if mark_in(value, mark):
                (node,) = mark.vars
                last[node] = self.sizes[name] - 1
        most = Normal(self.world).replaced(value, last)
        holds = at_least_zero(d - 1 - most)
        empty = [at_least_zero(-self.sizes[n]) for n in self.loops]
        if isinstance(holds, Node) and not any(e is True for e in empty):
            # Nothing is read where any loop does not run.
            self.world.assume(Node("or", *[e for e in empty if isinstance(e, Node)], holds))

    def demand(self, a: Int, b: Int, name: str) -> None:
        """Two sizes that one loop runs over."""
        if self.world.same(a, b):
            return
        if not self.assume:
            raise Undecided(f"the index {name} runs over sizes that may differ: {a} and {b}")
        self.world.assume(is_zero(a - b))

    def fits(self, size: Int, to: Int) -> None:
        """A size that is broadcast to another one."""
        if size == 1 or self.world.same(size, to):
            return
        if isinstance(size, int):
            self.demand(size, to, "...")
            return
        if self.world.stretches(size, to, assume=self.assume):
            return
        if not self.world.decide(is_zero(size - 1)):
            self.demand(size, to, "...")

    def broadcast(self, sizes: Sequence[Int]) -> Int:
        """The size that sizes broadcast to."""
        joined = self.world.joined(sizes, assume=self.assume)
        if joined is not None:
            return joined
        out: Int = 1
        for d in sizes:
            if d == 1 or self.world.same(out, d):
                continue
            if out == 1:
                out = d
                continue
            if self.world.decide(is_zero(out - 1)):
                out = d
                continue
            self.fits(d, out)
        return out

    # -- what it is

    def made(self) -> Array:
        """The target as a tensor."""
        self.find()
        self.ranges()
        marks = {n: Node("var", f"mark {n}", dim("mark")) for n in self.loops}
        at_marks = self.names_at({n: atom(m) for n, m in marks.items()})
        body = Bodies(self.world, at_marks, self, trial=True)
        places = self.expanded(body, self.eq.indices, None)
        back = {m.key: n for n, m in marks.items()}
        where: list[str | None] = []
        shape: list[Int] = []
        for p in places:
            if isinstance(p, int) and p == 0:
                where.append(None)
                shape.append(1)
                continue
            if isinstance(p, Poly) and len(p.terms) == 1 and len(p.vars) == 1:
                name = back.get(next(iter(p.vars)).key)
                if name is not None and (p - atom(marks[name])) == 0 and name not in where:
                    where.append(name)
                    shape.append(self.sizes[name])
                    continue
            raise Undecided(f"{self.eq.target} is written at chosen places")
        before = self.env.get(self.eq.target)
        if before is not None and self.eq.op == "=":
            raise Undecided(f"{self.eq.target} is written twice")
        inner = [n for n in self.loops if n not in where]
        if self.eq.op == "=" and inner:
            raise Undecided(f"the index {inner[0]} is not in the target")
        t = self.hint[1]
        world = self.world
        held = before if isinstance(before, Array) else None

        def elem(index: Sequence[Int]) -> E:
            at: dict[str, Int] = {n: i for n, i in zip(where, index, strict=True) if n is not None}
            loops: list[Node] = []
            for n in inner:
                v = Node("var", world.fresh("k"), self.sizes[n])
                loops.append(v)
                at[n] = atom(v)
            value = Bodies(world, self.names_at(at), self).eval(self.eq.value)
            value = self.typed(value, t)
            if self.eq.op == "=":
                return value
            op = {"+=": "+", "*=": "*", "max=": "max", "min=": "min"}.get(self.eq.op)
            op = op or self.eq.op.rstrip("=")
            if value.dtype.is_bool and op == "+":
                raise Refused("+= on bool")
            out = scalars.reduction(op, tuple(loops), value)
            if held is not None:
                start = held.elem(list(index))
                fn = {"+": "+", "*": "*"}.get(op)
                if fn:
                    return to_type(scalars.arithmetic(world, fn, start, out), None)
                return scalars.function(
                    {"and": "bitand", "or": "bitor", "xor": "bitxor"}.get(op, op), [start, out]
                )
            return out

        if t is None:
            trial = [atom(Node("var", f"out:trial{i}", s)) for i, s in enumerate(shape)]
            t = elem(trial).dtype
        if self.checked:
            self.check_once(shape, elem)
        return array(self.eq.target, shape, t, elem, world=world)

    def check_once(self, shape: Sequence[Int], elem: Callable[[Sequence[Int]], E]) -> None:
        """See that every read of any element is in bounds: then none is asked for again."""
        at = [atom(Node("var", self.world.fresh("at"), s)) for s in shape]
        try:
            elem(at)
        except OutOfTime:
            raise
        except Undecided:
            return  # of the elements that are read it may still hold
        self.checked = False

    def typed(self, value: object, t: DType | None) -> E:
        """What the equation computes, in the target's type."""
        if isinstance(value, E) and value.dtype is not scalars.NUMBER:
            if t is not None and not (value.dtype is t or value.dtype == t):
                if self.assume:
                    raise Impossible("a program that declares another type than its op gives")
                raise Undecided(f"an equation of {value.dtype} for a target of {t}")
            return value
        return scalars.to_type(value, t)


def mark_in(value: Poly, mark: Poly) -> bool:
    """Whether an index occurs in an expression."""
    return bool(value.vars & mark.vars)
