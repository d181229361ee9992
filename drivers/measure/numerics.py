"""Numbers: random inputs for a program, and comparing what two versions of it compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler, irtypes, program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure.together import Binary, Calls, Uncompiled
from mlirules.generator.lowering.values import TORCH_SCALARS
from mlirules.language.faults import MlirulesError, did_you_mean
from mlirules.language.model import RunDoc

Array = npt.NDArray[Any]

_NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "si8": np.int8,
    "si16": np.int16,
    "si32": np.int32,
    "si64": np.int64,
    "ui8": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "i1": np.bool_,
}


def signature(
    source: str | compiler.ir.Module | compiler.Program,
) -> tuple[str, list[tuple[list[int | None], str]]]:
    """The entry function's name, and the shape and element type of each of its arguments."""
    entry = program.entry(_module(source))
    if entry is None:
        raise MlirulesError.at("<program>", "no function to run", code="no-entry")
    return entry[0], arguments_of(entry[1])


def _module(source: str | compiler.ir.Module | compiler.Program) -> compiler.ir.Module:
    if isinstance(source, str):
        return parsed(source)
    return source.module if isinstance(source, compiler.Program) else source


def functions(
    source: str | compiler.ir.Module | compiler.Program, only: str | None = None
) -> dict[str, list[tuple[list[int | None], str]]]:
    """The functions of a program that can be called, with their arguments, in order.

    ``only`` chooses one. Raises :class:`MlirulesError` where it, or any, is missing.
    """
    found = {name: arguments_of(types) for name, types in program.entries(_module(source))}
    if only is not None and only not in found:
        raise MlirulesError.at(
            "--function",
            f"the program has no function {only!r}",
            code="function",
            suggestion=did_you_mean(only, found) or "it has: " + ", ".join(found),
        )
    if not found:
        raise MlirulesError.at("<program>", "no function to run", code="no-entry")
    return found if only is None else {only: found[only]}


def arguments_of(types: Iterable[compiler.ir.Type]) -> list[tuple[list[int | None], str]]:
    """The sizes and element types of the tensors and of torch's numbers among types, in order."""
    arguments: list[tuple[list[int | None], str]] = []
    for type_ in types:
        tensor, kinds = irtypes.tensor_type(type_), irtypes.torch_kinds(type_)
        if tensor is not None:
            arguments.append((list(tensor.sizes), tensor.element))
        elif len(kinds) == 1 and kinds[0] in TORCH_SCALARS:
            arguments.append(([], TORCH_SCALARS[kinds[0]][0]))
    return arguments


def random_inputs(
    arguments: Sequence[tuple[Sequence[int | None], str]],
    sizes: Sequence[int] = (),
    *,
    seed: int = 0,
    low: float = -2.0,
    high: float = 2.0,
) -> list[Array]:
    """Random inputs; ``sizes`` are given to the dynamic dims in order, the last one repeating."""
    rng = np.random.default_rng(seed)
    left = list(sizes)
    out: list[Array] = []
    for shape, element in arguments:
        dims = []
        for d in shape:
            if d is None:
                d = left.pop(0) if len(left) > 1 else (left[0] if left else 3)
            dims.append(d)
        kind = _NUMPY.get(element)
        if kind is None:
            raise MlirulesError.at("<program>", f"no random inputs of type {element}", code="input")
        if element == "i1":
            out.append(np.asarray(rng.integers(0, 2, dims), dtype=np.bool_))
        elif "f" in element:
            out.append(np.asarray(rng.uniform(low, high, dims)).astype(kind))
        else:
            a, b = int(np.floor(low)), int(np.ceil(high)) + 1
            if element.startswith("ui"):
                a = max(a, 0)
            out.append(np.asarray(rng.integers(a, max(b, a + 1), dims)).astype(kind))
    return out


def difference(found: Array, expected: Array, rtol: float, atol: float) -> str:
    """How two results differ beyond the tolerance; empty when they do not."""
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, not {list(expected.shape)}"
    a = found.astype(np.complex128 if np.iscomplexobj(found) else np.float64)
    b = expected.astype(np.complex128 if np.iscomplexobj(expected) else np.float64)
    if rtol == atol == 0 and _whole(found, expected):
        close = found == expected  # float64 would not tell the low bits of large ones
    else:
        close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if bool(np.all(close)):
        return ""
    wrong = np.argwhere(~close)
    first = tuple(int(i) for i in wrong[0])
    with np.errstate(all="ignore"):
        worst = float(np.max(np.nan_to_num(np.abs(a - b), nan=0.0), initial=0.0))
    return (
        f"{len(wrong)} of {a.size} elements differ, first at {list(first)}: {found[first]} "
        f"instead of {expected[first]}; largest difference {worst:.3g}"
    )


def _whole(*arrays: Array) -> bool:
    """Whether all are of integers or truth values, which equal each other or differ."""
    return all(array.dtype.kind in "iub" for array in arrays)


@dataclass(frozen=True)
class Comparison:
    """A program before and after rewriting (or the binary of that), and how to compare them."""

    before: str
    after: str | bytes
    run: RunDoc
    #: What is expected, for each of the inputs of :func:`inputs_of`; None: ask the compiler.
    expected: Sequence[Sequence[Array]] | None = None


def compare(
    before: str, after: str | bytes, run: RunDoc, target: Target, session: Session | None = None
) -> list[str]:
    """Compile and run a program before and after rewriting on the same inputs.

    ``after`` may be compiled already.

    The unrewritten program runs on the CPU whatever the target: on other targets the compiler's own
    conversion cannot compile some programs and gets others wrong. ``run.expect`` replaces the
    unrewritten program's results. Returns problems, empty when the results agree.
    """
    (problems,) = compare_all([(Comparison(before, after, run), target)], session)
    return problems


def compare_all(
    comparisons: Sequence[tuple[Comparison, Target]], session: Session | None = None
) -> list[list[str]]:
    """Like :func:`compare`, for several programs, which are compiled and run together.

    Binaries are kept in ``session`` (default: that of this thread).
    """
    session = session or current()
    problems: list[list[str]] = [[] for _ in comparisons]
    reference = Target.parse("cpu")
    calls = {target: Calls(target, session) for target in (reference, *(t for _, t in comparisons))}
    originals: dict[tuple[str, str, str], int] = {}
    runs: list[tuple[int, Sequence[int], int, int | Sequence[Any]]] = []
    for number, (one, target) in enumerate(comparisons):
        try:
            name, arguments = signature(one.before)
        except MlirulesError as error:
            problems[number].append(f"{target}: {error}")
            continue
        for place, (sizes, inputs) in enumerate(inputs_of(one.run, arguments)):
            wanted: int | Sequence[Any] = one.run.expect or ()
            if one.run.expect is None and one.expected is not None:
                wanted = one.expected[place]
            elif one.run.expect is None:
                key = (one.before, repr(one.run), repr(sizes))
                if key not in originals:
                    originals[key] = calls[reference].add(one.before, inputs)
                wanted = originals[key]
            after = Binary(one.after, name) if isinstance(one.after, bytes) else one.after
            runs.append((number, sizes, calls[target].add(after, inputs), wanted))
    for number, sizes, call, wanted in runs:
        one, target = comparisons[number]
        said = problems[number]
        found = calls[target].result(call)
        want = wanted if not isinstance(wanted, int) else calls[reference].result(wanted)
        wrong = next((v for v in (found, want) if isinstance(v, Uncompiled)), None)
        if wrong is not None:
            message = f"{target}: {wrong.error}"
            said += [message] if message not in said else []
            continue
        differences = _differences(found, want, one.run)
        if differences:
            found = calls[target].alone(call)
            want = wanted if not isinstance(wanted, int) else calls[reference].alone(wanted)
            differences = _differences(found, want, one.run)
        shown = f"{target}, sizes {sizes}" if sizes else str(target)
        said += [f"{shown}{problem}" for problem in differences]
    return problems


def _differences(
    found: list[Array] | MlirulesError | Uncompiled,
    want: Sequence[Any] | MlirulesError | Uncompiled,
    run: RunDoc,
) -> list[str]:
    """How the results of a call differ from those that are wanted."""
    if isinstance(found, MlirulesError | Uncompiled):
        return [f": {found}"]
    if isinstance(want, MlirulesError | Uncompiled):
        return [f": {want}"]
    if len(found) != len(want):
        return [f": {len(found)} results, not {len(want)}"]
    told = []
    for i, (a, b) in enumerate(zip(found, want, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        exact = _whole(a, b)
        message = difference(a, b, 0.0 if exact else run.rtol, 0.0 if exact else run.atol)
        if message:
            told.append(f", result {i}: {message}")
    return told


def inputs_of(
    run: RunDoc, arguments: Sequence[tuple[Sequence[int | None], str]]
) -> list[tuple[Sequence[int], list[Array]]]:
    """The inputs of each run that a test asks for, with the sizes of its dynamic dims."""
    return [(sizes, _inputs(run, arguments, sizes)) for sizes in run.sizes or [[]]]


def _inputs(
    run: RunDoc, arguments: Sequence[tuple[Sequence[int | None], str]], sizes: Sequence[int]
) -> list[Array]:
    if run.inputs is None:
        return random_inputs(arguments, sizes, seed=run.seed, low=run.low, high=run.high)
    return [
        np.asarray(v, dtype=_NUMPY[element])
        for v, (_, element) in zip(run.inputs, arguments, strict=True)
    ]
