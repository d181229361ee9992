"""The corpus as data: programs, their inputs and golden results, and what counts as equal."""

import fnmatch
import functools
import hashlib
import json
import lzma
import random
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree import npz
from mlirules.drivers.iree.runtime import Array, dtype_of
from mlirules.language.faults import MlirulesError

VARIANTS = ("core", "aten", "dyn")
ARCHIVE = "torch-e2e.tar.xz"

RTOL = 1e-3
ATOL = 1e-7
SCALAR_RTOL = 1e-4


@dataclass(frozen=True)
class Value:
    """An argument or a result as the index describes it.

    `kind` is `tensor`, `int`, `float` or `bool`; a scalar has `value`, a tensor the rest.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: float | int | bool | None = None


@dataclass(frozen=True)
class Variant:
    """One spelling of a program: which of its results the golden ones are, and the known figure.

    `known` is how the built-in conversion did when the corpus was made (`pass` or why not), empty
    where the index does not say.
    """

    n_results: int
    result_index: tuple[int, ...]
    known: str = ""


@dataclass(frozen=True)
class Program:
    """One program of the corpus, in all its variants. `random`: only shapes and dtypes count.

    `tolerances` are `(rtol, atol)` by the dtype of a result, where the index says others than RTOL
    and ATOL.
    """

    folder: Path
    name: str
    area: str
    args: tuple[Value, ...]
    results: tuple[Value, ...]
    random: bool
    variants: dict[str, Variant] = field(hash=False)
    tolerances: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def path(self, variant: str) -> Path:
        """Where the MLIR text of `variant` lies."""
        return self.folder / variant / f"{self.name}.mlir"

    def text(self, variant: str) -> str:
        """The MLIR text of `variant`."""
        return self.path(variant).read_text(encoding="utf-8")

    @property
    def data(self) -> Path:
        """Where inputs and golden results lie."""
        return self.folder / "data" / f"{self.name}.npz"

    def inputs(self) -> list[Array]:
        """The inputs, in order."""
        if not self.args:
            return []
        return npz.load(self.data, [_numpy_name(arg) for arg in self.args])

    def golden(self) -> list[Array]:
        """PyTorch's results, in order; scalars are arrays of rank 0."""
        tensors: Sequence[Array] = ()
        if any(r.kind == "tensor" for r in self.results):
            with np.load(self.data) as data:
                tensors = [
                    npz.seen(data[f"r{i}"], _numpy_name(r))
                    if r.kind == "tensor"
                    else np.asarray(r.value)
                    for i, r in enumerate(self.results)
                ]
            return list(tensors)
        return [np.asarray(r.value) for r in self.results]

    def digest(self, variant: str) -> str:
        """A hash of everything the outcome depends on: text, inputs, golden results, index."""
        hashed = hashlib.sha256(self.path(variant).read_bytes())
        if self.data.exists():
            hashed.update(self.data.read_bytes())
        hashed.update(
            repr((self.results, self.random, self.variants[variant].result_index)).encode()
        )
        if self.tolerances:
            hashed.update(repr(sorted(self.tolerances.items())).encode())
        return hashed.hexdigest()[:20]


@functools.cache
def _real_dtype(name: str) -> np.dtype[Any]:
    return dtype_of(name)


def _numpy_name(value: Value) -> str | None:
    return _real_dtype(value.dtype).name if value.kind == "tensor" else None


def unpacked(source: Path) -> Path:
    """The folder of the corpus: `source` itself, or the archive in it, or it as an archive.

    An archive is unpacked once, into a temporary folder named after its content. Raises
    MlirulesError when there is neither.
    """
    if (source / "index.json").is_file():
        return source
    archive = source / ARCHIVE if source.is_dir() else source
    if not archive.is_file():
        raise MlirulesError.at(
            str(source),
            f"no corpus: neither index.json nor {ARCHIVE} is here",
            suggestion="give the folder that holds one of them, or the archive itself",
        )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"mlirules-corpus-{digest}"
    if not target.exists():
        # Unpacked beside and renamed: what has the name is complete.
        with tempfile.TemporaryDirectory(prefix="mlirules-corpus-", dir=target.parent) as made:
            fresh = Path(made) / "corpus"
            try:
                with tarfile.open(archive) as tar:
                    # Python before 3.11.4 has no filters: nothing is written outside either.
                    if hasattr(tarfile, "data_filter"):
                        tar.extractall(fresh, filter="data")
                    else:
                        tar.extractall(fresh, members=_inside(tar))
            except (tarfile.TarError, lzma.LZMAError) as error:
                raise MlirulesError.at(str(archive), f"cannot unpack: {error}") from error
            fresh.rename(target)
    indexes = sorted(target.rglob("index.json"))
    if not indexes:
        raise MlirulesError.at(str(archive), "the archive holds no index.json")
    return indexes[0].parent


def _inside(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Files and folders of an archive whose names stay in the folder that it is unpacked to."""
    return [
        entry
        for entry in tar
        if (entry.isfile() or entry.isdir())
        and not Path(entry.name).is_absolute()
        and ".." not in Path(entry.name).parts
    ]


def load(folder: Path) -> list[Program]:
    """All programs of the corpus in `folder` that have a golden result, sorted by name.

    Programs marked `golden_differs` are left out: their golden result cannot be reached. Raises
    MlirulesError when the index does not have the expected form.
    """
    index = folder / "index.json"
    try:
        entries = json.loads(index.read_text(encoding="utf-8"))
        programs = [_program(folder, e) for e in entries if "golden_differs" not in e]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MlirulesError.at(str(index), f"not an index: {error!r}") from error
    return sorted(programs, key=lambda program: program.name)


def _program(folder: Path, entry: dict[str, Any]) -> Program:
    return Program(
        folder=folder,
        name=entry["name"],
        area=entry["area"],
        args=tuple(_value(v) for v in entry["args"]),
        results=tuple(_value(v) for v in entry["results"]),
        random=bool(entry["random"]),
        variants={
            name: Variant(v["n_results"], tuple(v["result_index"]), v.get("builtin", ""))
            for name, v in entry["variants"].items()
        },
        tolerances={
            name: (float(rtol), float(atol))
            for name, (rtol, atol) in entry.get("tolerances", {}).items()
        },
    )


def _value(entry: dict[str, Any]) -> Value:
    return Value(
        entry["kind"], entry.get("dtype", ""), tuple(entry.get("shape", ())), entry.get("value")
    )


def choose(
    programs: Iterable[Program],
    only: Sequence[str] = (),
    sample: int | None = None,
    seed: int = 0,
) -> list[Program]:
    """The programs whose name or area matches a glob of `only` (all without), then a sample."""
    chosen = [
        p
        for p in programs
        if not only or any(fnmatch.fnmatchcase(n, glob) for glob in only for n in (p.name, p.area))
    ]
    if sample is not None and sample < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, sample), key=lambda p: p.name)
    return chosen


def difference(program: Program, variant: str, got: Sequence[Array]) -> str:
    """How the results `got` differ from the golden ones; empty when they do not.

    Shape and dtype are strict, signedness of integers aside (the runtime does not know it);
    integers and bools must be equal, NaN equals NaN. Results that depend on a generator are
    compared by shape and dtype alone.
    """
    described = program.variants[variant]
    if len(got) != described.n_results:
        return f"results: {len(got)}, expected {described.n_results}"
    for number, (position, want, value) in enumerate(
        zip(described.result_index, program.golden(), program.results, strict=True)
    ):
        near = program.tolerances.get(value.dtype, (RTOL, ATOL))
        said = _unequal(got[position], want, value, program.random, near)
        if said:
            return f"result {number}: {said}"
    return ""


def _unequal(
    got: Array, want: Array, value: Value, only_type: bool, near: tuple[float, float]
) -> str:
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, golden {list(want.shape)}"
    if value.kind == "tensor" and _sign_free(got) != _sign_free(want):
        return f"dtype {got.dtype}, golden {want.dtype}"
    if value.kind != "tensor" and (got.dtype.kind == "f") != (value.kind == "float"):
        return f"dtype {got.dtype}, golden {value.kind}"
    if only_type or want.size == 0:
        return ""
    wrong = ~_close(got, want, value, near)
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f" at {list(at)}" if at else ""
    return f"{count} of {want.size} elements differ, first{where}: {got[at]}, golden {want[at]}"


def _sign_free(array: Array) -> str:
    kind = "i" if array.dtype.kind == "u" else array.dtype.kind
    return array.dtype.name if kind == "V" else f"{kind}{array.dtype.itemsize}"


def _close(got: Array, want: Array, value: Value, near: tuple[float, float]) -> Array:
    if want.dtype.kind in "iub":
        if value.kind == "tensor" and got.dtype != want.dtype:
            got = got.view(want.dtype)
        return np.asarray(got == want)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    rtol, atol = near if value.kind == "tensor" else (SCALAR_RTOL, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(
            np.isclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
        )
