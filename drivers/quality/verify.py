"""Is it still right? A program with and without rules, on inputs that include the edges.

The reference is the program without rules, as the compiler itself converts it. Where that fails, or
disagrees with the rewritten program, PyTorch is asked when it is installed: the compiler's own
conversion is wrong for some ops. Where PyTorch is the reference, what it contradicts is wrong,
whatever the compiler says without rules. Every result says what it was held against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.runtime import Array
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.measure import numerics
from mlirules.drivers.quality import custom_ops, torch_reference
from mlirules.language.faults import MlirulesError

Arguments = Sequence[tuple[Sequence[int | None], str]]
#: A program: its text, or what reads it.
Source = str | Callable[[], Program]
#: What compiles the rewritten program for a target.
Build = Callable[[Target], bytes]

RANDOM, ZEROS, HALVES = "random", "zeros and denormals", "halves"
NAN, INFINITIES, EXTREMES = "one NaN", "infinities", "extremes"
#: The kinds of inputs that are tried. With several operands NaN stands in one after the other.
KINDS = (RANDOM, ZEROS, HALVES, NAN, INFINITIES, EXTREMES)
#: So many operands have a NaN of their own.
_OPERANDS = 4

# Integers of these ops are places or divisors: far ones would read outside, or trap.
_CHOOSY = re.compile(
    r"index|gather|scatter|embedding|one_hot|nll|take|aten\.select|bincount|aten\.\w*div|div[su]i"
    r"|remainder|fmod|aten\.pow|shift|\.sh[lr]|aten\.slice|repeat|narrow|tensor\.extract(?!_)"
    r"|sort|rem[su]i|iree_linalg_ext"
)
# Where these overflow depends on the order of additions, which no rule promises; so does where NaN
# and infinities get to, by way of transforms.
_ADDING = re.compile(
    r"mm\b|matmul|conv|linear|attention|einsum|baddbmm|addm|dot\b|norm|gelu|polar|var|std|\.mv\b"
)
#: Ops that look integers up in a table, where PyTorch takes no negative ones.
_TABLES = re.compile(r"embedding|index_select|gather|scatter|one_hot|nll_loss|aten\.take")
_RANDOM = re.compile(
    r"aten\.(?:rand|bernoulli|dropout|native_dropout|normal|uniform|multinomial|exponential|empty"
    r"|new_empty|rrelu)"
)


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute tolerance; ``None`` chooses by the element type.

    ``of_largest`` is allowed besides, as a part of the largest number of a result: sums that are
    added up in another order differ by that, wherever they cancel out.
    """

    rtol: float | None = None
    atol: float | None = None
    of_largest: float = 0.0

    def of(self, dtype: object) -> tuple[float, float]:
        """Both for results of ``dtype``: a few units in the last place for narrow floats."""
        narrow = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(str(dtype), 0.0)
        rtol = self.rtol if self.rtol is not None else 1e-5
        atol = self.atol if self.atol is not None else 1e-6
        return max(rtol, narrow), max(atol, narrow / 2)

    def part(self, dtype: np.dtype[Any]) -> float:
        """What part of the largest number of a result of ``dtype`` is allowed besides."""
        if dtype.kind not in "fc" and str(dtype) != "bfloat16":
            return 0.0
        # Narrow types are rounded where they are added up, too.
        return self.of_largest * {"float16": 10.0, "bfloat16": 50.0}.get(str(dtype), 1.0)

    def for_result(self, expected: Array) -> tuple[float, float]:
        """Both for one result."""
        rtol, atol = self.of(expected.dtype)
        part = self.part(expected.dtype)
        if not part or not expected.size:
            return rtol, atol
        kind = np.complex128 if expected.dtype.kind == "c" else np.float64
        magnitudes = np.abs(expected.astype(kind))
        finite = magnitudes[np.isfinite(magnitudes)]
        return rtol, max(atol, part * float(finite.max(initial=0.0)))


#: What whole programs may differ by, compiled another way: a thousandth of the largest number.
WHOLE_PROGRAMS = Tolerance(of_largest=1e-3)


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
    function: str = ""

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

    source: Source
    inputs: list[Array]
    expected: list[Array]
    found: list[Array]
    comparison: Comparison
    #: The function that was called.
    function: str

    @property
    def text(self) -> str:
        """The program before the rules, as text."""
        return self.source if isinstance(self.source, str) else str(self.source().module)


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
    ops: str,
    *,
    seed: int = 0,
    span: tuple[float, float] = (-2.0, 2.0),
    finite: bool = False,
) -> Iterator[tuple[str, list[Array]]]:
    """Random inputs, then the same with special values put in, by the kind of value.

    Few special values a tensor, so that a NaN in a sum does not hide all else. ``ops`` names the
    program's ops: integers keep their range where it uses them as places or divisors; so does
    everything where ``span``, the lowest and the highest, is not the usual one: a test that narrows
    it knows why. ``finite`` leaves NaN and infinities out.
    """
    low, high = span
    base = numerics.random_inputs(arguments, sizes, seed=seed, low=low, high=high)
    usual = span == (-2.0, 2.0)
    if usual and _TABLES.search(ops):
        # A place outside the table is nobody's meaning: tokens, types and masks are 0 or 1.
        base = [a & 1 if a.dtype.kind in "iu" else a for a in base]
    yield RANDOM, base
    narrowed = low >= 0 or not usual
    floats = [n for n, a in enumerate(base) if _is_float(a.dtype)]
    for n, kind in enumerate(KINDS[1:], 1):
        if finite and kind in (NAN, INFINITIES):
            continue
        places: list[tuple[str, set[int]]] = [(kind, set(range(len(base))))]
        if kind == NAN and len(floats) > 1:
            places = [(f"a NaN in operand {i}", {i}) for i in floats[:_OPERANDS]]
        for said, chosen in places:
            rng = np.random.default_rng(seed + n)
            made = [
                _with_specials(a, kind, rng, ops, narrowed) if i in chosen else a
                for i, a in enumerate(base)
            ]
            if any(not _equal_bits(a, b) for a, b in zip(made, base, strict=True)):
                yield said, made


def _is_float(dtype: Any) -> bool:
    return bool(dtype.kind == "f" or str(dtype) == "bfloat16")


def _with_specials(
    array: Array, kind: str, rng: np.random.Generator, ops: str, narrowed: bool
) -> Array:
    if array.size == 0 or (array.ndim == 0 and array.dtype.kind in "iu"):
        return array  # a number may be the size of something
    out = np.array(array, order="C")
    flat = out.reshape(-1)
    specials = _specials(out.dtype, kind, ops)
    if narrowed:
        specials = [s for s in specials if kind == ZEROS and s >= 0 and out.dtype.kind != "i"]
    count = max(1, min(len(specials), flat.size // 2))
    places = rng.permutation(flat.size)[:count]
    chosen: list[int] = rng.permutation(len(specials))[:count].tolist() if specials else []
    for place, index in zip(places, chosen, strict=False):
        with np.errstate(all="ignore"):
            flat[place] = specials[index]
    return out


def _specials(dtype: Any, kind: str, ops: str) -> list[Any]:
    if _is_float(dtype):
        import ml_dtypes

        typed_in_part: Any = ml_dtypes
        info = typed_in_part.finfo(dtype)
        tiny, least = float(info.tiny), float(info.smallest_subnormal)
        limits = [float(info.max), float(info.min), float(info.eps)]
        return {
            ZEROS: [0.0, -0.0, tiny, -tiny, least, -least, 1.0, -1.0],
            HALVES: [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.5, -3.5],
            NAN: [float("nan")],
            INFINITIES: [float("inf"), float("-inf")],
            EXTREMES: [] if _ADDING.search(ops) else limits,
        }[kind]
    if dtype.kind in "iu" and kind == EXTREMES and not _CHOOSY.search(ops):
        bounds = np.iinfo(dtype)
        if dtype.kind == "u":  # the largest, and on both sides of what is negative if read signed
            return [bounds.max, 0, bounds.max // 2 + 1, bounds.max // 2]
        return [bounds.max, bounds.min, -1, 0]
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
    rtol, atol = tolerance.for_result(expected)
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

    def __init__(
        self, source: Source, *, first: str = "compiler", settings: Settings | None = None
    ) -> None:
        self.source = source
        self.timeout = settings.timeout if settings is not None else None
        self.isolated = settings is not None and settings.isolated
        self.parameters = settings.parameters if settings is not None else ()
        self.cpu = Target.parse("cpu")
        self.order = [self._compiler, self._torch]
        if first == "torch":
            self.order.reverse()
        #: Of the program's ops, those for which rules name functions: nobody else knows them.
        self.functions: custom_ops.Functions = {}
        if settings is not None and settings.functions and settings.expect is None:
            present = set(op_names(_module(source)).split())
            self.functions = {op: f for op, f in settings.functions.items() if op in present}
        if self.functions:
            self.order.insert(0, self._python)
        self._binary: bytes | MlirulesError | None = None
        self._text: str | None = None
        #: What the compiler's binary gave, by function and inputs.
        self._given: dict[tuple[str, int], list[Array] | MlirulesError] = {}
        self._computed: dict[tuple[str, int], list[Array] | MlirulesError] = {}

    def prepare(self, name: str, sets: Sequence[Sequence[Array]]) -> None:
        """Ask for all inputs at once, where a process is started for it."""
        if self.functions:
            made = custom_ops.evaluate(self._as_text(), [(name, i) for i in sets], self.functions)
            for inputs, one in zip(sets, made, strict=True):
                if isinstance(one, custom_ops.ReferenceFailed):
                    raise one
                self._computed[name, id(inputs)] = one
            return
        if not self.isolated or self.order[0] != self._compiler:
            return
        try:
            binary = self._compiled()
        except MlirulesError:
            return
        calls = [(name, inputs) for inputs in sets]
        made = runtime.run_each(binary, calls, self.cpu, isolated=True, parameters=self.parameters)
        for inputs, one in zip(sets, made, strict=True):
            self._given[name, id(inputs)] = one

    def results(self, name: str, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        """The reference and its results. Raises the first one's :class:`MlirulesError`."""
        first: MlirulesError | None = None
        for ask in self.order:
            try:
                return ask(name, inputs)
            except MlirulesError as error:
                first = first or error
        assert first is not None
        raise first

    def second(
        self, first: str, name: str, inputs: Sequence[Array]
    ) -> tuple[str, list[Array]] | None:
        """The other reference's results, None when it has none."""
        for ask in self.order:
            try:
                said, results = ask(name, inputs)
            except MlirulesError:
                continue
            if said != first:
                return said, results
        return None

    def _compiled(self) -> bytes:
        if self._binary is None:
            made = self.source if isinstance(self.source, str) else self.source()
            try:
                self._binary = compiler.compile_module(made, self.cpu, timeout=self.timeout or 300)
            except MlirulesError as error:
                self._binary = error
        if isinstance(self._binary, MlirulesError):
            raise self._binary
        return self._binary

    def _compiler(self, name: str, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        binary = self._compiled()
        given = self._given.get((name, id(inputs)))
        if isinstance(given, MlirulesError):
            raise given
        if given is not None:
            return self.COMPILER, given
        try:
            return self.COMPILER, runtime.run(
                binary,
                inputs,
                self.cpu,
                name,
                parameters=self.parameters,
                place=runtime.Place(isolated=self.isolated or None),
            )
        except IndexError as error:  # the bindings' word for OUT_OF_RANGE
            raise runtime.RunError("error", str(error).splitlines()[0][:200]) from None

    def _torch(self, name: str, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        return self.TORCH, torch_reference.evaluate(self._as_text(), inputs, name)

    def _python(self, name: str, inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        found = self._computed.get((name, id(inputs)))
        if found is None:
            self.prepare(name, [inputs])
            found = self._computed[name, id(inputs)]
        if isinstance(found, MlirulesError):
            raise found
        return custom_ops.named(self.functions), found

    def _as_text(self) -> str:
        if self._text is None:
            self._text = self.source if isinstance(self.source, str) else str(self.source().module)
        return self._text


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
    #: This function alone; None: all that can be called.
    function: str | None = None
    #: Neither NaN nor infinities among made inputs of a program that adds up products.
    finite: bool = False
    #: Run programs in processes of their own: what crashes is a difference, and no more.
    isolated: bool = False
    #: Archives of weights that the program loads from, as :func:`runtime.run` takes them.
    parameters: Sequence[str] = ()
    #: Functions that compute ops of the program, by op: asked before any other reference.
    functions: custom_ops.Functions = field(default_factory=dict)


def verify(
    before: Source,
    after: str | Build,
    settings: Settings,
    step: Callable[[str], object] = lambda _: None,
) -> Report:
    """Hold ``after`` against ``before`` on all targets, functions, sizes and kinds of inputs.

    What is not available, or does not compile before and after, is skipped with the reason. Raises
    :class:`MlirulesError` when the rewritten program does not compile for a target though the
    program without rules does.
    """
    report = Report()
    module = _module(before)
    ops = op_names(module)
    if _RANDOM.search(ops):
        report.skipped.append("the program draws random numbers: nothing to compare")
        return report
    functions = numerics.functions(module, settings.function)
    if settings.inputs is not None and len(functions) > 1:
        raise MlirulesError.at(
            "--inputs",
            f"given inputs are for one of the functions {', '.join(functions)}",
            code="function",
            suggestion=f"--function {next(iter(functions))}",
        )
    reference = Reference(before, first=settings.first, settings=settings)
    sets = {
        name: list(_input_sets(ops, arguments, settings)) for name, arguments in functions.items()
    }
    if settings.finite and _ADDING.search(ops):
        report.skipped.append("NaN and infinities: the program adds up products")
    for target in settings.targets:
        if (reason := target.available()) is not None:
            report.skipped.append(f"{target}: {reason}")
            continue
        step(f"compiling for {target}")
        binary = (
            compiler.compile_module(after, target, timeout=settings.timeout)
            if isinstance(after, str)
            else after(target)
        )
        for name, given in sets.items():
            step(f"{target}, {name}")
            if target.kind == "vulkan" and any(a.size == 0 for _, _, i in given for a in i):
                report.skipped.append(f"{target}: the driver refuses empty buffers")
                given = [g for g in given if all(a.size for a in g[2])]
            called = _Called(binary, name, target, f"@{name}, " if len(functions) > 1 else "")
            _function(report, reference, called, given, settings)
            if settings.stop and not all(c.passed for c in report.comparisons):
                return report
    return report


def _module(source: Source) -> ir.Module:
    """The program as a module."""
    return compiler.parse(source) if isinstance(source, str) else source().module


def op_names(module: ir.Module) -> str:
    """The names of a program's ops, those of ``torch.operator`` by the op that each stands for."""
    found = set()
    for op in ops_below(module.operation):
        found.add(op.name)
        if op.name == "torch.operator":
            found.add(ir.StringAttr(op.attributes["name"]).value)
    return " ".join(sorted(found))


_Sets = list[tuple[tuple[int, ...], str, list[Array]]]


def _input_sets(
    ops: str, arguments: Arguments, settings: Settings
) -> Iterator[tuple[tuple[int, ...], str, list[Array]]]:
    if settings.inputs is not None:
        yield (), "given", [np.asarray(a) for a in settings.inputs]
        return
    dynamic = any(size is None for shape, _ in arguments for size in shape)
    for n, sizes in enumerate((settings.sizes or [()]) if dynamic else [()]):
        made = edge_inputs(
            arguments,
            sizes,
            ops,
            seed=settings.seed + 101 * n,
            span=(settings.low, settings.high),
            finite=settings.finite and bool(_ADDING.search(ops)),
        )
        for kind, inputs in made:
            yield tuple(sizes), kind, inputs


@dataclass(frozen=True)
class _Called:
    """One function of a compiled program on one target."""

    binary: bytes
    name: str
    target: Target
    #: How messages tell it from others; empty where it is the only one.
    shown: str


def _function(
    report: Report, reference: Reference, called: _Called, sets: _Sets, settings: Settings
) -> None:
    """Compare one function on one target."""
    binary, name, target = called.binary, called.name, called.target
    ran: list[list[Array] | MlirulesError] | None = None
    if settings.expect is None and (
        settings.isolated or target.kind != "cpu" or reference.functions
    ):
        reference.prepare(name, [inputs for _, _, inputs in sets])
    if settings.isolated or target.kind != "cpu":
        ran = runtime.run_each(
            binary,
            [(name, i) for _, _, i in sets],
            target,
            isolated=settings.isolated or None,
            parameters=settings.parameters,
        )
    for n, (sizes, kind, inputs) in enumerate(sets):
        where = f"{target}, {called.shown}{kind}"
        where += f", sizes {list(sizes)}" if sizes else ""
        try:
            if settings.expect is not None:
                source, expected = reference.GIVEN, [np.asarray(a) for a in settings.expect]
            else:
                source, expected = reference.results(name, inputs)
        except custom_ops.ReferenceFailed:
            raise
        except MlirulesError as error:
            report.skipped.append(f"{where}: no reference: {_first(error)}")
            continue
        case = _Case(target, kind, sizes, name if called.shown else "", settings)
        try:
            found = (
                runtime.run(binary, inputs, target, name, parameters=settings.parameters)
                if ran is None
                else ran[n]
            )
            if isinstance(found, MlirulesError):
                raise found
        except (MlirulesError, IndexError) as error:
            failed = case.comparison(0, source)
            failed.message = f"does not run: {_first(error)}"
            report.comparisons.append(failed)
            continue
        made = case.compared(found, expected, source)
        # PyTorch is not outvoted: what it contradicts is wrong.
        asked = settings.expect is None and source == reference.COMPILER
        if asked and not all(c.passed for c in made):
            other = reference.second(source, name, inputs)
            if other is not None:
                again = case.compared(found, other[1], other[0])
                if all(c.passed for c in again):
                    report.compiler_wrong.append(f"{where}: {source} disagrees with {other[0]}")
                    made = again
        report.comparisons += made
        wrong = next((c for c in made if not c.passed), None)
        if wrong is not None and report.counterexample is None:
            report.counterexample = Counterexample(
                reference.source, inputs, expected, found, wrong, name
            )
        if wrong is not None and settings.stop:
            return


@dataclass(frozen=True)
class _Case:
    """One run: where, on what."""

    target: Target
    kind: str
    sizes: tuple[int, ...]
    function: str
    settings: Settings

    def comparison(self, result: int, source: str) -> Comparison:
        """A comparison of this run's result, still empty."""
        return Comparison(
            str(self.target), self.kind, self.sizes, result, source, function=self.function
        )

    def compared(self, found: list[Array], expected: list[Array], source: str) -> list[Comparison]:
        """All results of the run against those of a reference."""
        if len(found) != len(expected):
            made = self.comparison(0, source)
            made.message = f"{len(found)} results, not {len(expected)}"
            return [made]
        out = []
        for n, (a, b) in enumerate(zip(found, expected, strict=True)):
            made = self.comparison(n, source)
            compare_results(np.asarray(a), np.asarray(b), self.settings.tolerance, made)
            out.append(made)
        return out


def _first(error: Exception) -> str:
    if not isinstance(error, MlirulesError):
        return str(error).splitlines()[0][:200]
    return error.faults[0].message.splitlines()[0][:200]
