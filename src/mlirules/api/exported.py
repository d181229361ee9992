"""PyTorch's models compiled through torch.export, called with what the model itself takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from mlirules.api.binaries import Terms
from mlirules.api.compiled import CompiledProgram, Facts
from mlirules.api.graphs.plans import Binary, compiled
from mlirules.api.graphs.programs import GraphProgram, array_of
from mlirules.drivers.frontend.torch import check_inputs_survived, decomposed
from mlirules.drivers.iree.runtime import Array, Executable
from mlirules.drivers.pipelines.transform import Recipe
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from pathlib import Path

    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.measure.profile import Profile

__all__ = ["ModelProgram", "compile_model"]

#: What holds no values inside.
_LEAVES = frozenset([torch.Tensor, torch.nn.Parameter, np.ndarray, int, float, bool])
_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def compile_model(
    recipe: Callable[[str], Recipe],
    model: Any,
    example_inputs: Any,
    dynamic_shapes: Any,
    terms: Terms,
) -> ModelProgram:
    """Compile an ``nn.Module`` or an exported program, by the recipe for one of that name.

    Raises MlirulesError.
    """
    if isinstance(model, torch.export.ExportedProgram):
        exported, name = model, "<exported program>"
    else:
        name = type(model).__name__
        args, kwargs = _inputs(example_inputs)
        try:
            with torch.no_grad():
                exported = torch.export.export(
                    model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
                )
        except Exception as error:
            first = (str(error).strip() or "?").split("\n")[0]
            raise MlirulesError.at(
                name,
                f"torch.export raised {type(error).__name__}: {first}",
                code="export",
                suggestion='torch.compile(model, backend="mlirules") compiles what it can of it',
            ) from error
        leaves = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        check_inputs_survived(name, exported, leaves)
    exported = decomposed(exported)
    signature = exported.graph_signature
    changed = {
        spec.target
        for spec in signature.output_specs
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target is not None
    }
    held = [
        index
        for index, spec in enumerate(signature.input_specs)
        if spec.kind in _HELD and spec.target not in changed
    ]
    by = recipe(name)
    try:
        binary = compiled(exported.graph_module, held, by, terms)
    except MlirulesError:
        raise
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise MlirulesError.at(
            name,
            f"cannot be imported: {first[:400]}",
            code="import",
            suggestion='torch.compile(model, backend="mlirules") runs such ops eagerly',
        ) from error
    return ModelProgram(exported, binary, by.target, name)


def _inputs(given: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and named arguments; arrays as tensors."""
    args: tuple[object, ...]
    kwargs: dict[str, object]
    if isinstance(given, Mapping):
        args, kwargs = (), dict(given)
    elif isinstance(given, tuple | list):
        args, kwargs = tuple(given), {}
    else:
        args, kwargs = (given,), {}
    turned: tuple[tuple[object, ...], dict[str, object]] = pytree.tree_map(_tensor, (args, kwargs))
    return turned


def _tensor(value: object) -> Any:
    if isinstance(value, np.ndarray):
        from mlirules.drivers.frontend.values import to_torch

        return to_torch(value) if not value.flags.writeable else _view(value)
    return value


def _view(array: Array) -> torch.Tensor:
    """An array as a tensor over its memory, where PyTorch has its type."""
    from mlirules.drivers.frontend.values import to_torch

    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # an element type of ml_dtypes, or negative strides
        return to_torch(array)


class ModelProgram(CompiledProgram):
    """A compiled model: called as the model is, with its weights as they are at the call."""

    def __init__(
        self, exported: torch.export.ExportedProgram, binary: Binary, target: Target, name: str
    ) -> None:
        told = {
            "applications": binary.applications,
            "leftovers": binary.leftovers,
            "notes": binary.notes,
        }
        super().__init__(binary.vmfb, Facts(told, binary.warm, target), name)
        self._graph = GraphProgram(binary, target.device)
        call = exported.call_spec
        self._in, self._out = call.in_spec, call.out_spec
        self._names = list(exported.example_inputs[1]) if exported.example_inputs else None
        state = {**exported.constants, **exported.state_dict}
        self._signature = exported.graph_signature
        #: Weights and buffers at their places; None where the caller's arguments go.
        self._arguments: list[Any] = [
            state[spec.target] if spec.kind in _HELD and spec.target is not None else None
            for spec in self._signature.input_specs
        ]
        self._named = {
            f"p{index}": spec.target or ""
            for index, spec in enumerate(self._signature.input_specs)
            if index in binary.plan.held
        }
        self._users = [
            (index, spec)
            for index, spec in enumerate(self._signature.input_specs)
            if spec.kind is InputKind.USER_INPUT
        ]
        #: Nothing but results comes out; one value as it is.
        self._pure = all(o.kind is OutputKind.USER_OUTPUT for o in self._signature.output_specs)
        self._one = self._out is None or self._out.is_leaf()
        #: How many values the arguments are, where they are nothing but values in a row.
        row = len(self._users)
        flat = pytree.tree_flatten((tuple([0] * row), {}))[1]
        self._row = row if self._in is None or self._in == flat else -1
        self._metas = [
            node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"
        ]
        #: Type and sizes (None: any) of the arguments that are tensors, by position.
        self._tensors = {
            index: (meta.dtype, tuple(_type(meta)[0]))
            for index, meta in enumerate(self._metas)
            if isinstance(meta, torch.Tensor)
        }
        #: The caller's arguments where they are nothing but tensors of known sizes in a row.
        self._simple: list[tuple[int, torch.dtype, tuple[int | None, ...]]] = []
        if self._row >= 0 and all(
            isinstance(spec.arg, TensorArgument)
            and index in self._tensors
            and None not in self._tensors[index][1]
            for index, spec in self._users
        ):
            self._simple = [(index, *self._tensors[index]) for index, _ in self._users]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model answers; inputs and buffers that it changes are changed.

        Raises RunError, and MlirulesError for arguments of another structure than the example's.
        """
        flat, arrays = self._given(args) if not kwargs else (None, False)
        if flat is None:
            if len(args) == self._row and not kwargs and all(type(a) in _LEAVES for a in args):
                leaves: list[object] = list(args)
            else:
                leaves = self._leaves(args, kwargs)
            arrays = any(isinstance(leaf, np.ndarray) for leaf in leaves)
            flat = self._flat([_tensor(leaf) for leaf in leaves] if arrays else leaves)
        made = self._graph(flat)
        results = made if self._pure else self._settled(made, flat)
        if arrays:
            results = [_array(value) for value in results]
        if self._one:
            return results[0]
        return pytree.tree_unflatten(results, self._out)

    def _given(self, args: tuple[Any, ...]) -> tuple[list[Any] | None, bool]:
        """The graph's arguments for tensors and arrays as expected, and whether any is an array.

        None for all else, which is looked at more closely: this is what costs in a short call.
        """
        simple = self._simple
        if len(args) != len(simple):
            return None, False
        flat, arrays = self._arguments.copy(), False
        for value, (index, dtype, shape) in zip(args, simple, strict=True):
            if type(value) not in _TENSORS:
                if type(value) is not np.ndarray or not value.flags.writeable:
                    return None, False
                try:
                    value = torch.from_numpy(value)
                except (TypeError, ValueError):  # see _view
                    return None, False
                arrays = True
            if value.dtype is not dtype or value.shape != shape:
                return None, False
            flat[index] = value
        return flat, arrays

    def _settled(self, made: list[Any], flat: list[Any]) -> list[Any]:
        """The caller's results; what the model changes is written where it belongs."""
        results: list[object] = []
        for value, output in zip(made, self._signature.output_specs, strict=True):
            if output.kind is OutputKind.USER_OUTPUT:
                results.append(value)
            elif output.kind is OutputKind.BUFFER_MUTATION:
                index = self._at(lambda s, o=output: s.target == o.target)
                self._write(self._arguments[index], value)
            elif output.kind is OutputKind.USER_INPUT_MUTATION:
                index = self._at(lambda s, o=output: s.arg.name == o.target)
                self._write(flat[index], value)
            else:
                raise MlirulesError.at(
                    self.name, f"has a result of kind {output.kind.name}", code="results"
                )
        return results

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values in arguments that are nested, or have names."""
        if self._names:
            kwargs = {name: kwargs[name] for name in self._names if name in kwargs} | kwargs
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if self._in is not None and spec != self._in:
            raise MlirulesError.at(
                "<call>",
                f"{self.name} was compiled for arguments like {self._in}, called with {spec}",
                code="inputs",
            )
        return leaves

    def _at(self, fits: Any) -> int:
        return next(i for i, spec in enumerate(self._signature.input_specs) if fits(spec))

    @staticmethod
    def _write(tensor: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(value)

    def _flat(self, leaves: list[Any]) -> list[Any]:
        """The graph's arguments: weights, and the caller's in their places."""
        out = list(self._arguments)
        for value, (index, spec) in zip(leaves, self._users, strict=True):
            if isinstance(spec.arg, TensorArgument):
                _check(self.name, index, value, self._tensors.get(index))
            elif hasattr(spec.arg, "value") and value != spec.arg.value:
                raise MlirulesError.at(
                    "<call>",
                    f"{self.name} was compiled for {spec.arg.name} = {spec.arg.value!r}, "
                    f"called with {value!r}",
                    code="inputs",
                )
            out[index] = value
        return out

    def profile(self, *args: object, seconds: float = 1.0) -> Profile:
        """Where the time of a call with these arguments goes, dispatch by dispatch."""
        import tempfile
        from pathlib import Path

        from mlirules.drivers.frontend.values import to_numpy
        from mlirules.drivers.measure.profile import profile

        leaves = [_tensor(leaf) for leaf in pytree.tree_leaves(args)]
        flat = self._flat(leaves)
        inputs = [flat[index] for index in self._graph.plan.arguments]
        with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
            archive = self._weights(Path(folder) / "weights.irpa")
            return profile(
                Executable(self.binary, parameters=(str(archive),) if archive else ()),
                [to_numpy(v) if isinstance(v, torch.Tensor) else v for v in inputs],
                self.target,
                seconds=seconds,
                model=self.name,
            )

    def _weights(self, path: Path) -> Path | None:
        """The weights as they are now, in an archive under the names that the program has."""
        from mlirules.drivers.iree.parameters import write_archive

        plan = self._graph.plan
        if not plan.held:
            return None
        write_archive(path, {f"p{i}": array_of(self._arguments[i]) for i in plan.held})
        return path

    def export(self, path: str | Path) -> Path:
        """Write a folder to deploy: the program, its weights, a manifest, and how to call it.

        The program's arguments are the tensors among the model's, in order.
        """
        from mlirules.api.export import Deployed, write

        plan = self._graph.plan
        kept = [self._metas[index] for index in plan.arguments]
        changed = [s for s in self._signature.output_specs if s.kind is not OutputKind.USER_OUTPUT]
        if changed or any(not isinstance(value, torch.Tensor) for value in kept):
            raise MlirulesError.at(
                self.name,
                "changes its inputs or buffers, or takes numbers: the caller would have to as well",
                code="deploy",
                suggestion="export a model that returns its new state",
            )
        what = Deployed(
            Executable(self.binary),
            self.target,
            [_type(value) for value in kept],
            self.applications,
            weights={f"p{i}": array_of(self._arguments[i]) for i in plan.held},
            names=self._named,
        )
        return write(path, what)


def _type(value: torch.Tensor) -> tuple[list[int | None], str]:
    shape: Sequence[Any] = value.shape
    sizes = [None if isinstance(size, torch.SymInt) else int(size) for size in shape]
    name = str(value.dtype).removeprefix("torch.")
    known = {"bool": "i1", "bfloat16": "bf16", "complex64": "complex<f32>"}
    element = known.get(name) or name.replace("float", "f").replace("uint", "ui")
    return sizes, element.replace("int", "si") if element.startswith("int") else element


def _check(
    name: str, index: int, value: object, wanted: tuple[torch.dtype, tuple[int | None, ...]] | None
) -> None:
    """Refuse a tensor of another type or rank than the program's."""
    if not isinstance(value, torch.Tensor):
        raise MlirulesError.at(
            "<call>", f"{name} takes a tensor, {type(value).__name__} given", code="inputs"
        )
    if wanted is None:
        return
    dtype, sizes = wanted
    if (
        value.dtype is not dtype
        or value.dim() != len(sizes)
        or any(a is not None and a != b for a, b in zip(sizes, value.shape, strict=True))
    ):
        raise MlirulesError.at(
            "<call>",
            f"argument {index} of {name} is {value.dtype!s} {list(value.shape)}, compiled for "
            f"{dtype!s} [{', '.join('?' if size is None else str(size) for size in sizes)}]",
            code="inputs",
            suggestion="dynamic_shapes= says which sizes vary",
        )


def _array(value: object) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return value.detach().numpy() if value.requires_grad else value.numpy()
    except TypeError:  # numpy has no such type
        from mlirules.drivers.frontend.values import to_numpy

        return to_numpy(value)
