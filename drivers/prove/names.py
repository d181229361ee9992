"""What is known of torch ops by their names."""

from __future__ import annotations

#: Parts of the names of ops whose result is the same in each run only by chance.
RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal_", "uniform", "exponential")
#: Ops whose result is a truth value.
TO_BOOL = frozenset(
    ["eq", "ne", "lt", "le", "gt", "ge", "any", "all", "isnan", "isinf", "isfinite"]
    + [f"logical_{name}" for name in ("and", "or", "not", "xor")]
)
#: Ops that give the type that PyTorch combines their operands in.
COMBINING = frozenset(
    {
        "add",
        "sub",
        "mul",
        "rsub",
        "maximum",
        "minimum",
        "where",
        "matmul",
        "mm",
        "bmm",
        "linear",
        "addmm",
        "baddbmm",
        "neg",
        "relu",
        "abs",
        "transpose",
        "permute",
        "t",
        "view",
        "reshape",
        "_unsafe_view",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "cat",
        "contiguous",
        "clone",
        "tril",
        "triu",
        "flip",
        "masked_fill",
        "roll",
        "repeat",
        "repeat_interleave",
        "softmax",
        "_softmax",
        "_safe_softmax",
        "log_softmax",
        "gelu",
        "silu",
        "layer_norm",
        "rms_norm",
        "batch_norm",
        "convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "constant_pad_nd",
        "pow",
        "square",
        "amax",
        "amin",
        "detach",
        "alias",
        "dropout",
    }
)
#: Ops whose result has the shape that their operands broadcast to.
ELEMENTWISE = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "rsub",
        "maximum",
        "minimum",
        "where",
        "pow",
        "square",
        "neg",
        "relu",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "reciprocal",
        "silu",
        "gelu",
        "masked_fill",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
    }
)
#: Ops that give a float: PyTorch's default one where their operands are integers.
FLOATING = frozenset(
    {
        "div",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "reciprocal",
        "mean",
        "var",
        "std",
        "silu",
        "gelu",
    }
)
#: What Refused messages say where PyTorch refuses a program, too.
REFUSALS = (
    "axis",
    "sizes for a tensor",
    "too many dims",
    "too few dims",
    "division by zero",
    "indices for a tensor",
    "outside a list",
    "are needed",
    "empty list",
)
#: Ops whose operands have one element type in PyTorch.
ONE_TYPE = frozenset(
    {
        "matmul",
        "mm",
        "bmm",
        "baddbmm",
        "addmm",
        "linear",
        "mv",
        "dot",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "layer_norm",
        "native_layer_norm",
        "batch_norm",
        "native_batch_norm",
        "scaled_dot_product_attention",
        "cat",
        "view",
        "_unsafe_view",
        "reshape",
        "transpose",
        "permute",
        "t",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "select",
        "clone",
        "contiguous",
        "tril",
        "triu",
    }
)
#: Ops that PyTorch has for tensors with axes alone.
NO_SCALARS = frozenset({"matmul"})
#: Of ops that PyTorch has for operands with axes: how many operands those are, and the least rank.
LEAST_RANK = {"linear": (1, 1), "scaled_dot_product_attention": (3, 2)}
#: Ops that PyTorch computes element by element, of operands that it broadcasts: how many tensors
#: stand first; what stands behind them is none.
POINTWISE = {
    **dict.fromkeys(
        (
            f"torch.aten.{name}"
            for name in (
                "abs",
                "add.Scalar",
                "alias",
                "ceil",
                "clamp",
                "clamp_min",
                "clone",
                "contiguous",
                "cos",
                "div.Scalar",
                "elu",
                "erf",
                "exp",
                "floor",
                "gelu",
                "hardsigmoid",
                "hardswish",
                "hardtanh",
                "leaky_relu",
                "log",
                "logical_not",
                "mul.Scalar",
                "neg",
                "pow.Tensor_Scalar",
                "reciprocal",
                "relu",
                "relu6",
                "rsqrt",
                "sigmoid",
                "silu",
                "sin",
                "sqrt",
                "square",
                "sub.Scalar",
                "tanh",
                "to.dtype",
            )
        ),
        1,
    ),
    **dict.fromkeys(
        (
            f"torch.aten.{name}"
            for name in (
                "add.Tensor",
                "sub.Tensor",
                "mul.Tensor",
                "div.Tensor",
                "maximum",
                "minimum",
            )
        ),
        2,
    ),
}


def anyone(tensors: int) -> str:
    """The name of any op of single elements of one or two tensors: it names no op of its own."""
    return f"any.function.of.{tensors}"


POINTWISE |= {anyone(n): n for n in (1, 2)}
#: Ops that PyTorch has for operands of one rank alone, each the rank that conversion rules declare.
ONE_RANK = frozenset({"mm", "bmm"})
#: Ops whose result has the rank and the batch of their first operand.
BATCHED = frozenset({"convolution"})
#: Ops that PyTorch has for floats alone.
FLOATS_ONLY = frozenset(
    {
        "softmax",
        "_softmax",
        "_safe_softmax",
        "log_softmax",
        "_log_softmax",
        "layer_norm",
        "native_layer_norm",
        "batch_norm",
        "native_batch_norm",
        "var",
        "std",
        "var_mean",
    }
)
#: Attributes that are whole numbers of at least 0.
INTEGERS = frozenset({"dimension"})
#: Ops that PyTorch does not have for truth values.
NO_BOOLS = frozenset({"arange", "mm", "bmm", "matmul", "mv", "dot", "addmm", "baddbmm", "linear"})
#: Ops that make a tensor of the type that they are told.
CREATING = frozenset(
    {
        "full",
        "ones",
        "zeros",
        "arange",
        "scalar_tensor",
        "full_like",
        "ones_like",
        "zeros_like",
        "empty",
        "to",
        "type_as",
        "new_full",
        "new_zeros",
        "new_ones",
        "_to_copy",
        "convert_element_type",
    }
)


def short_name(op: str) -> str:
    """An op's name without its dialect and overload."""
    parts = op.split(".")
    return parts[2] if op.startswith("torch.") and len(parts) > 2 else parts[-1]
