"""The programs of PyTorch's op database, exported: what a worker does, and what is left out.

A worker of a pool writes the programs of one op after the other into a folder laid out as the
corpus is (`core/NAME.mlir`, `data/NAME.npz`) and says what came of each, so that an export that
crashes or does not end costs that one op.
"""

import fnmatch
import functools
import itertools
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlirules.support.pool import Tell

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "bool": "bool",
}
"""What `--dtype` takes, and PyTorch's name of it."""

SAMPLES = 2
LIMIT = 60
"""Seconds an export may take."""

RANDOM = "draws random numbers: there is no result to compare with"
FACTORISATION = "factorises a matrix, or solves a system by one"
NO_PROGRAM = "has no tensor program: the result is a shape, a sparse tensor, or a GPU kernel"

#: Ops that are left out, by glob of `name` or `name-variant`, each with the reason.
LEFT_OUT: dict[str, str] = {
    "bernoulli": RANDOM,
    "cauchy": RANDOM,
    "exponential": RANDOM,
    "geometric": RANDOM,
    "log_normal": RANDOM,
    "multinomial": RANDOM,
    "normal": RANDOM,
    "normal-*": RANDOM,
    "rand": RANDOM,
    "rand_like": RANDOM,
    "randint*": RANDOM,
    "randn*": RANDOM,
    "uniform": RANDOM,
    "nn.functional.dropout*": RANDOM,
    "nn.functional.alpha_dropout": RANDOM,
    "nn.functional.feature_alpha_dropout-with_train": RANDOM,
    "nn.functional.rrelu": RANDOM,
    "nn.functional.fractional_max_pool?d": RANDOM + " (where the windows lie)",
    "pca_lowrank": RANDOM + ", and factorises a matrix",
    "svd_lowrank": RANDOM + ", and factorises a matrix",
    "cholesky*": FACTORISATION,
    "geqrf": FACTORISATION,
    "logdet": FACTORISATION,
    "lu*": FACTORISATION,
    "ormqr": FACTORISATION,
    "pinverse": FACTORISATION,
    "qr": FACTORISATION,
    "svd": FACTORISATION,
    "norm-nuc": FACTORISATION,
    "triangular_solve": FACTORISATION,
    "linalg.cholesky*": FACTORISATION,
    "linalg.cond": FACTORISATION,
    "linalg.det": FACTORISATION,
    "linalg.eig*": FACTORISATION,
    "linalg.householder_product": FACTORISATION,
    "linalg.inv*": FACTORISATION,
    "linalg.ldl_*": FACTORISATION,
    "linalg.lstsq*": FACTORISATION,
    "linalg.lu*": FACTORISATION,
    "linalg.matrix_rank*": FACTORISATION,
    "linalg.pinv*": FACTORISATION,
    "linalg.qr": FACTORISATION,
    "linalg.slogdet": FACTORISATION,
    "linalg.solve*": FACTORISATION,
    "linalg.svd*": FACTORISATION,
    "linalg.tensorinv": FACTORISATION,
    "linalg.tensorsolve": FACTORISATION,
    "broadcast_shapes": NO_PROGRAM,
    "bmm-triton_optimized": NO_PROGRAM,
    "jiterator_*": NO_PROGRAM,
    "sparse.*": NO_PROGRAM,
    "to_sparse": NO_PROGRAM,
}

#: Results that are uninitialised memory: only their shapes and element types are compared.
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty*", "resize*")


def left_out(name: str) -> str:
    """Why the op `name` is on the list; empty where it is not."""
    return next((why for glob, why in LEFT_OUT.items() if fnmatch.fnmatchcase(name, glob)), "")


def op_name(op: Any) -> str:
    """`name` or `name-variant` of an entry of the database."""
    return str(op.name) + (f"-{op.variant_test_name}" if op.variant_test_name else "")


def samples(op: Any, dtype: Any) -> Iterator[Any]:
    """The first samples of an op that draw no random numbers, the same ones in every run."""
    import torch

    torch.manual_seed(0)
    plain = (s for s in op.sample_inputs("cpu", dtype) if not s.kwargs.get("dropout_p"))
    yield from itertools.islice(plain, SAMPLES)


def names(dtype: str) -> list[str]:
    """The ops of the database that take `dtype` and are not left out, in its order."""
    import torch

    return [op_name(op) for op in _database() if getattr(torch, DTYPES[dtype]) in op.dtypes]


def _database() -> Sequence[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not left_out(op_name(op))]


def export(op: Any, sample: Any, name: str, folder: Path) -> dict[str, Any]:
    """Write one sample as a program with its inputs and golden results; returns its index entry.

    Tensors of the sample are the program's arguments, all else is bound. Raises what PyTorch or the
    importer raises.
    """
    import torch
    from torch.export.graph_signature import OutputKind
    from torch.utils import _pytree as pytree

    from mlirules.drivers.frontend import torch as frontend
    from mlirules.drivers.frontend.values import to_numpy
    from mlirules.drivers.iree import fx

    leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = tuple(leaves[i].detach() for i in at)
    call = op.get_op()
    only = {OutputKind.USER_OUTPUT}

    class Call(torch.nn.Module):
        def __init__(self, own: bool) -> None:
            super().__init__()
            self.own = own

        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(leaves)
            for i, tensor in zip(at, given, strict=True):
                filled[i] = tensor.clone() if self.own else tensor
            args, kwargs = pytree.tree_unflatten(filled, tree)
            results = pytree.tree_leaves(call(*args, **kwargs))
            return tuple(r for r in results if isinstance(r, torch.Tensor))

    with torch.no_grad():
        results = Call(own=True)(*tensors)
        if not results:
            raise ValueError("no result is a tensor")
        exported = _exported(Call(own=False), tensors)
        if {output.kind for output in exported.graph_signature.output_specs} != only:
            # An op that writes its argument, perhaps only once decomposed, writes a copy.
            exported = _exported(Call(own=True), tensors)
    text = str(fx.fx_import(exported).module.operation.get_asm())
    (folder / "core" / f"{name}.mlir").write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    frontend.write_golden(
        folder / "data" / f"{name}.npz",
        [to_numpy(tensor) for tensor in tensors],
        [to_numpy(result) for result in results],
    )
    return {
        "name": name,
        "area": op_name(op),
        "args": [_described(tensor) for tensor in tensors],
        "results": [_described(result) for result in results],
        "random": any(fnmatch.fnmatchcase(op.name, glob) for glob in UNINITIALISED),
        "variants": {"core": {"n_results": len(results), "result_index": [*range(len(results))]}},
    }


def _exported(model: Any, tensors: tuple[Any, ...]) -> Any:
    import torch

    from mlirules.drivers.frontend import torch as frontend

    exported = torch.export.export(model, tensors, strict=False)
    return frontend.decomposed(exported) if _decomposable(exported.graph) else exported


def _decomposable(graph: Any) -> bool:
    """Whether the decompositions change the graph: they take seconds, even to change nothing."""
    import torch

    ops = {node.target for node in graph.nodes if node.op == "call_function"}
    overloads = {op for op in ops if isinstance(op, torch._ops.OpOverload)}
    return ops != overloads or any(
        op in _decomposed_ops() or op._can_decompose() or op._schema.is_mutable for op in overloads
    )


@functools.cache
def _decomposed_ops() -> frozenset[Any]:
    """The ops that the importer decomposes."""
    import torch

    from mlirules.drivers.frontend.decompositions import beyond_core
    from mlirules.drivers.iree import compiler

    return frozenset(
        (*torch.export.default_decompositions(), *beyond_core(compiler.is_registered_op))
    )


def _described(tensor: Any) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"kind": "tensor", "dtype": dtype, "shape": list(tensor.shape)}


class _TooLong(Exception):
    """An export reached its limit."""


def _alarm(*_: object) -> None:
    raise _TooLong


class Exporter:
    """Exports the samples of one op after the other, of one element type, into a folder."""

    def __init__(self, setup: tuple[Path, str]) -> None:
        import torch

        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        signal.signal(signal.SIGALRM, _alarm)
        self._folder, dtype = setup
        self._dtype = getattr(torch, DTYPES[dtype])
        self._ops = {op_name(op): op for op in _database()}

    def __call__(self, name: str, tell: Tell) -> None:
        """Tell the index entry of each sample of the op `name`, or why it is no program."""
        op = self._ops[name]
        signal.alarm(LIMIT)
        try:
            for number, sample in enumerate(samples(op, self._dtype)):
                try:
                    tell({"entry": export(op, sample, f"{name}-{number}", self._folder)})
                except _TooLong:
                    raise
                except BaseException as error:  # noqa: BLE001 -- PyTorch panics too
                    tell(_refused(f"{name}-{number}", name, error))
        except _TooLong:
            tell({"refused": name, "area": name, "why": f"stopped after {LIMIT} s"})
        except Exception as error:  # noqa: BLE001 -- the op has no samples for this type
            tell(_refused(name, name, error))
        finally:
            signal.alarm(0)


def _refused(what: str, area: str, error: BaseException) -> dict[str, str]:
    why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return {"refused": what, "area": area, "why": why[:300]}
