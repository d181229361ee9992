"""What a program with custom ops should compute: by the Python functions that rules name.

The program is walked op by op. An op for which a rule names a function is computed by it, the other
ops by PyTorch where it is installed. That happens in a child process with limits: the functions are
the user's own, and run only where the user said so (:mod:`mlirules.language.consent`).
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.runtime import Array
from mlirules.drivers.pipelines.transform import Recipe, default_for, stage_entries
from mlirules.drivers.quality import torch_reference
from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.reference import Reference, reference_of
from mlirules.language.rule import Rule
from mlirules.support import children
from mlirules.support.limits import Limits, limited

__all__ = ["ReferenceFailed", "evaluate", "named", "of_recipe", "of_rules"]

Functions = Mapping[str, Reference]

#: Of the child: processor time in seconds, and seconds in all.
_LIMITS = Limits(cpu_s=300, wall_s=300.0)


class ReferenceFailed(MlirulesError):
    """A function that a rule names as its reference did not do what it is for."""


def of_rules(rules: Iterable[Rule]) -> dict[str, Reference]:
    """The functions that rules name, by op. Raises :class:`MlirulesError` where two disagree."""
    out: dict[str, Reference] = {}
    for rule in rules:
        found = reference_of(rule)
        if found is None:
            continue
        first = out.setdefault(found.op, found)
        if (first.file.resolve(), first.function) != (found.file.resolve(), found.function):
            raise MlirulesError(
                Fault(
                    found.span,
                    "reference",
                    f"{found.op} is {found} here, and {first} at {first.span}",
                    "name one function for the op",
                )
            )
    return out


def of_recipe(recipe: Recipe) -> dict[str, Reference]:
    """The functions that the rules of a recipe's pipeline name, by op."""
    pipeline = recipe.pipeline or default_for(recipe.target.kind)
    entries = {
        entry.path: entry
        for stage in pipeline.stages
        if stage.phase == "torch"
        for entry in stage_entries(stage, recipe.session)
        if not consent.ships(entry.path)
    }
    return of_rules(entry.rule for entry in entries.values())


def named(functions: Functions) -> str:
    """The functions, as a report names what results were held against."""
    return ", ".join(f"{op} by {reference}" for op, reference in sorted(functions.items()))


def evaluate(
    text: str, calls: Sequence[tuple[str | None, Sequence[Array]]], functions: Functions
) -> list[list[Array] | MlirulesError]:
    """The results of a program's functions on inputs, all calls in one child process.

    An error stands in the place of results that could not be computed: :class:`ReferenceFailed`
    where a function is to blame. Raises :class:`MlirulesError` where the user did not agree.
    """
    for reference in functions.values():
        reference.admit()
    first = next(iter(functions.values())).span
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        folder = Path(directory)
        (folder / "program.mlir").write_text(text)
        asked = {
            "calls": [name for name, _ in calls],
            "functions": {op: [str(r.file.resolve()), r.function] for op, r in functions.items()},
        }
        (folder / "asked.json").write_text(json.dumps(asked))
        for index, (_, inputs) in enumerate(calls):
            runtime.store_arrays(folder / f"inputs{index}", [np.asarray(a) for a in inputs])
        command = children.python("mlirules.drivers.quality.custom_ops:_child", directory)
        try:
            done = children.run(limited(command, _LIMITS), timeout=_LIMITS.wall_s)
            fate = done.ending or "it gave no results"
        except children.TimedOut as out:
            fate = str(out)
        results: list[list[Array] | MlirulesError] = []
        for index in range(len(calls)):
            failed, outputs = folder / f"failed{index}.json", folder / f"outputs{index}"
            if failed.exists():
                results.append(_failure(json.loads(failed.read_text()), functions))
            elif (outputs / "index.json").exists():
                results.append(runtime.load_arrays(outputs))
            else:
                said = f"{named(functions)}: the process of the reference ended: {fate}"
                results.append(ReferenceFailed(Fault(first, "reference", said)))
        return results


def _failure(said: dict[str, Any], functions: Functions) -> MlirulesError:
    message = str(said["message"])[:2000]
    if said["op"] is None:
        return torch_reference.NotInterpreted.because(message)
    reference = functions[said["op"]]
    return ReferenceFailed(Fault(reference.span, "reference", f"{reference} {message}"))


# ---------------------------------------------------------------- in the child


@dataclass(frozen=True)
class _Function:
    """One of the functions, with what it takes tensors as."""

    op: str
    file: Path
    call: Callable[..., Any]
    #: Its file imports PyTorch: it takes tensors, not arrays.
    tensors: bool


class _FunctionFailed(Exception):
    def __init__(self, op: str, message: str) -> None:
        super().__init__(message)
        self.op = op


def _child() -> None:
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    text = (folder / "program.mlir").read_text()
    functions: dict[str, Callable[..., Any]] = {}
    broken: _FunctionFailed | None = None
    for op, (file, name) in asked["functions"].items():
        try:
            functions[op] = _checked(_loaded(op, Path(file), name))
        except _FunctionFailed as error:
            broken = error
    for index, name in enumerate(asked["calls"]):
        try:
            if broken is not None:
                raise broken
            inputs = runtime.load_arrays(folder / f"inputs{index}")
            results = torch_reference.evaluate(text, inputs, name, functions)
            runtime.store_arrays(folder / f"outputs{index}", [np.asarray(r) for r in results])
        except _FunctionFailed as error:
            _say(folder, index, error.op, str(error))
        except MlirulesError as error:
            _say(folder, index, None, error.faults[0].message)


def _say(folder: Path, index: int, op: str | None, message: str) -> None:
    (folder / f"failed{index}.json").write_text(json.dumps({"op": op, "message": message}))


def _loaded(op: str, file: Path, name: str) -> _Function:
    sys.path.append(str(file.parent))  # what it imports from beside it
    made = importlib.util.spec_from_file_location(f"mlirules_reference_{file.stem}", file)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    try:
        made.loader.exec_module(module)
        function = getattr(module, name)
    except Exception as error:  # noqa: BLE001 - it is anybody's code
        raise _FunctionFailed(op, f"cannot be loaded: {_raised(error, file)}") from None
    tensors = any(
        isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "torch"
        for value in vars(module).values()
    )
    return _Function(op, file, function, tensors)


def _raised(error: BaseException, file: Path) -> str:
    """An exception, and the line of the user's file that it came from."""
    rows = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    where = f" ({file.name}, line {rows[-1]})" if rows else ""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else 'no message'}{where}"


def _checked(function: _Function) -> Callable[..., Any]:
    """The function as the interpreter calls it: its exceptions carry the op."""

    def called(arguments: list[object], results: Sequence[str]) -> list[Array]:
        given = [_given(a, tensors=function.tensors) for a in arguments]
        try:
            made = function.call(*given)
        except Exception as error:  # noqa: BLE001 - it is anybody's code
            raise _FunctionFailed(function.op, f"raised {_raised(error, function.file)}") from None
        listed = list(made) if isinstance(made, (tuple, list)) else [made]
        if len(listed) != len(results):
            raise _FunctionFailed(
                function.op, f"gave {len(listed)} results, the op has {len(results)}"
            )
        return [_fitted(function.op, v, r) for v, r in zip(listed, results, strict=True)]

    return called


def _given(value: object, *, tensors: bool) -> Any:
    if isinstance(value, list):
        return [_given(item, tensors=tensors) for item in value]
    if tensors and isinstance(value, np.ndarray):
        return torch_reference.tensor(value)
    return value if tensors else torch_reference.array(value)


def _fitted(op: str, value: object, type_: str) -> Array:
    """A result as the program says that it is: other shapes and kinds of numbers are refused."""
    found = np.asarray(torch_reference.array(value))
    shape, element = torch_reference.parts(type_)
    fits = len(shape) == found.ndim and all(
        d is None or d == n for d, n in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise _FunctionFailed(op, f"gave the shape {list(found.shape)}, the program says {type_}")
    wanted = runtime.dtype_of(element)
    narrowing = found.dtype.kind in "fc" and wanted.kind in "iub"
    if (narrowing or (found.dtype.kind == "c") != (wanted.kind == "c")) and found.dtype != wanted:
        raise _FunctionFailed(op, f"gave {found.dtype.name}, the program says {type_}")
    return found.astype(wanted)
