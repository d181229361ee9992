"""``mlirules compile``: the whole way through iree-compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mlirules.commands.common import (
    Device,
    Flags,
    Json,
    Measure,
    Own,
    Parameters,
    TrustNative,
    TrustPython,
    applications_table,
    decisions_as_json,
    err,
    note,
    say_json,
    say_unapplied,
    show_decisions,
    warn,
    working,
    write_bytes,
)
from mlirules.commands.options import Argument, Option
from mlirules.commands.recipes import Wanted, golden_of, recipe_for
from mlirules.language.faults import CheckFailed
from mlirules.language.outputs import reserved

if TYPE_CHECKING:
    from mlirules.drivers.pipelines.transform import Recipe
    from mlirules.drivers.quality.checked import Call, Checked
    from mlirules.drivers.quality.verify import Tolerance
    from mlirules.drivers.tuning_specs.compile import ConfigReport

EXAMPLE = "mlirules compile model.mlir --target cpu --no-fallback -o model.vmfb"


def command(
    model: Annotated[Path, Argument(help="The program, MLIR text or bytecode.")],
    extra: Flags = None,
    output: Annotated[Path | None, Option("--output", "-o", help="The .vmfb file.")] = None,
    target: Device = "cpu",
    pipeline: Annotated[
        str | None,
        Option(
            "--pipeline",
            "-p",
            help="A shipped pipeline's name or a file; default: the one for the target.",
        ),
    ] = None,
    rules: Own = None,
    configs: Annotated[
        list[str] | None,
        Option(
            "--configs",
            help="Config rules: shipped names, files or folders; tried "
            "before those of the pipeline.",
        ),
    ] = None,
    parameters: Parameters = None,
    measure: Measure = False,
    no_fallback: Annotated[
        bool,
        Option(
            "--no-fallback",
            help="Fail when a torch op is left that no rule "
            "converts, instead of leaving it to IREE.",
        ),
    ] = False,
    trace: Annotated[Path | None, Option(help="Write every application as a line of JSON.")] = None,
    stats: Annotated[bool, Option("--stats", help="Applications and time by rule.")] = False,
    timeout: Annotated[float | None, Option(help="Seconds iree-compile may take.")] = None,
    check: Annotated[
        bool,
        Option(
            "--check",
            help="Run the result and what plain iree-compile makes of the program on random and "
            "edge inputs; fail, naming what made it, when they differ.",
        ),
    ] = False,
    golden: Annotated[
        Path | None,
        Option(help="--check: an .npz with inputs a0.. and the results r0.. to expect."),
    ] = None,
    function: Annotated[
        str | None, Option(help="--check: this function; default: all that can be called.")
    ] = None,
    rtol: Annotated[float | None, Option(min=0, help="--check: relative tolerance.")] = None,
    atol: Annotated[float | None, Option(min=0, help="--check: absolute tolerance.")] = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    trust_python: TrustPython = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Rewrite a program by a pipeline and compile it for a target.

    Exits with 1 when a rule that must apply did not, when an op that a config rule is for was not
    configured by it, when --no-fallback finds a torch op left, or when --check finds a difference;
    nothing is written then.
    """

    recipe = recipe_for(
        model,
        target,
        Wanted(
            pipeline=pipeline,
            rules=rules,
            flags=extra or (),
            configs=configs or (),
            measure=measure,
            timeout=timeout,
        ),
    )
    chosen = recipe.target
    if parameters:
        from mlirules.drivers.apply.programs import load_program
        from mlirules.drivers.iree.parameters import check as check_archives

        check_archives(load_program(model).module, parameters, str(model))
    written = output or model.with_suffix(".vmfb")
    with reserved(written) as place:
        # A device or a pipe is written to when all is well; a file is compiled where it will be.
        here = replace(recipe, output=place if place != written else None)
        with working(f"compiling {model} for {chosen}"):
            binary, done = here.compile(record=trace is not None, fallback=not no_fallback)
        for said in done.notes:
            warn(said)
        say_unapplied(rules, done.applications)
        checked = None
        if check or golden is not None:
            from mlirules.drivers.quality.checked import Call
            from mlirules.drivers.quality.verify import Tolerance

            call = Call(function=function)
            if golden is not None:
                call = Call(*golden_of(recipe, golden, function), function)
            tolerance = Tolerance(rtol, atol) if rtol is not None or atol is not None else None
            binary = binary or place.read_bytes()
            checked = _checked(recipe, binary, call, tolerance, parameters or ())
        if here.output is None:
            write_bytes(place, binary)
        size = len(binary) or place.stat().st_size
    if trace is not None:
        from mlirules.drivers.apply.run import write_trace

        write_trace(trace, done.outcome.applications, done.outcome.decisions)
    show_decisions(done.outcome.decisions)
    if as_json:
        say_json(
            {
                "output": str(written),
                "bytes": size,
                "target": chosen.name,
                "applications": dict(done.applications),
                "leftovers": dict(done.leftover_counts),
                "notes": done.notes,
                **decisions_as_json(done.outcome.decisions),
                **({"configs": configs_as_json(done.configs)} if done.configs else {}),
                **({"check": checked.as_json()} if checked is not None else {}),
            }
        )
        return
    if stats:
        err.print(applications_table(done.outcome))
    if done.configs is not None:
        show_configs(done.configs)
    elif not done.outcome.total:
        warn(f"no rule applied to {model}")
    if done.leftovers:
        note(f"left to IREE's own conversion: {', '.join(done.leftovers)}")
    note(f"{written}: {size} bytes for {chosen}, {done.outcome.total} applications")


def _checked(
    recipe: Recipe,
    binary: bytes,
    call: Call,
    tolerance: Tolerance | None,
    parameters: Sequence[str],
) -> Checked:
    """Check a compiled program. Raises :class:`CheckFailed` when a result differs."""
    from mlirules.drivers.quality import checked as checking
    from mlirules.drivers.quality.verify import WHOLE_PROGRAMS

    with working(f"checking {recipe.path} on {recipe.target}"):
        checked = checking.check(
            recipe,
            binary,
            tolerance=tolerance or WHOLE_PROGRAMS,
            call=call,
            parameters=parameters,
        )
    if checked.failed:
        raise CheckFailed(f"{recipe.path}: {checked.message()}")
    if checked.skipped:
        reasons = "; ".join(checked.report.skipped) or "no input"
        warn(f"NOT CHECKED: {recipe.path} for {recipe.target} was not run: {reasons}")
    else:
        for line in (*checked.report.skipped, *checked.report.compiler_wrong):
            note(f"check: {line}")
        against = "; ".join(checked.report.references)
        note(f"checked: {len(checked.report.comparisons)} results agree, against {against}")
    return checked


def configs_as_json(report: ConfigReport) -> dict[str, object]:
    """What config rules did, as plain data."""
    return {
        "hits": [
            {
                "rule": h.rule.name,
                "dispatch": h.op.dispatch,
                "op": h.op.op,
                "lowering_config": h.op.lowering_config,
                "translation_info": h.op.translation_info,
            }
            for h in report.hits
        ],
        "unused": [rule.name for rule in report.unused],
        "notes": report.notes,
    }


def show_configs(report: ConfigReport) -> None:
    """Say which config rules took effect where, and which found no op."""
    for hit in report.hits:
        note(f"configured {hit.op.dispatch} by {hit.rule.name}: {hit.op.lowering_config}")
    for words in report.notes:
        warn(words)
    for rule in report.unused:
        warn(f"{rule.span}: the config rule {rule.name} found no op in the program")
