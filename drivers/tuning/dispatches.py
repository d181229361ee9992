"""A program's dispatches: each cut out as a program of its own, and what its root op computes.

The cut is made at the compiler's ``flow`` phase, so that a dispatch measured alone is the very one
that the program contains, and its inputs and results are ordinary arrays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.iree import compiler, irtypes
from mlirules.drivers.iree.affine import loops_of
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.language.faults import MlirulesError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A static tensor: what goes into a dispatch or comes out."""

    shape: Shape
    element: str

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{d}x' for d in self.shape)}{self.element}>"

    @property
    def size(self) -> int:
        """Elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def bytes(self) -> float:
        """Bytes, packed."""
        found = re.search(r"\d+", self.element)
        return self.size * int(found[0] if found else 64) / 8


@dataclass(frozen=True)
class Root:
    """What a dispatch is about: its root op.

    ``kind`` is ``contraction``, ``convolution``, ``attention``, ``reduction`` or ``generic``.
    ``loops`` are the loops' names, outermost first, ``sizes`` their extents. A name tells the
    role: contraction ``b m n k``; convolution ``n f h w`` and ``c kh kw``, ``g`` for groups;
    attention ``b m n d s``; else ``p`` for parallel and ``r`` for reduction loops. Of several
    loops of one role the innermost has the plain name, the others ``m1``, ``m2`` outwards.
    """

    kind: str
    op: str
    loops: tuple[str, ...]
    sizes: Shape
    reductions: frozenset[str]
    #: An index expression for each dim of each operand, the results last.
    indices: tuple[tuple[str, ...], ...]
    operands: tuple[Value, ...]
    results: int = 1
    #: The op's region as text, and the constants that it captures.
    region: str = ""
    captured: str = ""

    @property
    def extent(self) -> dict[str, int]:
        """The loops' sizes by name."""
        return dict(zip(self.loops, self.sizes, strict=True))

    @property
    def elements(self) -> tuple[str, ...]:
        """The operands' element types."""
        return tuple(o.element for o in self.operands)

    @property
    def shape(self) -> str:
        """The loops' sizes as in a dispatch's name."""
        return "x".join(map(str, self.sizes))

    @property
    def title(self) -> str:
        """Op class, loops and types, for people."""
        loops = " ".join(f"{n}={s}" for n, s in self.extent.items())
        return f"{self.kind} {loops} {'x'.join(dict.fromkeys(self.elements))}"

    @property
    def flops(self) -> float:
        """Floating-point operations: two for each step of a product, else one for each point."""
        points = 1.0
        for size in self.sizes:
            points *= size
        if self.kind in ("contraction", "convolution"):
            return 2 * points
        if self.kind == "attention":
            e = self.extent
            return 2 * (points / e["n"] + points / e["d"])
        return points

    @property
    def bytes(self) -> float:
        """Bytes that must be moved at least: each operand once."""
        return sum(o.bytes for o in self.operands)

    @property
    def key(self) -> str:
        """A digest of the computation: equal for equal ops of one program or another."""
        parts = (
            self.kind,
            self.op,
            self.loops,
            self.sizes,
            sorted(self.reductions),
            self.indices,
            tuple(map(str, self.operands)),
            self.region,
            self.captured,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Dispatch:
    """One dispatch of a program, cut out.

    ``text`` is a program at the ``flow`` phase with a function ``main`` from ``inputs`` to
    ``outputs``; ``count`` is how often the program calls it in its text.
    """

    name: str
    text: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    root: Root
    count: int = 1

    @property
    def key(self) -> str:
        """A digest that is equal for dispatches that do the same work: their text without names."""
        named = re.sub(r"@[\w$.]+|loc\([^)]*\)", "@", self.text)
        return hashlib.sha256(named.encode()).hexdigest()[:16]


@dataclass
class Dispatches:
    """The dispatches of a program, and those that cannot be cut out with the reason."""

    found: list[Dispatch] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def cut(
    program: str,
    target: Target,
    *,
    flags: Sequence[str] = (),
    path: str = "<string>",
    timeout: float | None = None,
) -> Dispatches:
    """Lower ``program`` for ``target`` and cut it into its dispatches, in their order.

    Raises CompileError when the program does not compile.
    """
    flow = compiler.lower_to(program, compiler.Job(target, tuple(flags), timeout, path), "flow")
    module = compiler.parse(flow, path)
    calls: dict[str, list[ir.Operation]] = {}
    header: list[str] = []
    executables: list[ir.Operation] = []
    for op in module.body.operations:
        own = op.operation
        if own.name == "flow.executable":
            executables.append(own)
        elif own.name == "util.global" and "#hal.device" in _asm(own):
            header.append(_asm(own))
        for inner in ops_below(own):
            if inner.name == "flow.dispatch":
                for called in entry_points(inner):
                    calls.setdefault(called[1], []).append(inner)
    attributes = _asm(module.operation).partition("{\n")[0]
    out = Dispatches()
    for executable in executables:
        for function in (o for o in ops_below(executable) if o.name == "func.func"):
            name = _symbol(function)
            try:
                own_calls = calls.get(name, [])
                out.found.append(
                    _dispatch(name, executable, function, own_calls, header, attributes)
                )
            except _SkippedError as reason:
                out.skipped[name] = str(reason)
    return out


class _SkippedError(Exception):
    """Why a dispatch cannot be cut out or described."""


def _dispatch(
    name: str,
    executable: ir.Operation,
    function: ir.Operation,
    calls: list[ir.Operation],
    header: list[str],
    attributes: str,
) -> Dispatch:
    if not calls:
        raise _SkippedError("nothing calls it")
    root = root_op(function)
    if root is None:
        raise _SkippedError("it has no structured op (a copy, or data movement)")
    call = calls[0]
    inputs = tuple(_value(v.type) for v in call.operands)
    outputs = tuple(_value(v.type) for v in call.results)
    kinds = [str(v.type) for v in call.operands]
    results = [str(v.type) for v in call.results]
    entry = f"@{_symbol(executable)}::@{name}"
    tied = call.attributes.get("tied_operands")
    ties = [] if tied is None else [ir.IntegerAttr(t).value for t in ir.ArrayAttr(tied)]
    # What a dispatch writes into one of its inputs is written as that input's new value.
    returned = [
        f"%t{ties[i]}" if i < len(ties) and ties[i] >= 0 else kind for i, kind in enumerate(results)
    ]
    views = ", ".join(f"%a{i}: !hal.buffer_view" for i in range(len(kinds)))
    body = [
        f'    %t{i} = hal.tensor.import %a{i} "input{i}" : !hal.buffer_view -> {kind}'
        for i, kind in enumerate(kinds)
    ]
    names = ", ".join(f"%t{i}" for i in range(len(kinds)))
    made = ", ".join(f"%r{i}" for i in range(len(results)))
    body.append(
        f"    {made} = flow.dispatch {entry}({names}) : ({', '.join(kinds)}) -> "
        + (returned[0] if len(returned) == 1 else f"({', '.join(returned)})")
    )
    body += [
        f'    %v{i} = hal.tensor.export %r{i} "output{i}" : {kind} -> !hal.buffer_view'
        for i, kind in enumerate(results)
    ]
    back = ", ".join(f"%v{i}" for i in range(len(results)))
    views_out = ", ".join(["!hal.buffer_view"] * len(results))
    text = "\n".join(
        [
            attributes + "{",
            *header,
            _asm(executable),
            f"  util.func public @main({views}) -> ({views_out}) attributes {{iree.abi.stub}} {{",
            *body,
            f"    util.return {back} : {views_out}",
            "  }",
            "}",
            "",
        ]
    )
    return Dispatch(name, text, inputs, outputs, describe(root), len(calls))


def _value(type_: ir.Type) -> Value:
    found = irtypes.tensor_type(type_)
    sizes = () if found is None else tuple(d for d in found.sizes if d is not None)
    if found is None or found.torch or len(sizes) != len(found.sizes):
        raise _SkippedError(f"it has an operand {type_}: only static tensors are tuned")
    return Value(sizes, found.element)


def _asm(op: Op) -> str:
    return op.get_asm(use_local_scope=True)


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


# ---- the root op ---------------------------------------------------------------------------


def root_op(function: ir.Operation) -> ir.Operation | None:
    """The op that a dispatch's function is about; None when it has no structured op.

    The last attention, else the last op with a reduction, else the last structured op that is no
    fill: what the compiler takes, too.
    """
    structured = [
        op
        for op in ops_below(function)
        if op.name.startswith(("linalg.", "iree_linalg_ext.")) and op.name not in _NO_ROOTS
    ]
    attention = [op for op in structured if op.name in _ATTENTION]
    if attention:
        return attention[-1]
    ranked = [op for op in structured if op.name.startswith("linalg.") and _maps(op)]
    reducing = [op for op in ranked if _reductions(op)]
    chosen = reducing or ranked
    return chosen[-1] if chosen else None


_ATTENTION = ("iree_linalg_ext.attention", "iree_linalg_ext.online_attention")
_NO_ROOTS = frozenset({"linalg.fill", "linalg.yield", "linalg.index", "iree_linalg_ext.yield"})


def functions(module: ir.Module) -> Iterator[ir.Operation]:
    """The functions of all executables of a module, in order."""
    yield from (op for op in ops_below(module.operation) if op.name == "func.func")


def _maps(op: ir.Operation) -> list[ir.AffineMap]:
    if op.name in _ATTENTION:
        return [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    return compiler.indexing_maps(op) or []


def _dims_in(text: str) -> set[int]:
    return {int(d) for d in re.findall(r"\bd(\d+)\b", text)}


def _reductions(op: ir.Operation) -> set[int]:
    maps = _maps(op)
    results = len(op.results)
    written = set[int]().union(*(loops_of(e) for m in maps[-results:] for e in m.results))
    return set(range(maps[0].n_dims)) - written


def describe(op: ir.Operation) -> Root:
    """What an op computes. Raises a reason to skip it when a size is dynamic."""
    maps = _maps(op)
    results = len(op.results)
    operands = tuple(
        _value(v.type) if isinstance(v.type, ir.ShapedType) else Value((), str(v.type))
        for v in op.operands
    )
    expressions = [_results_of(m) for m in maps]
    rank = maps[0].n_dims
    sizes = _sizes(rank, expressions, operands)
    reductions = _reductions(op)
    kind, names = _names(op, rank, reductions, expressions)
    indices = tuple(
        tuple(re.sub(r"\bd(\d+)\b", lambda m: names[int(m[1])], e).replace(" ", "") for e in es)
        for es in expressions
    )
    region, captured = _region(op)
    return Root(
        kind,
        op.name,
        tuple(names),
        sizes,
        frozenset(names[d] for d in reductions),
        indices,
        operands[: len(maps)],
        results,
        region,
        captured,
    )


def key_of(op: ir.Operation) -> str:
    """The :attr:`Root.key` of an op; empty for one that cannot be tuned."""
    try:
        return describe(op).key
    except _SkippedError:
        return ""


def _results_of(map_: ir.AffineMap) -> list[str]:
    inside = str(map_).partition("-> (")[2].rpartition(")")[0]
    inside = inside.rstrip(">").removesuffix(")") if inside.endswith(">") else inside
    return [part.strip() for part in inside.split(",") if part.strip()]


def _sizes(rank: int, expressions: list[list[str]], operands: Sequence[Value]) -> Shape:
    sizes: dict[int, int] = {}
    for es, operand in zip(expressions, operands, strict=False):
        for expression, extent in zip(es, operand.shape, strict=True):
            found = re.fullmatch(r"d(\d+)", expression)
            if found:
                sizes.setdefault(int(found[1]), extent)
    if len(sizes) < rank:
        raise _SkippedError("the size of a loop cannot be seen in its operands")
    return tuple(sizes[d] for d in range(rank))


def _names(
    op: ir.Operation, rank: int, reductions: set[int], expressions: list[list[str]]
) -> tuple[str, list[str]]:
    roles: dict[str, list[int]]
    if op.name in _ATTENTION:
        kind, roles = "attention", _attention_roles(rank, expressions)
    elif compiler.is_contraction(op):
        kind, roles = "contraction", _contraction_roles(rank, expressions)
    elif compiler.is_convolution(op):
        kind, roles = "convolution", _convolution_roles(rank, expressions, reductions)
    else:
        kind = "reduction" if reductions else "generic"
        roles = {
            "p": [d for d in range(rank) if d not in reductions],
            "r": sorted(reductions),
        }
    names = [""] * rank
    for role, dims in roles.items():
        for outward, dim in enumerate(reversed(dims)):
            names[dim] = role if outward == 0 else f"{role}{outward}"
    if not all(names):
        raise _SkippedError(f"a loop of this {kind} has no role that is known")
    return kind, names


def _contraction_roles(rank: int, expressions: list[list[str]]) -> dict[str, list[int]]:
    held = [set().union(*(_dims_in(e) for e in es), set()) for es in expressions[:3]]
    roles: dict[str, list[int]] = {"b": [], "m": [], "n": [], "k": []}
    by = {"111": "b", "101": "m", "011": "n", "110": "k"}
    for dim in range(rank):
        role = by.get("".join(str(int(dim in h)) for h in held))
        if role:
            roles[role].append(dim)
    return roles


def _convolution_roles(
    rank: int, expressions: list[list[str]], reductions: set[int]
) -> dict[str, list[int]]:
    image, filter_, out = expressions[:3]
    alone = {int(e[1:]) for e in image if re.fullmatch(r"d\d+", e)}
    shared = set().union(*(_dims_in(e) for e in image if not re.fullmatch(r"d\d+", e)), set())
    in_filter = set().union(*(_dims_in(e) for e in filter_), set())
    in_out = set().union(*(_dims_in(e) for e in out), set())
    spatial = [d for d in range(rank) if d in shared and d not in reductions]
    window = [d for d in range(rank) if d in shared and d in reductions]
    roles: dict[str, list[int]] = {
        "n": [d for d in range(rank) if d in alone and d in in_out and d not in in_filter],
        "g": [d for d in range(rank) if d in alone and d in in_out and d in in_filter],
        "f": [d for d in range(rank) if d not in alone | shared and d in in_out],
        "c": [d for d in range(rank) if d in alone and d in reductions],
        "w": spatial[-1:],
        "h": spatial[-2:-1],
        "d": spatial[:-2],
        "kw": window[-1:],
        "kh": window[-2:-1],
        "kd": window[:-2],
    }
    return roles


def _attention_roles(rank: int, expressions: list[list[str]]) -> dict[str, list[int]]:
    q, k, v = ({int(e[1:]) for e in es} for es in expressions[:3])
    roles: dict[str, list[int]] = {"b": [], "m": [], "n": [], "d": [], "s": []}
    for dim in range(rank):
        held = "".join(n for n, s in (("q", q), ("k", k), ("v", v)) if dim in s)
        role = {"qkv": "b", "q": "m", "v": "n", "qk": "d", "kv": "s"}.get(held)
        if role:
            roles[role].append(dim)
    return roles


def _region(op: ir.Operation) -> tuple[str, str]:
    """The region's text, and the constants from outside that it uses, as text."""
    text = _asm(op)
    start = text.find("{\n")
    captured: dict[str, None] = {}
    block = op.regions[0].blocks[0] if len(op.regions) and len(op.regions[0].blocks) else None
    inside = list(ops_below(op)) if block is not None else []
    own = {str(r) for o in inside for r in o.results}
    for inner in inside:
        for value in inner.operands:
            owner = value.owner
            if isinstance(owner, ir.Block):
                continue
            if owner.name == "arith.constant" and str(value) not in own:
                captured[_asm(owner)] = None
    region = text[start:].rpartition("} ->")[0] + "}" if start >= 0 else ""
    if not region and block is not None:  # a named op hides its region
        generic = op.get_asm(use_local_scope=True, print_generic_op_form=True)
        region = "{" + generic.partition("({")[2].rpartition("})")[0] + "}"
    region = re.sub(r"\s+", " ", region)
    # Names depend on what else the function holds: number them anew.
    names: dict[str, str] = {}
    both = re.sub(
        r"%[\w$.-]+",
        lambda m: names.setdefault(m[0], f"%v{len(names)}"),
        "\n".join(captured) + "\0" + region,
    )
    constants, _, body = both.partition("\0")
    return body, constants


# ---- programs around one op ----------------------------------------------------------------


def program(root: Root, changed: dict[str, int] | None = None) -> str:
    """A program, at the input, whose only op computes what ``root`` does.

    ``changed`` gives loops other sizes. Raises MlirulesError for an op that cannot be written so.
    """
    if root.kind != "attention" and not root.region:
        raise MlirulesError.at(root.op, "has no region to write", code="tuning")
    old = root.extent
    new = {**old, **(changed or {})}
    operands = [
        Value(
            tuple(
                extent + _reach(e, new) - _reach(e, old)
                for e, extent in zip(es, o.shape, strict=True)
            ),
            o.element,
        )
        if o.shape
        else o
        for es, o in zip(root.indices, root.operands, strict=True)
    ]
    kinds = [
        str(o) if o.shape or i >= len(operands) - root.results else o.element
        for i, o in enumerate(operands)
    ]
    names = [f"%a{i}" for i in range(len(operands))]
    cut_at = len(operands) - root.results
    results = kinds[cut_at:]
    joined = ", ".join(
        f"affine_map<({', '.join(root.loops)}) -> ({', '.join(es)})>" for es in root.indices
    )
    # An attention reads nothing of what it writes, and its scale is a constant.
    own = list(zip(names, kinds, strict=True))
    given = own
    made: list[str] = []
    if root.kind == "attention":
        given = [(n, k) for n, k in own[:cut_at] if k.startswith("tensor")]
        made = [
            f"  {n} = arith.constant 0.125 : {k}"
            for n, k in own[:cut_at]
            if not k.startswith("tensor")
        ]
        made += [f"  {n} = tensor.empty() : {k}" for n, k in own[cut_at:]]
    listed = ", ".join(f"{n}: {k}" for n, k in given)
    result = results[0] if len(results) == 1 else f"({', '.join(results)})"
    if root.kind == "attention":
        head = f"iree_linalg_ext.attention <indexing_maps = [{joined}]>"
    else:
        iterators = ", ".join(
            f'"{"reduction" if loop in root.reductions else "parallel"}"' for loop in root.loops
        )
        head = f"linalg.generic {{indexing_maps = [{joined}], iterator_types = [{iterators}]}}"
    inputs = ""
    if cut_at:
        inputs = f" ins({', '.join(names[:cut_at])} : {', '.join(kinds[:cut_at])})"
    body = root.region.replace("; ", "\n")
    return "\n".join(
        [
            f"func.func @main({listed}) -> {result} {{",
            *([f"  {line}" for line in root.captured.split("\n")] if root.captured else []),
            *made,
            f"  %r{f':{root.results}' if root.results > 1 else ''} = {head}{inputs} "
            f"outs({', '.join(names[cut_at:])} : {', '.join(results)}) {body} -> {result}",
            "  return "
            + (", ".join(f"%r#{i}" for i in range(root.results)) if root.results > 1 else "%r")
            + f" : {', '.join(results)}",
            "}",
            "",
        ]
    )


def _reach(expression: str, sizes: dict[str, int]) -> int:
    """The largest value of an index expression of sums and products, plus one."""
    total = 0
    for term in expression.split("+"):
        factors = term.split("*")
        value = 1
        for factor in factors:
            value *= int(factor) if factor.isdigit() else sizes[factor] - 1
        total += value
    return total + 1
