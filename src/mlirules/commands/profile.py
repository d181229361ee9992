"""``mlirules profile``: where a program's time goes, dispatch by dispatch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    table,
    warn,
    working,
)
from mlirules.commands.options import Argument, Option
from mlirules.commands.recipes import Wanted, recipe_for
from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules profile model.mlir --target cpu --json > before.json"


def command(
    model: Annotated[Path, Argument(help="The program: MLIR text.")],
    extra: Flags = None,
    target: Device = "cpu",
    inputs: Annotated[
        list[str] | None,
        Option("--input", "-i", help="One per argument, as for `run`; default: random."),
    ] = None,
    pipeline: Annotated[
        str | None, Option("--pipeline", "-p", help="A shipped pipeline's name or a file.")
    ] = None,
    rules: Own = None,
    parameters: Parameters = None,
    function: Annotated[
        str | None, Option(help="The function to call; default: each in turn.")
    ] = None,
    seconds: Annotated[float, Option(min=0.01, help="Run for at least this long.")] = 1.0,
    compare: Annotated[
        Path | None, Option(help="A profile saved with --json to compare with.")
    ] = None,
    size: Annotated[
        list[int] | None, Option(help="For random inputs: the dynamic dims, in order.")
    ] = None,
    seed: Annotated[int, Option(help="For random inputs.")] = 0,
    timeout: Annotated[float, Option(help="Seconds that each step may take.")] = 600,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Compile a program, run it with the profiler, and list its dispatches by time."""
    from mlirules.drivers.iree import runtime
    from mlirules.drivers.iree.runtime import Executable
    from mlirules.drivers.measure import profile as profiling

    old = profiling.load(compare) if compare is not None else None
    recipe = recipe_for(
        model, target, Wanted(pipeline=pipeline, rules=rules, flags=extra or (), timeout=timeout)
    )
    chosen = recipe.target
    calls = profiling.random_calls(recipe.program(), size or (), seed, function)
    if inputs:
        if len(calls) > 1:
            raise MlirulesError.at(
                "--input",
                f"given inputs are for one of the functions {', '.join(calls)}",
                code="function",
                suggestion=f"--function {next(iter(calls))}",
            )
        calls = {name: [runtime.parse_input(i) for i in inputs] for name in calls}
    with working(f"compiling {model} for {chosen}"):
        binary, done = recipe.compile()
    for said in done.notes:
        warn(said)
    say_unapplied(rules, done.applications)
    profiles = []
    for name, given in calls.items():
        with working(f"profiling {name} on {chosen}"):
            profiles.append(
                profiling.profile(
                    Executable(binary, name, tuple(parameters or ())),
                    given,
                    chosen,
                    seconds=seconds,
                    model=str(model),
                    timeout=timeout,
                )
            )
        if len(calls) > 1:
            note(f"@{name}: {profiles[-1].call_ms:.3f} ms a call")
    made = profiling.merged(profiles)
    changes = profiling.compare(old, made) if old is not None else []
    if as_json:
        plain = made.as_json()
        if old is not None:
            plain["compared_with"] = str(compare)
            plain["changes"] = [
                {"name": c.name, "old_ms": c.old_ms, "new_ms": c.new_ms, "ratio": c.ratio}
                for c in changes
            ]
        say_json(plain)
        return
    note(
        f"{model}: {made.call_ms:.3f} ms a call on {made.device} ({chosen}), "
        f"{made.calls} calls, compiler {made.compiler}"
    )
    out.print(
        table(
            ["total ms#", "share#", "count#", "mean ms#", "op", "shape", "types", "dispatch"],
            [
                (
                    f"{r.total_ms:.3f}",
                    f"{r.share:.1%}",
                    r.count,
                    f"{r.mean_ms:.4f}",
                    r.op,
                    r.shape,
                    r.types,
                    r.name,
                )
                for r in made.rows
            ],
        )
    )
    if old is None:
        return
    for what in ("target", "device", "compiler"):
        if getattr(old, what) != getattr(made, what):
            warn(
                f"the profiles differ in their {what}: {getattr(old, what)} then, "
                f"{getattr(made, what)} now"
            )
    rows = [
        (_ms(c.old_ms), _ms(c.new_ms), f"{c.ratio:.2f}" if c.ratio else "", c.op, c.shape, c.name)
        for c in changes
    ]
    if made.call_ms:
        rows.insert(
            0,
            (
                _ms(old.call_ms),
                _ms(made.call_ms),
                f"{old.call_ms / made.call_ms:.2f}",
                "",
                "",
                "one call",
            ),
        )
    out.print(
        table(
            ["then ms#", "now ms#", "times as fast#", "op", "shape", "dispatch"],
            rows,
            title=f"compared with {compare}",
        )
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
