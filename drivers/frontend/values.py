"""What a model takes and gives: tensors inside tuples, dictionaries, dataclasses and the like.

A compiled program takes tensors in a row and gives tensors in a row. :class:`Flat` is the model
as such a function; everything beside tensors in its example inputs becomes part of the program.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from mlirules.drivers.iree import runtime
from mlirules.language.faults import MlirulesError

__all__ = ["Flat", "NotTensorsError", "from_command_line", "tensors_in", "to_numpy", "to_torch"]

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NotTensorsError(ValueError):
    """A value that is neither a tensor nor a constant, nor holds such values in a known way."""


def _parts(value: object) -> list[tuple[str, object]] | None:
    """The parts of a container with how they are reached from it; None: no container."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    if type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        return [(f"<{index}>", part) for index, part in enumerate(children)]
    return None


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    parts = _parts(value)
    if parts is None:
        yield path, value
        return
    for step, part in parts:
        yield from _leaves(part, path + step)


def tensors_in(value: object, name: str) -> tuple[list[torch.Tensor], list[str]]:
    """The tensors of a nested value in order, and the places of numbers and strings beside them.

    ``name`` is what places begin with. Raises :class:`NotTensorsError` for anything else.
    """
    tensors, constants = [], []
    for path, leaf in _leaves(value, name):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, _CONSTANTS + _SIZES):
            if leaf is not None:
                constants.append(f"{path} = {leaf}")
        else:
            raise NotTensorsError(f"{path} is not a tensor: {leaf!r:.60}")
    return tensors, constants


def _with_tensors(value: object, tensors: Iterator[torch.Tensor]) -> Any:
    """``value`` with its tensors exchanged, in order."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        return value
    made = [_with_tensors(part, tensors) for _, part in parts]
    kind: Any = type(value)
    if isinstance(value, Mapping):  # before dataclasses: a ModelOutput is both
        return kind(zip(value, made, strict=True))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return kind(**dict(zip(names, made, strict=True)))
    if hasattr(value, "_fields"):
        return kind(*made)
    if isinstance(value, list | tuple):
        return type(value)(made)
    node = pytree.SUPPORTED_NODES[type(value)]
    return node.unflatten_fn(made, node.flatten_fn(value)[1])


class Flat(torch.nn.Module):
    """A model as a function from its example inputs' tensors to its results' tensors.

    ``told.dropped`` holds, after a call, the results that are no tensors.
    """

    #: What stands before the names of the model's own parameters and buffers.
    PREFIX = "program."

    def __init__(
        self, program: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        super().__init__()
        self.program = program
        self._inputs = (tuple(args), dict(kwargs))
        self.tensors, _ = tensors_in(self._inputs, "input ")
        # In an object of its own: torch.export puts a module's attributes back.
        self.told = SimpleNamespace(dropped=[])

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in what the model answers."""
        args, kwargs = _with_tensors(self._inputs, iter(tensors))
        results, self.told.dropped = tensors_in(self.program(*args, **kwargs), "result")
        return tuple(results)


def to_numpy(tensor: torch.Tensor) -> runtime.Array:
    """A copy; bfloat16 and 8-bit floats as those of ``ml_dtypes``."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name.startswith(("bfloat16", "float8")):
        bits = plain.view({1: torch.uint8, 2: torch.uint16}[plain.element_size()])
        return bits.numpy().copy().view(runtime.dtype_of(name))
    array: runtime.Array = plain.numpy().copy()
    return array


def to_torch(array: runtime.Array) -> torch.Tensor:
    """An array, also of ml_dtypes, as a tensor."""
    name = array.dtype.name
    if name.startswith(("bfloat16", "float8")):
        bits = np.ascontiguousarray(array).view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
        return torch.from_numpy(bits).view(getattr(torch, name)).reshape(array.shape)
    return torch.from_numpy(np.array(array, order="C"))


_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHAPE = re.compile(r"(?:\d+x)*[a-z]\w*(?:<\w+>)?")


def from_command_line(texts: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs, each written ``[NAME=]VALUE``.

    VALUE is what ``mlirules run --input`` takes, or a shape and type alone (``1x3x8x8xf32``):
    floats from the normal distribution, integers and bools from 0 and 1, by torch's seed. Numbers,
    ``true``, ``false`` and ``null`` are Python's. Raises MlirulesError.
    """
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for text in texts:
        named = _NAMED.fullmatch(text)
        if named is None or named[1] in runtime.DTYPES:
            if kwargs:
                raise MlirulesError.at(
                    f"--input={text}", "stands after inputs with names", code="inputs"
                )
            args.append(_value(text))
        else:
            kwargs[named[1]] = _value(named[2])
    return tuple(args), kwargs


def _value(text: str) -> object:
    constants = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    if _SHAPE.fullmatch(text):
        return to_torch(runtime.drawn(text, int(torch.randint(1 << 31, ()))))
    array = runtime.parse_input(text)
    plain = "=" not in text and not text.startswith("@")
    return array.item() if plain else to_torch(array)
