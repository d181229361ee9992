"""The values that a module's globals are given before its functions run, as constants.

An initializer computes a global's value once, at the beginning; where it computes of constants
alone its result is one, too (:mod:`evaluation`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mlirules.drivers.iree import bytecode, compiler, program
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.evaluation import Array, Unknown, dtype_of, results_of
from mlirules.drivers.iree.traversal import children, is_open, ops_below

__all__ = ["evaluate"]

#: Values up to this many bytes are literals, longer ones resources.
_SHORT = 1024
#: In bytes; where IREE wants a constant to begin.
_ALIGNMENT = 64


class _Loaded(Exception):
    """A weight that is only there when the program runs."""


def evaluate(module: ir.Module, blobs: Mapping[str, memoryview], *, partly: bool = False) -> bool:
    """Give globals the values that their initializers compute, and drop those; False: not all.

    ``blobs`` are the bytes of the module's resources by name. A module of which one initializer is
    not known is left as it was, but where ``partly`` that one stays and runs when the program
    starts; so does what loads weights from an archive.
    """
    top = [op.operation for op in module.body.operations]
    globals_ = {
        ir.StringAttr(op.attributes["sym_name"]).value: op for op in top if op.name == "util.global"
    }
    known: dict[str, _Value] = {}
    done: list[ir.Operation] = []
    with module.context, ir.Location.unknown():
        for op in top:
            if op.name != "util.initializer":
                continue
            try:
                known.update(_stored(op, globals_, known, blobs))
            except Unknown:
                if not partly:
                    return False
                continue
            except _Loaded:
                continue
            done.append(op)
        unread = _between(top, done, globals_)
        # All values first: a type that has no attribute leaves the module as it was.
        names = (f"evaluated_{number}" for number in itertools.count())
        try:
            made = {
                name: value.attribute(next(names))
                for name, value in known.items()
                if name not in unread
            }
        except Unknown:
            return False
        for name, attribute in made.items():
            globals_[name].attributes["initial_value"] = attribute
    for op in done:
        op.erase()
    for name in unread:
        globals_[name].erase()
    return True


def _between(
    top: Sequence[ir.Operation],
    done: Sequence[ir.Operation],
    globals_: Mapping[str, ir.Operation],
) -> set[str]:
    """The globals that one of the initializers hands to the next, and nothing else reads."""
    gone, by_them, by_others = set(done), set[str](), set[str]()
    for op in top:
        (by_them if op in gone else by_others).update(_read(op))
    return {
        name
        for name in by_them - by_others
        if "sym_visibility" in globals_[name].attributes
        and ir.StringAttr(globals_[name].attributes["sym_visibility"]).value == "private"
    }


def _read(below: ir.Operation) -> Iterator[str]:
    """The globals that the ops below one name, and are not the ones to store."""
    for op in ops_below(below, is_open):
        if op.name.startswith("util.global.") and op.name != "util.global.store":
            yield ir.FlatSymbolRefAttr(op.attributes["global"]).value


class _Value:
    """A constant: its attribute, its array, or both; each made of the other when it is needed."""

    def __init__(self, type_: ir.Type, attribute: ir.Attribute | None, array: Array | None) -> None:
        self._type, self._attribute, self._array = type_, attribute, array

    def array(self, blobs: Mapping[str, memoryview]) -> Array:
        """The elements; raises Unknown."""
        if self._array is None:
            assert self._attribute is not None
            self._array = _elements(self._attribute, blobs)
        return self._array

    def attribute(self, name: str) -> ir.Attribute:
        """An attribute for it; a resource is called ``name``. Raises Unknown."""
        if self._attribute is None:
            assert self._array is not None
            self._attribute = _attribute_of(self._array, self._type, name)
        return self._attribute


def _stored(
    initializer: ir.Operation,
    globals_: Mapping[str, ir.Operation],
    known: Mapping[str, _Value],
    blobs: Mapping[str, memoryview],
) -> dict[str, _Value]:
    """What an initializer stores, by the globals' names. Raises Unknown, and _Loaded."""
    if len(initializer.regions[0].blocks) != 1:
        raise Unknown("branches")
    values: dict[ir.Value, _Value] = {}
    stored: dict[str, _Value] = {}

    def value(of: ir.Value) -> Array:
        return values[of].array(blobs)

    for op in children(initializer):
        match op.name:
            case "arith.constant":
                values[op.results[0]] = _constant(op.attributes["value"], op.results[0].type)
            case "util.global.load":
                name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
                values[op.results[0]] = known[name] if name in known else _initial(globals_[name])
            case "util.global.store":
                name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
                if "is_mutable" in globals_[name].attributes or name in stored or name in known:
                    raise Unknown("a global that changes")
                stored[name] = values[op.operands[0]]
            case "util.return":
                pass
            case _ if op.name.startswith("iree_tensor_ext.compute_barrier."):
                values[op.results[0]] = values[op.operands[0]]
            case _:
                made = results_of(op, [value(v) for v in op.operands], value)
                for result, array in zip(op.results, made, strict=True):
                    values[result] = _Value(result.type, None, array)
    return stored


def _initial(global_: ir.Operation) -> _Value:
    """The value that a global begins with, and keeps."""
    attributes = global_.attributes
    if "is_mutable" in attributes or "initial_value" not in attributes:
        raise Unknown("a global that changes")
    return _constant(attributes["initial_value"], ir.TypeAttr(attributes["type"]).value)


def _constant(attribute: ir.Attribute, type_: ir.Type) -> _Value:
    if isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)):
        return _Value(type_, attribute, np.asarray(attribute.value).astype(dtype_of(type_)))
    if isinstance(attribute, ir.DenseElementsAttr) or program.is_resource(attribute):
        return _Value(type_, attribute, None)
    if str(attribute).startswith(("#stream.parameter", "#flow.parameter")):
        raise _Loaded
    raise Unknown(str(type_))


def _elements(attribute: ir.Attribute, blobs: Mapping[str, memoryview]) -> Array:
    """The elements of a constant of a tensor's type. Raises Unknown."""
    type_ = ir.ShapedType(attribute.type)
    dtype, shape = dtype_of(type_.element_type), tuple(type_.shape)
    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            value: Any = attribute.get_splat_value()
            return np.broadcast_to(np.asarray(value.value).astype(dtype), shape)
        try:
            if dtype == ml_dtypes.bfloat16:
                attribute = _bits(attribute, type_)
                return np.array(attribute).view(dtype).reshape(shape)
            return np.array(attribute).astype(dtype, copy=False).reshape(shape)
        except (ValueError, TypeError, BufferError) as error:
            raise Unknown(str(type_)) from error
    blob = blobs.get(bytecode.resource_name(str(attribute)))
    if blob is None or len(blob) != math.prod(shape) * dtype.itemsize or dtype == np.bool_:
        raise Unknown(str(type_))
    return np.frombuffer(blob, dtype=dtype).reshape(shape)


def _bits(attribute: ir.DenseElementsAttr, type_: ir.ShapedType) -> ir.DenseElementsAttr:
    """The elements' bits as whole numbers: the bindings read no bf16, and MLIR folds a bitcast."""
    floats = str(attribute.type)
    whole = str(ir.RankedTensorType.get(type_.shape, ir.IntegerType.get_signless(16)))
    text = f"""func.func @f() -> {whole} {{
  %0 = arith.constant dense<0.0> : {floats}
  %1 = arith.bitcast %0 : {floats} to {whole}
  return %1 : {whole}
}}"""
    module = compiler.parse(text, "<bits>", attribute.context)
    body = module.body.operations[0].regions[0].blocks[0]
    body.operations[0].attributes["value"] = attribute
    compiler.run_passes(module, "builtin.module(func.func(canonicalize))")
    folded = ir.OpResult(list(body.operations)[-1].operands[0]).owner
    return ir.DenseElementsAttr(folded.attributes["value"])


def _attribute_of(array: Array, type_: ir.Type, name: str) -> ir.Attribute:
    if not isinstance(type_, ir.RankedTensorType):
        return _scalar(type_, array)
    if isinstance(type_.element_type, ir.IndexType):
        raise Unknown(str(type_))
    if array.size and _is_splat(array):
        first = array[(0,) * array.ndim]
        return ir.DenseElementsAttr.get_splat(type_, _scalar(type_.element_type, first))
    if array.dtype == np.bool_ or (array.nbytes <= _SHORT and array.dtype.kind in "fi"):
        return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=type_)
    laid = _laid_out(array)
    return ir.DenseResourceElementsAttr.get_from_buffer(laid, name, type_, _ALIGNMENT)


def _scalar(type_: ir.Type, value: Array | np.generic) -> ir.Attribute:
    if isinstance(type_, ir.FloatType):
        return ir.FloatAttr.get(type_, float(value))
    return ir.IntegerAttr.get(type_, int(value))


def _is_splat(array: Array) -> bool:
    """Whether all elements have the same bits; NaN is none."""
    first = array[(0,) * array.ndim]
    ends = array[tuple(size - 1 for size in array.shape)]
    if ends != first or (first == 0 and array.dtype.kind == "f" and np.signbit(array).any()):
        return False
    return bool((array == first).all())


def _laid_out(array: Array) -> Array:
    """The bytes of an array, one element after the other, where a resource may begin."""
    space = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -space.ctypes.data % _ALIGNMENT
    bytes_ = space[start : start + array.nbytes]
    np.copyto(bytes_.view(array.dtype).reshape(array.shape), array)
    return bytes_
