"""``torch.compile(model, backend="mlirules")``."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from mlirules.api.dynamo.builder import Asked, Built, build
from mlirules.api.dynamo.partition import ATTENTION
from mlirules.api.dynamo.report import Reports
from mlirules.api.rules import RuleText
from mlirules.api.session import Session
from mlirules.drivers.apply.session import Bounded
from mlirules.drivers.frontend.decompositions import for_autograd
from mlirules.drivers.iree.compiler import is_registered_op
from mlirules.language.faults import MlirulesError, did_you_mean

__all__ = ["Backend", "Options", "backend", "mlirules_backend"]

#: How many sessions are kept, by their options.
_SESSIONS = 16
#: Weights that changed more often than every so many calls are passed like other arguments.
_SETTLED = 3
_TRIED = 6


@dataclass(frozen=True)
class Options:
    """What ``torch.compile(..., options={...})`` says; names and values as for a Session.

    ``check``: compare each graph's first call with PyTorch, and fail where it differs. ``strict``:
    fail where something cannot be compiled. ``freeze``: for inference, make weights part of the
    program when it is loaded (they may still change). ``cache``: keep programs on disk. ``tune``:
    time for each program to search a faster way to compile it, such as ``60s``.
    """

    target: str = "cpu"
    pipeline: str | None = None
    rules: tuple[str | RuleText, ...] = ()
    check: bool = False
    strict: bool = False
    freeze: bool = True
    cache: bool = True
    flags: tuple[str, ...] = ()
    tune: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Options by name. Raises MlirulesError for one that there is not."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in (given or {}).items():
            if name not in known:
                raise MlirulesError.at(
                    "options",
                    f"there is no option {name!r}",
                    code="option",
                    suggestion=did_you_mean(name, list(known)) or "known: " + ", ".join(known),
                )
            default = known[name].default
            if isinstance(default, tuple):
                value = (value,) if isinstance(value, str | RuleText) else tuple(value)
            elif isinstance(default, bool) and not isinstance(value, bool):
                raise MlirulesError.at(
                    "options", f"{name!r} is True or False, not {value!r}", code="option"
                )
            values[name] = value
        return cls(**values)


class Backend:
    """The backend of this process: its sessions, by their options, and its report."""

    def __init__(self) -> None:
        self.reports = Reports()
        self._sessions: Bounded[object, Session] = Bounded(_SESSIONS)
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def session(self, options: Options) -> Session:
        """The session for these options."""
        rules = tuple(r.text if isinstance(r, RuleText) else r for r in options.rules)
        key = (
            options.target,
            options.pipeline,
            rules,
            options.cache,
            options.flags,
            options.tune,
        )
        with self._lock:
            found = self._sessions.get(key)
            if found is None:
                found = Session(
                    options.target,
                    options.rules,
                    options.pipeline,
                    options.cache,
                    flags=options.flags,
                    tune=options.tune,
                )
                self._sessions.put(key, found)
        return found

    def compile(
        self, module: GraphModule, inputs: Sequence[object], options: Options
    ) -> Callable[..., Any]:
        """What TorchDynamo asks for: a graph as a function."""
        session = self.session(options)
        number = next(self._numbers)

        def compiler(part: str) -> Callable[[GraphModule, Sequence[Any]], Any]:
            def compile_part(graph: GraphModule, _inputs: Sequence[object]) -> Any:
                held = _weights() if part == "inference" and options.freeze else ()
                name = f"graph {number} {part}"
                asked = Asked(session, name, self.reports, options.strict, options.check)
                make = functools.partial(build, asked, graph)
                # Constants of the graph are read: tensors as they are, not as PyTorch traces them.
                with unset_fake_temporarily():
                    made = make(held)
                return _Settling(made, make) if held else made

            return compile_part

        aot = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=_decompositions,
            partition_fn=_partition,
        )
        compiled: Callable[..., Any] = aot(module, inputs)
        return compiled


class _Settling:
    """A program with weights of its own, for as long as these mostly stay as they are."""

    def __init__(self, built: Built, make: Callable[[Sequence[int]], Built]) -> None:
        self._boxed_call = True
        self.built = built
        self._make = make
        self._calls = 0
        self._settled = False

    def __call__(self, arguments: list[object]) -> Any:
        if not self._settled:
            self._calls += 1
            loads = sum(program.loads for program in self.built.programs)
            many = loads >= _TRIED and self._calls < loads * _SETTLED
            if many or any(isinstance(a, torch.Tensor) and a.is_inference() for a in arguments):
                self.built = self._make(())
                self._settled = True
        return self.built(arguments)


def _weights() -> tuple[int, ...]:
    """The positions of parameters and buffers that the graph at hand reads and does not change."""
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None:
        return ()
    changed = set(facts.mutated_inp_runtime_indices)
    return tuple(index for index in facts.static_input_indices if index not in changed)


def _decompositions() -> dict[Any, Any]:
    found = for_autograd(is_registered_op)
    if torch.is_grad_enabled():
        # PyTorch's decomposition leaves out the logarithms that the op's own backward reads.
        found.pop(ATTENTION, None)
    return found


def _partition(*args: Any, **kwargs: Any) -> Any:
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(*args, **kwargs)


@functools.cache
def backend() -> Backend:
    """The backend of this process."""
    return Backend()


def mlirules_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend as PyTorch finds it, by the entry point ``torch_dynamo_backends``."""
    if mode not in (None, "default"):
        raise MlirulesError.at(
            "mode",
            f"there is no mode {mode!r}",
            code="option",
            suggestion="options={...} says more",
        )
    return backend().compile(gm, example_inputs, Options.of(options))
