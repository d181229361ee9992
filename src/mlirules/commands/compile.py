"""``mlirules compile``: the whole way through iree-compile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlirules.commands.common import (
    Device,
    Flags,
    Json,
    Measure,
    Parameters,
    applications_table,
    cost_settings,
    decisions_as_json,
    err,
    note,
    say_json,
    show_decisions,
    warn,
    working,
    write_bytes,
)

if TYPE_CHECKING:
    from mlirules.drivers.tuning_specs.compile import ConfigReport

EXAMPLE = "mlirules compile model.mlir --target cpu --no-fallback -o model.vmfb"


def command(
    model: Annotated[Path, typer.Argument(help="The program, MLIR text or bytecode.")],
    extra: Flags = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .vmfb file.")] = None,
    target: Device = "cpu",
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            "-p",
            help="A shipped pipeline's name or a file; default: the one for the target.",
        ),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--configs",
            help="Config rules: shipped names, files or folders; tried "
            "before those of the pipeline.",
        ),
    ] = None,
    parameters: Parameters = None,
    measure: Measure = False,
    no_fallback: Annotated[
        bool,
        typer.Option(
            "--no-fallback",
            help="Fail when a torch op is left that no rule "
            "converts, instead of leaving it to IREE.",
        ),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every application as a line of JSON.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Applications and time by rule.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds iree-compile may take.")] = None,
    as_json: Json = False,
) -> None:
    """Rewrite a program by a pipeline and compile it for a target.

    Exits with 1 when a rule that must apply did not, when an op that a config rule is for was not
    configured by it, or when --no-fallback finds a torch op left.
    """
    from mlirules.drivers.apply.engine import write_trace
    from mlirules.drivers.iree.parameters import check as check_archives
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, compile_program, load_program

    chosen = Target.parse(target)
    line = Pipeline.load(pipeline) if pipeline else None
    source = load_program(model)
    if parameters:
        check_archives(source.module, parameters, str(model))
    with working(f"compiling {model} for {chosen}"):
        binary, done = compile_program(
            source,
            chosen,
            line,
            path=str(model),
            fallback=not no_fallback,
            flags=extra or (),
            record=trace is not None,
            timeout=timeout,
            configs=configs or (),
            costs=cost_settings(target, measure),
        )
    written = output or model.with_suffix(".vmfb")
    write_bytes(written, binary)
    if trace is not None:
        write_trace(trace, done.outcome.applications, done.outcome.decisions)
    show_decisions(done.outcome.decisions)
    for said in done.notes:
        warn(said)
    if as_json:
        say_json(
            {
                "output": str(written),
                "bytes": len(binary),
                "target": chosen.name,
                "applications": dict(done.applications),
                "leftovers": dict(done.leftover_counts),
                "notes": done.notes,
                **decisions_as_json(done.outcome.decisions),
                **({"configs": configs_as_json(done.configs)} if done.configs else {}),
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
    note(f"{written}: {len(binary)} bytes for {chosen}, {done.outcome.total} applications")


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
        warn(f"the config rule {rule.name} found no op in the program")
