"""The loops of an index equation: which there are, how far they run, what is read in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirules.generator.lowering.builder import Body, Part, Read
from mlirules.generator.lowering.shapes import Shapes
from mlirules.generator.lowering.values import (
    Affine,
    Local,
    LoweringError,
    Raw,
    Val,
    tensor_of_type,
)
from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.operands import Refused, arith, sequence
from mlirules.language.packs import find_packs, maybe_packs
from mlirules.language.values import Dyn, Tensor, dtype_named


@dataclass
class Loops(Body):
    """An index equation with its loops, ranges and reads."""

    low: Shapes = field(kw_only=True)
    equation: ast.IndexEquation = field(kw_only=True)
    loops: list[str] = field(default_factory=list)
    ranges: dict[str, Any] = field(default_factory=dict)
    #: The indices whose range the rule gives.
    bounded: set[str] = field(default_factory=set)
    broadcast: list[str] = field(default_factory=list)
    #: Ranges that a read in the body gives (`j` in x[idx[i], j]), for want of an operand's.
    gathered: dict[str, object] = field(default_factory=dict)
    target_items: list[Affine] = field(default_factory=list)
    parallel: list[str] = field(default_factory=list)
    value: Any = None
    #: Of an equation that scatters: where each value goes, and the body that computes it.
    places: list[object] = field(default_factory=list)
    coordinates: Part | None = None

    def build(self) -> None:
        """Find the loops, then lower what the equation computes."""
        low, eq = self.low, self.equation
        low.body = None  # symbols first: loop indices are what no symbol names
        known = {**low.env, **low.locals}
        for name in low.result_names:
            if name not in low.locals:
                known.pop(name, None)
        accesses = [(eq.target, eq.indices)] + [
            (n.base.id, n.items)
            for n in walk(eq.value)
            if isinstance(n, ast.Access) and isinstance(n.base, ast.Name)
        ]
        for _, items in list(accesses):
            accesses += [
                (n.base.id, n.items)
                for item in items
                for n in walk(item)
                if isinstance(n, ast.Access)
                and isinstance(n.base, ast.Name)
                and (n.base.id, n.items) not in accesses
            ]
        tensors = [(n, i) for n, i in accesses if n == eq.target or self.is_tensor(known.get(n))]
        packs: dict[str, int] = {}
        for bound in eq.bounds:
            limit = low.eval(bound.limit)
            if isinstance(limit, Val):
                # A size that the data gives.
                limit = Dyn("local", (low.index(limit),))
            if bound.pack:
                values = sequence(limit, f"the limit of {bound.id}...")
                packs[bound.id] = len(values)
                for i, v in enumerate(values):
                    self.ranges[f"{bound.id}.{i}"] = v
            else:
                self.ranges[bound.id] = limit
        self.bounded = set(self.ranges)
        find_packs(
            eq,
            tensors,
            packs,
            known,
            rank=lambda _, name: self.tensor_rank(name, known),
            length=lambda item: self.static_length(item, known, packs),
        )
        for _, written in tensors:
            for index in written:
                for n in walk(index):
                    if isinstance(n, ast.Pack) and n.id is None:
                        self.add_broadcast(tensors, known)
                    elif isinstance(n, (ast.Pack, ast.Name)) and n.id and n.id not in known:
                        if n.id in packs:
                            self.add_pack(n.id, packs[n.id])
                        elif isinstance(n, ast.Pack):
                            raise Refused(f"the length of {n.id}... is not known", n)
                        elif dtype_named(n.id) is None:
                            self.add_loop(n.id)
        low.body = self
        places = self.expand_items(eq.indices, eq.target, None)
        if self.scatters(places):
            self.places = places
            self.coordinates = self.take_part()
            self.parallel = list(self.loops)
            self.value = low.eval(eq.value)
            return
        for i, place in enumerate(places):
            item = Affine((), place) if isinstance(place, int) else place
            if (
                not isinstance(item, Affine)
                or (item.terms and item.plain is None)
                or (not item.terms and item.offset != 0)
            ):
                raise LoweringError(
                    low.line,
                    f"index {i} of the target {eq.target} must be a loop index or 0",
                    eq.indices[min(i, len(eq.indices) - 1)],
                )
            self.target_items.append(item)
        self.order_loops()
        self.value = low.eval(eq.value)

    def scatters(self, items: list[object]) -> bool:
        """Whether the equation writes at chosen places of what the target already holds."""
        if self.equation.target not in self.low.locals:
            return False
        names = [i.plain for i in items if isinstance(i, Affine) and i.plain is not None]
        zeros = [i for i in items if i == 0 or i == Affine(())]
        return (
            self.equation.op == "="
            or len(set(names)) < len(names)
            or len(names) + len(zeros) < len(items)
        )

    def take_part(self) -> Part:
        """What the body holds so far, which is left empty."""
        part = Part(self.reads, self.lines, self.head, self.constants, self.index_values)
        self.put_part(Part())
        return part

    def put_part(self, part: Part) -> None:
        """Go on with another body."""
        self.reads, self.lines, self.head = part.reads, part.lines, part.head
        self.constants, self.index_values = part.constants, part.index_values

    @staticmethod
    def is_tensor(value: object) -> bool:
        """Whether a name's value can be read at indices."""
        return isinstance(value, (Tensor, Local, Raw))

    def tensor_rank(self, name: str, known: dict[str, object]) -> int | None:
        """The rank of a tensor that the equation names, if it is known."""
        if name == self.equation.target:
            return self.target_rank()
        value = known.get(name)
        if isinstance(value, Raw):
            value = tensor_of_type(name, value.type)
        if isinstance(value, Local):
            value = value.tensor
        return value.rank if isinstance(value, Tensor) and value.dims is not None else None

    def target_tensor(self) -> Tensor | None:
        """The type that the target has or must have, if anything says it."""
        low, name = self.low, self.equation.target
        made = low.locals.get(name)
        if isinstance(made, Local):
            return made.tensor
        if isinstance(made, Raw):
            return tensor_of_type(name, made.type)
        found = low.result_names.get(name, (None, ""))[0]
        if isinstance(found, Tensor):
            if found.dims is None or found.dtype is None:
                return found
            return Tensor(name, tuple(low.unified_dims(name, list(found.dims))), found.dtype, False)
        declared = low.rule.types.get(name)
        if declared is not None and name not in low.env:
            return tensor_of_type(name, low.declared_type(name) or "")
        return None

    def target_rank(self) -> int | None:
        """The rank of the target, if it is known."""
        found = self.target_tensor()
        return found.rank if found is not None and found.dims is not None else None

    def static_length(
        self, item: ast.Expr, known: dict[str, object], packs: dict[str, int]
    ) -> int | None:
        """How many indices an item stands for, tried with placeholder indices."""
        names = {n.id for n in walk(item) if isinstance(n, (ast.Name, ast.Pack)) and n.id}
        trial: dict[str, object] = dict(self.low.env)
        for name in names:
            if name in packs:
                trial[name] = [0] * packs[name]
            elif name not in known and dtype_named(name) is None:
                if any(isinstance(n, ast.Pack) and n.id == name for n in walk(item)):
                    return None
                if name in maybe_packs(self.equation):
                    return None
                trial[name] = 0
        try:
            value = Evaluator(trial).eval(item)
        except Refused:
            return 1 if not any(isinstance(n, ast.Call) for n in walk(item)) else None
        return len(value) if isinstance(value, list) else 1

    def add_loop(self, name: str) -> None:
        """One more loop."""
        if name not in self.indices:
            self.loops.append(name)
            self.indices[name] = Affine(((name, 1),))

    def add_pack(self, name: str, size: int) -> None:
        """A loop for every item of a pack."""
        if name in self.indices:
            return
        members = [f"{name}.{i}" for i in range(size)]
        for m in members:
            self.loops.append(m)
        self.indices[name] = [Affine(((m, 1),)) for m in members]

    def add_broadcast(
        self, tensors: list[tuple[str, tuple[ast.Expr, ...]]], known: dict[str, object]
    ) -> None:
        """The loops that `...` stands for."""
        if self.broadcast or "..." in self.indices:
            return
        size = 0
        for name, items in tensors:
            if not any(isinstance(i, ast.Pack) and i.id is None for i in items):
                continue
            rank = self.tensor_rank(name, known)
            if rank is None:
                continue
            if name == self.equation.target:
                size = rank - (len(items) - 1)
                break
            size = max(size, rank - (len(items) - 1))
        if size < 0:
            raise Refused("too few dims for the indices")
        self.broadcast = [f"....{i}" for i in range(size)]
        self.loops.extend(self.broadcast)
        self.indices["..."] = [Affine(((m, 1),)) for m in self.broadcast]

    def expand_items(self, items: Sequence[ast.Expr], name: str, source: Local | None) -> list[Any]:
        """The indices of an access, packs spliced in and `...` aligned at the right."""
        out: list[object] = []
        for item in items:
            if isinstance(item, ast.Pack) and item.id is None:
                pack: list[Any] = list(self.indices.get("...", []))
                if source is not None:
                    assert source.tensor.dims is not None
                    size = len(source.tensor.dims) - (len(items) - 1)
                    if size < 0 or size > len(pack):
                        raise Refused(f"{name} has rank {len(source.tensor.dims)}: too many dims")
                    pack = pack[len(pack) - size :]
                    at = len(out)
                    dims = source.tensor.dims[at : at + size]
                    pack = [
                        Affine(()) if d == 1 and self.loop_size(p.terms[0][0]) != 1 else p
                        for d, p in zip(dims, pack, strict=True)
                    ]
                out.extend(pack)
                continue
            value = self.low.pack(item) if isinstance(item, ast.Pack) else self.low.eval(item)
            out.extend(value) if isinstance(value, list) else out.append(value)
        return out

    def loop_size(self, name: str) -> Any:
        """What is known of a `...` loop's size before the operands are: from the target's type."""
        if name in self.ranges:
            return self.ranges[name]
        target = self.target_tensor()
        if target is None or target.dims is None:
            return self.broadcast_size(name)
        items = self.equation.indices
        before = (
            next(i for i, x in enumerate(items) if isinstance(x, ast.Pack) and x.id is None)
            if any(isinstance(x, ast.Pack) and x.id is None for x in items)
            else None
        )
        if before is None:
            return self.broadcast_size(name)
        return target.dims[before + self.broadcast.index(name)]

    def broadcast_size(self, name: str) -> Any:
        """The size of a `...` loop when the target's type is not known: the first that is not 1."""
        place = len(self.broadcast) - self.broadcast.index(name)
        best: Any = 1
        for node in walk(self.equation.value):
            if not isinstance(node, ast.Access) or not isinstance(node.base, ast.Name):
                continue
            value = self.low.name(node.base)
            if isinstance(value, Local):
                value = value.tensor
            if not isinstance(value, Tensor) or value.dims is None:
                continue
            at = next(
                (i for i, x in enumerate(node.items) if isinstance(x, ast.Pack) and x.id is None),
                None,
            )
            if at is None:
                continue
            size = len(value.dims) - (len(node.items) - 1)
            if place <= size:
                d = value.dims[at + size - place]
                if d != 1 and (best == 1 or isinstance(d, int)):
                    best = d
        return best

    def order_loops(self) -> None:
        """Parallel loops in the target's order, then the reduction loops as they came."""
        parallel = [a.terms[0][0] for a in self.target_items if a.terms]
        if len(set(parallel)) != len(parallel):
            raise LoweringError(self.low.line, "a loop index stands twice in the target")
        self.parallel = parallel
        self.loops = parallel + [n for n in self.loops if n not in parallel]
        if self.equation.op == "=" and len(self.loops) > len(parallel):
            extra = ", ".join(n for n in self.loops if n not in parallel)
            # A broadcast loop that the target lacks, or an index that only reads use.
            raise LoweringError(
                self.low.line,
                f"the index {extra} is not in the target: reduce over it with +=, max= or the like",
            )

    def index_ssa(self, name: str) -> str:
        """The SSA value of a loop index."""
        if name not in self.index_values:
            self.index_values[name] = self.low.fresh("x")
        return self.index_values[name]

    def preamble(self) -> list[str]:
        """The ops that give loop indices their values, and the constants."""
        return [
            f"{ssa} = linalg.index {self.loops.index(name)} : index"
            for name, ssa in self.index_values.items()
        ] + self.head

    def read(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Val:
        """An element of a tensor that the equation names."""
        low = self.low
        low.body = None
        source = low.local(base)
        low.body = self
        name = source.tensor.name
        values = self.expand_items(items, name, source)
        if len(values) != source.tensor.rank:
            raise Refused(f"{name} has rank {source.tensor.rank}, but {len(values)} indices", node)
        return self.read_at(source, values)

    def read_at(self, source: Local, values: list[object]) -> Val:
        """An element of a tensor: through an operand where the indices are linear."""
        low, dims = self.low, source.tensor.dims
        assert dims is not None and source.tensor.dtype is not None
        linear: list[Affine] = []
        for value in values:
            if isinstance(value, Affine):
                linear.append(value)
            elif isinstance(value, (int, Dyn)) and not isinstance(value, bool):
                linear.append(Affine((), value))
            else:
                break
        for at, (item, dim) in enumerate(zip(linear, dims, strict=False)):
            place = item.offset if not item.terms else 0
            if isinstance(place, int) and (
                place < 0 or (isinstance(dim, int) and 0 < dim <= place)
            ):
                what = "before its first element" if place < 0 else f"and has {dim} elements there"
                raise Refused(f"{source.tensor.name} is read at {place} in dim {at}, {what}")
        if len(linear) == len(values) and self.readable(linear):
            for have in self.reads:
                if have.source == source and have.items == linear:
                    return Val(have.arg, source.tensor.dtype)
            arg = low.fresh("in")
            self.reads.append(Read(source, linear, arg))
            return Val(arg, source.tensor.dtype)
        for value, dim in zip(values, dims, strict=True):
            if isinstance(value, Affine) and value.plain is not None:
                self.gathered.setdefault(value.plain, dim)
        return low.extract(source, values)

    @staticmethod
    def readable(items: list[Affine]) -> bool:
        """Whether an access can be an operand's indexing map (perhaps of a slice)."""
        for item in items:
            if any(c < 1 for _, c in item.terms):
                return False
            if isinstance(item.offset, int) and item.offset < 0:
                return False
            if len(item.terms) > 1 and item.offset != 0:
                return False
        return True

    def find_ranges(self) -> None:
        """How far each loop runs."""
        target = self.target_tensor()
        items = self.target_items or [
            i if isinstance(i, Affine) else Affine(()) for i in self.places
        ]
        later: list[str] = []
        for name in self.loops:
            if name in self.ranges:
                continue
            found: list[object] = []
            for read in self.reads:
                assert read.source.tensor.dims is not None
                for item, dim in zip(read.items, read.source.tensor.dims, strict=True):
                    if item.plain == name:
                        found.append(dim)
            self.demand_equal(name)
            # Where values are scattered, the target need not be as large as what is read.
            if target is not None and target.dims is not None and not (self.places and found):
                for item, dim in zip(items, target.dims, strict=False):
                    if item.plain == name:
                        found.append(dim)
            static = [d for d in found if isinstance(d, int)]
            sourced = [d for d in found if isinstance(d, Dyn) and d.op not in ("result", "?")]
            if static:
                self.ranges[name] = static[0]
            elif sourced:
                self.ranges[name] = sourced[0]
            elif found:
                self.ranges[name] = found[0]
            elif name in self.gathered:
                self.ranges[name] = self.gathered[name]
            else:
                later.append(name)
        for name in later:
            size = self.window_range(name)
            if size is not None:
                self.ranges[name] = size
            else:
                shown = name.split(".")[0] or "..."
                raise LoweringError(
                    self.low.line,
                    f"nothing says how far the index {shown} runs: add `for {shown} < N`",
                )

    def demand_equal(self, name: str) -> None:
        """Have the program check that all that a loop reads is equally large, where it may not be.

        PyTorch broadcasts a size that turns out to be 1, and refuses others. A loop over the
        first operand would read past the end of the second.
        """
        if not any(op.startswith("torch.") for op in self.low.rule.root_ops):
            return  # linalg ops have checked already
        sizes: list[tuple[str, object]] = []
        for read in self.reads:
            for item, dim in zip(read.items, read.source.tensor.dims or (), strict=True):
                known = isinstance(dim, int) or dim.op not in ("result", "?")
                if item.plain == name and known and dim not in [d for _, d in sizes]:
                    sizes.append((read.source.tensor.name, dim))
        for other, size in sizes[1:]:
            first, expected = sizes[0]
            if isinstance(size, int) and isinstance(expected, int):
                continue
            same = self.low.fresh("same")
            a, b = self.low.index(expected), self.low.index(size)
            self.low.emit(f"{same} = arith.cmpi eq, {a}, {b} : index")
            self.low.emit(
                f'cf.assert {same}, "{self.low.rule.name}: {first} and {other} differ in a size '
                'that is known only at run time; a 1 is broadcast only where its type says 1"'
            )

    def window_range(self, name: str) -> Any:
        """How far an index runs that is only read in a window, as `i` in x[i*s + u*d].

        As far as the tensor allows: floor((size - 1 - last of the others) / step) + 1.
        """
        for read in self.reads:
            assert read.source.tensor.dims is not None
            for item, dim in zip(read.items, read.source.tensor.dims, strict=True):
                terms = dict(item.terms)
                if name not in terms or any(n not in self.ranges for n in terms if n != name):
                    continue
                room = arith("-", arith("-", dim, 1), item.offset)
                for other, c in terms.items():
                    if other != name:
                        room = arith("-", room, arith("*", arith("-", self.ranges[other], 1), c))
                return arith("+", arith("//", room, terms[name]), 1)
        return None
