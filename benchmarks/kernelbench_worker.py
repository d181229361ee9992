"""One problem of KernelBench, eager and by a backend of torch.compile. Also what a worker does.

Tells one answer a problem and backend. The model is used as KernelBench uses it: as it is built,
without gradients. Results and buffers are held against those of an equal model in eager mode.
"""

import copy
import resource
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kernelbench_sizes import Problem, load
from torch.utils._pytree import tree_leaves, tree_map

from mlirules.support.pool import Tell

BACKENDS = ("mlirules", "inductor")
TOLERANCE = 1e-3
"""Of the largest difference, relative to the largest element of eager's results."""
GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """The outcome of a problem with a backend.

    ``outcome``: ``right``, ``wrong``, ``error``, ``crash``, ``timeout``, or ``no sizes``. ``eager``
    is what ran eagerly there, by op. ``seconds`` are those of the first call, ``error`` the largest
    difference over the largest element of eager's.
    """

    problem: str
    backend: str
    outcome: str
    why: str = ""
    sizes: str = ""
    seconds: float = 0.0
    error: float | None = None
    eager: tuple[str, ...] = ()


def difference(got: Any, want: Any) -> float:
    """The largest difference over the largest element; infinite where kinds differ."""
    ours, theirs = tree_leaves(got), tree_leaves(want)
    if len(ours) != len(theirs):
        return float("inf")
    worst = scale = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return float("inf")
            continue
        if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return float("inf")
            continue
        x, y = a.double(), b.double()
        same = (x == y) | (x.isnan() & y.isnan())
        if not bool(x[~same].isfinite().all()) or not bool(y[~same].isfinite().all()):
            return float("inf")
        worst = max(worst, float((x - y)[~same].abs().max()) if (~same).any() else 0.0)
        finite = y[y.isfinite()]
        scale = max(scale, float(finite.abs().max()) if finite.numel() else 0.0)
    return worst / scale if scale else worst


def row(name: str, problem: Problem, backend: str) -> Row:
    """What a backend makes of a problem."""
    import mlirules
    from mlirules.api.dynamo.backend import backend as ours
    from mlirules.api.dynamo.backend import mlirules_backend

    with torch.no_grad():
        model = problem.model()
        inputs = problem.inputs()
        other, given = copy.deepcopy(model), copy.deepcopy(inputs)
        torch.manual_seed(2)
        want = model(*inputs)
        torch._dynamo.reset()
        ours().reports.clear()
        chosen: Any = mlirules_backend if backend == "mlirules" else backend
        started = time.perf_counter()
        torch.manual_seed(2)
        got = torch.compile(other, backend=chosen)(*given)
        seconds = round(time.perf_counter() - started, 2)
    apart = max(
        difference(got, want),
        difference(list(other.buffers()), list(model.buffers())),
        difference(given, inputs),
    )
    eager: tuple[str, ...] = ()
    if backend == "mlirules":
        report = mlirules.report()
        eager = tuple(sorted({f"{one.op}: {one.reason}"[:200] for one in report.eager}))
        if not any(graph.programs for graph in report.graphs):
            eager += ("the whole model",)
    outcome, why = "right", ""
    if not apart <= TOLERANCE:
        exact = _exact(problem)
        if exact is not None and difference(_wide(got), exact) < difference(_wide(want), exact):
            why = f"differs by {apart:.2g} of the largest element, and is nearer to float64's"
        else:
            outcome = "wrong"
            why = f"differs by {apart:.2g} of the largest element, {_size(want):.2g}"
    return Row(name, backend, outcome, why, problem.changed, seconds, apart, eager)


def _size(values: Any) -> float:
    """The largest finite element."""
    floats = [
        v[v.isfinite()].abs()
        for v in tree_leaves(values)
        if isinstance(v, torch.Tensor) and v.is_floating_point()
    ]
    return max((float(v.max()) for v in floats if v.numel()), default=0.0)


def _exact(problem: Problem) -> Any:
    """The results in float64; None where the model does not compute in it."""
    try:
        inputs = _wide(problem.inputs())
        model = problem.model().double()
        torch.manual_seed(2)
        with torch.no_grad():
            return model(*inputs)
    except Exception:  # noqa: BLE001 - a model of anybody's, in a type it was not written for
        return None


def _wide(values: Any) -> Any:
    return tree_map(
        lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, values
    )


def rows(path: Path, backends: list[str], tell: Tell) -> None:
    """Tell a row a backend."""
    name = f"{path.parent.name}/{path.stem}"
    try:
        problem = load(path)
    except ValueError as error:
        for backend in backends:
            tell({"row": asdict(Row(name, backend, "no sizes", str(error)))})
        return
    except Exception as error:  # noqa: BLE001 - the problem itself does not load here
        why = f"{type(error).__name__}: {error}"[:400]
        for backend in backends:
            tell({"row": asdict(Row(name, backend, "error", why))})
        return
    for backend in backends:
        tell({"stage": backend, "sizes": problem.changed})
        try:
            found = row(name, problem, backend)
        except Exception as error:  # noqa: BLE001 - of one problem, which it is the outcome of
            why = f"{type(error).__name__}: {error}"[:400]
            found = Row(name, backend, "error", why, problem.changed)
        tell({"row": asdict(found)})


class Doer:
    """What a worker does: a problem with some backends, within so many bytes of memory."""

    def __init__(self, memory: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        warnings.simplefilter("ignore")

    def __call__(self, job: tuple[str, list[str]], tell: Tell) -> None:
        """Tell the rows."""
        path, backends = job
        rows(Path(path), backends, tell)
