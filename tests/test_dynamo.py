"""The backend of torch.compile against eager PyTorch, on the programs of dynamo_programs.py."""

import copy
import gc
import importlib.util
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mlirules

torch = pytest.importorskip("torch")
from torch.utils import _pytree as pytree  # noqa: E402 - after the skip

from mlirules.api.dynamo.backend import backend, mlirules_backend  # noqa: E402

HERE = Path(__file__).parent


def _programs() -> Any:
    spec = importlib.util.spec_from_file_location("dynamo_programs", HERE / "dynamo_programs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dynamo_programs"] = module
    spec.loader.exec_module(module)
    return module


programs = _programs()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing of what an earlier test compiled."""
    torch._dynamo.reset()
    backend().reports.clear()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=mlirules_backend, options=options)


def tolerance(dtype: Any) -> float:
    coarse = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-6}
    if str(dtype).startswith("torch.float8"):
        return 0.2
    return coarse.get(dtype, 2e-4)


def same(found: Any, expected: Any, what: str) -> None:
    """Equal structure, types, sizes, strides, and values within tolerance."""
    ours, our_spec = pytree.tree_flatten(found)
    theirs, their_spec = pytree.tree_flatten(expected)
    assert our_spec == their_spec, what
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b, what
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), what
        # PyTorch's own decomposition of attention gives another order than its kernel.
        if 0 not in b.stride() and "attention" not in what:
            big = [dim for dim in range(b.dim()) if b.shape[dim] > 1]
            assert [a.stride(d) for d in big] == [b.stride(d) for d in big], what
        limit = tolerance(b.dtype)
        exact = not (b.is_floating_point() or b.is_complex())
        wide = b.dtype if exact else (torch.complex128 if b.is_complex() else torch.float64)
        torch.testing.assert_close(
            a.detach().to(wide),
            b.detach().to(wide),
            rtol=limit,
            atol=limit,
            equal_nan=True,
            msg=what,
        )


def sum_of(results: Any) -> Any:
    leaves = [v for v in pytree.tree_leaves(results) if isinstance(v, torch.Tensor)]
    return sum((v * v).sum() for v in leaves if v.requires_grad)


def run(model: Any, call: Any, kwargs: Any, backward: bool) -> tuple[Any, Any, Any]:
    """Results, inputs afterwards, gradients of inputs."""
    args = copy.deepcopy(call)
    if backward:
        args = pytree.tree_map(
            lambda v: v.requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v,
            args,
        )
        results = model(*args, **kwargs)
        sum_of(results).backward()
        grads = [v.grad for v in pytree.tree_leaves(args) if torch.is_tensor(v)]
        return results, args, grads
    with torch.no_grad():
        return model(*args, **kwargs), args, []


def check(name: str) -> Any:
    program = programs.PROGRAMS[name]()
    module = isinstance(program.model, torch.nn.Module)
    eager = copy.deepcopy(program.model) if module else program.model
    ours = compiled(program.model)
    kwargs = program.kwargs or {}
    for number, call in enumerate(program.calls):
        wanted = run(eager, call, kwargs, program.backward)
        found = run(ours, call, kwargs, program.backward)
        for a, b, what in zip(found, wanted, ("results", "inputs", "gradients"), strict=True):
            same(a, b, f"{name}, call {number}: {what}")
    if module:
        same(dict(program.model.named_buffers()), dict(eager.named_buffers()), f"{name}: buffers")
        for (key, p), q in zip(program.model.named_parameters(), eager.parameters(), strict=True):
            same(p.grad, q.grad, f"{name}: gradient of {key}")
    report = mlirules.report()
    assert report.graphs, "nothing was compiled"
    return program, report


#: In the suite that is always run; the others are slow together.
FEW = (
    "mutate_a_view",
    "returns_a_view_of_a_result",
    "not_contiguous",
    "type_int64",
    "random_in_the_middle",
)


@pytest.mark.parametrize("name", FEW)
def test_as_eager(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in programs.names() if n not in FEW])
def test_as_eager_all(name: str) -> None:
    program, report = check(name)
    allowed = set(program.eager)
    assert {one.op for one in report.eager} <= allowed, str(report)


def test_there_are_sixty() -> None:
    assert len(programs.PROGRAMS) >= 60


# ---------------------------------------------------------------- weights, sizes, reports


def test_changed_weights_are_noticed() -> None:
    model = torch.nn.Linear(8, 8).eval()
    ours = compiled(model)
    x = torch.randn(4, 8)

    def step() -> None:
        with torch.no_grad():
            model.weight.sub_(0.1)

    changes: list[Callable[[], Any]] = [
        lambda: None,
        step,
        lambda: model.weight.data.mul_(3),
        lambda: model.load_state_dict(torch.nn.Linear(8, 8).state_dict()),
        lambda: setattr(model, "weight", torch.nn.Parameter(torch.randn(8, 8))),
        lambda: model.weight.detach().numpy().__imul__(2),
    ]
    with torch.no_grad():
        for change in changes:
            change()
            torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-4)
    (graph,) = mlirules.report().graphs
    assert graph.compiled_ops == graph.ops


def test_weights_that_always_change_become_arguments() -> None:
    model = torch.nn.Linear(4, 4)
    ours = compiled(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(10):
            model.weight.add_(0.1)
            torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(mlirules.report().graphs) == 2


@pytest.mark.slow
def test_batches_from_1_to_64_take_two_compilations() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    ours = compiled(model)
    with torch.no_grad():
        for batch in range(1, 65):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(mlirules.report().graphs) <= 2


def test_what_runs_eagerly_is_told_with_its_line() -> None:
    def function(x: Any) -> Any:
        return torch.bernoulli(x.sigmoid()) + x

    compiled(function)(torch.randn(3))
    report = mlirules.report()
    (one,) = report.eager
    assert one.op == "aten.rand.default"  # what PyTorch makes of bernoulli
    assert "random" in one.reason
    file, _, line = one.place.rpartition(":")
    assert file == str(Path(__file__))
    assert int(line) == function.__code__.co_firstlineno + 1
    assert one.source == "return torch.bernoulli(x.sigmoid()) + x"
    assert "runs eagerly" in str(report)
    torch._dynamo.reset()
    strict = compiled(function, strict=True)
    with pytest.raises(Exception, match="strict, and not all of it compiles"):
        strict(torch.randn(3))


def test_options_that_are_wrong_are_said() -> None:
    x = torch.randn(3)
    for options, said in (
        ({"taget": "cpu"}, "did you mean 'target'"),
        ({"target": "cpuu"}, "unknown target"),
        ({"strict": "yes"}, "True or False"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=said):
            compiled(torch.sin, **options)(x)


def test_check_finds_what_differs() -> None:
    wrong = mlirules.rule(
        "y = torch.aten.sin(x)",
        types={"x": "vtensor<M x T>", "y": "vtensor<M x T>"},
        rewrite="y = torch.aten.cos(x)",
        name="sin-is-not-cos",
    )
    x = torch.randn(3)
    ours = compiled(lambda v: v.sin() + 1, rules=[wrong], check=True)
    with pytest.raises(Exception, match="differs from PyTorch"):
        ours(x)
    torch._dynamo.reset()
    compiled(lambda v: v.cos() + 1, rules=[wrong], check=True)(x)


# ---------------------------------------------------------------- memory, threads, processes


def test_memory_stays_flat() -> None:
    model = torch.nn.Linear(64, 64).eval()
    ours = compiled(model)
    x = torch.randn(32, 64)
    with torch.no_grad():
        for _ in range(500):
            ours(x)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10_000):
            ours(x)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # A call's result alone is 8 KiB: 80 MB, if they were kept.
    assert after - before < 4_000, f"{after - before} KiB"


def test_two_threads_call_at_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).eval()
    ours = compiled(model)
    with torch.no_grad():
        ours(torch.randn(4, 16))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(200):
                x = torch.randn(4, 16, generator=generator)
                if not torch.allclose(ours(x), model(x), rtol=1e-4, atol=1e-4):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


WARM = """
import torch, mlirules
from mlirules.api.dynamo.backend import mlirules_backend
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
with torch.no_grad():
    torch.compile(model, backend=mlirules_backend)(torch.randn(2, 4))
print([graph.warm for graph in mlirules.report().graphs])
"""


@pytest.mark.slow
def test_another_process_starts_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    for wanted in ("[0]", "[1]"):
        done = subprocess.run(
            [sys.executable, "-c", WARM], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == wanted
