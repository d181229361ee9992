"""What ops give for constant operands: tensor and linalg ops, evaluated by numpy.

This is for the expressions over weights that the compiler takes out of functions (packing, turning,
scaling them), so a value is an array of the type that MLIR says, and what is not known here is told
by :class:`Unknown` rather than guessed. Arithmetic is in the type of the op, as the compiled
program does it; sums are in numpy's order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree.bindings import Op, ir

__all__ = ["Array", "Unknown", "dtype_of", "results_of"]

Array: TypeAlias = npt.NDArray[Any]
#: More places of a loop nest than this are left to the compiler: 1 GB of f32.
_PLACES = 2**28


class Unknown(Exception):
    """An op, type or form that is not evaluated here."""


_DTYPES: Mapping[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "index": np.dtype(np.int64),
}


def dtype_of(element: ir.Type) -> np.dtype[Any]:
    """The dtype of an element type (signless integers are signed). Raises Unknown."""
    found = _DTYPES.get(str(element))
    if found is None:
        raise Unknown(str(element))
    return found


def _shape_of(type_: ir.Type) -> tuple[int, ...]:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise Unknown(str(type_))
    return tuple(type_.shape)


def _element_of(value: ir.Value) -> np.dtype[Any]:
    return dtype_of(getattr(value.type, "element_type", value.type))


def results_of(
    op: Op, operands: Sequence[Array], outside: Callable[[ir.Value], Array]
) -> tuple[Array, ...]:
    """The results of ``op`` (with constant attributes) for these operands, one array each.

    ``outside`` gives the value of what the op's body reads beside its arguments.

    A scalar is an array of rank 0. Arrays may be views of the operands: they are not to be written
    to. Raises Unknown.
    """
    name = op.name
    try:
        if name == "iree_linalg_ext.scan":
            return _scanned(op, operands)
        if len(op.results) != 1:
            raise Unknown(name)
        if name == "linalg.generic":
            return (_generic(op, operands, outside),)
        evaluate = _TENSOR_OPS.get(name)
        if evaluate is not None:
            return (evaluate(op, operands),)
        with np.errstate(all="ignore"):
            return (_scalar(op, operands),)
    except TypeError as error:  # numpy has no such function of this dtype
        raise Unknown(f"{name}: {error}") from error


# Scalar ops, of arrays of any shape
def _unsigned(of: Array) -> Array:
    return of.view(of.dtype.str.replace("i", "u")) if of.dtype.kind == "i" else of


def _quotient(a: Array, b: Array) -> Array:
    if not b.all():
        raise Unknown("division by zero")
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def _remainder(a: Array, b: Array) -> Array:
    if not b.all():
        raise Unknown("division by zero")
    return np.asarray(np.fmod(a, b))


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.subf": np.subtract,
    "arith.subi": np.subtract,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.divf": np.divide,
    "arith.divsi": _quotient,
    "arith.remsi": _remainder,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.select": np.where,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.ceil": np.ceil,
    "math.cos": np.cos,
    "math.exp": np.exp,
    "math.floor": np.floor,
    "math.log": np.log,
    "math.powf": np.power,
    "math.roundeven": np.rint,
    "math.rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "math.sin": np.sin,
    "math.sqrt": np.sqrt,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
}
#: What means for truth values what it does for numbers.
_LOGICAL = frozenset(
    (
        *("arith.andi", "arith.ori", "arith.xori", "arith.select"),
        *("arith.extui", "arith.uitofp", "arith.extsi"),
    )
)
#: Ops that are a conversion to the result's type. What does not fit there is nobody's to say.
_CONVERTING = frozenset(
    ("arith.extf", "arith.truncf", "arith.sitofp", "arith.extsi", "arith.index_cast")
)
#: By the numbers of arith's predicates.
_COMPARED: Sequence[Callable[[Array, Array], Any]] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    lambda a, b: _unsigned(a) < _unsigned(b),
    lambda a, b: _unsigned(a) <= _unsigned(b),
    lambda a, b: _unsigned(a) > _unsigned(b),
    lambda a, b: _unsigned(a) >= _unsigned(b),
)
_ORDERED: Sequence[Callable[[Array, Array], Any]] = (
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    np.not_equal,
)
_ALWAYS_TRUE, _NOT_A_NUMBER, _ANY_NUMBER, _UNORDERED = 15, 14, 7, 8


def _compared_floats(predicate: int, a: Array, b: Array) -> Array:
    if predicate in (0, _ALWAYS_TRUE):
        return np.full(np.broadcast_shapes(a.shape, b.shape), predicate != 0)
    nan = np.isnan(a) | np.isnan(b)
    if predicate in (_ANY_NUMBER, _NOT_A_NUMBER):
        return np.asarray(~nan if predicate == _ANY_NUMBER else nan)
    if predicate < _ANY_NUMBER:
        return np.asarray(_ORDERED[predicate - 1](a, b) & ~nan)
    return np.asarray(_ORDERED[predicate - _UNORDERED](a, b) | nan)


def _scalar(op: Op, operands: Sequence[Array]) -> Array:
    name, type_ = op.name, _element_of(op.results[0])
    if operands and operands[-1].dtype == np.bool_ and name not in _LOGICAL:
        raise Unknown(f"{name} of truth values")
    plain = _PLAIN.get(name)
    if plain is not None:
        made = np.asarray(plain(*operands))
    elif name in _CONVERTING:
        made = operands[0].astype(type_)
        if name == "arith.extsi" and operands[0].dtype == np.bool_:
            made = -made
    elif name == "arith.trunci":
        low = operands[0]
        made = (low & 1).astype(np.bool_) if type_ == np.bool_ else low.astype(type_)
    elif name in ("arith.extui", "arith.uitofp"):
        made = _unsigned(operands[0]).astype(type_)
    elif name == "arith.fptosi":
        made = _whole(operands[0], type_)
    elif name == "arith.cmpi":
        made = np.asarray(_COMPARED[_integer(op, "predicate")](*operands))
    elif name == "arith.cmpf":
        made = _compared_floats(_integer(op, "predicate"), *operands)
    else:
        raise Unknown(name)
    if made.dtype != type_:
        raise Unknown(f"{name} of {made.dtype}")
    return made


def _whole(of: Array, type_: np.dtype[Any]) -> Array:
    """Numbers without their fractions.

    One that does not fit may become anything, and often nobody reads it (T5 takes the logarithm of
    0 where it then selects another value). x86, and PyTorch there, gives the least number of 32 or
    64 bits.
    """
    info = np.iinfo(type_) if type_.kind == "i" else None
    if info is None:
        raise Unknown(f"whole numbers of {type_}")
    fits = np.isfinite(of) & (of > info.min) & (of < info.max)
    if fits.all():
        return of.astype(type_)
    if type_ not in (np.int32, np.int64):
        raise Unknown("a number that does not fit")
    return np.where(fits, np.where(fits, of, 0).astype(type_), info.min)


# Tensor ops
def _of_type(op: Op, made: Array) -> Array:
    """``made`` in the shape of the result."""
    shape = _shape_of(op.results[0].type)
    if made.size != math.prod(shape):
        raise Unknown(f"{op.name} of {made.shape}")
    return made.reshape(shape)


def _empty(op: Op, _operands: Sequence[Array]) -> Array:
    return np.zeros(_shape_of(op.results[0].type), _element_of(op.results[0]))


def _fill(op: Op, operands: Sequence[Array]) -> Array:
    return np.broadcast_to(operands[0], _shape_of(op.results[0].type))


def _reshaped(op: Op, operands: Sequence[Array]) -> Array:
    return _of_type(op, operands[0])


def _integer(op: Op, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _integers(op: Op, name: str) -> list[int]:
    """The numbers in an attribute that is an array of them."""
    found = op.attributes[name]
    if not isinstance(found, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr)):
        raise Unknown(f"{op.name}: {name}")
    return list(found)


def _static(op: Op, name: str) -> list[int]:
    """The numbers in an attribute, none of which stands for an operand."""
    found = _integers(op, name)
    if any(n < 0 for n in found):
        raise Unknown(op.name)
    return found


def _slices(op: Op) -> tuple[slice, ...]:
    offsets, sizes = _static(op, "static_offsets"), _static(op, "static_sizes")
    steps = _static(op, "static_strides")
    return tuple(
        slice(at, at + step * (size - 1) + 1 if size else at, step)
        for at, size, step in zip(offsets, sizes, steps, strict=True)
    )


def _part(op: Op, operands: Sequence[Array]) -> Array:
    if len(operands) != 1:
        raise Unknown(op.name)
    return _of_type(op, operands[0][_slices(op)])


def _inserted(op: Op, operands: Sequence[Array]) -> Array:
    if len(operands) != 2:
        raise Unknown(op.name)
    made = operands[1].copy()
    there = made[_slices(op)]
    there[...] = operands[0].reshape(there.shape)
    return made


def _joined(op: Op, operands: Sequence[Array]) -> Array:
    return np.concatenate(operands, axis=_integer(op, "dim"))


def _padded(op: Op, operands: Sequence[Array]) -> Array:
    low, high = _static(op, "static_low"), _static(op, "static_high")
    last = list(op.regions[0].blocks[0].operations)[-1].operation
    filler = last.operands[0].owner
    if len(operands) != 1 or isinstance(filler, ir.Block) or filler.name != "arith.constant":
        raise Unknown(op.name)
    value = _literal(filler.attributes["value"], _element_of(op.results[0]))
    widths = list(zip(low, high, strict=True))
    return np.pad(operands[0], widths, constant_values=value)


def _literal(attribute: ir.Attribute, type_: np.dtype[Any]) -> Array:
    if not isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)):
        raise Unknown(str(attribute))
    return np.asarray(attribute.value).astype(type_)


def _turned(op: Op, operands: Sequence[Array]) -> Array:
    return operands[0].transpose(_integers(op, "permutation"))


def _repeated(op: Op, operands: Sequence[Array]) -> Array:
    added = tuple(_integers(op, "dimensions"))
    shape = _shape_of(op.results[0].type)
    return np.broadcast_to(np.expand_dims(operands[0], added), shape)


def _copied(_op: Op, operands: Sequence[Array]) -> Array:
    return operands[0]


def _packed(op: Op, operands: Sequence[Array]) -> Array:
    """``linalg.pack``: inner blocks of the dimensions at ``inner_dims_pos``, in their order."""
    source = operands[0]
    tiles = _static(op, "static_inner_tiles")
    at = _static(op, "inner_dims_pos")
    filler = [v for v in operands[1:] if v.ndim == 0]
    widths: list[tuple[int, int]] = []
    split: list[int] = []
    outer: list[int] = []
    for dim, size in enumerate(source.shape):
        outer.append(len(split))
        if dim in at:
            tile = tiles[at.index(dim)]
            blocks = -(-size // tile)
            widths.append((0, blocks * tile - size))
            split += [blocks, tile]
        else:
            widths.append((0, 0))
            split.append(size)
    inner = [outer[dim] + 1 for dim in at]
    if any(high for _, high in widths):
        if not filler:
            raise Unknown("a block that is not full")
        source = np.pad(source, widths, constant_values=filler[0])
    order = _static(op, "outer_dims_perm") if "outer_dims_perm" in op.attributes else []
    outer = [outer[dim] for dim in order] or outer
    return _of_type(op, source.reshape(split).transpose([*outer, *inner]))


def _unpacked(op: Op, operands: Sequence[Array]) -> Array:
    """``linalg.unpack``: what ``linalg.pack`` took apart, without what fills its last blocks."""
    source, shape = operands[0], _shape_of(op.results[0].type)
    at = _static(op, "inner_dims_pos")
    outer = list(range(len(shape)))
    order = _static(op, "outer_dims_perm") if "outer_dims_perm" in op.attributes else []
    order = order or outer
    places: list[int] = []
    whole: list[int] = []
    for dim in outer:
        held = [order.index(dim), *(len(shape) + n for n, inner in enumerate(at) if inner == dim)]
        places += held
        whole.append(math.prod(source.shape[place] for place in held))
    made = source.transpose(places).reshape(whole)
    return _of_type(op, made[tuple(slice(size) for size in shape)])


def _extracted(_op: Op, operands: Sequence[Array]) -> Array:
    source, *indices = operands
    for index, size in zip(indices, source.shape, strict=True):
        if index.size and not (int(index.min()) >= 0 and int(index.max()) < size):
            raise Unknown("a place outside a tensor")
    return np.asarray(source[tuple(indices)])


# Structured ops
_ADDING: Mapping[str, Any] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
}


def _place(expression: ir.AffineExpr, grid: Sequence[Array]) -> Array:
    """An affine expression at all places of a loop nest; expressions are a few levels deep."""
    if isinstance(expression, ir.AffineDimExpr):
        position: int = ir.AffineDimExpr(expression).position
        return grid[position]
    if isinstance(expression, ir.AffineConstantExpr):
        return np.asarray(ir.AffineConstantExpr(expression).value)
    for kind, function in (
        (ir.AffineAddExpr, np.add),
        (ir.AffineMulExpr, np.multiply),
        (ir.AffineFloorDivExpr, np.floor_divide),
        (ir.AffineModExpr, np.mod),
    ):
        if isinstance(expression, kind):
            both = kind(expression)
            return np.asarray(function(_place(both.lhs, grid), _place(both.rhs, grid)))
    raise Unknown(str(expression))


def _dims(of: ir.AffineMap) -> list[int] | None:
    """The loops that a map names one after the other; None when it does anything else."""
    found = []
    for expression in of.results:
        if not isinstance(expression, ir.AffineDimExpr):
            return None
        found.append(ir.AffineDimExpr(expression).position)
    return found if len(set(found)) == len(found) else None


def _loops(maps: Sequence[ir.AffineMap], operands: Sequence[Array]) -> list[int]:
    """How often each loop runs."""
    sizes: list[int | None] = [None] * maps[0].n_dims
    for map_, operand in zip(maps, operands, strict=True):
        for expression, size in zip(map_.results, operand.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[ir.AffineDimExpr(expression).position] = size
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or math.prod(known) > _PLACES:
        raise Unknown("loops")
    return known


def _spread(
    operand: Array, map_: ir.AffineMap, loops: Sequence[int], grid: Sequence[Array]
) -> Array:
    """An operand, with a dimension for every loop (of size 1, where it does not depend on it)."""
    dims = _dims(map_)
    if dims is None:
        if not map_.results:
            return operand.reshape([1] * len(loops))
        return np.asarray(operand[tuple(_place(e, grid) for e in map_.results)])
    ordered = operand.transpose(sorted(range(len(dims)), key=dims.__getitem__))
    return ordered.reshape([size if d in dims else 1 for d, size in enumerate(loops)])


def _generic(op: Op, operands: Sequence[Array], outside: Callable[[ir.Value], Array]) -> Array:
    if len(op.results) != 1:
        raise Unknown("several results")
    maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    loops = _loops(maps, operands)
    axes = np.ogrid[tuple(slice(size) for size in loops)] if loops else ()
    grid = [np.asarray(axis, dtype=np.int64) for axis in axes]
    held = [_spread(o, m, loops, grid) for o, m in zip(operands, maps, strict=True)]
    to = _dims(maps[-1])
    if to is None:
        raise Unknown("places of results")
    block = op.regions[0].blocks[0]
    values: dict[ir.Value, Array] = dict(zip(block.arguments, held, strict=True))
    value = functools.partial(_value, values=values, outside=outside)
    summed = tuple(d for d in range(len(loops)) if d not in to)
    inner = [nested.operation for nested in block.operations]
    letters = _contraction(inner, block.arguments, maps) if summed else None
    if letters is not None and _is_wide(operands):
        return _of_type(op, _contracted(letters, operands))
    combined = None
    if summed:
        combined = _combining(inner, block.arguments[len(held) - 1])
        inner = [nested for nested in inner if nested != combined]
    for nested in inner[:-1]:
        values[nested.results[0]] = _nested(nested, value, grid)
    if combined is None:
        made = value(inner[-1].operands[0])
    else:
        last = block.arguments[len(held) - 1]
        other = next(v for v in combined.operands if v != last)
        function = _ADDING[combined.name]
        terms = np.broadcast_to(value(other), loops)
        made = function.reduce(terms, axis=summed, keepdims=True, dtype=held[-1].dtype)
        made = function(held[-1], made)
        loops = [1 if d in summed else size for d, size in enumerate(loops)]
    made = np.broadcast_to(made, loops)
    kept = made.reshape([size for d, size in enumerate(loops) if d in to])
    rank = sorted(to)
    return _of_type(op, kept.transpose([rank.index(d) for d in to]))


def _contraction(
    inner: Sequence[ir.Operation], arguments: Sequence[ir.Value], maps: Sequence[ir.AffineMap]
) -> tuple[str, str, str] | None:
    """The loops of two factors and of their sum of products, a letter each; None for others.

    Loops that are summed over belong to both factors, all others to one: a product of matrices.
    """
    names = [nested.name for nested in inner]
    if names != ["arith.mulf", "arith.addf", "linalg.yield"] or len(arguments) != 3:
        return None
    times, plus, given = inner
    left, right, running = arguments
    if set(times.operands) != {left, right} or set(plus.operands) != {times.result, running}:
        return None
    if list(given.operands) != [plus.result]:
        return None
    letters = _letters(maps)
    if letters is None:
        return None
    a, b, made = letters
    return letters if set(a) ^ set(b) == set(made) else None


def _letters(maps: Sequence[ir.AffineMap]) -> tuple[str, str, str] | None:
    """The loops of two factors and of what they make in :func:`numpy.einsum`'s notation."""
    left, right, made = (_dims(map_) for map_ in maps)
    if left is None or right is None or made is None:
        return None
    a, b, c = ("".join(chr(ord("a") + d) for d in held) for held in (left, right, made))
    return a, b, c


def _is_wide(operands: Sequence[Array]) -> bool:
    """Whether numpy multiplies matrices of such numbers as they are: narrow ones it widens."""
    return {operand.dtype for operand in operands} <= {np.dtype(np.float32), np.dtype(np.float64)}


def _contracted(letters: tuple[str, str, str], operands: Sequence[Array]) -> Array:
    """A sum of products, onto what is there: a matrix's rows by all columns of a larger factor."""
    (a, b, made), (left, right, onto) = letters, operands
    if left.size > right.size:
        a, b, left, right = b, a, right, left
    product = np.asarray(np.einsum(f"{a},{b}->{made}", left, right, optimize=True))
    return product if not onto.any() else np.asarray(product + onto)


def _combining(inner: Sequence[ir.Operation], running: ir.Value) -> ir.Operation:
    """The op that adds a place's value to the running one, which nothing else reads."""
    given = inner[-1].operands[0].owner
    readers = [use.owner for use in running.uses]
    if isinstance(given, ir.Block) or readers != [given] or given.name not in _ADDING:
        raise Unknown("a reduction")
    if given.operands[0] == given.operands[1]:
        raise Unknown("a reduction")
    return given.operation


def _scanned(op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    """``iree_linalg_ext.scan``: all sums along a dimension, and the last of them."""
    first, last = (nested.operation for nested in op.regions[0].blocks[0].operations)
    plain = first.name in _ADDING and list(last.operands) == list(first.results)
    inclusive = ir.BoolAttr(op.attributes["inclusive"]).value
    if not plain or not inclusive or operands[0].dtype == np.bool_:
        raise Unknown(op.name)
    axis = _integer(op, "dimension")
    made = _ADDING[first.name].accumulate(operands[0], axis=axis, dtype=operands[0].dtype)
    return made, np.take(made, -1, axis=axis)


#: What products sum over. Of ``linalg.mmt4d``: a matrix in blocks by a transposed one.
_SUMS = {
    "linalg.matmul": "ik,kj->ij",
    "linalg.batch_matmul": "bik,bkj->bij",
    "linalg.mmt4d": "ikac,jkbc->ijab",
}


def _product(op: Op, operands: Sequence[Array]) -> Array:
    """A product of two factors and a sum."""
    left, right, onto = operands
    if not _is_wide(operands):
        raise Unknown(f"a product of {left.dtype}")
    made = np.einsum(_summed_over(op), left, right, optimize=True)
    return np.asarray(onto + made.astype(onto.dtype))


def _summed_over(op: Op) -> str:
    """Its loops in :func:`numpy.einsum`'s notation: an op may read its factors turned."""
    if op.name == "linalg.mmt4d" or "indexing_maps" not in op.attributes:
        return _SUMS[op.name]
    letters = _letters(
        [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    )
    if letters is None or set(letters[2]) - {*letters[0], *letters[1]}:
        raise Unknown(f"{op.name}: broadcast")
    left, right, made = letters
    return f"{left},{right}->{made}"


def _nested(op: Op, value: Callable[[ir.Value], Array], grid: Sequence[Array]) -> Array:
    if op.name == "linalg.index":
        return grid[_integer(op, "dim")]
    if op.name == "arith.constant":
        return _literal(op.attributes["value"], _element_of(op.results[0]))
    if len(op.regions):  # it has loops of its own, where arrays are over the loops here
        raise Unknown(op.name)
    return results_of(op, [value(v) for v in op.operands], value)[0]


def _value(
    of: ir.Value, values: Mapping[ir.Value, Array], outside: Callable[[ir.Value], Array]
) -> Array:
    """A value of a body, or one beside it, which has no place in the loops."""
    return values[of] if of in values else outside(of)


_TENSOR_OPS: Mapping[str, Callable[[Op, Sequence[Array]], Array]] = {
    "tensor.cast": _reshaped,
    "tensor.collapse_shape": _reshaped,
    "tensor.concat": _joined,
    "tensor.empty": _empty,
    "tensor.expand_shape": _reshaped,
    "tensor.extract": _extracted,
    "tensor.extract_slice": _part,
    "tensor.insert_slice": _inserted,
    "tensor.pad": _padded,
    "linalg.broadcast": _repeated,
    "linalg.copy": _copied,
    "linalg.fill": _fill,
    "linalg.pack": _packed,
    "linalg.transpose": _turned,
    "linalg.unpack": _unpacked,
    **dict.fromkeys(_SUMS, _product),
    "iree_tensor_ext.compute_barrier.start": _copied,
    "iree_tensor_ext.compute_barrier.end": _copied,
}
