"""Compiled programs that stay loaded and are called often, on tensors where they lie.

On devices of the CPU nothing is copied that need not be: an argument whose memory is dense and
begins at a multiple of :data:`ALIGNMENT` is read where it is, and a result is handed out where the
program wrote it. Other devices get copies. Weights are mapped, not copied; what the program makes
of them once (packed, transformed) is made when it is loaded.

Values come in and go out as DLPack capsules or numpy arrays: nothing here needs PyTorch.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from iree.runtime import _binding
from iree.runtime.array_interop import map_dtype_to_element_type

from mlirules.drivers.iree import pages, runtime, threads
from mlirules.drivers.iree.runtime import Array
from mlirules.language.faults import MlirulesError

__all__ = ["ALIGNMENT", "HOST", "Loaded", "Value"]

#: A buffer on a device.
Value: TypeAlias = _binding.HalBufferView

#: Where a tensor's memory must begin for a program to read it in place, in bytes.
ALIGNMENT = 64

_VIEW = _binding.HalBufferView

#: The host as DLPack writes it: the kind of device, and which of them.
HOST = (1, 0)


def _element_type(dtype: np.dtype[Any]) -> _binding.HalElementType:
    element = map_dtype_to_element_type(dtype)
    if element is None:
        raise MlirulesError.at("<call>", f"no device holds {dtype} arrays", code="inputs")
    return element


class Loaded:
    """A program on a device with its weights: to be called again and again, by several threads.

    ``of_capsule`` makes a value of a dense, aligned host tensor, given as a DLPack capsule.
    ``parameters`` are weights by name in the scope :data:`runtime.SCOPE`: arrays that are mapped
    where they lie and must not move; ``archives`` are files of weights, ``[SCOPE=]FILE``. ``uri``
    is a runtime's device URI (``Target.device``).

    Raises what :func:`runtime.run` does.
    """

    def __init__(
        self,
        vmfb: bytes,
        uri: str,
        function: str = "main",
        parameters: Mapping[str, Array] | None = None,
        archives: Sequence[str] = (),
    ) -> None:
        # Whoever keeps a program until Python ends is told of a leak by the bindings, at length.
        _binding.disable_leak_checker()
        with runtime.run_errors():
            threads.prepare()
            self._device = device = runtime.device(uri)
        weights = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in (parameters or {}).values()]
        self._kept = pages.Kept(uri, weights)
        self._fresh = True
        self._module, self._callee, self.entry = runtime.loaded_function(vmfb, function)
        modules = runtime.parameter_modules(archives, parameters or {})
        with runtime.run_errors():
            # Said once: each costs a look-up in every call.
            self.of_capsule: Callable[[object], Value] = device.from_dlpack_capsule
            self.to_capsule: Callable[[Value, int, int], object] = device.create_dlpack_capsule
            self._plain = all(kind == "r" for kind in self.entry.arguments + self.entry.results)
            self._takes = len(self.entry.arguments)
            self._gives = len(self.entry.results)
            hal = _binding.create_hal_module(runtime.instance(), self._device)
            self._context = _binding.VmContext(runtime.instance(), [hal, *modules, self._module])
            self._invoke = threads.giving_way(self._context.invoke, uri)
        #: Whether host memory is the device's: nothing needs to be copied.
        self.shares_memory = pages.of_host(uri)
        self._lock = threading.Lock()
        #: Where the mapped weights lie: a result there is the program's, not the caller's.
        self._starts = [start for start, _ in sorted(weights)]
        self._ends = [end for _, end in sorted(weights)]

    # ------------------------------------------------------------ values

    def of_array(self, array: Array) -> Value:
        """A numpy array, where it lies if the device can read it there, else a copy."""
        element = _element_type(array.dtype)
        dense = np.asarray(array, order="C")
        shared = self.shares_memory and dense.nbytes and dense.ctypes.data % ALIGNMENT == 0
        if not shared or not dense.flags.writeable:
            return self._device.allocator.allocate_buffer_copy(
                memory_type=_binding.MemoryType.DEVICE_LOCAL,
                allowed_usage=_binding.BufferUsage.DEFAULT,
                device=self._device,
                buffer=dense,
                element_type=element,
            )
        kind = _binding.MemoryType.DEVICE_LOCAL | _binding.MemoryType.HOST_VISIBLE
        usage = _binding.BufferUsage.DEFAULT | _binding.BufferUsage.MAPPING
        flat = dense.reshape(-1).view(np.uint8)
        buffer = self._device.allocator.import_host_allocation(flat, int(kind), int(usage))
        return _binding.HalBufferView(buffer, dense.shape, int(element))

    def reinterpreted(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """A value's bits as elements of another type of the same size."""
        element = _element_type(dtype)
        return _binding.HalBufferView(value.get_buffer(), value.shape, int(element))

    def capsule(self, value: Value) -> object:
        """A result as a DLPack capsule of host memory, which keeps it alive."""
        return self.to_capsule(value, *HOST)

    def dtype(self, value: Value) -> np.dtype[Any]:
        """The type of a value's elements."""
        return np.dtype(_binding.HalElementType.map_to_dtype(value.element_type))

    def array(self, value: Value) -> Array:
        """A result as a numpy array, over the device's memory where the host sees it."""
        if not self.shares_memory:
            return runtime.read_view(value, self._device)
        dtype = self.dtype(value)
        shape = list(value.shape)
        if not math.prod(shape):
            return np.empty(shape, dtype)
        return value.map().asarray(shape, dtype)

    def of_weights(self, address: int) -> bool:
        """Whether an address lies in the memory of the mapped weights."""
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ends[at]

    # ------------------------------------------------------------ calling

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program to its end on values and numbers; its results likewise, in order.

        What the arguments' memory holds must stay until this returns. Raises RunError.
        """
        packed = _binding.VmVariantList(len(arguments))
        if self._plain and len(arguments) == self._takes:
            # Written out: for a small program a call of Python's is a part of the time.
            push = packed.push_ref
            for argument in arguments:
                push(argument)
            results = _binding.VmVariantList(self._gives)
            try:
                with self._lock:
                    if self._fresh:
                        self._fresh = self._kept.settle()
                    self._invoke(self._callee, packed, results)
            except (RuntimeError, ValueError, IndexError) as error:
                raise runtime.run_error(error, self._device) from error
            if self._gives == 1:
                return [results.get_as_object(0, _VIEW)]
            return [results.get_as_object(index, _VIEW) for index in range(self._gives)]
        for kind, argument in zip(self.entry.arguments, arguments, strict=True):
            if kind == "r":
                packed.push_ref(argument)
            elif kind in "iI":
                packed.push_int(argument)
            else:
                packed.push_float(argument)
        results = _binding.VmVariantList(self._gives)
        try:
            with self._lock:
                if self._fresh:
                    self._fresh = self._kept.settle()
                self._invoke(self._callee, packed, results)
        except (RuntimeError, ValueError, IndexError) as error:
            raise runtime.run_error(error, self._device) from error
        return [
            results.get_as_object(index, _VIEW) if kind == "r" else results.get_variant(index)
            for index, kind in enumerate(self.entry.results)
        ]
