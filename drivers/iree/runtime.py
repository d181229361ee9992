"""The one door to the devices: run compiled programs, list devices.

No other module imports ``iree.runtime``. ``cpu`` runs in process; the others, and anything asked
to be ``isolated``, run in a child process, so that a program that crashes or hangs costs no more
than itself.

Values are numpy arrays; ``bfloat16`` and the 8-bit floats are those of ``ml_dtypes``. The runtime
does not know signedness: an unsigned result comes back as its signed counterpart. Scalars
(``!torch.int``, ``!torch.float``, ``!torch.bool``) are arrays of rank 0; a scalar bool comes back
as an int32 of 0 or 1, which is how the compiled program returns it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from iree.runtime import _binding
from iree.runtime.array_interop import map_dtype_to_element_type

from mlirules.drivers.iree import pages, threads
from mlirules.drivers.iree.devices import Device, device_problem, devices, tool_path
from mlirules.drivers.iree.executable import Entry, Executable, Place
from mlirules.drivers.iree.opened import RunError, device, first_line, run_error, run_errors
from mlirules.drivers.iree.targets import Target
from mlirules.language import consent
from mlirules.language.faults import MlirulesError, did_you_mean
from mlirules.support import children
from mlirules.support.limits import Limits, limited

__all__ = [
    "DTYPES",
    "SCOPE",
    "Device",
    "Entry",
    "Executable",
    "Place",
    "Program",
    "RunError",
    "device",
    "device_problem",
    "devices",
    "dtype_of",
    "entries",
    "instance",
    "load_arrays",
    "loaded_function",
    "parameter_modules",
    "parse_input",
    "parse_type",
    "read_archive",
    "read_view",
    "run",
    "run_each",
    "run_error",
    "run_errors",
    "scoped",
    "store_arrays",
    "tool_path",
    "version",
    "with_limits",
]

Array = npt.NDArray[Any]

#: The scope of weights that programs made by ``mlirules import`` load.
SCOPE = "model"

#: MLIR element type -> numpy dtype, for every type a program can take or return.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"{p}{n}": np.dtype(f"int{n}") for p in ("i", "si") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{f"f{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}
_SCALARS = {"i": np.int32, "I": np.int64, "f": np.float32, "F": np.float64}


def version() -> str:
    """The installed runtime's release, as ``3.13.0``."""
    return importlib.metadata.version("iree-base-runtime")


# ---------------------------------------------------------------- running


def run(
    vmfb: bytes,
    inputs: Sequence[npt.ArrayLike],
    target: Target | str,
    function: str = "main",
    *,
    parameters: Sequence[str] = (),
    place: Place | None = None,
) -> list[Array]:
    """Run ``function`` of a compiled program and return all its results, in order.

    ``parameters`` are the archives of weights that the program loads from, ``[SCOPE=]FILE``.
    Where native code of others takes part it is always run in a child, with limits. Raises
    RunError, and MlirulesError when the function does not exist, the number of inputs is wrong or
    no device is here.
    """
    target = Target.of(target)
    place = place or Place()
    isolated, timeout = place.isolated, place.timeout
    arrays = [np.asarray(value) for value in inputs]
    if target.kind != "cpu" and place.device is None and (reason := target.available()) is not None:
        raise MlirulesError.at("--target", reason, code="device")
    for index, array in enumerate(arrays):
        _element_type(array, index)  # refuse before a process is spent on it
    uri = place.device or target.device
    if isolated is None:
        isolated = target.kind != "cpu" or timeout is not None
    if isolated or consent.current().used:
        (result,) = _run_isolated(vmfb, [(function, arrays)], uri, timeout, parameters)
        if isinstance(result, MlirulesError):
            raise result
        return result
    if timeout is not None:
        raise ValueError("a timeout needs isolated=True")
    return Program(vmfb, arrays, uri, function, parameters).results()


def run_each(
    vmfb: bytes,
    calls: Sequence[tuple[str, Sequence[npt.ArrayLike]]],
    target: Target | str,
    *,
    isolated: bool | None = None,
    timeout: float | None = None,
    parameters: Sequence[str] = (),
) -> list[list[Array] | MlirulesError]:
    """The results of several calls, each a function and its inputs; an error where one fails.

    Where a child process is needed (``isolated`` forces one, a ``timeout`` in seconds for all
    calls needs one) all calls share it: starting one costs far more than a call. Raises
    MlirulesError when no device is here.
    """
    target = Target.of(target)
    if target.kind != "cpu" or isolated or timeout is not None or consent.current().used:
        if (reason := target.available()) is not None:
            raise MlirulesError.at("--target", reason, code="device")
        arrays = [(name, [np.asarray(value) for value in inputs]) for name, inputs in calls]
        return _run_isolated(vmfb, arrays, target.device, timeout, parameters)
    results: list[list[Array] | MlirulesError] = []
    for name, inputs in calls:
        try:
            results.append(run(vmfb, inputs, target, name, parameters=parameters))
        except MlirulesError as error:
            results.append(error)
    return results


def entries(vmfb: bytes) -> list[Entry]:
    """The functions of a compiled program that :func:`run` can call.

    Raises MlirulesError when ``vmfb`` is no compiled program.
    """
    module = _load(vmfb)
    return [_entry(name, module.lookup_function(name)) for name in _public(module)]


def _public(module: _binding.VmModule) -> list[str]:
    """The exported functions without the compiler's own: initialiser and asynchronous twins."""
    return [
        name
        for name in module.function_names
        if not name.startswith("__") and not name.endswith("$async")
    ]


@functools.cache
def instance() -> _binding.VmInstance:
    """The process's instance of the runtime's virtual machine."""
    return _binding.VmInstance()


def _load(vmfb: bytes) -> _binding.VmModule:
    try:
        return _binding.VmModule.copy_buffer(instance(), vmfb)
    except (RuntimeError, ValueError) as error:
        message = f"not a compiled program: {first_line(error)}"
        raise MlirulesError.at("<vmfb>", message, code="vmfb") from error


def loaded_function(
    vmfb: bytes, function: str
) -> tuple[_binding.VmModule, _binding.VmFunction, Entry]:
    """The module of a compiled program, one of its functions, and what that takes and gives.

    Raises MlirulesError when ``vmfb`` is no compiled program or has no such function.
    """
    module = _load(vmfb)
    public = _public(module)
    if function not in public:
        raise MlirulesError.at(
            "--function",
            f"the program has no function {function!r}",
            code="function",
            suggestion=did_you_mean(function, public) or "it has: " + ", ".join(public),
        )
    callee = module.lookup_function(function)
    assert callee is not None  # it is public
    return module, callee, _entry(function, callee)


def _entry(name: str, function: _binding.VmFunction | None) -> Entry:
    # The bindings show the calling convention in the repr only: `main(0rI_r)`.
    found = re.search(r"\(0(\w*?)(?:_(\w*))?\)", repr(function))
    if found is None:
        raise RunError("error", f"function {name!r} has no calling convention: {function!r}")
    arguments, results = (re.sub("v", "", text or "") for text in found.groups())
    return Entry(name, arguments, results)


def scoped(archive: str) -> str:
    """``[SCOPE=]FILE`` with its scope."""
    return archive if "=" in archive else f"{SCOPE}={archive}"


def _load_archive(index: _binding.ParameterIndex, path: str) -> None:
    if not Path(path).is_file():
        raise MlirulesError.at(path, "there is no such file", code="file")
    try:
        index.load(path)
    except (IndexError, RuntimeError, ValueError) as error:
        raise MlirulesError.at(
            path,
            f"is no archive of weights: {first_line(error)}",
            code="archive",
            suggestion="give a .safetensors or .irpa",
        ) from error


def read_archive(path: str) -> dict[str, _binding.ParameterIndexEntry]:
    """What an archive of weights holds by name, each with its ``length`` in bytes; not its values.

    Raises MlirulesError.
    """
    index = _binding.ParameterIndex()
    _load_archive(index, path)
    return dict(index.items())


def parameter_modules(
    parameters: Sequence[str], held: Mapping[str, Array] | None = None
) -> list[_binding.VmModule]:
    """The archives ``[SCOPE=]FILE`` as a module that programs load weights from; they are mapped.

    ``held`` are further ones of the scope :data:`SCOPE`, used where they lie in memory. Raises
    MlirulesError for a file that cannot be read.
    """
    indices: dict[str, _binding.ParameterIndex] = {}
    if held:
        index = indices[SCOPE] = _binding.ParameterIndex()
        for name, array in held.items():
            index.add_buffer(name, array.reshape(-1).view(np.uint8))
    for text in parameters:
        scope, _, path = scoped(text).partition("=")
        _load_archive(indices.setdefault(scope, _binding.ParameterIndex()), path)
    if not indices:
        return []
    providers = [index.create_provider(scope=scope) for scope, index in indices.items()]
    return [_binding.create_io_parameters_module(instance(), *providers)]


class Program:
    """A program loaded on a device, with its inputs there: to be called again and again.

    In process, so for programs that are trusted not to crash; ``uri`` is a runtime's device URI
    (``Target.device``). Raises what :func:`run` does.
    """

    def __init__(
        self,
        vmfb: bytes,
        inputs: Sequence[Array],
        uri: str,
        function: str = "main",
        parameters: Sequence[str] = (),
    ) -> None:
        with run_errors():
            threads.prepare()
            self._device = device(uri)
        self._kept = pages.Kept(uri)
        module, self._callee, self._entry = loaded_function(vmfb, function)
        takes = len(self._entry.arguments)
        if len(inputs) != takes:
            why = f"{function!r} takes {takes} arguments, {len(inputs)} given"
            raise MlirulesError.at("--input", why, code="inputs")
        archives = parameter_modules(parameters)
        with run_errors(self._device):
            hal = _binding.create_hal_module(instance(), self._device)
            context = _binding.VmContext(instance(), [hal, *archives, module])
            self._invoke = threads.giving_way(context.invoke, uri)
            self._arguments = _binding.VmVariantList(len(inputs))
            for index, (kind, value) in enumerate(zip(self._entry.arguments, inputs, strict=True)):
                _push(self._arguments, kind, value, self._device, index)

    def __call__(self) -> _binding.VmVariantList:
        """Run the function to its end; the results stay on the device. Raises RunError."""
        results = _binding.VmVariantList(len(self._entry.results))
        self._kept.settle()
        with run_errors(self._device):
            self._invoke(self._callee, self._arguments, results)
        return results

    def touch(self) -> None:
        """Read the tensors that it was given, where they lie: a CPU has them close then."""
        for index, kind in enumerate(self._entry.arguments):
            if kind == "r":
                view = self._arguments.get_as_object(index, _binding.HalBufferView)
                view.map().asarray([int(view.byte_length)], np.dtype(np.uint8)).max(initial=0)

    def results(self) -> list[Array]:
        """Run the function and read all its results, in order. Raises RunError."""
        made = self()
        with run_errors(self._device):
            return [_pop(made, i, k, self._device) for i, k in enumerate(self._entry.results)]


def _element_type(value: Array, index: int) -> _binding.HalElementType:
    element = map_dtype_to_element_type(value.dtype)
    if element is None:
        raise MlirulesError.at(
            "--input", f"input {index}: no device holds {value.dtype} arrays", code="inputs"
        )
    return element


def _push(
    arguments: _binding.VmVariantList,
    kind: str,
    value: Array,
    device: _binding.HalDevice,
    index: int,
) -> None:
    if kind == "r":
        # ascontiguousarray would turn rank 0 into rank 1.
        view = device.allocator.allocate_buffer_copy(
            memory_type=_binding.MemoryType.DEVICE_LOCAL,
            allowed_usage=_binding.BufferUsage.DEFAULT,
            device=device,
            buffer=np.asarray(value, order="C"),
            element_type=_element_type(value, index),
        )
        arguments.push_ref(view.ref)
        return
    if value.size != 1:
        raise MlirulesError.at(
            "--input",
            f"input {index}: a scalar is expected, an array of shape {value.shape} given",
            code="inputs",
        )
    if kind in "iI":
        if value.dtype.kind not in "iub":
            raise MlirulesError.at(
                "--input", f"input {index}: an integer is expected, not {value}", code="inputs"
            )
        arguments.push_int(int(value.item()))
    else:
        arguments.push_float(float(value.item()))


def _pop(
    results: _binding.VmVariantList, index: int, kind: str, device: _binding.HalDevice
) -> Array:
    if kind == "r":
        return read_view(results.get_as_object(index, _binding.HalBufferView), device)
    return np.asarray(results.get_variant(index), dtype=_SCALARS[kind])


def read_view(view: _binding.HalBufferView, device: _binding.HalDevice) -> Array:
    """A copy of a device buffer.

    Through a staging buffer of the device's own: importing host memory, which the bindings'
    arrays do, fails on devices that want it aligned to a page (llvmpipe).
    """
    dtype = np.dtype(_binding.HalElementType.map_to_dtype(view.element_type))
    size = int(view.byte_length)
    if size == 0:
        return np.empty(view.shape, dtype)
    memory = _binding.MemoryType.HOST_LOCAL | _binding.MemoryType.DEVICE_VISIBLE
    usage = _binding.BufferUsage.TRANSFER_TARGET | _binding.BufferUsage.MAPPING_SCOPED
    staging = device.allocator.allocate_buffer(
        memory_type=int(memory), allowed_usage=int(usage), allocation_size=size
    )
    semaphore = device.create_semaphore(0)
    fence = _binding.HalFence.create_at(semaphore, 1)
    device.queue_copy(
        view.get_buffer(),
        staging,
        wait_semaphores=_binding.HalFence.create_at(semaphore, 0),
        signal_semaphores=fence,
    )
    fence.wait()
    mapped = staging.map()
    raw = np.array(mapped.asarray([size], np.dtype(np.uint8)), copy=True)
    value: Array = raw.view(dtype).reshape(view.shape)
    return value


# ---------------------------------------------------------------- child processes


def _run_isolated(
    vmfb: bytes,
    calls: Sequence[tuple[str, Sequence[Array]]],
    uri: str,
    timeout: float | None,
    parameters: Sequence[str] = (),
) -> list[list[Array] | MlirulesError]:
    """The results of calls in a child process. One that dies is the fault of the call it was at.

    Another child goes on behind it.
    """
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        folder = Path(directory)
        (folder / "module.vmfb").write_bytes(vmfb)
        (folder / "parameters.json").write_text(json.dumps(list(parameters)))
        for index, (_, inputs) in enumerate(calls):
            store_arrays(folder / f"inputs{index}", inputs)
        names = [name for name, _ in calls]
        results: list[list[Array] | MlirulesError] = []
        while len(results) < len(names):
            first = len(results)
            said = [directory, uri, str(first), *names]
            command = children.python("mlirules.drivers.iree.runtime:_child", *said)
            command, seconds = with_limits(command, timeout, uri)
            try:
                child = children.run(command, timeout=seconds)
                fate = None
            except children.TimedOut as out:
                fate = out
            for index in range(first, len(names)):
                refused, outputs = folder / f"refused{index}.json", folder / f"outputs{index}"
                if refused.exists():
                    results.append(_refusal(json.loads(refused.read_text())))
                elif (outputs / "index.json").exists():
                    results.append(load_arrays(outputs))
                else:
                    break
            if len(results) < len(names):
                name = names[len(results)]
                if fate is None:
                    died = _fate(child, uri, name)
                    results.append(died or RunError("crash", f"{name!r} gave no results"))
                    continue
                results.append(RunError("timeout", f"{name!r} {fate}"))
                results += [
                    RunError("timeout", f"{later!r} was not run: {name!r} took the time")
                    for later in names[len(results) :]
                ]
        return results


def with_limits(
    command: Sequence[str], timeout: float | None, uri: str
) -> tuple[list[str], float | None]:
    """A child's command and its timeout, with limits where native code of others takes part."""
    if not consent.current().used:
        return list(command), timeout
    limits = Limits() if uri.startswith("local-") else Limits(memory=None)
    return limited(command, limits), limits.wall_s if timeout is None else timeout


def _fate(child: children.Done, uri: str, name: str) -> RunError | None:
    """How a child process died, if it did."""
    if child.status < 0:
        return RunError("crash", f"{name!r} crashed on {uri} ({child.ending})")
    if child.status:
        return RunError("crash", f"{name!r} ended its process: {child.ending}")
    return None


def _child() -> None:
    """What the child process does: run what the folder named in ``argv`` holds."""
    folder, uri = Path(sys.argv[1]), sys.argv[2]
    vmfb = (folder / "module.vmfb").read_bytes()
    parameters = json.loads((folder / "parameters.json").read_text())
    first = int(sys.argv[3])
    for index, function in list(enumerate(sys.argv[4:]))[first:]:
        refused = folder / f"refused{index}.json"
        try:
            inputs = load_arrays(folder / f"inputs{index}")
            results = Program(vmfb, inputs, uri, function, parameters).results()
            store_arrays(folder / f"outputs{index}", results)
        except RunError as error:
            refused.write_text(json.dumps({"kind": error.kind, "message": error.message}))
        except MlirulesError as error:
            fault = error.faults[0]
            refusal = {
                "path": fault.span.path,
                "code": fault.code,
                "message": fault.message,
                "suggestion": fault.suggestion,
            }
            refused.write_text(json.dumps(refusal))


def _refusal(refusal: dict[str, str]) -> MlirulesError:
    if "kind" in refusal:
        return RunError(refusal["kind"], refusal["message"])
    return MlirulesError.at(
        refusal["path"],
        refusal["message"],
        code=refusal["code"],
        suggestion=refusal["suggestion"],
    )


def store_arrays(folder: Path, arrays: Sequence[Array]) -> None:
    """Write arrays as raw bytes with their types beside them: ``.npy`` cannot hold bfloat16."""
    folder.mkdir()
    for index, array in enumerate(arrays):
        (folder / f"{index}.bin").write_bytes(array.tobytes())
    kinds = [{"dtype": a.dtype.name, "shape": list(a.shape)} for a in arrays]
    (folder / "index.json").write_text(json.dumps(kinds))  # last: what has it is whole


def load_arrays(folder: Path) -> list[Array]:
    """What :func:`store_arrays` wrote."""
    kinds = json.loads((folder / "index.json").read_text())
    return [
        np.frombuffer((folder / f"{i}.bin").read_bytes(), dtype_of(k["dtype"])).reshape(k["shape"])
        for i, k in enumerate(kinds)
    ]


# ---------------------------------------------------------------- values


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype that MLIR (``bf16``, ``si64``) or numpy and torch (``bfloat16``) call ``name``.

    Raises MlirulesError naming near ones.
    """
    if name in DTYPES:
        return DTYPES[name]
    for dtype in DTYPES.values():
        if dtype.name == name:
            return dtype
    raise MlirulesError.at(
        name,
        f"unknown element type {name!r}",
        code="dtype",
        suggestion=did_you_mean(name, DTYPES) or "known: " + ", ".join(DTYPES),
    )


# A shape and type without values.
_SHAPE = re.compile(r"(\d+x)+(complex<\w+>|[a-z][a-z0-9]*)")


def parse_input(text: str, seed: int = 0) -> Array:
    """An input as it is written on a command line.

    ``@file.npy`` holds an array; ``2x3xf32=1 2 3 4 5 6`` spells one (one value fills it all);
    ``2x3xbf16=@file.bin`` holds raw values; ``3``, ``2.5`` and ``true`` are scalars. ``2x3xf32``
    alone is drawn by ``seed``: floats from the normal distribution, integers and bools from 0 and
    1. Raises MlirulesError.
    """
    try:
        return _parse_input(text) if _SHAPE.fullmatch(text) is None else drawn(text, seed)
    except (ValueError, OSError, OverflowError) as error:
        raise MlirulesError.at(
            f"--input={text[:80]}",
            f"not an input: {error}",
            code="inputs",
            suggestion="write 2x3xf32=1 2 3 4 5 6, 2x3xf32 (drawn at random), @file.npy, "
            "2x3xbf16=@file.bin or a number",
        ) from error


def drawn(text: str, seed: int) -> Array:
    """Numbers for a shape and type, as :func:`parse_input` says."""
    shape, dtype = parse_type(text)
    rng = np.random.default_rng(seed)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def _parse_input(text: str) -> Array:
    if text.startswith("@"):
        loaded: Array = np.load(text[1:])
        return loaded
    head, equals, values = text.partition("=")
    if not equals:
        try:  # a number, true or false
            return np.asarray(json.loads(text))
        except ValueError:
            raise ValueError("neither a number nor a shape and type") from None
    shape, dtype = parse_type(head)
    if values.startswith("@"):
        return np.fromfile(values[1:], dtype).reshape(shape)
    words = re.sub(r"[\[\],]", " ", values).split()
    if dtype == np.bool_:
        numbers = np.asarray([{"true": 1, "false": 0}.get(w, w) for w in words]).astype(np.int64)
        array = numbers.astype(dtype)
    elif dtype.kind in "iu":
        array = np.asarray([int(word) for word in words], dtype=dtype)
    else:
        array = np.asarray([complex(w) if dtype.kind == "c" else float(w) for w in words]).astype(
            dtype
        )
    return np.full(shape, array[0]) if array.size == 1 else array.reshape(shape)


def parse_type(text: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """``2x3xf32`` as shape and dtype. Raises ValueError, for the element type MlirulesError."""
    *sizes, element = re.split(r"x(?=\d|[a-z])", text) if "complex" not in text else _complex(text)
    return tuple(int(size) for size in sizes), dtype_of(element)


def _complex(head: str) -> list[str]:
    sizes, _, element = head.rpartition("complex")
    return [*filter(None, sizes.split("x")), "complex" + element]
