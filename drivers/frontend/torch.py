"""PyTorch module to torch-dialect MLIR: what ``mlirules import FILE.py:MODEL`` does.

The only module that imports torch, and only when something is imported from it: mlirules itself
works without torch. FILE.py is executed (it is a program, not data), MODEL is exported with
``torch.export`` and the result is text that every other command reads. With a golden file beside
it, PyTorch's own inputs and results can be compared with where torch is not installed.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import io
import itertools
import os
import re
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree.compiler import is_registered_op
from mlirules.drivers.iree.fx import fx_import
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

_module_numbers = itertools.count()
_OP = re.compile(r'^\s*(?:%[^=]*= )?(?:torch\.operator )?"?(torch\.[\w.]+)', re.MULTILINE)
_FOREIGN = re.compile(r'torch\.operator "([^"]+)"')
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
    buffers and inputs, which the function returns first, included). bfloat16 is held as uint16 and
    8-bit floats as uint8: their bits.
    """

    text: str
    inputs: tuple[Array, ...]
    results: tuple[Array, ...]

    @property
    def ops(self) -> Counter[str]:
        """How often each torch op occurs, constants and list construction included."""
        return Counter(_OP.findall(self._program))

    @property
    def foreign(self) -> Counter[str]:
        """Those of :attr:`ops` that the torch dialect has no op for (``torch.operator "..."``)."""
        return Counter(_FOREIGN.findall(self._program))

    @property
    def _program(self) -> str:
        return self.text.split("\n{-#", 1)[0]  # without the weights


def import_model(
    spec: str,
    *,
    arguments: Mapping[str, str] | None = None,
    function: str = "main",
    decompose: bool = True,
    dynamic: Sequence[DynamicDim] = (),
    train: bool = False,
    seed: int = 0,
) -> Imported:
    """Import ``FILE.py:MODEL``.

    MODEL is an ``nn.Module`` instance, such a class, or a function that returns one; the latter
    two are called with ``arguments`` (as strings). Its example inputs are ``MODEL.example_inputs``
    or else the file's ``example_inputs``: a tensor, or a tuple or list of positional arguments, or
    a dictionary of keyword arguments; or a function without parameters that returns one of these.

    ``decompose`` runs PyTorch's default decompositions (core ATen); without it the program keeps
    composite ops such as ``aten.linear``. ``train`` leaves dropout and batch statistics on.
    ``seed`` seeds torch before the file is executed, before the model is made and before the
    inputs are made, so that each of these is reproducible by itself.

    Raises :class:`MlirulesError` when torch is not installed, when FILE or MODEL cannot be used,
    and when the exported program is not the program that was written.
    """
    file, name = split_spec(spec)
    _require_torch(file)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _executed(file) as module:
            named = _lookup(module, name, file)
            torch.manual_seed(seed)
            model = _as_module(named, name, file, arguments or {})
            torch.manual_seed(seed)
            args, kwargs = _example_inputs(module, named, model, name, file)
            model.train(train)
            return _imported(spec, model, args, kwargs, function, decompose, dynamic)


def import_file(
    spec: str,
    output: str | Path,
    *,
    golden: str | Path | None = None,
    arguments: Mapping[str, str] | None = None,
    function: str = "main",
    decompose: bool = True,
    dynamic: Sequence[DynamicDim] = (),
    train: bool = False,
    seed: int = 0,
) -> Imported:
    """:func:`import_model` into the file ``output``, and with ``golden`` the values beside it.

    A golden file is an ``.npz`` with the inputs ``a0..`` and the results ``r0..``. Both files
    appear whole or not at all; a failing import leaves files that were there as they were.
    """
    imported = import_model(
        spec,
        arguments=arguments,
        function=function,
        decompose=decompose,
        dynamic=dynamic,
        train=train,
        seed=seed,
    )
    write_whole(output, imported.text.encode())
    if golden is not None:
        write_golden(golden, imported.inputs, imported.results)
    return imported


def write_golden(path: str | Path, inputs: Sequence[Array], results: Sequence[Array]) -> None:
    """Write inputs as ``a0..`` and results as ``r0..`` with :func:`write_arrays`."""
    named = {f"a{i}": a for i, a in enumerate(inputs)} | {f"r{i}": r for i, r in enumerate(results)}
    write_arrays(path, named)


def write_arrays(path: str | Path, named: Mapping[str, Array]) -> None:
    """Write a compressed ``.npz``, whole or not at all; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in named.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")  # dated 1980; numpy.savez would date it now
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    write_whole(path, buffer.getvalue())


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file through a temporary one beside it, so that no reader sees half of it."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)  # mkstemp makes files that only the owner reads
            Path(temporary).replace(target)
        except BaseException:  # an interrupt, too, must not leave the temporary file behind
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MlirulesError.at(
            str(path), f"cannot be written: {error.strerror or error}", code="file"
        ) from None


def split_spec(spec: str) -> tuple[Path, str]:
    """``FILE.py:MODEL`` as its two parts; the file must exist."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise MlirulesError.at(
            spec,
            "does not name a model",
            code="model-spec",
            suggestion="write FILE.py:MODEL, for example model.py:Net",
        )
    file = Path(path)
    if not file.is_file():
        raise MlirulesError.at(path, "there is no such file", code="file")
    return file, name


def _require_torch(file: Path) -> None:
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MlirulesError.not_installed(
            str(file),
            "importing a PyTorch model needs PyTorch, which is not installed",
            "torch",
            code="torch-missing",
        ) from None


@contextmanager
def _executed(file: Path) -> Iterator[ModuleType]:
    """FILE.py as a module under a name of its own, gone again afterwards.

    Its folder comes first on ``sys.path`` meanwhile, as when Python runs it; ``__name__`` is not
    ``__main__``; what it prints goes to stderr, because stdout may be carrying a report.
    """
    name = f"_mlirules_import_{next(_module_numbers)}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise MlirulesError.at(
            str(file), "is not a Python file", code="model-file", suggestion="its name ends in .py"
        )
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    before, no_bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.modules[name] = module  # dataclasses look their own module up
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    try:
        with redirect_stdout(sys.stderr):
            with _blaming(file, "executing it"):
                spec.loader.exec_module(module)
            yield module
    finally:
        sys.dont_write_bytecode = no_bytecode
        sys.path.remove(folder)
        for other in set(sys.modules) - before:
            # Its neighbours too: the next file may have others of the same name.
            origin = getattr(sys.modules[other], "__file__", None)
            if origin and Path(origin).parent == Path(folder):
                del sys.modules[other]


@contextmanager
def _blaming(file: Path, doing: str) -> Iterator[None]:
    """Turn what FILE's own code raises into a fault at FILE's deepest line in the traceback."""
    try:
        yield
    except MlirulesError:
        raise
    except SyntaxError as error:
        if error.filename != str(file.resolve()):
            raise _fault(file, error, doing) from error
        span = Span(
            str(file), error.lineno or 0, error.offset or 1, 1, (error.text or "").rstrip("\n")
        )
        raise MlirulesError(Fault(span, "model-file", f"not Python: {error.msg}")) from None
    except (Exception, SystemExit) as error:
        raise _fault(file, error, doing) from error


def _fault(file: Path, error: BaseException, doing: str) -> MlirulesError:
    span = Span(str(file))
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file.resolve()) and frame.lineno:
            lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            line = lines[frame.lineno - 1]
            column = len(line) - len(line.lstrip()) + 1
            span = Span(str(file), frame.lineno, column, len(line.strip()), line)
    suggestion = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        suggestion = f"install {error.name!r} in this environment"
    what = f"{doing} raised {type(error).__name__}: {_first_lines(str(error))}"
    return MlirulesError(Fault(span, "model-file", what, suggestion))


def _first_lines(text: str, limit: int = 400) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else words[:limit] + " ..."


def _lookup(module: ModuleType, name: str, file: Path) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = [k for k in vars(module) if not k.startswith("_")]
        raise MlirulesError.at(
            str(file),
            f"defines no {name!r}",
            code="model-name",
            suggestion=did_you_mean(name, own),
        ) from None


def _as_module(named: Any, name: str, file: Path, arguments: Mapping[str, str]) -> torch.nn.Module:
    import torch

    if isinstance(named, torch.nn.Module):
        if arguments:
            raise MlirulesError.at(
                str(file),
                f"{name} is a module already and takes no arguments",
                code="model-arguments",
                suggestion="leave --arg out, or name the class or a factory function",
            )
        made: Any = named
    elif callable(named):
        with _blaming(file, f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"):
            made = named(**arguments)
    else:
        made = named
    if not isinstance(made, torch.nn.Module):
        raise MlirulesError.at(
            str(file),
            f"{name} is neither an nn.Module nor a function that returns one: "
            f"{type(made).__name__}",
            code="model-kind",
        )
    return made


def _example_inputs(
    module: ModuleType, named: Any, model: torch.nn.Module, name: str, file: Path
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    for owner in (model, named, module):
        given = getattr(owner, "example_inputs", None)
        if given is not None:
            break
    else:
        raise MlirulesError.at(
            str(file),
            f"there are no example inputs for {name}",
            code="example-inputs",
            suggestion=f"define example_inputs() in the file, or {name}.example_inputs",
        )
    if callable(given):
        with _blaming(file, "example_inputs()"):
            given = given()
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _imported(
    spec: str,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    function: str,
    decompose: bool,
    dynamic: Sequence[DynamicDim],
) -> Imported:
    import torch
    from torch.utils import _pytree as pytree

    file, _ = split_spec(spec)
    leaves, tree = pytree.tree_flatten((args, kwargs))
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            raise MlirulesError.at(
                spec,
                f"example input {number} is not a tensor: {leaf!r:.60}",
                code="example-inputs",
                suggestion="bind it in a module that calls this one with it",
            )
    shapes = _dynamic_shapes(spec, leaves, tree, dynamic)
    with _blaming(file, "torch.export"), torch.no_grad():
        exported = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        if decompose:
            exported = _decomposed(exported)
    _check_inputs_survived(spec, exported, leaves)
    results = _golden_results(file, model, exported, leaves, tree)
    inputs = tuple(_as_numpy(leaf) for leaf in leaves)
    with _blaming(file, "the import of the exported program"):
        text = fx_import(exported, function)
    return Imported(text.rstrip("\n") + "\n", inputs, results)


def _dynamic_shapes(
    spec: str, leaves: Sequence[Any], tree: Any, dynamic: Sequence[DynamicDim]
) -> Any:
    if not dynamic:
        return None
    import torch
    from torch.utils import _pytree as pytree

    dims: dict[str, Any] = {}
    bounds: dict[str, tuple[int | None, int | None]] = {}
    per_leaf: list[dict[int, Any]] = [{} for _ in leaves]
    for one in dynamic:
        if one.argument >= len(leaves) or one.dim >= leaves[one.argument].dim():
            known = ", ".join(f"a{i}: {list(leaf.shape)}" for i, leaf in enumerate(leaves))
            raise MlirulesError.at(
                spec,
                f"there is no dimension a{one.argument}[{one.dim}]",
                code="dynamic-dim",
                suggestion=f"the arguments are {known}",
            )
        wanted = (one.low, one.high)
        if bounds.setdefault(one.name, wanted) != wanted and wanted != (None, None):
            raise MlirulesError.at(
                spec,
                f"the dynamic dimension {one.name} has two different ranges",
                code="dynamic-range",
                suggestion="give the range once, where the name stands first",
            )
        if one.name not in dims:
            dims[one.name] = torch.export.Dim(one.name, min=one.low, max=one.high)
        per_leaf[one.argument][one.dim] = dims[one.name]
    nested_args, nested_kwargs = pytree.tree_unflatten(per_leaf, tree)
    return nested_kwargs or nested_args


def _decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Core ATen, and beyond it where the torch dialect has no op but PyTorch a decomposition.

    PyTorch's own table stops at some such ops (``squeeze.dims``), which no later pass converts.
    """
    import torch
    from torch._decomp import decomposition_table

    table = torch.export.default_decompositions()
    for op, decomposition in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload) or is_registered_op(_dialect_name(op)):
            continue
        if op not in table:  # this table is a dict whose setdefault does nothing
            table[op] = decomposition
    decomposed: torch.export.ExportedProgram = exported.run_decompositions(table)
    return decomposed


def _dialect_name(op: torch._ops.OpOverload) -> str:
    schema = op._schema
    name = "torch." + schema.name.replace("::", ".")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _check_inputs_survived(
    spec: str, exported: torch.export.ExportedProgram, leaves: Sequence[Any]
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
                spec,
                f"torch.export made a constant ({name}) of a value that depends on the inputs",
                code="frozen-input",
                suggestion="trace gradients with make_fx and export its graph module",
            )


def _golden_results(
    file: Path,
    model: torch.nn.Module,
    exported: torch.export.ExportedProgram,
    leaves: Sequence[torch.Tensor],
    tree: Any,
) -> tuple[Array, ...]:
    """What eager PyTorch returns, in the order of the program's results."""
    import torch
    from torch.export.graph_signature import OutputKind
    from torch.utils import _pytree as pytree

    ours = copy.deepcopy(model)  # a run may update buffers, and the program's are the old ones
    cloned = [leaf.clone() for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(cloned, tree)
    with _blaming(file, "running the model"), torch.no_grad():
        outputs = iter(pytree.tree_leaves(ours(*args, **kwargs)))
    signature = exported.graph_signature
    state = dict(ours.named_buffers())
    position = {name: i for i, name in enumerate(signature.user_inputs)}
    sources: dict[Any, Callable[[Any], Any]] = {
        OutputKind.USER_OUTPUT: lambda _: next(outputs),
        OutputKind.BUFFER_MUTATION: lambda target: state[target],
        OutputKind.USER_INPUT_MUTATION: lambda target: cloned[position[target]],
    }
    results: list[Array] = []
    for output in signature.output_specs:
        if output.kind not in sources:
            raise MlirulesError.at(
                str(file), f"the program has a result of kind {output.kind.name}", code="results"
            )
        value = sources[output.kind](output.target)
        if not isinstance(value, torch.Tensor):
            raise MlirulesError.at(
                str(file),
                f"result {len(results)} is not a tensor: {value!r:.60}",
                code="results",
                suggestion="return tensors only",
            )
        results.append(_as_numpy(value))
    return tuple(results)


def _as_numpy(tensor: torch.Tensor) -> Array:
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    elif plain.is_floating_point() and plain.element_size() == 1:
        plain = plain.view(torch.uint8)
    array: Array = plain.numpy().copy()
    return array
