"""Run-time scalar functions of index equations: what each becomes inside a ``linalg`` body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScalarFunction:
    """A run-time function: MLIR ops by kind of element type, arity, documentation."""

    name: str
    arity: int
    doc: str
    float_op: str = ""
    signed_op: str = ""
    unsigned_op: str = ""
    bool_op: str = ""
    to_bool: bool = False


def _table(*functions: ScalarFunction) -> dict[str, ScalarFunction]:
    return {f.name: f for f in functions}


def _math(name: str, doc: str, op: str = "") -> ScalarFunction:
    return ScalarFunction(name, 1, doc, float_op=f"math.{op or name}")


# Every function that is one MLIR op; the others (cast, select, sign...) are in lower.py.
SIMPLE: dict[str, ScalarFunction] = _table(
    _math("exp", "e to the power x"),
    _math("exp2", "2 to the power x"),
    _math("expm1", "exp(x) - 1, exact near 0"),
    _math("log", "natural logarithm"),
    _math("log2", "logarithm to base 2"),
    _math("log1p", "log(1 + x), exact near 0"),
    _math("sqrt", "square root"),
    _math("rsqrt", "1 / sqrt(x)"),
    _math("sin", "sine"),
    _math("cos", "cosine"),
    _math("tan", "tangent"),
    _math("sinh", "hyperbolic sine"),
    _math("cosh", "hyperbolic cosine"),
    _math("tanh", "hyperbolic tangent"),
    _math("asin", "arc sine"),
    _math("acos", "arc cosine"),
    _math("atan", "arc tangent"),
    _math("asinh", "inverse hyperbolic sine"),
    _math("acosh", "inverse hyperbolic cosine"),
    _math("atanh", "inverse hyperbolic tangent"),
    _math("erf", "error function"),
    _math("floor", "largest whole number not above x"),
    _math("ceil", "smallest whole number not below x"),
    _math("round", "nearest whole number, ties to even", "roundeven"),
    _math("trunc", "x without its fraction"),
    ScalarFunction("atan2", 2, "arc tangent of y / x in all quadrants", float_op="math.atan2"),
    ScalarFunction("copysign", 2, "x with the sign of y", float_op="math.copysign"),
    ScalarFunction("pow", 2, "x to the power y", float_op="math.powf", signed_op="math.ipowi"),
    ScalarFunction("abs", 1, "absolute value", float_op="math.absf", signed_op="math.absi"),
    ScalarFunction(
        "max",
        2,
        "the larger; NaN if either is NaN",
        "arith.maximumf",
        "arith.maxsi",
        "arith.maxui",
        "arith.ori",
    ),
    ScalarFunction(
        "min",
        2,
        "the smaller; NaN if either is NaN",
        "arith.minimumf",
        "arith.minsi",
        "arith.minui",
        "arith.andi",
    ),
    ScalarFunction(
        "maxnum",
        2,
        "the larger; the other one if either is NaN",
        "arith.maxnumf",
        "arith.maxsi",
        "arith.maxui",
    ),
    ScalarFunction(
        "minnum",
        2,
        "the smaller; the other one if either is NaN",
        "arith.minnumf",
        "arith.minsi",
        "arith.minui",
    ),
    ScalarFunction(
        "truncdiv", 2, "quotient rounded toward 0 (ints)", "", "arith.divsi", "arith.divui"
    ),
    ScalarFunction(
        "rem", 2, "remainder with the sign of x", "arith.remf", "arith.remsi", "arith.remui"
    ),
    ScalarFunction("bitand", 2, "bitwise and", "", "arith.andi", "arith.andi", "arith.andi"),
    ScalarFunction("bitor", 2, "bitwise or", "", "arith.ori", "arith.ori", "arith.ori"),
    ScalarFunction(
        "bitxor", 2, "bitwise exclusive or", "", "arith.xori", "arith.xori", "arith.xori"
    ),
    ScalarFunction("shl", 2, "shift left", "", "arith.shli", "arith.shli"),
    ScalarFunction("shr", 2, "shift right, keeping the sign", "", "arith.shrsi", "arith.shrui"),
    ScalarFunction("isnan", 1, "x is not a number", to_bool=True),
    ScalarFunction("isinf", 1, "x is infinite", to_bool=True),
    ScalarFunction("isfinite", 1, "x is neither infinite nor NaN", to_bool=True),
)

# Functions with a lowering of their own: name -> (arity low, arity high, doc).
SPECIAL: dict[str, tuple[int, int, str]] = {
    "cast": (2, 2, "cast(x, T): x converted to element type T as PyTorch converts"),
    "select": (3, 3, "select(c, a, b): a where c holds, else b"),
    "fma": (3, 3, "fma(a, b, c): a * b + c, rounded once"),
    "sign": (1, 1, "-1, 0 or 1; NaN stays NaN"),
    "bitcast": (2, 2, "bitcast(x, T): the same bits read as type T"),
    "real": (1, 1, "the real part of a complex number"),
    "imag": (1, 1, "the imaginary part of a complex number"),
    "complex": (2, 2, "complex(re, im): a complex number"),
    "indexed": (
        3,
        3,
        "indexed(I, indices, x): the indices that PyTorch's x[indices] reads, for "
        "loops I over its result; negative ones count from the end",
    ),
}

# Functions on whole tensors: name -> (arity low, arity high, doc).
TENSOR: dict[str, tuple[int, int, str]] = {
    "reshape": (1, 2, "reshape(x, shape): the same elements, row-major; one -1 is inferred"),
    "pad": (4, 4, "pad(x, low, high, value): elements put before and after each dim (may be < 0)"),
    "concatenate": (2, 2, "concatenate(xs, axis): tensors joined on an axis; [0] joins any"),
    "window": (5, 5, "window(x, axis, start, size, step): a strided window along one axis"),
    "stack": (2, 2, "stack(xs, axis): tensors joined along a new axis"),
    "converted": (2, 2, "converted(xs, T): a list of tensors, each cast to element type T"),
    "spread": (2, 2, "spread(xs, shape): a list of tensors, each broadcast to a shape"),
    "meshgrid": (2, 2, "meshgrid(xs, xy): vectors over the grid they span; xy: columns first"),
    "split": (3, 3, "split(x, sizes, axis): a list of tensors that lie side by side along an axis"),
    "unstack": (2, 2, "unstack(x, axis): a list of the tensors at each place of a static axis"),
    "einsum": (2, 2, "einsum(equation, xs): PyTorch's einsum, in the type to accumulate in"),
    "cumsum": (2, 2, "cumsum(x, axis): running sums along an axis"),
    "cumprod": (2, 2, "cumprod(x, axis): running products along an axis"),
    "literal": (1, 2, "literal(v): the constant tensor that an op's attribute holds"),
    "wide": (1, 1, "wide(T): the type to accumulate in (f32 for f16 and bf16, si64 for ints)"),
}
