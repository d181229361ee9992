"""What PyTorch computes for a torch-dialect program: an op by op interpreter.

The compiler's own conversion is the usual reference for a rewrite, and it is wrong, or fails, for
some ops. Where torch is installed, the program's ops are those of torch, and can be asked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.generator.lowering.values import tensor_of_type
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.typetexts import torch_kinds
from mlirules.language.values import Dyn

Array = npt.NDArray[Any]


class NotInterpreted(MlirulesError):
    """The program holds something that torch cannot be asked about."""

    @classmethod
    def because(cls, what: str) -> NotInterpreted:
        """With the op or the reason."""
        return cls(Fault(Span("<torch>"), "torch-reference", what))


def available() -> str | None:
    """None when torch is installed, else the reason why not."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (the extra mlirules[torch])"
    return None


#: What computes an op: its operands and the types of its results to the results as arrays.
Function = Callable[[list[Any], Sequence[str]], list[Array]]


def evaluate(
    text: str,
    inputs: Sequence[Array],
    name: str | None = None,
    functions: Mapping[str, Function] | None = None,
) -> list[Array]:
    """The results of a program's function (the first by default), by PyTorch on the CPU.

    ``functions`` compute the ops that they are named for. Where PyTorch is not installed they get
    arrays, and no other op is computed. Raises :class:`NotInterpreted` for ops that are none of
    torch's, and for inputs that PyTorch refuses.
    """
    functions = functions or {}
    if not functions and (reason := available()) is not None:
        raise NotInterpreted.because(reason)
    from mlirules.drivers.apply.programs import parsed

    module = parsed(text)
    if "dense_resource" in text:  # a resource that is read again gets another name
        text = str(module)
    for op in module.body.operations:
        function = op.operation
        if function.name != "func.func" or not list(function.regions[0].blocks):
            continue
        if name is None or ir.StringAttr(function.attributes["sym_name"]).value == name:
            return _Interpreter(text, functions).run(function.regions[0].blocks[0], inputs)
    raise NotInterpreted.because("no function")


_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "si8": "int8",
    "si16": "int16",
    "si32": "int32",
    "si64": "int64",
    "ui8": "uint8",
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


class _Interpreter:
    def __init__(self, text: str, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self.torch: Any = None
        if available() is None:
            import torch

            self.torch = torch
        self.values: dict[ir.Value, object] = {}
        at = text.rfind("{-#")
        section = text[at:] if at >= 0 else ""
        found = re.finditer(r'([\w.\-$]+|"[^"]+"): "0x([0-9A-Fa-f]*)"', section)
        self.blobs = {m[1].strip('"'): bytes.fromhex(m[2])[4:] for m in found}

    def run(self, block: ir.Block, inputs: Sequence[Array]) -> list[Array]:
        for argument, value in zip(block.arguments, inputs, strict=True):
            self.values[argument] = self._input(str(argument.type), np.asarray(value))
        with self.torch.no_grad() if self.torch else contextlib.nullcontext():
            for op in block.operations:
                operation = op.operation
                if operation.name.endswith("return"):
                    return [np.asarray(array(self.values[v])) for v in operation.operands]
                results = self._op(operation)
                for made, result in zip(operation.results, results, strict=True):
                    self.values[made] = self._checked(made, result)
        raise NotInterpreted.because("no return")

    def _input(self, type_: str, value: Array) -> Any:
        if type_ in ("!torch.int", "!torch.float", "!torch.bool"):
            return {"int": int, "float": float, "bool": bool}[type_[7:]](value.item())
        if torch_kinds(type_)[:1] != ("vtensor",):
            raise NotInterpreted.because(f"an argument of type {type_}")
        return self._tensor(value, type_)

    def _tensor(self, value: Array, type_: str) -> Any:
        found = tensor_of_type("", type_)
        name = _DTYPES.get(found.dtype.torch) if found is not None and found.dtype else None
        if name is None:
            raise NotInterpreted.because(f"a tensor of type {type_}")
        value = np.asarray(value, order="C")
        return tensor(value).to(getattr(self.torch, name)) if self.torch else value

    def _checked(self, value: ir.OpResult, result: object) -> Any:
        """The result, if it is what the program says that it is: shapes are promises."""
        type_ = str(value.type)
        found = tensor_of_type("", type_)
        if found and found.torch and self.torch and isinstance(result, self.torch.Tensor):
            dims = found.dims or ()
            shape = list(result.shape)
            fits = len(dims) == len(shape) and all(
                d == s or isinstance(d, Dyn) for d, s in zip(dims, shape, strict=True)
            )
            if not fits:
                raise NotInterpreted.because(f"{value.owner.name} gives {shape}, not {type_}")
        return result

    def _op(self, op: ir.Operation) -> list[Any]:
        name = op.name
        if name.startswith("torch.constant."):
            return [self._constant(op)]
        if name == "torch.vtensor.literal":
            return [self._literal(op)]
        arguments = [self.values[v] for v in op.operands]
        if name == "torch.operator":
            name = ir.StringAttr(op.attributes["name"]).value
        if name in self.functions:
            made = self.functions[name](arguments, [str(r.type) for r in op.results])
            types = [str(r.type) for r in op.results]
            return [self._input(t, v) for t, v in zip(types, made, strict=True)]
        special = _SPECIAL.get(name)
        if special is not None:
            try:
                return special(arguments)
            except (ValueError, OverflowError, ZeroDivisionError, RuntimeError) as error:
                raise NotInterpreted.because(f"{name}: {error}") from None
        if name in ("torch.bind_symbolic_shape", "torch.symbolic_int"):
            return [None] * len(op.results)
        found = self._overload(name)
        if name.startswith("torch.aten.convolution"):  # the dialect may leave the paddings empty
            size = max(len(a) for a in arguments if isinstance(a, list))
            arguments = [[0] * size if a == [] else a for a in arguments]
        try:
            positional, named = self._fitted(found, arguments)
            result = found(*positional, **named)
        except Exception as error:  # noqa: BLE001 - PyTorch refuses in many ways
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NotInterpreted.because(f"{name}: {said}") from None
        if len(op.results) == 0:
            return []
        if len(op.results) == 1:
            return [result]
        return list(result)

    def _overload(self, name: str) -> Callable[..., Any]:
        words = name.split(".")
        if len(words) < 3 or words[0] != "torch":
            raise NotInterpreted.because(f"{name} is no op of torch's")
        if self.torch is None:
            raise NotInterpreted.because(f"{name}: {available()}")
        space = getattr(self.torch.ops, words[1])
        try:
            packet = getattr(space, words[2])
            overload = words[3] if len(words) > 3 else "default"
            found: Callable[..., Any] = getattr(packet, overload)
        except AttributeError:
            raise NotInterpreted.because(f"torch has no {name}") from None
        return found

    @staticmethod
    def _fitted(overload: Any, arguments: list[object]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the schema wants them: the dialect has all of them by position."""
        schema = overload._schema  # the only way to it
        keyword = [a.name for a in schema.arguments if a.kwarg_only]
        positional = len(schema.arguments) - len(keyword)
        return arguments[:positional], dict(zip(keyword, arguments[positional:], strict=False))

    def _constant(self, op: ir.Operation) -> Any:
        kind = op.name.rpartition(".")[2]
        if kind == "none":
            return None
        attribute = op.attributes["value"]
        if kind == "int":
            return int(ir.IntegerAttr(attribute).value)
        if kind == "float":
            return float(ir.FloatAttr(attribute).value)
        if kind == "bool":
            return bool(ir.IntegerAttr(attribute).value)
        if kind == "str":
            return str(ir.StringAttr(attribute).value)
        if kind == "device":
            return self.torch.device("cpu") if self.torch else "cpu"
        raise NotInterpreted.because(op.name)

    def _literal(self, op: ir.Operation) -> Any:
        attribute, type_ = op.attributes["value"], str(op.results[0].type)
        text = str(attribute)
        found = irtypes.tensor_type(attribute.type)
        name = _DTYPES.get(found.element) if found is not None else None
        if found is None or name is None:
            raise NotInterpreted.because(f"a literal of type {type_}")
        shape = [size for size in found.sizes if size is not None]
        resource = re.match(r'dense_resource<"?([^">]+)"?>', text)
        if resource:
            if resource[1] not in self.blobs:
                raise NotInterpreted.because(f"the resource {resource[1]} is missing")
            raw = self.blobs[resource[1]]
            return self._tensor(np.frombuffer(raw, self._numpy(name)).reshape(shape), type_)
        hexadecimal = re.match(r'dense<"0x([0-9A-Fa-f]*)">', text)
        if hexadecimal:
            raw = bytes.fromhex(hexadecimal[1])
            if name == "bool":
                bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
                return self._tensor(bits[: int(np.prod(shape))].astype(bool).reshape(shape), type_)
            return self._tensor(np.frombuffer(raw, self._numpy(name)).reshape(shape), type_)
        body = text[len("dense<") : text.rfind("> : ")]
        words = re.findall(r"[-+\w.()]+", body)
        if any("(" in word for word in words):
            raise NotInterpreted.because("a literal of complex numbers")
        numbers = [_number(word, name) for word in words]
        array = np.asarray(numbers or [0]).astype(self._numpy(name))
        full = np.full(shape, array[0]) if len(numbers) == 1 else array[: len(numbers)]
        return self._tensor(full.reshape(shape), type_)

    @staticmethod
    def _numpy(name: str) -> Any:
        import ml_dtypes

        return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def tensor(value: Array) -> Any:
    """An array as PyTorch's tensor, with memory of its own."""
    import torch

    if str(value.dtype) == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.copy())


def array(value: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if not hasattr(value, "resolve_conj"):
        return value
    import torch

    value = value.detach().resolve_conj().resolve_neg().contiguous()
    if value.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(value.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(value.numpy())


def parts(type_: str) -> tuple[list[int | None], str]:
    """The sizes (None where they vary) and the element type of one of torch's types.

    Raises :class:`NotInterpreted` for what is no tensor and no number.
    """
    number = {"int": "i64", "float": "f64", "bool": "i1"}.get(type_.removeprefix("!torch."))
    if number is not None:
        return [], number
    found = tensor_of_type("", type_)
    if found is None or not found.torch or found.dtype is None:
        raise NotInterpreted.because(f"a value of type {type_}")
    sizes = [d if isinstance(d, int) else None for d in found.dims or ()]
    return sizes, found.dtype.torch


def _number(word: str, name: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    if word.startswith("0x") and "float" in name:
        width = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[name]
        raw = int(word, 16).to_bytes(width, "little")
        kind: Any = {"float16": np.float16, "float32": np.float32, "float64": np.float64}.get(name)
        if kind is None:
            import ml_dtypes

            kind = ml_dtypes.bfloat16
        return np.frombuffer(raw, kind)[0].astype(np.float64)
    return float(word) if "." in word or "e" in word else int(word)


def _truth(arguments: list[object]) -> list[Any]:
    return [bool(arguments[0])]


_SPECIAL: dict[str, Callable[[list[Any]], list[Any]]] = {
    "torch.prim.ListConstruct": lambda a: [list(a)],
    "torch.prim.ListUnpack": lambda a: list(a[0]),
    "torch.prim.TupleConstruct": lambda a: [tuple(a)],
    "torch.prim.TupleUnpack": lambda a: list(a[0]),
    "torch.prim.NumToTensor.Scalar": lambda a: [_as_tensor(a[0])],
    "torch.aten.Int.Tensor": lambda a: [int(a[0])],
    "torch.aten.Float.Tensor": lambda a: [float(a[0])],
    "torch.aten.Bool.Tensor": _truth,
    "torch.aten.Int.Scalar": lambda a: [int(a[0])],
    "torch.aten.Int.float": lambda a: [int(a[0])],
    "torch.aten.Int.bool": lambda a: [int(a[0])],
    "torch.aten.Float.Scalar": lambda a: [float(a[0])],
    "torch.aten.size.int": lambda a: [int(a[0].shape[a[1]])],
    "torch.aten.dim": lambda a: [a[0].dim()],
    "torch.aten.len.t": lambda a: [len(a[0])],
    "torch.aten.__getitem__.t": lambda a: [a[0][a[1]]],
    "torch.aten.add.int": lambda a: [a[0] + a[1]],
    "torch.aten.sub.int": lambda a: [a[0] - a[1]],
    "torch.aten.mul.int": lambda a: [a[0] * a[1]],
    "torch.aten.floordiv.int": lambda a: [a[0] // a[1]],
    "torch.aten.remainder.int": lambda a: [a[0] % a[1]],
    "torch.aten.neg.int": lambda a: [-a[0]],
    "torch.aten.neg.float": lambda a: [-a[0]],
    "torch.aten.add.float_int": lambda a: [a[0] + a[1]],
    "torch.aten.mul.float": lambda a: [a[0] * a[1]],
    "torch.aten.mul.float_int": lambda a: [a[0] * a[1]],
    "torch.aten.mul.int_float": lambda a: [a[0] * a[1]],
    "torch.aten.sub.float": lambda a: [a[0] - a[1]],
    "torch.aten.div.int": lambda a: [a[0] / a[1]],
    "torch.aten.div.float": lambda a: [a[0] / a[1]],
    "torch.aten.gt.int": lambda a: [a[0] > a[1]],
    "torch.aten.ge.int": lambda a: [a[0] >= a[1]],
    "torch.aten.lt.int": lambda a: [a[0] < a[1]],
    "torch.aten.le.int": lambda a: [a[0] <= a[1]],
    "torch.aten.eq.int": lambda a: [a[0] == a[1]],
    "torch.aten.ne.int": lambda a: [a[0] != a[1]],
    "torch.aten.__not__": lambda a: [not a[0]],
    "torch.aten.sqrt.int": lambda a: [float(a[0]) ** 0.5],
    "torch.prim.min.int": lambda a: [min(a[0], a[1])],
    "torch.prim.max.int": lambda a: [max(a[0], a[1])],
    "torch.prim.min.self_int": lambda a: [min(a[0])],
    "torch.prim.max.self_int": lambda a: [max(a[0])],
    "torch.aten.ScalarImplicit": lambda a: [a[0].item()],
    "torch.aten.FloatImplicit": lambda a: [float(a[0])],
    "torch.aten.IntImplicit": lambda a: [int(a[0])],
    "torch.aten._assert_tensor_metadata": lambda _: [],
    "torch.copy.to_vtensor": lambda a: [a[0]],
    "torch.copy.to_tensor": lambda a: [a[0]],
    "torch.tensor_static_info_cast": lambda a: [a[0]],
    "torch.derefine": lambda a: [a[0]],
}


def _as_tensor(value: object) -> Any:
    import torch

    return torch.tensor(value)
