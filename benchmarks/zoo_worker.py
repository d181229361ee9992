"""What happens to one model: export; compile in every mode, run, compare. Also what a worker does.

Exporting needs PyTorch and the models' packages, compiling does not: the program and its golden
values lie in files between the two. A mode is `plain` (iree-compile as it is), `default` (what
`mlirules compile` does) or `rules` (`mlirules compile --no-fallback`); `convert` is the default
pipeline without compiling, which says quickly what the rules leave.
"""

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from mlirules.drivers.iree import compiler, npz, runtime
from mlirules.drivers.iree.runtime import Array
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.support.pool import Tell

MODES = ("export", "convert", "plain", "default", "rules")
TOLERANCE = 1e-3
"""Of the largest difference, relative to the largest golden element of all results."""


@dataclass(frozen=True)
class Row:
    """The outcome of one model in one mode.

    `outcome` is `right`, `wrong` (it runs and gives other numbers), or where it ended: `export`,
    `left` (ops that no rule converts, in `rules`), `compile`, `run`, `crash`, `timeout`; without
    compiling `right` is converted. `seconds`
    are those of exporting or compiling; `error` is the largest difference over the largest golden
    element; `left` counts the ops that the rules left.
    """

    model: str
    mode: str
    outcome: str
    why: str = ""
    seconds: float = 0.0
    error: float | None = None
    left: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def stem(folder: Path, model: str) -> Path:
    """Where the program and the golden values of a model are, without what they end in."""
    return folder / model.replace("/", "-")


def export(model: str, folder: Path) -> Row:
    """Import a model by its recipe; the program and golden values go to the folder."""
    from mlirules.drivers.frontend.torch import Options, import_file

    recipes = Path(__file__).with_name("zoo_models.py")
    start = time.perf_counter()
    program = stem(folder, model)
    try:
        import_file(
            f"{recipes}:make",
            program.with_suffix(".mlirbc"),
            Options(arguments={"name": model}),
            golden=program.with_suffix(".npz"),
        )
    except MlirulesError as error:
        return Row(model, "export", "export", _why(error), _since(start))
    except Exception as error:  # noqa: BLE001 -- of one model, which it is the outcome of
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(model, "export", "export", why, _since(start))
    return Row(model, "export", "right", seconds=_since(start))


def relative_error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The largest difference over the largest golden element; infinite where kinds differ.

    Integers and truth values must be equal; NaN equals NaN, and an infinity itself.
    """
    if len(got) != len(want):
        return float("inf")
    worst, scale = 0.0, 0.0
    for ours, golden in zip(got, want, strict=True):
        if ours.shape != golden.shape:
            return float("inf")
        if golden.dtype.kind in "iub":
            if not np.array_equal(ours.astype(golden.dtype), golden):
                return float("inf")
            continue
        wide = np.complex128 if golden.dtype.kind == "c" else np.float64
        a, b = ours.astype(wide), golden.astype(wide)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
            return float("inf")
        worst = max(worst, float(np.abs(a[~same] - b[~same]).max(initial=0.0)))
        scale = max(scale, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
    return worst / scale if scale else worst


class Judge:
    """Takes one model through the modes that are wanted of it."""

    def __init__(self, model: str, folder: Path, target: Target, timeout: float) -> None:
        program = stem(folder, model)
        self.model = model
        self.path = program.with_suffix(".mlirbc")
        if not self.path.exists():  # a program that was written by hand
            self.path = program.with_suffix(".mlir")
        self.target = target
        self.timeout = timeout
        golden = program.with_suffix(".npz")
        self.inputs = npz.load(golden, prefix="a")
        self.golden = npz.load(golden, prefix="r")

    def rows(self, modes: Sequence[str], tell: Callable[..., None]) -> Iterator[Row]:
        """A row a mode; `tell(stage=..., mode=...)` before whatever may not come back."""
        from mlirules.drivers.apply.programs import load_program
        from mlirules.drivers.pipelines.cost import Settings
        from mlirules.drivers.pipelines.transform import Recipe, default_for, transform

        def plain() -> tuple[bytes, Counter[str], list[str]]:
            program = load_program(self.path)
            made = compiler.compile_module(
                program, self.target, path=str(self.path), timeout=self.timeout
            )
            return made, Counter(), []

        def default() -> tuple[bytes, Counter[str], list[str]]:
            recipe = Recipe(
                lambda: load_program(self.path),
                self.target,
                path=str(self.path),
                timeout=self.timeout,
            )
            made, done = recipe.compile()
            return made, done.leftover_counts, done.notes

        def convert() -> Row:
            line = default_for(self.target.kind)
            settings = Settings(self.target, flags=tuple(line.flags))
            program = load_program(self.path)
            done = transform(program, line, path=str(self.path), costs=settings)
            return _left(Row(self.model, "convert", "right", left=dict(done.leftover_counts)))

        if "convert" in modes:
            start = time.perf_counter()
            tell(stage="transform", mode="convert")
            row = self._caught("convert", convert)
            yield replace(row, seconds=_since(start))
        if "plain" in modes:
            yield self._row("plain", plain, tell)
        if "default" in modes or "rules" in modes:
            row = self._row("default", default, tell)
            yield row
            # Where nothing is left the two are the same program.
            yield _left(replace(row, mode="rules"))

    def _caught(self, mode: str, make: Callable[[], Row]) -> Row:
        try:
            return make()
        except compiler.CompileError as error:
            outcome = error.kind if error.kind in ("crash", "timeout") else "compile"
            return Row(self.model, mode, outcome, _why(error)[:300])
        except (MlirulesError, CheckFailed) as error:
            return Row(self.model, mode, "compile", _why(error)[:300])
        except Exception as error:  # noqa: BLE001 -- of one model, which it is the outcome of
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            return Row(self.model, mode, "compile", why[:300])

    def _row(
        self,
        mode: str,
        make: Callable[[], tuple[bytes, Counter[str], list[str]]],
        tell: Callable[..., None],
    ) -> Row:
        start = time.perf_counter()
        tell(stage="compile", mode=mode)
        made: list[tuple[bytes, Counter[str], list[str]]] = []

        def compiled() -> Row:
            made.append(make())
            return Row(self.model, mode, "")

        row = self._caught(mode, compiled)
        if not made:
            return replace(row, seconds=_since(start))
        (binary, left, notes) = made[0]
        seconds = _since(start)
        tell(stage="run", mode=mode)
        try:
            got = runtime.run(
                binary,
                self.inputs,
                self.target,
                place=runtime.Place("local-sync" if self.target.kind == "cpu" else None),
            )
        except MlirulesError as error:
            return Row(self.model, mode, "run", _why(error)[:300], seconds, left=dict(left))
        apart = relative_error(got, self.golden)
        return Row(
            self.model,
            mode,
            "right" if apart <= TOLERANCE else "wrong",
            "" if apart <= TOLERANCE else f"apart by {apart:.1e} of the largest element",
            seconds,
            None if apart == float("inf") else apart,
            dict(left),
            tuple(notes),
        )


def _left(row: Row) -> Row:
    """`row` for a mode that leaves nothing to IREE."""
    if not row.left:
        return row
    said = ", ".join(f"{count} x {op}" for op, count in sorted(row.left.items()))
    return replace(row, outcome="left", why=said)


def _why(error: Exception) -> str:
    """The first line of the fault that says most: the end it came to, else the first."""
    faults = getattr(error, "faults", ())
    if not faults:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    ends = [fault for fault in faults if fault.code in ("crash", "timeout")]
    fault = (ends or list(faults))[0]
    said: str = (fault.message.strip().splitlines() or [""])[0]
    return said


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


class Doer:
    """What a worker does: a model in some modes, within so many bytes of memory."""

    def __init__(self, given: tuple[str, str, float, int]) -> None:
        folder, target, self._timeout, memory = given
        self._folder, self._target = Path(folder), Target.parse(target)
        # CUDA reserves addresses for all memory that there is, its own too.
        if self._target.kind not in ("cuda", "hip"):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    def __call__(self, job: tuple[str, list[str]], say: Tell) -> None:
        """Tell the stage before whatever may not come back, and a row after each mode."""
        model, modes = job

        def tell(**said: object) -> None:
            say(said)

        if "export" in modes:
            tell(stage="export", mode="export")
            tell(row=asdict(export(model, self._folder)))
            return
        left = list(modes)
        try:
            judge = Judge(model, self._folder, self._target, self._timeout)
            for row in judge.rows(modes, tell):
                tell(row=asdict(row))
                left = [mode for mode in left if mode != row.mode]
        except Exception as error:  # noqa: BLE001 -- of one model, which it is the outcome of
            why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            for mode in left:
                tell(row=asdict(Row(model, mode, "crash", why)))
