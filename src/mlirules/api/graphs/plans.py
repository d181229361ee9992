"""A functional graph of ATen ops as a program: what it takes and gives, and its binary.

The graph is what AOTAutograd or torch.export make: no mutation, and every node says in ``meta``
what its value is like.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirules.api.binaries import Terms, kept, key_of, tuned_folder
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.iree import fx
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.parameters import write_archive
from mlirules.drivers.pipelines.transform import Recipe

__all__ = ["Binary", "Plan", "Result", "compiled", "fingerprint", "numbers", "planned"]


@dataclass(frozen=True)
class Result:
    """One result of a graph.

    ``kind`` is ``argument`` (the graph's argument ``index``), ``program`` (the program's result
    ``index``) or ``constant`` (``value``: a number or None). A tensor of a program has the type
    ``dtype``; the program gives it with its dims in the order ``dims``, and with ``copy`` it
    belongs to the program.
    """

    kind: str
    index: int = 0
    value: bool | int | float | None = None
    dtype: str = ""
    dims: tuple[int, ...] | None = None
    copy: bool = False


@dataclass(frozen=True)
class Plan:
    """How a graph's arguments and results are those of a program.

    ``arguments`` are the positions of the graph's arguments that the program takes, in its order;
    ``held`` those that are its weights, named ``p0`` and so on by position.
    """

    arguments: tuple[int, ...]
    held: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return all(result.kind != "program" for result in self.results)


@dataclass(frozen=True)
class Binary:
    """A compiled graph: the program, its plan, what rules did; ``warm`` when it was kept."""

    vmfb: bytes
    plan: Plan
    applications: dict[str, int]
    leftovers: tuple[str, ...]
    notes: tuple[str, ...]
    warm: bool


def planned(module: GraphModule, held: Collection[int]) -> tuple[GraphModule, Plan]:
    """The part of a graph that is to be compiled, and how it stands for the whole.

    ``held`` are the positions of arguments that are to be weights. What is returned as it came, or
    is a constant, is no part of the program; nor are arguments that nothing reads.
    """
    graph = Graph()
    mapped: dict[Node, Node] = {}
    returned = graph.graph_copy(module.graph, mapped)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    position = {node: index for index, node in enumerate(placeholders)}
    items: list[Any] = list(returned) if isinstance(returned, tuple | list) else [returned]
    results: list[Result] = []
    given: dict[Node, int] = {}
    outputs: list[Node] = []
    for item in items:
        if not isinstance(item, Node):
            results.append(Result("constant", value=item))
        elif item in position:
            results.append(Result("argument", position[item]))
        else:
            if item not in given:
                given[item] = len(given)
                outputs.append(item)
            results.append(_result(item, given[item]))
    graph.output(tuple(_in_order(graph, node, _dims(node.meta.get("val"))) for node in outputs))
    used: list[int] = []
    weights: list[int] = []
    for node, index in position.items():
        if not node.users:
            graph.erase_node(node)
        elif index in held and isinstance(node.meta.get("val"), torch.Tensor):
            weights.append(index)
        else:
            used.append(index)
    part = GraphModule(module, graph)
    return part, Plan(tuple(used), tuple(weights), tuple(results))


def _result(node: Node, index: int) -> Result:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return Result("program", index)
    dtype = str(value.dtype).removeprefix("torch.")
    return Result("program", index, dtype=dtype, dims=_dims(value))


def _dims(value: object) -> tuple[int, ...] | None:
    """The dims of a dense tensor as they lie in memory, the slowest first; None: as they come."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return None
    sizes, strides = numbers(value.shape), numbers(value.stride())
    if sizes is None or strides is None or 0 in sizes:
        return None
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], sizes[dim] == 1, dim))
    wanted = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != wanted:
            return None  # it has gaps, or shares elements
        wanted *= sizes[dim]
    big = [dim for dim in order if sizes[dim] != 1]
    if big == sorted(big):
        return None
    return tuple(order)


def numbers(values: Sequence[int | torch.SymInt]) -> list[int] | None:
    """Sizes as they are now; None where one is not known before the program runs."""
    out = []
    for value in values:
        if isinstance(value, torch.SymInt):
            hint = value.node.hint
            if hint is None:
                return None
            out.append(int(hint))
        else:
            out.append(int(value))
    return out


def _in_order(graph: Graph, node: Node, dims: tuple[int, ...] | None) -> Node:
    if dims is None:
        return node
    turned = graph.call_function(torch.ops.aten.permute.default, (node, list(dims)))
    turned.meta["val"] = node.meta["val"].permute(dims)
    if "stack_trace" in node.meta:
        turned.meta["stack_trace"] = node.meta["stack_trace"]
    return turned


# ---------------------------------------------------------------- what a graph is


def fingerprint(module: GraphModule, plan: Plan) -> bytes:
    """All that a graph computes, and nothing of where it was written: equal for equal graphs."""
    digest = hashlib.sha256()
    names = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        digest.update("\x1f".join(_words(module, node, names)).encode() + b"\n")
    digest.update(json.dumps(asdict(plan), default=repr).encode())
    return digest.digest()


def _words(module: GraphModule, node: Node, names: dict[Node, str]) -> Iterator[str]:
    def named(argument: Any) -> str:
        stand_in: Any = lambda n: _Named(names[n])  # noqa: E731 - said to be no node
        return repr(torch.fx.node.map_arg(argument, stand_in))

    yield node.op
    if node.op == "get_attr":
        held = _attribute(module, str(node.target))
        if isinstance(held, torch.Tensor):
            plain = held.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            data: Any = plain.view(torch.uint8).numpy() if plain.numel() else b""
            yield hashlib.sha256(data).hexdigest()
        else:
            yield repr(held)
    elif node.op == "call_function":
        yield str(node.target)
        yield named(node.args)
        yield named(node.kwargs)
    elif node.op == "output":
        yield named(node.args)
    for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        yield _described(value)


class _Named:
    """Stands for a node among arguments that are printed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {_sizes(value.shape)} {_sizes(value.stride())}"
    if isinstance(value, torch.SymInt):
        return f"int {_range(value)}"
    return type(value).__name__


def _sizes(values: Sequence[object]) -> str:
    return ",".join(_range(v) if isinstance(v, torch.SymInt) else str(v) for v in values)


def _range(size: torch.SymInt) -> str:
    """A size's expression with what is known of its symbols, and its order of magnitude now."""
    expression = size.node.expr
    environment = size.node.shape_env
    bounds = {} if environment is None else environment.var_to_range
    known = [f"{s}:{bounds[s]}" for s in sorted(expression.free_symbols, key=str) if s in bounds]
    return f"{expression}[{';'.join(known)}]"


def _attribute(module: object, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


# ---------------------------------------------------------------- compiling


def compiled(
    module: GraphModule,
    held: Collection[int],
    recipe: Recipe,
    terms: Terms,
) -> Binary:
    """Compile a graph by a recipe, whose source is not looked at, unless it is kept.

    Raises what the importer raises, and what :meth:`Recipe.compile` raises.
    """
    tune, fallback = terms.tune, terms.fallback
    part, plan = planned(module, held)
    if plan.empty:
        return Binary(b"", plan, {}, (), (), True)

    def make() -> tuple[bytes, dict[str, Any]]:
        imported, constant = fx.import_graph(part, _names(plan))
        data = io.BytesIO()
        imported.operation.write_bytecode(data)

        def source() -> Program:
            return Program(parsed(data.getvalue(), recipe.path, recipe.session))

        made, notes = replace(recipe, source=source), list[str]()
        if tune:
            made, said = _tuned(made, source, tune, tuned_folder(key), _held(part, plan))
            notes.append(said)
        binary, done = made.compile(fallback=fallback)
        return binary, {
            "constant": sorted(constant),
            "applications": dict(done.applications),
            "leftovers": done.leftovers,
            "notes": [*notes, *done.notes],
        }

    assert recipe.pipeline is not None
    further = (*recipe.flags, *map(str, recipe.configs), str(fallback), torch.__version__)
    further += (f"tune {tune:g}",) if tune else ()
    key = key_of(fingerprint(part, plan), recipe, further)
    vmfb, told, warm = kept(key, make, terms.cache)
    constant = set(told["constant"])
    results = tuple(
        Result(**{**asdict(r), "dims": r.dims, "copy": True})
        if r.kind == "program" and r.index in constant and r.dtype
        else r
        for r in plan.results
    )
    return Binary(
        vmfb,
        Plan(plan.arguments, plan.held, results),
        told["applications"],
        tuple(told["leftovers"]),
        tuple(told["notes"]),
        warm,
    )


def _names(plan: Plan) -> dict[int, str]:
    """The weights of the compiled part by their position among its own placeholders."""
    positions = sorted((*plan.arguments, *plan.held))
    return {positions.index(index): f"p{index}" for index in plan.held}


def _tuned(
    recipe: Recipe,
    source: Callable[[], Program],
    seconds: float,
    folder: Path,
    weights: Mapping[str, torch.Tensor],
) -> tuple[Recipe, str]:
    """The recipe with what a search finds, and that in words.

    Of the weights only types and sizes matter to it.
    """
    from mlirules.drivers.tuning.whole import tuned

    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "weights.irpa"
    made = {}
    for name, like in weights.items():
        value = torch.zeros(like.shape, dtype=like.dtype)
        if like.is_floating_point():
            value = (torch.randn(like.shape) / 16).to(like.dtype)
        made[name] = value.reshape(-1).view(torch.uint8).numpy()
    try:
        if made:
            write_archive(archive, made)
        return tuned(recipe, source, seconds, folder, (str(archive),) if made else ())
    finally:
        archive.unlink(missing_ok=True)


def _held(module: GraphModule, plan: Plan) -> dict[str, torch.Tensor]:
    """What the weights of the compiled part are like, by name."""
    names = _names(plan)
    placeholders = module.graph.find_nodes(op="placeholder")
    return {names[i]: n.meta["val"] for i, n in enumerate(placeholders) if i in names}
