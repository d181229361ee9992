"""PyTorch models as torch-dialect MLIR: what ``mlirules import`` does.

mlirules itself works without torch: it is imported when something is imported from it. The model
is exported with ``torch.export`` and the result is a program that every other command reads. With
a golden file beside it, PyTorch's own inputs and results can be compared with where torch is not
installed.
"""

from __future__ import annotations

import copy
import importlib
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlirules.drivers.frontend.named import Name, Subject, resolved
from mlirules.drivers.iree import fx, npz
from mlirules.drivers.iree.compiler import is_registered_op
from mlirules.drivers.iree.parameters import write_archive
from mlirules.language import outputs
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    import torch

    from mlirules.drivers.frontend.values import Flat

Array = npt.NDArray[Any]

_DYNAMIC = re.compile(
    r"a(?P<argument>\d+)\[(?P<dim>\d+)\]=(?P<name>[A-Za-z]\w*)(?::(?P<low>\d+)\.\.(?P<high>\d+))?"
)


@dataclass(frozen=True)
class DynamicDim:
    """Dimension ``dim`` of argument ``a<argument>`` varies; equal names vary together."""

    argument: int
    dim: int
    name: str
    low: int | None = None
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> DynamicDim:
        """Read ``a0[0]=N`` or, with inclusive bounds, ``a0[0]=N:2..64``."""
        found = _DYNAMIC.fullmatch(text.replace(" ", ""))
        if found is None:
            raise MlirulesError.at(
                "--dynamic",
                f"{text!r} does not name a dimension",
                code="dynamic-syntax",
                suggestion="write a0[0]=N, or a0[0]=N:2..64 with bounds",
            )
        low, high = found["low"], found["high"]
        return cls(
            int(found["argument"]),
            int(found["dim"]),
            found["name"],
            int(low) if low else None,
            int(high) if high else None,
        )


@dataclass(frozen=True)
class Imported:
    """A program in the torch dialect with what PyTorch answers on its example inputs.

    ``inputs`` are the function's arguments in order and ``results`` its results in order (updated
    buffers and inputs, which the function returns first, included; empty when they were not asked
    for). bfloat16 and 8-bit floats are those of ``ml_dtypes``. ``notes`` say what the model takes
    or gives and the program does not.
    """

    program: fx.Program
    inputs: tuple[Array, ...]
    results: tuple[Array, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """The program as MLIR text, values that it holds included."""
        return str(self.program.module.operation.get_asm()).rstrip("\n") + "\n"

    @property
    def ops(self) -> Counter[str]:
        """How often each torch op occurs, constants and list construction included."""
        return self.program.ops

    @property
    def foreign(self) -> Counter[str]:
        """Those of :attr:`ops` that the torch dialect has no op for (``torch.operator "..."``)."""
        return Counter({op: n for op, n in self.ops.items() if not is_registered_op(op)})


@dataclass(frozen=True)
class Options:
    """How a model is made, and what becomes of it.

    A class or a function is called with ``arguments``, and a model or configuration class of
    transformers is made from a configuration with them. ``inputs`` are example inputs as on the
    command line. ``function`` is what the program's function is called.

    ``decompose`` runs PyTorch's default decompositions (core ATen); without it the program keeps
    composite ops such as ``aten.linear``, and is made :func:`functional` alone. The sizes of
    ``dynamic`` dims are left open. ``train`` leaves dropout and batch statistics on. ``seed`` seeds
    torch before the file is executed, before the model is made and before the inputs are made, so
    that each of these is reproducible by itself.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    function: str = "main"
    decompose: bool = True
    dynamic: Sequence[DynamicDim] = ()
    train: bool = False
    seed: int = 0


def import_model(
    name: str, options: Options | None = None, *, golden: bool = True, external: bool = False
) -> Imported:
    """Import ``FILE.py:MODEL``, ``PACKAGE.MODULE:MODEL`` or ``FILE.pt2``.

    MODEL is an ``nn.Module`` instance, such a class, or a function that returns a module,
    ``(module, inputs)`` or ``(module, args, kwargs)``; the latter two are called with the options'
    ``arguments``. The example inputs are the options' ``inputs``, else what the function
    returned, else ``MODEL.example_inputs``, else the file's ``example_inputs``: a tensor, or a
    tuple or list of positional arguments, or a dictionary of keyword arguments; or a function
    without parameters that returns one of these. Tensors in them, however nested, are the
    program's arguments; numbers and strings become part of the program.

    Without ``golden`` the model is not run. ``external`` leaves weights out of the program (see
    :class:`fx.Program`).

    Raises :class:`MlirulesError` when torch is not installed, when the model cannot be used, and
    when the exported program is not the program that was written.
    """
    options = options or Options()
    parsed = Name.parse(name)
    form = _Form(options, golden, external)
    _require_torch(parsed)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        with resolved(parsed, options.arguments, options.inputs, options.seed) as subject:
            if subject.exported is not None:
                return _of_exported(parsed, subject.exported, form)
            assert subject.model is not None
            _set_mode(parsed, subject.model, options.train)
            return _of_model(parsed, subject, form)


def import_file(
    name: str,
    output: str | Path,
    options: Options | None = None,
    *,
    golden: str | Path | None = None,
    externalize: str | Path | None = None,
) -> Imported:
    """:func:`import_model` into the file ``output``, and with ``golden`` the values beside it.

    ``output`` is MLIR bytecode where its name ends in ``.mlirbc``, else text. A golden file is an
    ``.npz`` with the inputs ``a0..`` and the results ``r0..``. ``externalize`` is the archive that
    the weights go to, ``.safetensors`` or ``.irpa``. The files appear whole or not at all; a
    failing import leaves files that were there as they were.
    """
    imported = import_model(
        name, options, golden=golden is not None, external=externalize is not None
    )
    if externalize is not None:
        write_archive(externalize, imported.program.parameters)
    if str(output).endswith(".mlirbc"):
        data = io.BytesIO()
        imported.program.module.operation.write_bytecode(data)
        outputs.write(output, data.getbuffer())
    else:
        outputs.write(output, imported.text.encode())
    if golden is not None:
        write_golden(golden, imported.inputs, imported.results)
    return imported


def write_golden(path: str | Path, inputs: Sequence[Array], results: Sequence[Array]) -> None:
    """Write inputs as ``a0..`` and results as ``r0..`` to an ``.npz`` file."""
    named = {f"a{i}": a for i, a in enumerate(inputs)} | {f"r{i}": r for i, r in enumerate(results)}
    npz.write(path, named)


def _require_torch(name: Name) -> None:
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MlirulesError.not_installed(
            name.place,
            "importing a PyTorch model needs PyTorch, which is not installed",
            "torch",
            code="torch-missing",
        ) from None


@dataclass(frozen=True)
class _Form:
    """What form an imported program has."""

    options: Options
    #: The model runs, for its results.
    golden: bool
    #: Weights are left out of it.
    external: bool


def _of_model(name: Name, subject: Subject, form: _Form) -> Imported:
    import torch

    from mlirules.drivers.frontend.quantized import without_zero_points
    from mlirules.drivers.frontend.values import Flat, NotTensorsError, to_numpy

    assert subject.model is not None
    try:
        model = Flat(subject.model, subject.args, subject.kwargs)
    except NotTensorsError as error:
        raise MlirulesError.at(
            name.text,
            str(error),
            code="example-inputs",
            suggestion="bind it in a module that calls this one with it",
        ) from None
    shapes = _dynamic_shapes(name.text, model.tensors, form.options.dynamic)
    try:
        with name.blaming("torch.export"), torch.no_grad():
            exported = torch.export.export(
                model, tuple(model.tensors), dynamic_shapes=shapes, strict=False
            )
            notes = tuple(f"no part of the results: {what}" for what in model.told.dropped)
            without_zero_points(exported)
            exported = (decomposed if form.options.decompose else functional)(exported)
    except MlirulesError as fault:
        if isinstance(fault.__cause__, NotTensorsError):
            raise MlirulesError.at(
                name.place,
                str(fault.__cause__),
                code="results",
                suggestion="return tensors, or containers of them",
            ) from None
        raise
    check_inputs_survived(name.text, exported, model.tensors)
    results = _golden_results(name, model, exported) if form.golden else ()
    inputs = tuple(to_numpy(tensor) for tensor in model.tensors)
    with name.blaming("the import of the exported program"):
        program = fx.fx_import(exported, form.options.function, form.external, model.PREFIX)
    return Imported(program, inputs, results, notes)


def _set_mode(name: Name, model: torch.nn.Module, train: bool) -> None:
    """Training or not. What was exported refuses to be told: its graph is of the mode it had."""
    try:
        model.train(train)
    except NotImplementedError as error:
        if train:
            raise MlirulesError.at(
                name.place,
                "was exported already, and keeps the mode that it had then",
                code="model-arguments",
                suggestion="export the model in training mode, or leave --train out",
            ) from error
        for module in model.modules():
            module.training = False


def _of_exported(name: Name, exported: torch.export.ExportedProgram, form: _Form) -> Imported:
    import torch

    from mlirules.drivers.frontend.quantized import without_zero_points
    from mlirules.drivers.frontend.values import tensors_in, to_numpy

    inputs: tuple[Array, ...] = ()
    results: tuple[Array, ...] = ()
    if exported.example_inputs is not None:
        inputs = tuple(to_numpy(t) for t in tensors_in(exported.example_inputs, "input ")[0])
    if form.golden:
        if exported.example_inputs is None:
            raise MlirulesError.at(
                name.place, "holds no example inputs to run it with", code="example-inputs"
            )
        args, kwargs = exported.example_inputs
        with name.blaming("running the program"), torch.no_grad():
            answered = copy.deepcopy(exported).module()(*args, **kwargs)
        results = tuple(to_numpy(t) for t in tensors_in(answered, "result")[0])
    with name.blaming("the import of the exported program"):
        without_zero_points(exported)
        exported = (decomposed if form.options.decompose else functional)(exported)
        changed = len(exported.graph_signature.user_outputs) != len(
            exported.graph_signature.output_specs
        )
        if form.golden and changed:
            raise MlirulesError.at(
                name.place,
                "updates buffers or inputs, whose values after a run are not known here",
                code="results",
                suggestion="leave --golden out",
            )
        program = fx.fx_import(exported, form.options.function, form.external)
    return Imported(program, inputs, results)


def _dynamic_shapes(
    place: str, leaves: Sequence[torch.Tensor], dynamic: Sequence[DynamicDim]
) -> Any:
    if not dynamic:
        return None
    import torch

    dims: dict[str, object] = {}
    bounds: dict[str, tuple[int | None, int | None]] = {}
    per_leaf: list[dict[int, object]] = [{} for _ in leaves]
    for one in dynamic:
        if one.argument >= len(leaves) or one.dim >= leaves[one.argument].dim():
            known = ", ".join(f"a{i}: {list(leaf.shape)}" for i, leaf in enumerate(leaves))
            raise MlirulesError.at(
                place,
                f"there is no dimension a{one.argument}[{one.dim}]",
                code="dynamic-dim",
                suggestion=f"the arguments are {known}",
            )
        wanted = (one.low, one.high)
        if bounds.setdefault(one.name, wanted) != wanted and wanted != (None, None):
            raise MlirulesError.at(
                place,
                f"the dynamic dimension {one.name} has two different ranges",
                code="dynamic-range",
                suggestion="give the range once, where the name stands first",
            )
        if one.name not in dims:
            dims[one.name] = torch.export.Dim(one.name, min=one.low, max=one.high)
        per_leaf[one.argument][one.dim] = dims[one.name]
    return (tuple(per_leaf),)


def decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Core ATen, and beyond it where the torch dialect has no op but PyTorch a decomposition.

    A view becomes a reshape first: the graph recorded one because the tensor's strides allowed it,
    and a decomposition (of attention) may give that tensor other strides.
    """
    import torch

    from mlirules.drivers.frontend.decompositions import beyond_core

    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    table = torch.export.default_decompositions()
    for op, decomposition in beyond_core(is_registered_op).items():
        if op not in table:  # this table is a dict whose setdefault does nothing
            table[op] = decomposition
    return _run_decompositions(exported, table)


def functional(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program as it is, but that no op changes a tensor in place: such ops have no values.

    Where one does, PyTorch traces the program again, and takes some composite ops apart that may
    be views (``reshape``, ``flatten``), ``batch_norm`` and ``dropout``.
    """
    import torch

    for node in exported.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return _run_decompositions(exported, {})
    return exported


def _run_decompositions(
    exported: torch.export.ExportedProgram, table: Mapping[Any, Any]
) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        # PyTorch copies its own descriptions of trees, and warns itself of their class.
        warnings.simplefilter("ignore", FutureWarning)
        done: torch.export.ExportedProgram = exported.run_decompositions(table)
    return done


def check_inputs_survived(
    place: str, exported: torch.export.ExportedProgram, leaves: Sequence[torch.Tensor]
) -> None:
    """Refuse a program that holds its example inputs as constants.

    torch.export does this without a word to functions that go through ``torch.func.grad``.
    """
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor
    from torch._subclasses.fake_tensor import FakeTensor

    given = {leaf.untyped_storage().data_ptr() for leaf in leaves if leaf.numel()}
    for name, value in exported.constants.items():
        if not isinstance(value, torch.Tensor):
            continue
        traced = isinstance(value, FakeTensor) or is_functorch_wrapped_tensor(value)
        if traced or value.untyped_storage().data_ptr() in given:
            raise MlirulesError.at(
                place,
                f"torch.export made a constant ({name}) of a value that depends on the inputs",
                code="frozen-input",
                suggestion="trace gradients with make_fx and export its graph module",
            )


def _golden_results(
    name: Name, model: Flat, exported: torch.export.ExportedProgram
) -> tuple[Array, ...]:
    """What eager PyTorch returns, in the order of the program's results."""
    import torch
    from torch.export.graph_signature import OutputKind

    from mlirules.drivers.frontend.values import to_numpy

    # A run may update buffers, and the program's are the old ones. Parameters are shared: a
    # second copy of them would not fit where the first one barely does.
    shared: dict[int, object] = {id(p): p for p in model.parameters()}
    ours = copy.deepcopy(model, shared)
    cloned = [tensor.clone() for tensor in model.tensors]
    with name.blaming("running the model"), torch.no_grad():
        outputs = iter(ours(*cloned))
    signature = exported.graph_signature
    state = dict(ours.named_buffers())
    position = {input_name: i for i, input_name in enumerate(signature.user_inputs)}
    sources: dict[Any, Callable[[Any], torch.Tensor]] = {
        OutputKind.USER_OUTPUT: lambda _: next(outputs),
        OutputKind.BUFFER_MUTATION: lambda target: state[target],
        OutputKind.USER_INPUT_MUTATION: lambda target: cloned[position[target]],
    }
    results: list[Array] = []
    for output in signature.output_specs:
        if output.kind not in sources:
            raise MlirulesError.at(
                name.place, f"the program has a result of kind {output.kind.name}", code="results"
            )
        results.append(to_numpy(sources[output.kind](output.target)))
    return tuple(results)
