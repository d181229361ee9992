"""What a torch op takes by itself on a target, from its types: no compiling.

The roofline's formula with the target's parameters (:mod:`mlirules.drivers.measure.roofline`),

    launch + max(flops / (peak * efficiency of the op's class), bytes / bandwidth)

with flops counted by the op's name. Views, transposes and what computes on numbers take nothing,
slices no launch. What the compiler fuses is not seen, so that this ranks forms of one computation
and predicts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.values import type_info
from mlirules.drivers.measure.parameters import Class, Parameters
from mlirules.language.values import Tensor

__all__ = ["UNKNOWN_SIZE", "seconds"]

#: What a size that is known only when the program runs counts as.
UNKNOWN_SIZE = 128


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Views; copies, which values have no need of; transposes, which IREE folds into each other and
#: into what reads and writes them.
_FREE = _names(
    """
    alias detach expand expand_as flatten lift_fresh_copy reshape squeeze unflatten
    unsqueeze view _unsafe_view broadcast_to contiguous clone
    permute transpose t numpy_T
    """
)
_PRODUCTS = {"mm": 0, "bmm": 0, "matmul": 0, "mv": 0, "dot": 0, "linear": 0} | {
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
}
_CONVOLUTIONS = frozenset(["convolution", "_convolution", "conv1d", "conv2d", "conv3d"])
#: Of what these are given they read what they give, no more. Slices are read where they lie.
_SLICES = _names("slice select narrow")
_TAKES = _SLICES | _names("embedding gather index_select")
_REDUCTIONS = _names(
    """
    sum mean max min amax amin argmax argmin var std prod any all norm cumsum topk sort
    logsumexp linalg_vector_norm var_mean median
    """
)
#: Passes of arithmetic over each element that is read, besides special functions.
_NORMS = {
    "layer_norm": 6,
    "native_layer_norm": 6,
    "group_norm": 6,
    "native_group_norm": 6,
    "rms_norm": 4,
    "_fused_rms_norm": 4,
    "batch_norm": 4,
    "native_batch_norm": 4,
    "_native_batch_norm_legit_no_training": 4,
}
_SOFTMAX = frozenset(["softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"])
_SPECIAL = _names(
    """
    exp exp2 expm1 log log2 log1p erf erfc tanh sin cos pow sqrt rsqrt sigmoid silu gelu
    softplus mish elu celu selu logit atan atan2
    """
)


def _stem(name: str) -> str:
    """``aten.mul.Tensor`` -> ``mul``."""
    return name.removeprefix("torch.aten.").split(".")[0].removesuffix("_")


def _sizes(tensor: Tensor) -> list[int]:
    return [d if isinstance(d, int) else UNKNOWN_SIZE for d in tensor.dims or ()]


def _bytes(tensor: Tensor) -> float:
    bits = tensor.dtype.width if tensor.dtype is not None else 32
    return math.prod(_sizes(tensor)) * max(8, bits) / 8


def _tensors(values: Iterable[ir.Value]) -> list[Tensor | None]:
    return [type_info(v.type)[1] for v in values]


def seconds(op: ir.Operation, known: Parameters) -> float:
    """What ``op`` takes. Sizes that are not known count as :data:`UNKNOWN_SIZE`."""
    if not op.name.startswith("torch.aten."):
        return 0.0
    stem = _stem(op.name)
    results = [t for t in _tensors(op.results) if t is not None]
    operands = _tensors(op.operands)
    if stem in _FREE or not results:
        return 0.0
    given = [t for t in operands if t is not None]
    read, written = [_bytes(t) for t in given], [_bytes(t) for t in results]
    if stem in _TAKES:
        read = written
    flops, which = _work(stem, operands, results[0], known)
    element = results[0].dtype.name if results[0].dtype is not None else "f32"
    compute = flops / (known.peak(element) * known.efficiency[which])
    launch = 0.0 if stem in _SLICES else 1e-6 * known.launch_us
    return launch + max(compute, known.memory(sum(read) + sum(written), written))


def _work(
    stem: str, operands: list[Tensor | None], result: Tensor, known: Parameters
) -> tuple[float, Class]:
    """How many operations, and of which class."""
    made = math.prod(_sizes(result))
    given = [_sizes(t) for t in operands if t is not None]
    largest = max([made, *(math.prod(s) for s in given)])
    if stem in _PRODUCTS and len(given) > _PRODUCTS[stem]:
        first = given[_PRODUCTS[stem]]
        return 2.0 * made * (first[-1] if first else 1), "contraction"
    if stem in _CONVOLUTIONS and len(given) > 1:
        window = given[1][1:]
        plain = math.prod(window[1:]) == 1
        return 2.0 * made * math.prod(window), "contraction" if plain else "convolution"
    if stem.startswith("scaled_dot_product") and len(given) > 2:
        (*batch, queries, size), keys = given[0], given[1]
        scores = math.prod(batch) * queries * keys[-2]
        width = size + given[2][-1]
        return 2.0 * scores * width + known.special_flops * scores, "attention"
    if stem in _SOFTMAX:
        return (known.special_flops + 3) * largest, "reduction"
    if stem in _NORMS:
        return float(_NORMS[stem] * largest), "reduction"
    if stem in _REDUCTIONS:
        return float(largest), "reduction"
    return (known.special_flops if stem in _SPECIAL else 1.0) * made, "elementwise"
