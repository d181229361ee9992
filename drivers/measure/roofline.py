"""A roofline model of compiled programs: what a target would need for each dispatch.

The compiler's own output after dispatches were formed (``--compile-to=flow``) says how often each
kernel is launched, which tensors it reads and writes, and which structured ops it computes. One
launch takes

    launch + max(sum over ops of flops / (peak * efficiency of the op's class), bytes / bandwidth)

where what fits in a cache moves faster, and memory that is new to the process slower.

Everything about the target comes from ``specs/targets/KIND.yaml``: see
:class:`~mlirules.drivers.measure.parameters.Parameters`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler, irtypes
from mlirules.drivers.iree.affine import loops_of
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.measure.parameters import Class, Parameters
from mlirules.support import cache, package

PARAMETERS = package.SPECS / "targets"
#: So many files are kept as they were read.
_KEPT = 50


def parameters(kind: str, folder: Path = PARAMETERS) -> Parameters:
    """The parameters of a kind of target. Raises :class:`MlirulesError`, located.

    Kept by the file's content, on disk also by the code that reads it.
    """
    path = folder / f"{kind}.yaml"
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    return _parameters(path, raw)


@functools.lru_cache(maxsize=16)
def _parameters(path: Path, raw: bytes) -> Parameters:
    said = f"{package.VERSION}\0{package.content('drivers/measure', '.py')}\0".encode()
    key = hashlib.sha256(said + raw).hexdigest()[:32]
    kept = cache.kept("targets", key) if raw else None
    if kept is not None:
        return Parameters(**json.loads(kept))
    from mlirules.drivers.measure import parameters_file

    made = parameters_file.read(path)
    cache.keep("targets", key, json.dumps(asdict(made)).encode(), limit=_KEPT)
    return made


@dataclass(frozen=True)
class Dispatch:
    """One kernel of a program: how much work a launch is, and for how long the model takes it."""

    name: str
    launches: int
    flops: float
    bytes: float
    #: The class of the op that takes longest.
    kind: str
    compute_s: float
    memory_s: float
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Plain numbers; ``seconds`` is one launch with its start."""
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    """A whole program by the model."""

    target: str
    dispatches: tuple[Dispatch, ...]

    @property
    def seconds(self) -> float:
        """One call of the program."""
        return sum(d.seconds * d.launches for d in self.dispatches)

    @property
    def launches(self) -> int:
        """Kernels started in one call."""
        return sum(d.launches for d in self.dispatches)

    @property
    def flops(self) -> float:
        """Operations in one call."""
        return sum(d.flops * d.launches for d in self.dispatches)

    @property
    def bytes(self) -> float:
        """Bytes read and written by the kernels in one call."""
        return sum(d.bytes * d.launches for d in self.dispatches)

    def as_json(self) -> dict[str, Any]:
        """Totals, milliseconds."""
        return {
            "ms": 1e3 * self.seconds,
            "launches": self.launches,
            "flops": self.flops,
            "bytes": self.bytes,
        }


class DynamicShape(Exception):
    """The program has a size that is known only when it runs."""


def estimate(text: str, job: compiler.Job | Target, known: Parameters | None = None) -> Estimate:
    """What the model makes of a program (MLIR text that compiles for the job's target).

    Raises CompileError, and DynamicShape where a kernel's sizes are not known.
    """
    job = compiler.Job.of(job)
    flow = compiler.lower_to(text, job, "flow")
    return of_flow(flow, job.target, known or parameters(job.target.kind))


def of_flow(text: str, target: Target, known: Parameters) -> Estimate:
    """The estimate of a program given as the compiler's output after dispatches were formed."""
    module = compiler.parse(text, "<flow>", compiler.context())
    kernels: dict[str, ir.Operation] = {}
    launches: dict[str, int] = {}
    for op in _ops(module.operation, ("util.initializer",)):
        if op.name == "flow.dispatch":
            # Of several entry points the first: they are variants of one kernel.
            name = entry_points(op)[0][1]
            launches[name] = launches.get(name, 0) + _turns(op)
        elif op.name == "func.func":
            kernels[ir.StringAttr(op.attributes["sym_name"]).value] = op
    found = [
        replace(_kernel(name, kernels[name], known), launches=count)
        for name, count in launches.items()
        if name in kernels
    ]
    return Estimate(target.name, tuple(found))


def _turns(op: ir.Operation) -> int:
    """How often an op runs: the turns of the loops around it; 1 for those of unknown length."""
    turns, around = 1, op.parent
    while around is not None and around.name not in ("util.func", "builtin.module"):
        if around.operation.name == "scf.for":
            low, high, step = (_constant(around.operands[n]) for n in range(3))
            if low is not None and high is not None and step:
                turns *= max(0, -(-(high - low) // step))
        around = around.parent
    return turns


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return int(ir.IntegerAttr(owner.attributes["value"]).value)


def _ops(operation: ir.Operation, skip: Sequence[str] = ()) -> Iterator[ir.Operation]:
    return ops_below(operation, lambda op: op.name not in skip)


def _kernel(name: str, function: ir.Operation, known: Parameters) -> Dispatch:
    flops = moved = compute = 0.0
    longest, kind = -1.0, "other"
    results: list[float] = []
    read: dict[ir.Value, float] = {}
    for op in _ops(function, ("linalg.", "iree_linalg_ext.")):
        if op.name.endswith("dispatch.tensor.load"):
            source = op.operands[0]
            read[source] = read.get(source, 0.0) + _bytes(op.results[0].type)
        elif op.name.endswith("dispatch.tensor.store"):
            results.append(_bytes(op.operands[0].type))
            moved += results[-1]
        elif op.name.startswith(("linalg.", "iree_linalg_ext.")) and op.results:
            work = _work(op, known)
            if work is None:
                continue
            operations, which, element, share = work
            seconds = operations / (known.peak(element) * known.efficiency[which] * share)
            flops += operations
            compute += seconds
            if seconds > longest:
                longest, kind = seconds, which
    # Slices of one tensor that overlap come from memory once.
    moved += sum(min(size, _held(source.type, size)) for source, size in read.items())
    memory = known.memory(moved, results)
    took = 1e-6 * known.launch_us + max(compute, memory)
    return Dispatch(name, 1, flops, moved, kind, compute, memory, took)


def _shape(type_: ir.Type) -> list[int]:
    shaped = ir.ShapedType(type_)
    if not shaped.has_static_shape:
        raise DynamicShape(str(type_))
    return list(shaped.shape)


def _element(type_: ir.Type) -> str:
    return str(ir.ShapedType(type_).element_type)


def _bytes(type_: ir.Type) -> float:
    # A bool takes a byte in memory.
    return math.prod(_shape(type_)) * max(irtypes.bits(ir.ShapedType(type_).element_type), 8) / 8


def _held(type_: ir.Type, otherwise: float) -> float:
    """The bytes of the tensor that a dispatch is bound to; ``otherwise`` where they vary."""
    held = irtypes.bound(type_)
    if not isinstance(held, ir.RankedTensorType) or not held.has_static_shape:
        return otherwise
    return _bytes(held)


_SPECIAL = (
    "math.exp",
    "math.log",
    "math.erf",
    "math.tanh",
    "math.sin",
    "math.cos",
    "math.pow",
    "math.fpowi",
    "math.atan",
    "math.sqrt",
    "math.rsqrt",
    "math.cbrt",
)
_FREE = (
    "linalg.yield",
    "linalg.index",
    "iree_linalg_ext.yield",
    "arith.constant",
    "arith.ext",
    "arith.trunc",
    "arith.bitcast",
    "arith.index_cast",
)


def _work(op: ir.Operation, known: Parameters) -> tuple[float, Class, str, float] | None:
    """Operations of one structured op, its class, the element type they are of, and the share of
    the class's efficiency that its sizes leave."""
    if op.name in ("linalg.fill", "iree_linalg_ext.yield", "linalg.yield", "linalg.index"):
        return None
    shaped = [v.type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    element = _element(shaped[0]) if shaped else "f32"
    if op.name in ("iree_linalg_ext.attention", "iree_linalg_ext.online_attention"):
        return _attention(op, known), "attention", element, 1.0
    maps = compiler.indexing_maps(op) if op.name.startswith("linalg.") else None
    if maps is None:
        results = sum(math.prod(_shape(r.type)) for r in op.results)
        return float(results), "other", element, 1.0
    sizes = _loops(op, maps)
    reduces = _reduces(maps, len(sizes))
    bodies = [inner for inner in _ops(op) if not inner.name.startswith(_FREE)]
    each = sum(known.special_flops if b.name.startswith(_SPECIAL) else 1.0 for b in bodies)
    operations = each * math.prod(sizes)
    if not reduces:
        return operations, "elementwise", element, 1.0
    names = {b.name for b in bodies}
    multiplies = names & {"arith.mulf", "arith.muli", "complex.mul"}
    adds = names & {"arith.addf", "arith.addi", "complex.add"}
    if not (multiplies and adds and len(maps) >= 3):
        return operations, "reduction", element, 1.0
    kind = _product(maps)
    share = 1.0
    if "convolution" in kind:
        kind = _depthwise(maps) or kind
        row = _row(maps)
        if "convolution" in kind and row is not None:
            share = known.of_rows(sizes[row])
    elif kind == "contraction" and any(_steps(value) for value in op.operands):
        kind = "strided-contraction"
    elif kind == "contraction" and _swapped(maps):
        kind = "swapped-contraction"
    return operations, kind, element, share


def _steps(value: ir.Value) -> bool:
    """Whether a value is read from memory with gaps."""
    owner = value.owner
    if isinstance(owner, ir.Block) or not owner.name.endswith("dispatch.tensor.load"):
        return False
    return any(step > 1 for step in ir.DenseI64ArrayAttr(owner.attributes["static_strides"]))


def _swapped(maps: Sequence[ir.AffineMap]) -> bool:
    """Whether the first factor, and not the second, runs along the rows of the result."""
    first, second, result = (
        [str(place) for place in map_.results] for map_ in (maps[0], maps[1], maps[-1])
    )
    return bool(result) and result[-1] in first and result[-1] not in second


def _reduces(maps: Sequence[ir.AffineMap], loops: int) -> bool:
    """Whether some loop does not number the result."""
    named = {loop for place in maps[-1].results for loop in loops_of(place)}
    return not named.issuperset(range(loops))


def _product(maps: Sequence[ir.AffineMap]) -> Class:
    """Sums of loops make a convolution; multiples of them are strided."""
    places = [str(place) for map_ in maps for place in map_.results]
    strided = any("*" in place for place in places)
    if any("+" in place for place in places):
        return "strided-convolution" if strided else "convolution"
    return "strided-contraction" if strided else "contraction"


def _depthwise(maps: Sequence[ir.AffineMap]) -> Class | None:
    """Whether a convolution sums over its window alone, and if so which loop runs along the rows
    of the result: the channels, whose products make a vector, or places of the window."""
    image = next((m for m in maps[:-1] if any("+" in str(r) for r in m.results)), None)
    if image is None:
        return None
    plain = {str(place) for place in image.results}
    result = [str(place) for place in maps[-1].results]
    others = {str(place) for m in maps[:-1] if m is not image for place in m.results}
    if (plain - set(result)) & others or (others & set(result)) - plain:
        return None
    if not others & set(result):
        return None
    return "depthwise" if result[-1] in plain else "scalar-depthwise"


def _row(maps: Sequence[ir.AffineMap]) -> int | None:
    """The loop along the rows of a convolution's result where those are places of the image (and
    not channels, which a filter has, too)."""
    last = maps[-1].results[-1] if len(maps[-1].results) else None
    if not isinstance(last, ir.AffineDimExpr) or any(last in m.results for m in maps[:-1]):
        return None
    return last.position


def _loops(op: ir.Operation, maps: Sequence[ir.AffineMap]) -> list[int]:
    """How often each loop of a structured op runs."""
    sizes = [1] * maps[0].n_dims
    for map_, value in zip(maps, op.operands, strict=False):
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        for expression, size in zip(map_.results, _shape(value.type), strict=False):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return sizes


def _attention(op: ir.Operation, known: Parameters) -> float:
    """Two products, and an exponential for each score."""
    maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    sizes = _loops(op, maps)

    def loops(map_: ir.AffineMap) -> set[int]:
        return {loop for place in map_.results for loop in loops_of(place)}

    def times(which: set[int]) -> float:
        return float(math.prod(sizes[d] for d in which))

    query, key, value, result = (loops(maps[n]) for n in (0, 1, 2, -1))
    scores = (query | key) & (value | result)
    products = times(query | key) + times(value | result)
    return 2 * products + known.special_flops * times(scores)
