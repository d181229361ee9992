"""Is it still right? A program with and without rules, on inputs that include the edges.

The reference is the program without rules, as the compiler itself converts it. Where that fails, or
disagrees with the rewritten program, PyTorch is asked when it is installed: the compiler's own
conversion is wrong for some ops. Every result says what it was held against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.quality import torch_reference
from mlirules.language.faults import MlirulesError

Array = npt.NDArray[Any]
Arguments = Sequence[tuple[Sequence[int | None], str]]

#: The kinds of inputs that are tried.
KINDS = ("random", "zeros and denormals", "one NaN", "infinities", "extremes")

# Integers of these ops are places or divisors: far ones would read outside, or trap.
_CHOOSY = re.compile(
    r"index|gather|scatter|embedding|one_hot|nll|take|select|bincount|div|remainder|fmod|pow|shift"
    r"|slice|repeat|narrow|linalg|tensor\.extract|argsort|sort|rem[su]i"
)
# Where these overflow depends on the order of additions, which no rule promises.
_ADDING = re.compile(
    r"mm\b|matmul|conv|linear|attention|einsum|baddbmm|addm|dot\b|norm|gelu|polar|var|std|\.mv\b"
)
_RANDOM = re.compile(
    r"aten\.(?:rand|bernoulli|dropout|native_dropout|normal|uniform|multinomial|exponential|empty"
    r"|new_empty|rrelu)"
)


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute tolerance; ``None`` chooses by the element type."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: Any) -> tuple[float, float]:
        """Both for results of ``dtype``: a few units in the last place for narrow floats."""
        narrow = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(str(dtype), 0.0)
        rtol = self.rtol if self.rtol is not None else 1e-5
        atol = self.atol if self.atol is not None else 1e-6
        return max(rtol, narrow), max(atol, narrow / 2)


@dataclass
class Comparison:
    """One result of one run, held against its reference."""

    target: str
    inputs: str
    sizes: tuple[int, ...]
    result: int
    reference: str
    elements: int = 0
    wrong: int = 0
    max_ulp: float = 0.0
    max_relative: float = 0.0
    #: Zeros whose signs differ; told, but no fault.
    zero_signs: int = 0
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it agrees within the tolerance."""
        return not self.message

    def as_json(self) -> dict[str, object]:
        """The comparison as plain data."""
        return {**vars(self), "sizes": list(self.sizes), "passed": self.passed}


@dataclass
class Counterexample:
    """Inputs on which the rewritten program computes something else."""

    text: str
    inputs: list[Array]
    expected: list[Array]
    found: list[Array]
    comparison: Comparison


@dataclass
class Report:
    """What a verification found."""

    comparisons: list[Comparison] = field(default_factory=list)
    counterexample: Counterexample | None = None
    #: What could not be run, and why.
    skipped: list[str] = field(default_factory=list)
    #: Where the compiler without rules disagreed and PyTorch took the rules' side.
    compiler_wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was compared, and all of it agreed."""
        return bool(self.comparisons) and all(c.passed for c in self.comparisons)

    @property
    def references(self) -> list[str]:
        """What results were held against."""
        return sorted({c.reference for c in self.comparisons})


# ---------------------------------------------------------------- inputs


def edge_inputs(
    arguments: Arguments,
    sizes: Sequence[int],
    text: str,
    *,
    seed: int = 0,
    low: float = -2.0,
    high: float = 2.0,
) -> Iterator[tuple[str, list[Array]]]:
    """Random inputs, then the same with special values put in, by the kind of value.

    Few special values a tensor, so that a NaN in a sum does not hide all else. Integers keep their
    range where the program uses them as places or divisors; so does everything where ``low`` and
    ``high`` are not the usual ones: a test that narrows them knows why.
    """
    base = numerics.random_inputs(arguments, sizes, seed=seed, low=low, high=high)
    yield KINDS[0], base
    usual = (low, high) == (-2.0, 2.0)
    narrowed = low >= 0 or not usual
    kinds = KINDS[1:-1] if _ADDING.search(text) else KINDS[1:]
    for n, kind in enumerate(kinds, 1):
        rng = np.random.default_rng(seed + n)
        made = [_with_specials(a, kind, rng, text, narrowed) for a in base]
        if any(not _equal_bits(a, b) for a, b in zip(made, base, strict=True)):
            yield kind, made


def _with_specials(
    array: Array, kind: str, rng: np.random.Generator, text: str, narrowed: bool
) -> Array:
    if array.size == 0 or (array.ndim == 0 and array.dtype.kind in "iu"):
        return array  # a number may be the size of something
    out = np.array(array, order="C")
    flat = out.reshape(-1)
    specials = _specials(out.dtype, kind, text)
    if narrowed:
        specials = [s for s in specials if kind == KINDS[1] and s >= 0 and out.dtype.kind != "i"]
    count = max(1, min(len(specials), flat.size // 2))
    places = rng.permutation(flat.size)[:count]
    chosen: list[int] = rng.permutation(len(specials))[:count].tolist() if specials else []
    for place, index in zip(places, chosen, strict=False):
        with np.errstate(all="ignore"):
            flat[place] = specials[index]
    return out


def _specials(dtype: Any, kind: str, text: str) -> list[Any]:
    is_float = dtype.kind == "f" or str(dtype) == "bfloat16"
    if is_float:
        import ml_dtypes

        typed_in_part: Any = ml_dtypes
        info = typed_in_part.finfo(dtype)
        tiny, least = float(info.tiny), float(info.smallest_subnormal)
        return {
            KINDS[1]: [0.0, -0.0, tiny, -tiny, least, -least, 1.0, -1.0],
            KINDS[2]: [float("nan")],
            KINDS[3]: [float("inf"), float("-inf")],
            KINDS[4]: [float(info.max), float(info.min), float(info.eps)],
        }[kind]
    if dtype.kind in "iu" and kind == KINDS[4] and not _CHOOSY.search(text):
        bounds = np.iinfo(dtype)
        return [bounds.max, bounds.min, 0]
    return []


def _equal_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


# ---------------------------------------------------------------- comparing


def ulps(found: Array, expected: Array) -> Array:
    """The distance of floats in units of the last place; 0 for equal NaNs and infinities."""
    width: Any = {2: np.int16, 4: np.int32, 8: np.int64}[found.dtype.itemsize]

    def ordered(a: Array) -> Array:
        bits = a.view(width).astype(np.float64 if width is np.int64 else np.int64)
        lowest = np.iinfo(width).min
        out: Array = np.where(bits < 0, lowest - bits, bits)
        return out

    distance = np.abs(ordered(found).astype(np.float64) - ordered(expected).astype(np.float64))
    both = np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return np.asarray(np.where(both, 0.0, distance))


def compare_results(
    found: Array, expected: Array, tolerance: Tolerance, comparison: Comparison
) -> None:
    """Fill a comparison in."""
    same_size = found.dtype.itemsize == expected.dtype.itemsize
    if same_size and found.dtype.kind in "iub" and expected.dtype.kind in "iub":
        found = found.view(expected.dtype)  # the runtime does not know signedness
    comparison.elements = int(expected.size)
    rtol, atol = tolerance.of(expected.dtype)
    comparison.message = numerics.difference(found, expected, rtol, atol)
    if found.shape != expected.shape or not expected.size:
        return
    wide: Any = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        comparison.wrong = int(np.sum(~close))
        relative = np.abs(a - b) / np.maximum(np.abs(b), 1e-300)
        finite = relative[np.isfinite(relative) & (np.abs(b) > atol)]
        comparison.max_relative = float(finite.max()) if finite.size else 0.0
    is_float = expected.dtype.kind == "f" or str(expected.dtype) == "bfloat16"
    if is_float and found.dtype == expected.dtype and expected.dtype.itemsize > 1:
        distance = ulps(np.ascontiguousarray(found), np.ascontiguousarray(expected))
        comparison.max_ulp = float(distance.max())
        zeros = (a == 0) & (b == 0)
        comparison.zero_signs = int(np.sum(zeros & (np.signbit(a) != np.signbit(b))))


# ---------------------------------------------------------------- references


class Reference:
    """What a program should compute: given results, the compiler without rules, or PyTorch."""

    COMPILER = "IREE without the rules, on cpu"
    TORCH = "PyTorch"
    GIVEN = "the expected results"

    def __init__(self, text: str, *, first: str = "compiler", timeout: float | None = None) -> None:
        self.text = text
        self.timeout = timeout
        self.name, _ = numerics.signature(text)
        self.cpu = Target.parse("cpu")
        self.order = [self._compiler, self._torch]
        if first == "torch":
            self.order.reverse()
        self._binary: bytes | MlirulesError | None = None

    def results(self, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        """The reference and its results. Raises the first one's :class:`MlirulesError`."""
        first: MlirulesError | None = None
        for ask in self.order:
            try:
                return ask(inputs)
            except MlirulesError as error:
                first = first or error
        assert first is not None
        raise first

    def second(self, first: str, inputs: Sequence[Array]) -> tuple[str, list[Array]] | None:
        """The other reference's results, None when it has none."""
        for ask in self.order:
            try:
                name, results = ask(inputs)
            except MlirulesError:
                continue
            if name != first:
                return name, results
        return None

    def _compiler(self, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        if self._binary is None:
            try:
                self._binary = compiler.compile_module(
                    self.text, self.cpu, timeout=self.timeout or 300
                )
            except MlirulesError as error:
                self._binary = error
        if isinstance(self._binary, MlirulesError):
            raise self._binary
        try:
            return self.COMPILER, runtime.run(self._binary, inputs, self.cpu, self.name)
        except IndexError as error:  # the bindings' word for OUT_OF_RANGE
            raise runtime.RunError("error", str(error).splitlines()[0][:200]) from None

    def _torch(self, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        return self.TORCH, torch_reference.evaluate(self.text, inputs)


# ---------------------------------------------------------------- verifying


@dataclass
class Settings:
    """How a verification runs."""

    targets: Sequence[Target]
    sizes: Sequence[Sequence[int]] = ((),)
    tolerance: Tolerance = Tolerance()
    seed: int = 0
    low: float = -2.0
    high: float = 2.0
    #: What is expected of the given inputs; asked before any reference.
    expect: Sequence[Array] | None = None
    #: Only these inputs, instead of made ones.
    inputs: Sequence[Array] | None = None
    #: Which reference is asked first: ``compiler`` or ``torch``.
    first: str = "compiler"
    timeout: float | None = 300.0
    #: Stop at the first difference.
    stop: bool = False


def verify(
    before: str, after: str, settings: Settings, step: Callable[[str], object] = lambda _: None
) -> Report:
    """Hold ``after`` against ``before`` on all targets, sizes and kinds of inputs.

    What is not available, or does not compile before and after, is skipped with the reason. Raises
    :class:`MlirulesError` when the rewritten program does not compile for a target though the
    program without rules does.
    """
    report = Report()
    if _RANDOM.search(before):
        report.skipped.append("the program draws random numbers: nothing to compare")
        return report
    name, arguments = numerics.signature(before)
    reference = Reference(before, first=settings.first, timeout=settings.timeout)
    sets = list(_input_sets(before, arguments, settings))
    for target in settings.targets:
        if (reason := target.available()) is not None:
            report.skipped.append(f"{target}: {reason}")
            continue
        step(f"compiling for {target}")
        binary = compiler.compile_module(after, target, timeout=settings.timeout)
        for sizes, kind, inputs in sets:
            step(f"{target}, {kind}")
            if target.kind == "vulkan" and any(a.size == 0 for a in inputs):
                report.skipped.append(f"{target}: the driver refuses empty buffers")
                continue
            _one(report, reference, binary, name, target, sizes, kind, inputs, settings)
            if settings.stop and not all(c.passed for c in report.comparisons):
                return report
    return report


def _input_sets(
    text: str, arguments: Arguments, settings: Settings
) -> Iterator[tuple[tuple[int, ...], str, list[Array]]]:
    if settings.inputs is not None:
        yield (), "given", [np.asarray(a) for a in settings.inputs]
        return
    for n, sizes in enumerate(settings.sizes or [()]):
        made = edge_inputs(
            arguments,
            sizes,
            text,
            seed=settings.seed + 101 * n,
            low=settings.low,
            high=settings.high,
        )
        for kind, inputs in made:
            yield tuple(sizes), kind, inputs


def _one(
    report: Report,
    reference: Reference,
    binary: bytes,
    name: str,
    target: Target,
    sizes: tuple[int, ...],
    kind: str,
    inputs: list[Array],
    settings: Settings,
) -> None:
    where = f"{target}, {kind}" + (f", sizes {list(sizes)}" if sizes else "")
    try:
        if settings.expect is not None:
            source, expected = reference.GIVEN, [np.asarray(a) for a in settings.expect]
        else:
            source, expected = reference.results(inputs)
    except MlirulesError as error:
        report.skipped.append(f"{where}: no reference: {_first(error)}")
        return
    try:
        found = runtime.run(binary, inputs, target, name, timeout=None)
    except (MlirulesError, IndexError) as error:
        failed = Comparison(str(target), kind, sizes, 0, source)
        failed.message = f"does not run: {_first(error)}"
        report.comparisons.append(failed)
        return
    made = _compared(found, expected, source, target, kind, sizes, settings)
    if settings.expect is None and not all(c.passed for c in made):
        other = reference.second(source, inputs)
        if other is not None:
            again = _compared(found, other[1], other[0], target, kind, sizes, settings)
            if all(c.passed for c in again):
                report.compiler_wrong.append(f"{where}: {source} disagrees with {other[0]}")
                made = again
    report.comparisons += made
    wrong = next((c for c in made if not c.passed), None)
    if wrong is not None and report.counterexample is None:
        report.counterexample = Counterexample(reference.text, inputs, expected, found, wrong)


def _compared(
    found: list[Array],
    expected: list[Array],
    source: str,
    target: Target,
    kind: str,
    sizes: tuple[int, ...],
    settings: Settings,
) -> list[Comparison]:
    if len(found) != len(expected):
        made = Comparison(str(target), kind, sizes, 0, source)
        made.message = f"{len(found)} results, not {len(expected)}"
        return [made]
    out = []
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        made = Comparison(str(target), kind, sizes, n, source)
        compare_results(np.asarray(a), np.asarray(b), settings.tolerance, made)
        out.append(made)
    return out


def _first(error: Exception) -> str:
    if not isinstance(error, MlirulesError):
        return str(error).splitlines()[0][:200]
    return error.faults[0].message.splitlines()[0][:200]
