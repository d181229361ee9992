"""``mlirules compile``: the whole way through iree-compile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlirules.commands.common import (
    Json,
    applications_table,
    err,
    note,
    say_json,
    warn,
    working,
    write_bytes,
)  # fmt: skip

EXAMPLE = "mlirules compile model.mlir --target cpu --no-fallback -o model.vmfb"


def command(
    model: Annotated[Path, typer.Argument(help="The program, MLIR text.")],
    extra: Annotated[
        list[str] | None, typer.Argument(help="After --: further flags for iree-compile.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .vmfb file.")
    ] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", help="cpu, vulkan, cuda:sm_80, hip:gfx942, ...")
    ] = "cpu",
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", help="A shipped pipeline's name or a file; default: "
                                              "the one for the target."),
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Fail when a torch op is left that no rule "
                                                 "converts, instead of leaving it to IREE.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every application as a line of JSON.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Applications and time by rule.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds iree-compile may take.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rewrite a program by a pipeline and compile it for a target.

    Exits with 1 when a rule that must apply did not, or when --no-fallback finds a torch op left.
    """
    from mlirules.drivers.engine import write_trace
    from mlirules.drivers.pipeline import Pipeline, compile_program, read_program
    from mlirules.drivers.targets import Target

    chosen = Target.parse(target)
    line = Pipeline.load(pipeline) if pipeline else None
    text = read_program(model)
    with working(f"compiling {model} for {chosen}"):
        binary, done = compile_program(
            text, chosen, line, path=str(model), fallback=not no_fallback, flags=extra or (),
            record=trace is not None, timeout=timeout,
        )  # fmt: skip
    written = output or model.with_suffix(".vmfb")
    write_bytes(written, binary)
    if trace is not None:
        write_trace(trace, done.outcome.applications)
    if as_json:
        say_json({
            "output": str(written), "bytes": len(binary), "target": chosen.name,
            "applications": dict(done.applications), "leftovers": dict(done.leftover_counts),
        })  # fmt: skip
        return
    if stats:
        err.print(applications_table(done.outcome))
    if not done.outcome.total:
        warn(f"no rule applied to {model}")
    if done.leftovers:
        note(f"left to IREE's own conversion: {', '.join(done.leftovers)}")
    note(f"{written}: {len(binary)} bytes for {chosen}, {done.outcome.total} applications")
