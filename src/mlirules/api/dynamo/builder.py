"""A graph as a function: compiled as far as possible, the rest eager and told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from mlirules.api.binaries import Terms
from mlirules.api.dynamo.partition import (
    BESIDE,
    PREFIX,
    Refusals,
    alone,
    computing,
    divided,
    refusal,
    sizes_beside,
)
from mlirules.api.dynamo.report import Compiled, Reports
from mlirules.api.graphs.plans import compiled
from mlirules.api.graphs.programs import GraphProgram
from mlirules.language.faults import CheckFailed

if TYPE_CHECKING:
    from mlirules.api.session import Session

__all__ = ["Asked", "Built", "build"]

#: What differs by more is wrong, by the type's precision: relative to the largest value.
_TOLERANCES = {
    torch.float64: 1e-6,
    torch.float32: 1e-3,
    torch.complex64: 1e-3,
    torch.complex128: 1e-6,
}
_COARSE = 5e-2


class Built:
    """A graph as AOTAutograd calls it: with a list of all its arguments."""

    def __init__(
        self, run: Callable[[list[Any]], Any], programs: Sequence[GraphProgram], facts: Compiled
    ) -> None:
        # AOTAutograd hands over its list, to be emptied. Of the instance, because PyTorch copies
        # what instances have, when it wraps them.
        self._boxed_call = True
        self._run = run
        self.programs = list(programs)
        self.facts = facts

    def __call__(self, arguments: list[object]) -> Any:
        """The graph's results, as a list."""
        given = list(arguments)
        arguments.clear()
        return self._run(given)


@dataclass(frozen=True)
class Asked:
    """How a graph is to be compiled, and where that is noted."""

    session: Session
    #: What messages call the graph.
    name: str
    reports: Reports
    #: What cannot be compiled is an error.
    strict: bool = False
    #: The first call's results are compared with those of PyTorch.
    check: bool = False


def build(asked: Asked, module: GraphModule, held: Collection[int]) -> Built:
    """Compile a graph, with its arguments ``held`` as weights.

    What cannot be compiled runs eagerly and is noted in the reports.

    Raises :class:`CheckFailed` where that is asked to be an error, with every op and its reason.
    """
    session, name = asked.session, asked.name
    started = time.perf_counter()
    refused = Refusals()
    for node in module.graph.nodes:
        why = refusal(node, session.knows)
        if why is not None:
            refused.nodes[node.name] = why
    run, programs = _built(session, module, held, refused, name)
    eager = refused.eager(module.graph)
    if asked.strict and eager:
        raise CheckFailed(
            f"{name}: strict, and not all of it compiles:\n" + "\n".join(map(str, eager))
        )
    everything = computing(module.graph)
    rules: Counter[str] = Counter()
    for program in programs:
        rules.update(program.binary.applications)
    facts = Compiled(
        name,
        len(everything),
        sum(refused.why(node) in (None, BESIDE) for node in everything),
        len(programs),
        time.perf_counter() - started,
        sum(program.binary.warm for program in programs),
        dict(rules),
        tuple(sorted({op for p in programs for op in p.binary.leftovers})),
        tuple(dict.fromkeys(note for p in programs for note in p.binary.notes)),
        eager,
    )
    asked.reports.add(facts)
    if asked.check and programs:
        run = _checked(run, module, name)
    return Built(run, programs, facts)


def _built(
    session: Session, module: GraphModule, held: Collection[int], refused: Refusals, name: str
) -> tuple[Callable[[list[Any]], Any], list[GraphProgram]]:
    recipe = session.recipe("", name)

    def trial(node: Node) -> Exception | None:
        try:
            with session.working():
                compiled(alone(module, node), (), recipe, Terms(session.cache))
        except Exception as error:  # noqa: BLE001 - the importer raises what it likes
            return error
        return None

    while True:
        nodes = [n for n in module.graph.nodes if n.op == "call_function"]
        out = {node: why for node in nodes if (why := refused.why(node)) is not None}
        if not out:
            try:
                with session.working():
                    binary = compiled(module, held, recipe, Terms(session.cache, tune=session.tune))
                program = GraphProgram(binary, session.target.device)
            except Exception as error:  # noqa: BLE001 - the importer raises what it likes
                refused.blame(error, computing(module.graph) or nodes, trial)
                continue
            return program, [] if binary.plan.empty else [program]
        parts, programs, again = _parts(session, module, held, refused, out, trial)
        if not again:
            return _Eager(parts), programs


def _parts(
    session: Session,
    module: GraphModule,
    held: Collection[int],
    refused: Refusals,
    out: dict[Any, str],
    trial: Callable[[Node], Exception | None],
) -> tuple[GraphModule, list[GraphProgram], bool]:
    """The graph with compiled parts; whether one failed, so that the parts are others now."""
    recipe = session.recipe("", "graph")
    copied = torch.fx.Graph()
    mapped: dict[Any, Any] = {}
    copied.output(copied.graph_copy(module.graph, mapped))
    sizes_beside(copied)
    whole = GraphModule(module, copied)
    parts = divided(whole, {mapped[node]: why for node, why in out.items()})
    weights = {n for i, n in enumerate(parts.graph.find_nodes(op="placeholder")) if i in held}
    given = {n.target: n.args for n in parts.graph.find_nodes(op="call_module")}
    originals = {node.name: node for node in module.graph.nodes}
    programs: list[GraphProgram] = []
    for child, part in list(parts.named_children()):
        if not child.startswith(PREFIX) or not isinstance(part, GraphModule):
            continue
        try:
            with session.working():
                own = [i for i, n in enumerate(given[child]) if n in weights]
                binary = compiled(part, own, recipe, Terms(session.cache, tune=session.tune))
            program = GraphProgram(binary, session.target.device)
        except Exception as error:  # noqa: BLE001 - the importer raises what it likes
            inside = [originals[n.name] for n in computing(part.graph) if n.name in originals]
            refused.blame(error, inside, trial)
            return parts, [], True
        programs.append(program)
        setattr(parts, child, _Part(program))
    return parts, programs, False


class _Part(torch.nn.Module):
    """A compiled part in the place of its graph."""

    def __init__(self, program: GraphProgram) -> None:
        super().__init__()
        self._program = program

    def forward(self, *arguments: object) -> tuple[Any, ...]:
        """The part's results."""
        return tuple(self._program(arguments))


class _Eager:
    """A graph that PyTorch runs op by op, but for its compiled parts."""

    def __init__(self, module: GraphModule) -> None:
        module.recompile()
        self._module = module

    def __call__(self, arguments: list[object]) -> Any:
        with torch.no_grad():
            return self._module(*arguments)


def _checked(
    run: Callable[[list[Any]], Any], module: GraphModule, name: str
) -> Callable[[list[Any]], Any]:
    """The first call is compared with PyTorch. Raises :class:`CheckFailed`."""
    done = False

    def checked(arguments: list[object]) -> Any:
        nonlocal done
        if done:
            return run(arguments)
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        state = torch.get_rng_state()
        found = run(arguments)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        with torch.no_grad():
            expected = module(*copies)
        torch.set_rng_state(after)
        wrong = [
            f"result {i}: {said}"
            for i, (a, b) in enumerate(zip(found, expected, strict=True))
            if isinstance(b, torch.Tensor) and (said := _difference(a, b))
        ]
        if wrong:
            raise CheckFailed(f"{name} differs from PyTorch: " + "; ".join(wrong[:5]))
        done = True
        return found

    return checked


def _difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}"
    if not expected.numel():
        return ""
    if not (expected.is_floating_point() or expected.is_complex()):
        many = int((found != expected).sum())
        return f"{many} of {expected.numel()} values differ" if many else ""
    rtol = _TOLERANCES.get(expected.dtype, _COARSE)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = found.to(wide), expected.to(wide)
    finite = b[torch.isfinite(b)].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    if torch.allclose(a, b, rtol=rtol, atol=rtol * max(scale, 1e-3), equal_nan=True):
        return ""
    return f"off by up to {float((a - b).abs().nan_to_num().max()):.3g}"
