"""Graphs in parts: what is compiled, and what runs eagerly between."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from mlirules.api.dynamo.report import Eager, user_place
from mlirules.drivers.frontend.decompositions import dialect_name
from mlirules.drivers.iree.compiler import is_registered_op
from mlirules.drivers.iree.diagnostics import CompileError
from mlirules.language.faults import MlirulesError

__all__ = [
    "ATTENTION",
    "PREFIX",
    "Refusals",
    "alone",
    "computing",
    "divided",
    "refusal",
    "sizes_beside",
]

#: What parts of a divided graph are called that are to be compiled.
PREFIX = "compiled_"

_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        "bool",
        *(f"int{n}" for n in (8, 16, 32, 64)),
        *(f"uint{n}" for n in (8, 16, 32, 64)),
        *(f"float{n}" for n in (16, 32, 64)),
        "bfloat16",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    )
)
#: PyTorch's kernel for attention on CPUs, as training has it.
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

#: How many ops are compiled alone to find the one that fails.
_TRIED = 16

#: Why a node is no part of a program that computes no tensor: Python computes it, in no time.
BESIDE = "it gives no tensor"

_TAGS = {
    torch.Tag.nondeterministic_seeded: "its numbers come from PyTorch's random generator",
    torch.Tag.data_dependent_output: "it gives a number that depends on data",
    torch.Tag.dynamic_output_shape: "the size of its result depends on data",
}


def computing(graph: torch.fx.Graph) -> list[Node]:
    """The nodes that compute tensors."""
    return [n for n in graph.nodes if n.op == "call_function" and n.target is not operator.getitem]


def refusal(node: Node, known: Callable[[str], bool]) -> str | None:
    """Why a node cannot be part of a compiled program; None: nothing is known against it.

    ``known`` says of an op's name whether a rule takes it.
    """
    if node.op != "call_function":
        return None if node.op in ("placeholder", "output", "get_attr") else f"a {node.op}"
    if node.target is operator.getitem:
        inner = node.args[0]
        return refusal(inner, known) if isinstance(inner, Node) else None
    values = list(torch.utils._pytree.tree_leaves(node.meta.get("val")))
    for value in (*values, *(n.meta.get("val") for n in node.all_input_nodes)):
        if isinstance(value, torch.Tensor) and (why := _unfit(value)):
            return why
    if not any(isinstance(value, torch.Tensor) for value in values):
        plain = bool(values) and all(isinstance(v, torch.SymInt | int) for v in values)
        return None if plain and not _unbacked(values) else BESIDE
    if _unbacked(values):
        return "the size of its result depends on data"
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "it is no op of ATen"
    if target is ATTENTION:
        return "its backward reads what only PyTorch's own kernel gives"
    for tag, why in _TAGS.items():
        if tag in target.tags:
            return why
    name = dialect_name(target)
    if not is_registered_op(name) and not known(name):
        return "the torch dialect has no such op, and no rule takes it"
    if target is torch.ops.aten.as_strided.default:
        value = node.all_input_nodes[0].meta.get("val")
        if not (isinstance(value, torch.Tensor) and value.is_contiguous()):
            return "it looks at memory that is not in order"
    return None


def _unfit(value: torch.Tensor) -> str | None:
    if value.dtype not in _DTYPES:
        return f"IREE has no {str(value.dtype).removeprefix('torch.')} tensors"
    if value.layout is not torch.strided:
        return f"its layout is {str(value.layout).removeprefix('torch.')}"
    if value.device.type != "cpu":
        return f"its tensors are on the device {value.device.type!r}"
    return None


def _unbacked(values: Sequence[object]) -> bool:
    for value in values:
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
                try:
                    if size.node.hint is None:
                        return True
                except Exception:  # noqa: BLE001 - PyTorch raises what it likes for these
                    return True
    return False


@dataclass
class Refusals:
    """What of one graph is not compiled, and why: nodes by name."""

    nodes: dict[str, str] = field(default_factory=dict)

    def why(self, node: Node) -> str | None:
        """Why a node is not compiled; None: it is."""
        return self.nodes.get(node.name)

    def blame(
        self,
        error: Exception,
        nodes: Collection[Node],
        alone: Callable[[Node], Exception | None],
    ) -> None:
        """Refuse what an error is about among the nodes of a part.

        Where it is not told which op that is, each is tried ``alone``, which gives the error of
        that or None; where none fails so, all of them are refused. What is refused was not before,
        so that this comes to an end.
        """
        fresh = [n for n in nodes if self.why(n) is None]
        suspects = self._suspects(error, fresh) or fresh
        if len({_name(n) for n in suspects}) > 1:
            # Equal ops of equal types fail alike.
            kinds: dict[str, list[Node]] = {}
            for node in suspects:
                kinds.setdefault(_kind(node), []).append(node)
            if len(kinds) <= _TRIED:
                found = {k: why for k, n in kinds.items() if (why := alone(n[0])) is not None}
                for kind, why in found.items():
                    self.nodes |= {n.name: _reason(why) for n in kinds[kind]}
                if found:
                    return
        self.nodes |= {n.name: _reason(error) for n in suspects}

    @staticmethod
    def _suspects(error: Exception, nodes: Sequence[Node]) -> list[Node]:
        """The nodes that an error names, by op and by the user's line."""
        if not isinstance(error, MlirulesError):
            words = str(error)
            return [n for n in nodes if f"target={n.target}" in words]
        places = {f"{f.span.path}:{f.span.line}" for f in error.faults if f.span.line}
        ops = {word for f in error.faults for word in f.message.replace("'", " ").split()}
        if isinstance(error, CompileError) and error.op:
            ops.add(error.op)
        named = [n for n in nodes if _name(n) in ops]
        there = [n for n in nodes if places & set(_places(n))]
        return [n for n in named if n in there] or named or there

    def eager(self, graph: torch.fx.Graph) -> tuple[Eager, ...]:
        """What of a graph runs eagerly, op by op."""
        found: dict[tuple[str, str], list[Node]] = {}
        for node in computing(graph):
            why = self.why(node)
            if why is not None and why != BESIDE:
                found.setdefault((str(node.target), why), []).append(node)
        return tuple(
            Eager(op, len(nodes), why, *user_place(nodes[0].stack_trace))
            for (op, why), nodes in found.items()
        )


def alone(owner: GraphModule, node: Node) -> GraphModule:
    """A graph of one op, whose arguments are what the op takes."""
    graph = torch.fx.Graph()
    inputs: dict[Node, Node] = {}
    for given in node.all_input_nodes:
        inputs[given] = graph.placeholder(given.name)
        inputs[given].meta["val"] = given.meta.get("val")
    copied = graph.node_copy(node, lambda n: inputs[n])
    value = node.meta.get("val")
    if not isinstance(value, tuple | list):
        graph.output((copied,))
        return GraphModule(owner, graph)
    results = []
    for index, part in enumerate(value):
        if isinstance(part, torch.Tensor):
            results.append(graph.call_function(operator.getitem, (copied, index)))
            results[-1].meta["val"] = part
    graph.output(tuple(results))
    return GraphModule(owner, graph)


def _kind(node: Node) -> str:
    """An op with its constants and the types of what it takes: what it compiles by."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = [f"{v.dtype}{v.dim()}" if isinstance(v, torch.Tensor) else type(v) for v in values]
    constants = [a for a in node.args if not isinstance(a, Node)]
    return f"{node.target} {types} {constants}"


def _name(node: Node) -> str:
    target = node.target
    return dialect_name(target) if isinstance(target, torch._ops.OpOverload) else str(target)


def _places(node: Node) -> Iterator[str]:
    for line in (node.stack_trace or "").splitlines():
        words = line.strip()
        if words.startswith('File "'):
            file, _, rest = words[len('File "') :].partition('"')
            yield f"{file}:{rest.removeprefix(', line ').split(',')[0]}"


def _reason(error: Exception) -> str:
    if isinstance(error, MlirulesError) and error.faults:
        return error.faults[0].message.strip().split("\n")[0][:300]
    first = (str(error).strip() or type(error).__name__).split("\n")[0]
    return f"{type(error).__name__}: {first[:300]}"


_ASKING = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_stride.int,
)


def sizes_beside(graph: torch.fx.Graph) -> None:
    """Compute sizes of computed tensors from the sizes that are arguments, in place.

    A number that eager ops need would otherwise wait for the tensor it is asked of.
    """
    known: dict[object, torch.fx.Proxy] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_symbol:
            known[value.node.expr] = torch.fx.Proxy(node)
    for target in _ASKING:
        for node in graph.find_nodes(op="call_function", target=target):
            value = node.meta.get("val")
            if not isinstance(value, torch.SymInt):
                continue
            expression = value.node.expr
            if not expression.free_symbols or not expression.free_symbols <= known.keys():
                continue
            with graph.inserting_before(node):
                made = sympy_interp(PythonReferenceAnalysis, known, expression)
            if isinstance(made, torch.fx.Proxy):
                made.node.meta.setdefault("val", value)
                node.replace_all_uses_with(made.node)
                graph.erase_node(node)


def divided(module: GraphModule, refused: Mapping[Node, str]) -> GraphModule:
    """A graph whose parts to be compiled are modules called :data:`PREFIX` and a number.

    A part holds all nodes that as many refused ones stand before, at most: what goes from one part
    to another has passed a refused node, so that no two parts wait for each other.
    """
    # Compiled on even levels, eager on odd ones; what waits for no compiled node goes before all.
    level: dict[Node, int] = {}
    waiting: set[Node] = set()
    parts: dict[int, dict[Node, int | None]] = {}
    for node in module.graph.nodes:
        at = max((level[i] for i in node.all_input_nodes if i in level), default=0)
        if node.op == "call_function":
            waits = not waiting.isdisjoint(node.all_input_nodes)
            if node not in refused and (waits or _computes(node)):
                at += at % 2
                parts.setdefault(at, {})[node] = None
                waiting.add(node)
            elif waits:
                at += at % 2 == 0
                waiting.add(node)
        level[node] = at
    worth = [part for part in parts.values() if any(_computes(node) for node in part)]
    return fuse_by_partitions(module, worth, PREFIX, always_return_tuple=True)


def _computes(node: Node) -> bool:
    if node.target is operator.getitem:
        return False
    return any(
        isinstance(value, torch.Tensor)
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val"))
    )
