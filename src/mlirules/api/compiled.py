"""Compiled programs that are called from Python: tensors or arrays in, the same kind out."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirules.api import pages
from mlirules.api.binaries import Terms, content, kept, key_of, tuned_folder
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.iree import program
from mlirules.drivers.iree.calls import Loaded
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.parameters import check as check_archives
from mlirules.drivers.iree.runtime import Executable
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import Recipe
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from pathlib import Path

    from mlirules.drivers.measure.profile import Profile

__all__ = ["CompiledProgram", "Facts", "MlirProgram", "compile_program"]


class Facts:
    """What is known of a compilation: what rules did, and what was left to the compiler.

    ``warm`` says that the binary was found in the cache.
    """

    def __init__(self, told: dict[str, Any], warm: bool, target: Target) -> None:
        self.applications: dict[str, int] = told["applications"]
        self.leftovers: list[str] = list(told["leftovers"])
        self.notes: list[str] = list(told["notes"])
        self.warm = warm
        self.target = target


class CompiledProgram(ABC):
    """A compiled program, to be called.

    Tensors of PyTorch give tensors, numpy arrays give arrays. On CPUs nothing is copied on the way
    in or out where the memory is dense and begins at a multiple of 64 bytes, as PyTorch's does;
    numpy's mostly does not, and is copied in. Several threads may call.
    """

    def __init__(self, binary: bytes, facts: Facts, name: str) -> None:
        #: The program as the runtime reads it: what ``iree-run-module`` takes.
        self.binary = binary
        self.facts = facts
        self.name = name

    @property
    def applications(self) -> dict[str, int]:
        """Applications by rule."""
        return self.facts.applications

    @property
    def leftovers(self) -> list[str]:
        """Torch ops that no rule converted: the compiler did."""
        return self.facts.leftovers

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return self.facts.target

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""

    @abstractmethod
    def profile(self, *args: object, seconds: float = 1.0) -> Profile:
        """Where the time of a call with these arguments goes, dispatch by dispatch."""

    @abstractmethod
    def export(self, path: str | Path) -> Path:
        """Write a folder to deploy: the program, its weights, a manifest, and how to call it."""

    def __repr__(self) -> str:
        rules = sum(self.applications.values())
        return (
            f"<{self.name} for {self.target}: {len(self.binary)} bytes, "
            f"{rules} applications of {len(self.applications)} rules>"
        )

    def _repr_html_(self) -> str:
        return pages.render("compiled.html.j2", program=self)


class MlirProgram(CompiledProgram):
    """A program that was given as MLIR: its arguments are those of its function, in order."""

    def __init__(
        self,
        program: Executable,
        facts: Facts,
        name: str,
        types: Sequence[tuple[Sequence[int | None], str]],
        constant: Sequence[int] = (),
    ) -> None:
        super().__init__(program.vmfb, facts, name)
        self._program = program
        self._constant = frozenset(constant)
        self.function = program.function
        self.parameters = program.parameters
        #: Shape (None: any size) and element type of each argument.
        self.arguments = [(list(shape), element) for shape, element in types]

    @cached_property
    def _loaded(self) -> Loaded:
        return Loaded(self.binary, self.target.device, self.function, archives=self.parameters)

    def __call__(self, *args: Any) -> Any:
        """Run the program; several results come as a tuple, one as itself.

        Raises RunError, and MlirulesError for arguments that it does not take.
        """
        loaded = self._loaded
        kinds = loaded.entry.arguments
        if len(args) != len(kinds):
            raise MlirulesError.at(
                "<call>",
                f"{self.function!r} takes {len(kinds)} arguments, {len(args)} given",
                code="inputs",
            )
        torch = sys.modules.get("torch")
        wanted_torch = torch is not None and any(isinstance(a, torch.Tensor) for a in args)
        if wanted_torch:
            from mlirules.api.graphs.programs import given, tensor_of
        values: list[object] = []
        for kind, argument in zip(kinds, args, strict=True):
            if kind != "r":
                values.append(float(argument) if kind in "fF" else int(argument))
            elif torch is not None and isinstance(argument, torch.Tensor):
                values.append(given(loaded, argument)[0])
            else:
                values.append(loaded.of_array(np.asarray(argument)))
        made = loaded(values)
        out: list[object] = []
        for number, (kind, value) in enumerate(zip(loaded.entry.results, made, strict=True)):
            if kind != "r":
                out.append(value)
                continue
            result: Any = tensor_of(loaded, value) if wanted_torch else loaded.array(value)
            # A result may lie in an argument's memory, another's, or the program's own.
            if number in self._constant or any(shares(result, other) for other in (*args, *out)):
                result = result.clone() if wanted_torch else result.copy()
            out.append(result)
        return out[0] if len(out) == 1 else tuple(out)

    def profile(self, *args: object, seconds: float = 1.0) -> Profile:
        """Where the time of a call with these arguments goes, dispatch by dispatch."""
        from mlirules.drivers.measure.profile import profile

        inputs = [np.asarray(a) for a in args]
        return profile(self._program, inputs, self.target, seconds=seconds, model=self.name)

    def export(self, path: str | Path) -> Path:
        """Write a folder to deploy: the program, its weights, a manifest, and how to call it."""
        from mlirules.api.export import Deployed, write

        return write(path, Deployed(self._program, self.target, self.arguments, self.applications))


def shares(result: object, other: object) -> bool:
    """Whether a dense result and another value may lie in the same memory."""
    start, end = _memory(result)
    first, last = _memory(other)
    return start < last and first < end


def _memory(value: object) -> tuple[int, int]:
    if isinstance(value, np.ndarray):
        bounds: tuple[int, int] = np.lib.array_utils.byte_bounds(value)
        return bounds if value.size else (0, 0)
    if hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return 0, 0


def compile_program(
    recipe: Recipe,
    source: Program,
    terms: Terms,
    *,
    function: str | None,
    parameters: Sequence[str],
) -> MlirProgram:
    """Compile a program by its recipe. Raises MlirulesError."""
    tune, fallback = terms.tune, terms.fallback
    name = recipe.path
    functions = numerics.functions(source, function)
    entry, types = next(iter(functions.items()))
    if parameters:
        check_archives(source.module, parameters, name)
    constant = sorted(program.constant_results(source.module, entry))

    def make() -> tuple[bytes, dict[str, Any]]:
        made, notes = recipe, list[str]()
        if tune:
            from mlirules.drivers.tuning.whole import tuned

            data = content(source.module)
            made, said = tuned(
                recipe,
                lambda: Program(parsed(data, name, recipe.session)),
                tune,
                tuned_folder(key),
                tuple(parameters),
            )
            notes.append(said)
        binary, done = made.compile(fallback=fallback)
        told = {
            "applications": dict(done.applications),
            "leftovers": done.leftovers,
            "notes": [*notes, *done.notes],
            "constant": constant,
        }
        return binary, told

    further = (*recipe.flags, *map(str, recipe.configs), str(fallback))
    assert recipe.pipeline is not None
    further += (f"tune {tune:g}",) if tune else ()
    key = key_of(content(source.module), recipe, further)
    binary, told, warm = kept(key, make, terms.cache)
    facts = Facts(told, warm, recipe.target)
    called = Executable(binary, entry, tuple(parameters))
    return MlirProgram(called, facts, name, types, told["constant"])
