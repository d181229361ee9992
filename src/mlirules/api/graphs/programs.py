"""Compiled graphs as functions of tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from mlirules.api.graphs.changes import Samples
from mlirules.api.graphs.plans import Binary, Result
from mlirules.drivers.apply.session import Bounded
from mlirules.drivers.iree.calls import ALIGNMENT, HOST, Loaded, Value
from mlirules.drivers.iree.runtime import Array
from mlirules.language.faults import MlirulesError

__all__ = ["GraphProgram", "array_of", "bits_of", "given", "tensor_of"]

#: How many sets of weights a program is kept loaded with.
_BINDINGS = 8

#: Tensors that DLPack or the runtime know under another name.
_EIGHT_BITS: dict[str, Any] = {
    name: getattr(ml_dtypes, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}

_EIGHT_BIT_TYPES = {getattr(torch, name): np.dtype(kind) for name, kind in _EIGHT_BITS.items()}
_COMPLEX = frozenset([torch.complex64, torch.complex128])
#: What is handed over as it is: complex tensors may stand for their conjugates.
_DIRECT = frozenset(
    [getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "bool")]
    + [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory as bytes in a row; a copy only where it is not dense."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def array_of(tensor: torch.Tensor) -> Array:
    """:func:`bits_of` as a numpy array over the same memory."""
    array: Array = bits_of(tensor).numpy()
    return array


_to_dlpack = torch._C._to_dlpack
_from_dlpack = torch._C._from_dlpack


class _Bound:
    """A program loaded with weights, and how these were then."""

    def __init__(
        self, loaded: Loaded, weights: Sequence[torch.Tensor], arrays: Sequence[Array]
    ) -> None:
        self.loaded = loaded
        self._versions = [weight._version for weight in weights]
        # Memory that is the tensors' own: a copy of what was not dense says nothing of them.
        self._samples = Samples(
            [a for a, w in zip(arrays, weights, strict=True) if a.ctypes.data == w.data_ptr()]
        )

    def fits(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these weights, at the same places, are as they were."""
        if self._versions != [weight._version for weight in weights]:
            return False
        return self._samples.same()


class GraphProgram:
    """A compiled graph, called with all the graph's arguments: tensors and ints, weights too.

    Which memory the weights are in is looked at in every call, PyTorch's count of changes to it,
    and some of the values (:class:`Samples`): a program with weights that changed is loaded anew.
    Several threads may call it.
    """

    def __init__(self, binary: Binary, uri: str) -> None:
        self.binary = binary
        self._uri = uri
        self.plan = binary.plan
        self._bound: Bounded[tuple[int, ...], _Bound] = Bounded(_BINDINGS)
        self._lock = threading.Lock()
        #: How often the program was loaded: with weights that are new or have changed.
        self.loads = 0
        self._like: list[tuple[torch.dtype, torch.Size]] = []
        self._positions = self.plan.arguments
        self._giving = [(result, _giver(result)) for result in self.plan.results]
        self._empty = self.plan.empty
        self._alone: Loaded | None = None
        if not self.plan.held and not self.plan.empty:
            self._alone = Loaded(binary.vmfb, uri)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The graph's results. Raises RunError."""
        made: Sequence[object] = ()
        loaded = self._alone
        own: list[torch.Tensor] = []
        if not self._empty:
            if loaded is None:
                loaded = self._loaded([arguments[index] for index in self.plan.held])
            values = []
            in_place, of_capsule = loaded.shares_memory, loaded.of_capsule
            for index in self._positions:
                value = arguments[index]
                if isinstance(value, torch.Tensor):
                    # What given() does, for what needs nothing of it: calls of Python's are dear.
                    if (
                        in_place
                        and value.dtype in _DIRECT
                        and not value.data_ptr() % ALIGNMENT
                        and value.is_contiguous()
                        and not value.is_neg()
                    ):
                        own.append(value)
                        value = of_capsule(_to_dlpack(value))
                    else:
                        value, tensor = given(loaded, value)
                        own.append(tensor)
                values.append(value)
            made = loaded(values)
        out: list[object] = []
        seen: list[int] = []
        for result, give in self._giving:
            if result.kind == "program":
                out.append(give(loaded, made[result.index], own, seen))
            elif result.kind == "argument":
                out.append(arguments[result.index])
            else:
                out.append(result.value)
        return out

    def _loaded(self, weights: Sequence[torch.Tensor]) -> Loaded:
        """The program with these weights as they are now."""
        key = tuple([weight.data_ptr() for weight in weights])
        bound = self._bound.get(key)
        if bound is not None and bound.fits(weights):
            return bound.loaded
        with self._lock:
            bound = self._bound.get(key)
            if bound is None or not bound.fits(weights):
                like = [(weight.dtype, weight.shape) for weight in weights]
                if self._like and like != self._like:
                    raise MlirulesError.at(
                        "<weights>", "have other types or sizes than when compiled", code="weights"
                    )
                self._like = like
                names = [f"p{index}" for index in self.plan.held]
                arrays = {n: array_of(w) for n, w in zip(names, weights, strict=True)}
                loaded = Loaded(self.binary.vmfb, self._uri, parameters=arrays)
                bound = self._bound.put(key, _Bound(loaded, weights, list(arrays.values())))
                self.loads += 1
        return bound.loaded


def given(loaded: Loaded, tensor: torch.Tensor) -> tuple[Value, torch.Tensor]:
    """A tensor as a value, where it lies if that can be, and the tensor that is."""
    dtype = tensor.dtype
    if dtype in _COMPLEX:
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if not loaded.shares_memory:
        return loaded.of_array(_numpy(tensor)), tensor
    eight = _EIGHT_BIT_TYPES.get(dtype)
    if eight is None:
        return loaded.of_capsule(_to_dlpack(tensor)), tensor
    value = loaded.of_capsule(_to_dlpack(tensor.detach().view(torch.uint8)))
    return loaded.reinterpreted(value, eight), tensor


def _numpy(tensor: torch.Tensor) -> Array:
    plain = tensor.detach()
    name = str(plain.dtype).removeprefix("torch.")
    if name == "bfloat16":
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if name in _EIGHT_BITS:
        return plain.view(torch.uint8).numpy().view(_EIGHT_BITS[name])
    array: Array = plain.numpy()
    return array


def _giver(result: Result) -> Callable[..., object]:
    """What makes the caller's tensor of a program's result; numbers stay as they are."""
    if result.kind != "program" or not result.dtype:
        return lambda _loaded, value, _own, _seen: value
    dtype = getattr(torch, result.dtype)
    eight = _EIGHT_BITS.get(result.dtype)
    back = None
    if result.dims is not None:
        back = [0] * len(result.dims)
        for place, dim in enumerate(result.dims):
            back[dim] = place

    def give(loaded: Loaded, value: Any, own: list[torch.Tensor], seen: list[int]) -> Any:
        if eight is not None:
            value = loaded.reinterpreted(value, np.dtype(np.uint8))
        if loaded.shares_memory:
            tensor = _from_dlpack(loaded.to_capsule(value, *HOST))
        else:
            tensor = _tensor(loaded.array(value))
        if tensor.dtype is not dtype:
            tensor = tensor.view(dtype)
        address = tensor.data_ptr()
        # What the program hands out may be memory of an argument, a weight, or another result.
        if address:
            taken = result.copy or address in seen or loaded.of_weights(address)
            for other in own:
                if taken:
                    break
                taken = 0 <= address - other.data_ptr() < other.nbytes
            if taken:
                tensor = tensor.clone()
        seen.append(address)
        return tensor if back is None else tensor.permute(back)

    return give


def tensor_of(loaded: Loaded, value: Value) -> torch.Tensor:
    """A result as a tensor of the type that the runtime says, where it lies if that can be."""
    if loaded.shares_memory:
        name = loaded.dtype(value).name
        if name not in _EIGHT_BITS:
            tensor: torch.Tensor = _from_dlpack(loaded.capsule(value))
            return tensor
    return _tensor(loaded.array(value))


def _tensor(array: Array) -> torch.Tensor:
    name = array.dtype.name
    if name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if name in _EIGHT_BITS:
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, name))
    return torch.from_numpy(array)
