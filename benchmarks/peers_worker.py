"""One engine with one model in a process of its own: it prepares, computes, and times its calls.

``export`` is an engine too: it writes the model as an ONNX file, as a program of MLIR, and its
inputs and results, so that engines that need no PyTorch are measured without it.

Orders are lines of JSON: ``{"do": "prepare"}`` once, then ``{"do": "sample", "calls": 3}``; the
machine's ``limits`` take the bytes that are ``read`` and ``written``, too.
"""

import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peers_models import BF16, INT8
from turns import NOTHING

from mlirules.support import children, files

#: The program, the ONNX file, the golden values and the facts of a model end in these.
PROGRAM, ONNX, GOLDEN, FACTS = ".mlirbc", ".onnx", ".npz", ".json"
#: A quantized model as ONNX Runtime's own tool quantizes it: it multiplies no bytes of PT2E's.
DYNAMIC = ".dynamic.onnx"


@dataclass(frozen=True)
class Job:
    """A model by an engine: the files are ``folder/model.*``, ``scratch`` is empty at first."""

    engine: str
    model: str
    folder: Path
    scratch: Path
    threads: int
    tune: str

    def path(self, suffix: str) -> Path:
        """One of the model's files."""
        return self.folder / f"{self.model}{suffix}"

    @property
    def bf16(self) -> bool:
        """Whether the model computes in bf16."""
        return self.model.endswith(BF16)

    @property
    def int8(self) -> bool:
        """Whether the model's products are quantized."""
        return self.model.endswith(INT8)

    @property
    def program(self) -> Path:
        """The program; one that was written by hand is text."""
        found = self.path(PROGRAM)
        return found if found.exists() else self.path(".mlir")


@dataclass(frozen=True)
class Ready:
    """What an engine made of a model: a call whose result is not looked at, and one that reads."""

    call: Callable[[], object]
    results: Callable[[], list[Any]]
    note: str = ""


# ---------------------------------------------------------------- engines


def _torch(job: Job, compiled: Callable[[Any], Any]) -> Ready:
    import torch
    from peers_models import made
    from torch.utils._pytree import tree_leaves

    torch.set_num_threads(job.threads)
    model, args, kwargs = made(job.model)
    ready = compiled(model)

    def call() -> Any:
        with torch.no_grad():
            return ready(*args, **kwargs)

    def results() -> list[Any]:
        found = [t for t in tree_leaves(call()) if isinstance(t, torch.Tensor)]
        return [(t.float() if t.dtype == torch.bfloat16 else t).numpy() for t in found]

    call()
    return Ready(call, results)


def eager(job: Job) -> Ready:
    """PyTorch as it is."""
    return _torch(job, lambda model: model)


def inductor(job: Job, mode: str | None = None) -> Ready:
    """PyTorch's own compiler, told that weights do not change."""
    import torch
    import torch._inductor.config as config

    config.freezing = True
    return _torch(job, lambda model: torch.compile(model, backend="inductor", mode=mode))


def onnxruntime(job: Job) -> Ready:
    """ONNX Runtime's CPU provider, all optimisations."""
    import onnxruntime as ort

    if job.bf16:
        raise ValueError("computes in f32 what it is given in bf16")

    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    path = job.path(DYNAMIC if job.int8 else ONNX)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), _inputs(job), strict=True))

    def call() -> Any:
        return session.run(None, feeds)

    return Ready(call, call)


def openvino(job: Job) -> Ready:
    """OpenVINO's CPU plugin for one request at a time, in the model's own types."""
    import openvino as ov

    compiled = ov.Core().compile_model(
        job.path(ONNX),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
            # It would compute in bf16 where the CPU can.
            "INFERENCE_PRECISION_HINT": "bf16" if job.bf16 else "f32",
        },
    )
    request = compiled.create_infer_request()
    for index, value in enumerate(_inputs(job)):
        # Its file is the model in f32: it turns weights and inputs itself.
        wide = value if value.dtype.kind in "iub" else value.astype(np.float32)
        request.set_input_tensor(index, ov.Tensor(wide))

    def results() -> list[Any]:
        request.infer()
        return [tensor.data.copy() for tensor in request.output_tensors]

    return Ready(request.infer, results)


def _running(job: Job, binary: bytes, note: str = "") -> Ready:
    from mlirules.drivers.iree import runtime

    device = "local-sync" if job.threads == 1 else "local-task"
    program = runtime.Program(binary, _inputs(job), device)
    return Ready(program, program.results, note)


def stock(job: Job) -> Ready:
    """iree-compile as it is, for this CPU."""
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree import compiler
    from mlirules.drivers.iree.targets import Target

    program = load_program(job.program)
    binary = compiler.compile_module(program, Target.parse("cpu"), path=str(job.program))
    return _running(job, binary)


def mlirules(job: Job) -> Ready:
    """The default pipeline, nothing weighed before."""
    return _by_pipeline(job, None)


def tuned(job: Job) -> Ready:
    """What ``mlirules tune`` finds, which its seconds of compiling include."""
    from mlirules.language.pipeline import Pipeline

    out = job.scratch / "tuned"
    words = ["tune", str(job.program), "--target", "cpu", "--budget", job.tune]
    done = children.run(
        [*children.python("mlirules.cli:main"), *words, "--output", str(out)],
        timeout=None,
    )
    if done.status:
        raise RuntimeError(f"mlirules tune: {done.ending}: {done.stderr.strip()[-2000:]}")
    found = sorted(out.glob("*.cpu.yaml"))
    if not found:
        return _by_pipeline(job, None, NOTHING)
    return _by_pipeline(job, str(found[0]), Pipeline.load(found[0]).summary)


def _by_pipeline(job: Job, pipeline: str | None, note: str = "") -> Ready:
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, compile_program

    line = None if pipeline is None else Pipeline.load(pipeline)
    program = load_program(job.program)
    binary, done = compile_program(program, Target.parse("cpu"), line, path=str(job.program))
    return _running(job, binary, "; ".join(filter(None, [note, *done.notes])))


ENGINES: Mapping[str, Callable[[Job], Ready]] = {
    "eager": eager,
    "inductor": inductor,
    "max-autotune": partial(inductor, mode="max-autotune"),
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "stock": stock,
    "mlirules": mlirules,
    "tuned": tuned,
}


# ---------------------------------------------------------------- the model, the machine


def export(job: Job) -> dict[str, Any]:
    """Write the model's files; its FLOP, and the bytes that a call must read and write."""
    import peers_models
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    from mlirules.drivers.frontend.torch import Options, import_file

    recipes = Path(peers_models.__file__)
    import_file(
        f"{recipes}:make",
        job.path(PROGRAM),
        Options(arguments={"name": job.model}),
        golden=job.path(GOLDEN),
    )
    model, args, kwargs = peers_models.made(job.model)
    # As two products: of the CPU's fused attention nothing is counted.
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        results = model(*args, **kwargs)
    read = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    sizes = [
        sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
        for tensors in (read, tree_leaves(results))
    ]
    exact = model
    if job.bf16 or job.int8:  # the errors are those of the type, too
        exact, args, kwargs = peers_models.made(job.model, exact=True)
        with torch.no_grad():
            _gild(job, [t for t in tree_leaves(exact(*args, **kwargs)) if torch.is_tensor(t)])
    why = ""
    try:
        # OpenVINO turns to bf16 by itself.
        _write_onnx(model if job.int8 else exact, args, kwargs, job.path(ONNX))
        if job.int8:
            _write_dynamic(exact, args, kwargs, job)
    except Exception as error:  # noqa: BLE001 -- of one model; the other engines need none of it
        why = f"no ONNX file: {type(error).__name__}: {error}".splitlines()[0][:200]
    return {
        "flops": counter.get_total_flops(),
        "bytes": sum(sizes),
        "read": sizes[0],
        "written": sizes[1],
        "onnx": why,
    }


def _write_onnx(model: Any, args: Any, kwargs: Any, path: Path) -> None:
    import torch

    with torch.no_grad():
        exported = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, verbose=False)
    assert exported is not None
    exported.save(path)


def _write_dynamic(model: Any, args: Any, kwargs: Any, job: Job) -> None:
    """The model quantized by ONNX Runtime: weights by channels, activations as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    wide, ready = job.scratch / "wide.onnx", job.scratch / "ready.onnx"
    _write_onnx(model, args, kwargs, wide)
    quant_pre_process(wide, ready, skip_symbolic_shape=True)
    quantize_dynamic(
        ready,
        job.path(DYNAMIC),
        per_channel=True,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
    )


def _gild(job: Job, results: list[Any]) -> None:
    """Put exact results in the place of the golden ones."""
    with np.load(job.path(GOLDEN)) as kept:
        arrays = dict(kept)
    arrays |= {f"r{n}": result.numpy() for n, result in enumerate(results)}
    held = io.BytesIO()
    np.savez(held, **arrays)
    files.write(job.path(GOLDEN), held.getvalue())


def limits(job: Job, read: int | None = None, written: int = 0) -> dict[str, float]:
    """FLOP and bytes a second on this process's threads: a large product, a large copy.

    With ``read`` and ``written`` the bytes a second are those at which so many of them are read and
    written, again and again: as many as are both are copied, of the others each is summed or set.
    Those of a large copy are ``memory`` then.
    """
    a, b = (np.random.default_rng(n).random((1024, 1024), dtype=np.float32) for n in (0, 1))
    c = np.empty_like(a)
    # One thread's processor time is its own, whatever else runs.
    clock = time.process_time if job.threads == 1 else time.perf_counter
    product = _least(lambda: np.matmul(a, b, out=c), clock)
    # numpy copies on one thread alone: the bound of more threads is no lower.
    large = _bytes_a_second(1 << 26, 1 << 26, clock)
    found = large if read is None else _bytes_a_second(read, written, clock)
    return {"flops": 2 * 1024**3 / product, "bytes": found, "memory": large}


def _bytes_a_second(read: int, written: int, clock: Callable[[], float]) -> float:
    """The speed at which so many bytes are read and written, again and again."""
    both = np.ones(min(read, written) // 4, dtype=np.float32)
    copy = np.empty_like(both)
    more = np.ones(abs(read - written) // 4, dtype=np.float32)
    taken = _least(lambda: np.copyto(copy, both), clock) if both.size else 0.0
    if more.size and read > written:
        rows = more[: more.size // 1024 * 1024].reshape(-1, 1024)
        # A product with a vector reads some rows side by side, which is faster from memory.
        ways = [lambda: np.dot(more, more), *([lambda: np.dot(rows, rows[0])] if rows.size else [])]
        taken += min(_least(way, clock) for way in ways)
    elif more.size:
        taken += _least(lambda: more.fill(0), clock)
    return (read + written) / taken


def _least(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """The least seconds of a call, of twenty samples of a millisecond or more."""
    call()
    began = clock()
    call()
    calls = max(1, round(1e-3 / max(clock() - began, 1e-6)))
    taken = []
    for _ in range(20):
        began = clock()
        for _ in range(calls):
            call()
        taken.append((clock() - began) / calls)
    return min(taken)


def _inputs(job: Job) -> list[Any]:
    from mlirules.drivers.iree import npz

    return npz.load(job.path(GOLDEN))


# ---------------------------------------------------------------- the process


def _peak_mb(since: bool = False) -> float:
    """The most memory that the process held, in 10^6 bytes; with ``since``, from now on."""
    if since:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return 0.0
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def _spent() -> float:
    """Processor seconds of this process and of what it has waited for."""
    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in of)


def answers(job: Job) -> Callable[[Any], Iterator[Mapping[str, Any]]]:
    """What the process does with an order."""
    made: list[Ready] = []

    def prepare(**traffic: int) -> dict[str, Any]:
        from zoo_worker import relative_error

        from mlirules.drivers.iree import npz

        if job.engine == "export":
            facts = export(job)
            files.write(job.path(FACTS), json.dumps(facts) + "\n")
            return facts
        if job.engine == "limits":
            return limits(job, **traffic)
        began, spent = time.perf_counter(), _spent()
        ready = ENGINES[job.engine](job)
        took, used = time.perf_counter() - began, _spent() - spent
        peak = _peak_mb()
        got = [np.asarray(value) for value in ready.results()]
        _peak_mb(since=True)
        ready.call()
        began = time.perf_counter()
        ready.call()
        once = time.perf_counter() - began
        made.append(ready)
        golden = npz.load(job.path(GOLDEN), prefix="r")
        return {
            "compile_s": round(took, 2),
            "compile_cpu_s": round(used, 2),
            "compile_mb": round(peak),
            "call_s": once,
            "error": relative_error(got, golden),
            "note": ready.note,
        }

    def sample(calls: int) -> dict[str, Any]:
        (ready,) = made
        ready.call()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            ready.call()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {"wall": wall / calls, "cpu": cpu / calls, "mb": round(_peak_mb())}

    def answer(order: Any) -> Iterator[Mapping[str, Any]]:
        try:
            given = {key: value for key, value in order.items() if key != "do"}
            yield prepare(**given) if order["do"] == "prepare" else sample(**given)
        except Exception as error:  # noqa: BLE001 -- of one engine, which it is the outcome of
            told = [fault.message for fault in getattr(error, "faults", ())]
            lines = "\n".join(told or [str(error)]).strip().splitlines()
            # Where it was called from says less than what it is.
            said = next((line for line in lines if "note:" not in line), "")
            yield {"failed": f"{type(error).__name__}: {said}"[:300]}

    return answer


def main() -> None:
    """Serve orders until stdin ends. Arguments: the fields of a job, in their order."""
    engine, model, folder, scratch, threads, tune = sys.argv[1:]
    job = Job(engine, model, Path(folder), Path(scratch), int(threads), tune)
    os.environ["MLIRULES_CACHE_DIR"] = str(job.scratch / "mlirules")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(job.scratch / "inductor")
    # What it waits for (a search of `tune`) has a session of its own, and ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children.serve(answers(job))


if __name__ == "__main__":
    main()
