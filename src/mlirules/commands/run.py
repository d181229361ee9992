"""``mlirules run``: compile a program, execute it, and look at or compare its results."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from rich.text import Text

from mlirules.commands.common import (
    Device,
    Flags,
    Json,
    Own,
    Parameters,
    TrustNative,
    note,
    out,
    say_json,
    say_unapplied,
    stoppable,
    warn,
    working,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.commands.recipes import Wanted, recipe_for
from mlirules.language import consent
from mlirules.language.faults import CheckFailed, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.iree.runtime import Array
    from mlirules.drivers.pipelines.transform import Recipe
    from mlirules.drivers.quality.verify import Tolerance

EXAMPLE = "mlirules run model.mlir --target cpu --input '2x3xf32=1 2 3 4 5 6'"

Arrays: TypeAlias = list["Array"]


def command(
    model: Annotated[Path, Argument(help="The program: MLIR text, or a compiled .vmfb.")],
    extra: Flags = None,
    target: Device = "cpu",
    inputs: Annotated[
        list[str] | None,
        Option(
            "--input",
            "-i",
            help="One per argument: 2x3xf32=1 2 3 4 5 6, 4xf32=0.5 (fills), "
            "2x3xf32 (drawn at random), @file.npy, or a number.",
        ),
    ] = None,
    parameters: Parameters = None,
    golden: Annotated[
        Path | None, Option(help="An .npz with inputs a0.. and results r0.. to compare with.")
    ] = None,
    rtol: Annotated[float | None, Option(min=0, help="Relative tolerance. Default: 1e-5.")] = None,
    atol: Annotated[
        float | None,
        Option(
            min=0,
            help="Absolute tolerance. Default: 1e-6, or 1e-4 of a result's largest number.",
        ),
    ] = None,
    pipeline: Annotated[
        str | None, Option("--pipeline", "-p", help="A shipped pipeline's name or a file.")
    ] = None,
    rules: Own = None,
    no_fallback: Annotated[
        bool, Option("--no-fallback", help="Fail when a torch op is left.")
    ] = False,
    function: Annotated[
        str | None, Option(help="The function to call; default: the program's only one.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the results r0.. to this .npz.")
    ] = None,
    timeout: Annotated[float | None, Option(help="Seconds that each step may take.")] = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Compile a program with the rules and run it. With --golden, compare: exit 1 if it differs."""
    from mlirules.drivers.iree import npz, runtime
    from mlirules.drivers.iree.targets import Target

    chosen = Target.parse(target)
    if model.suffix == ".vmfb":
        if pipeline or rules or no_fallback or extra:
            raise MlirulesError.at(
                str(model),
                "is compiled already: pipeline, rules and compiler flags have no effect",
                code="compiled",
            )
        # It does not tell its arguments' element types.
        binary, signature = model.read_bytes(), ("", list[str | None]())
    else:
        recipe = recipe_for(
            model,
            chosen.name,
            Wanted(pipeline=pipeline, rules=rules, flags=extra or [], timeout=timeout),
        )
        binary, signature = _binary(recipe, rules, fallback=not no_fallback)
    name = function or _only_function(binary, model)
    elements = signature[1] if signature[0] == name else []
    arguments = _inputs(inputs, golden, elements)
    here = chosen.kind == "cpu" and timeout is None and not consent.current().used
    with working(f"running {name} on {chosen}"), stoppable() if here else nullcontext():
        results = runtime.run(
            binary,
            arguments,
            chosen,
            name,
            parameters=parameters or (),
            place=runtime.Place(timeout=timeout),
        )
    if output is not None:
        npz.write(output, {f"r{i}": r for i, r in enumerate(results)})
    problems = [] if golden is None else compare(golden, results, rtol, atol)
    if as_json:
        say_json(
            {
                "target": chosen.name,
                "function": name,
                "problems": problems,
                "results": [{"dtype": r.dtype.name, "shape": list(r.shape)} for r in results],
            }
        )
        if problems:
            raise Exit(1)
        return
    for i, result in enumerate(results):
        show_array(f"r{i}", result)
    if problems:
        raise CheckFailed("\n".join(f"{golden}: {p}" for p in problems))
    if golden is not None:
        note(f"equal to {golden} within {_said(_tolerance(rtol, atol), results)}")


def _binary(
    recipe: Recipe, rules: list[str] | None, *, fallback: bool
) -> tuple[bytes, tuple[str, list[str | None]]]:
    """The program compiled, and its function with the element types of the arguments."""
    from mlirules.drivers.measure import numerics

    name, arguments = numerics.signature(recipe.program())
    with working(f"compiling {recipe.path} for {recipe.target}"):
        binary, done = recipe.compile(fallback=fallback)
    for said in done.notes:
        warn(said)
    say_unapplied(rules, done.applications)
    note(f"{done.outcome.total} applications of {len(done.applications)} rules")
    if done.leftovers:
        note(f"left to IREE's own conversion: {', '.join(done.leftovers)}")
    return binary, (name, [element for _, element in arguments])


def _only_function(binary: bytes, model: Path) -> str:
    from mlirules.drivers.iree import runtime

    names = [entry.name for entry in runtime.entries(binary)]
    if len(names) == 1:
        return names[0]
    raise MlirulesError.at(
        str(model),
        f"has {len(names)} functions",
        code="function",
        suggestion="choose with --function: " + ", ".join(names),
    )


def _inputs(inputs: list[str] | None, golden: Path | None, elements: list[str | None]) -> Arrays:
    from mlirules.drivers.iree import npz, runtime

    if inputs:
        return [runtime.parse_input(text, seed) for seed, text in enumerate(inputs)]
    if golden is None:
        return []
    return npz.load(golden, elements)


#: What a whole program's numbers differ by, as a part of the largest, when sums are added up in
#: another order.
OF_LARGEST = 1e-4


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance:
    from mlirules.drivers.quality.verify import Tolerance

    return Tolerance(rtol, atol, of_largest=OF_LARGEST if atol is None else 0.0)


def _said(tolerance: Tolerance, results: Arrays) -> str:
    """What was allowed, by the types of the results."""
    allowed: dict[str, list[str]] = {}
    for dtype in dict.fromkeys(result.dtype for result in results):
        relative, absolute = tolerance.of(dtype)
        part = tolerance.part(dtype)
        text = f"rtol {relative:g}, atol {absolute:g}"
        text += f" or {part:g} of the largest number" if part else ""
        allowed.setdefault(text, []).append(dtype.name)
    if len(allowed) == 1:
        return next(iter(allowed))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in allowed.items())


def compare(golden: Path, results: Arrays, rtol: float | None, atol: float | None) -> list[str]:
    """How results differ from ``r0..`` of a golden file; empty when they do not.

    Without ``atol``, a ten-thousandth of a result's largest number is allowed.
    """
    from mlirules.drivers.iree import npz
    from mlirules.drivers.measure import numerics

    tolerance = _tolerance(rtol, atol)
    expected = npz.load(golden, [r.dtype.name for r in results], prefix="r")
    if not expected:
        return ["holds no results r0.."]
    if len(expected) != len(results):
        return [f"{len(results)} results, {len(expected)} expected"]
    problems = []
    for i, (found, wanted) in enumerate(zip(results, expected, strict=True)):
        message = numerics.difference(found, wanted, *tolerance.for_result(wanted))
        if message:
            problems.append(f"r{i}: {message}")
    return problems


def show_array(name: str, array: Array) -> None:
    """Print an array: its type, and its values in short."""
    import numpy as np

    shape = "x".join(map(str, array.shape))
    head = f"{name}: {array.dtype.name}" + (f" {shape}" if shape else "")
    out.print(Text(head, style="bold"), soft_wrap=True)
    shown = array.astype(np.float32) if array.dtype.name.startswith(("bf", "float8")) else array
    text = np.array2string(np.asarray(shown), threshold=64, edgeitems=3, precision=6)
    out.print(Text(text), soft_wrap=True)
