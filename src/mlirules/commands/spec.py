"""``mlirules spec``: tuning specs linked, checked, held against a model, read back into rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlirules.commands.common import (
    Json,
    note,
    out,
    progress,
    say,
    say_json,
    split,
    table,
    warn,
    working,
    write_bytes,
)
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_INPUT_WRONG, Fault, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.tuning_specs.check import Source
    from mlirules.drivers.tuning_specs.compile import ConfigReport, ConfiguredOp
    from mlirules.language.config.rule import ConfigRule

EXAMPLE = "mlirules spec check my-spec.mlir configs --target hip:gfx942"

app = typer.Typer(
    name="spec",
    help="Tuning specs and config rules: link, check, coverage of a model, import.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sources = Annotated[
    list[str],
    typer.Argument(help="Specs (.mlir) and config rules: files, folders or shipped names."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", help="The target they are for: cpu, vulkan, cuda:sm_80, hip:gfx942, ..."
    ),
]


def _load(paths: list[str], target: str | None) -> list[Source]:
    from mlirules.drivers.tuning_specs.check import load_source

    sources = []
    with progress("reading", len(paths)) as step:
        for path in paths:
            step(path)
            sources.append(load_source(path, target=target))
    return sources


def _refuse_errors(sources: list[Source]) -> None:
    """Stop where something is wrong, or where an entry would be lost."""
    errors = [fault for source in sources for fault in (*source.errors, *source.unread)]
    if errors:
        raise MlirulesError(errors)


@app.command(
    "check", epilog="Example: mlirules spec check my-spec.mlir configs --target hip:gfx942"
)
def check(
    sources: Sources,
    target: TargetOption = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Compile an example for each entry and see it hit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find what is wrong with specs and config rules, also what the compiler accepts in silence.

    Exits with 2 when there is an error, and with 1 when --prove finds an entry that does not hit.
    Warnings leave the exit code alone.
    """
    loaded = _load(sources, target)
    faults = [fault for source in loaded for fault in source.faults] + _across(loaded)
    errors = [fault for fault in faults if fault.severity == "error"]
    problems = _proof(loaded) if prove and not errors else []
    if as_json:
        say_json(
            {
                "sources": [{"path": s.path, "entries": [r.name for r in s.rules]} for s in loaded],
                "faults": [fault.as_json() for fault in faults],
                "not_proven": problems,
            }
        )
    else:
        for fault in faults:
            out.print(fault.render() + "\n", markup=False, highlight=False, soft_wrap=True)
        for problem in problems:
            out.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
        entries = sum(len(s.rules) for s in loaded)
        style = "red" if errors or problems else "green"
        proven = f", {entries - len(problems)} proven" if prove and not errors else ""
        out.print(
            f"{entries} entries in {len(loaded)} sources, {len(errors)} errors, "
            f"{len(faults) - len(errors)} warnings{proven}",
            style=style,
            highlight=False,
        )
    if errors:
        raise typer.Exit(EXIT_INPUT_WRONG)
    if problems:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _across(loaded: list[Source]) -> list[Fault]:
    """Overlaps between sources, and between rules of one folder: told, not refused, here."""
    from mlirules.drivers.tuning_specs.overlap import overlaps

    owner = {id(rule): number for number, s in enumerate(loaded) for rule in s.rules}
    found = []
    for overlap in overlaps([rule for s in loaded for rule in s.rules]):
        first, second = owner[id(overlap.first)], owner[id(overlap.second)]
        if first == second and overlap.first.path == overlap.second.path:
            continue  # a fault of that spec, and said there
        found.append(
            Fault(
                overlap.second.span,
                "overlap",
                overlap.message + ("" if overlap.agrees else "; they set different configurations"),
                f"the one that stands first wins: {overlap.first.span}",
                "warning",
            )
        )
    return found


def _proof(loaded: list[Source]) -> list[str]:
    from mlirules.drivers.quality.config_test import run_config_test

    rules = [rule for s in loaded for rule in s.rules]
    problems = []
    with progress("proving", len(rules)) as step:
        for rule in rules:
            step(rule.name)
            shown = [test for test in rule.tests if test.input is not None]
            if not shown:
                problems.append(f"{rule.span}: {rule.name}: no program shows it")
                continue
            result = run_config_test(rule, shown[0], devices=[])
            if not result.passed:
                problems.append(f"{rule.span}: {rule.name}: " + "\n".join(result.problems))
    return problems


@app.command(
    "link", epilog="Example: mlirules spec link a.mlir b.mlir --precedence first -o all.mlir"
)
def link_command(
    sources: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", help="The linked spec.")],
    target: TargetOption = None,
    precedence: Annotated[
        Literal["first", "last"] | None,
        typer.Option(help="Which source wins where two entries are for the same op."),
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(help="Rules that win over all others, in order.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write several specs as one, in the strict form; overlaps are found by what entries mean.

    Entries that are for the same op and set different configurations are refused (exit code 2)
    unless --precedence or --prefer says which wins. An entry that can never hit is left out.
    """
    from mlirules.drivers.tuning_specs.check import link, linked_text

    loaded = _load(sources, target)
    inner = {"overlap"} if precedence or prefer else set()
    for source in loaded:
        source.faults = [f for f in source.faults if f.code not in inner]
    _refuse_errors(loaded)
    linked = link(loaded, precedence=precedence, prefer=split(prefer))
    text = linked_text(linked, target)
    write_bytes(output, text.encode())
    if as_json:
        say_json(
            {
                "output": str(output),
                "entries": [rule.name for rule in linked.rules],
                "overlaps": [
                    {
                        "wins": o.first.name,
                        "over": o.second.name,
                        "relation": o.relation,
                        "agrees": o.agrees,
                        "example": o.example,
                    }
                    for o in linked.overlaps
                ],
                "dropped": [{"entry": a.name, "for": b.name} for a, b in linked.dropped],
            }
        )
        return
    for overlap in linked.overlaps:
        warn(f"{overlap.first.name} wins over {overlap.second.name}: {overlap.message}")
    for lost, won in linked.dropped:
        note(f"left out {lost.name} ({lost.span}): {won.name} takes every op that it is for")
    note(f"{output}: {len(linked.rules)} entries of {len(loaded)} sources")


@app.command("coverage", epilog="Example: mlirules spec coverage model.mlir configs --target cpu")
def coverage(
    model: Annotated[Path, typer.Argument(help="The program, MLIR text.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Specs and config rules; none: only the default configurations."),
    ] = None,
    target: Annotated[str, typer.Option("--target", "-t", help="The target.")] = "cpu",
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", help="The pipeline that rewrites first.")
    ] = None,
    precedence: Annotated[
        Literal["first", "last"] | None, typer.Option(help="Which source wins on overlap.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say of each dispatch of a model how it is configured by default, and which entry hits it.

    Exits with 1 when an entry hits no op, or when one that should hit does not.
    """
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, default_for, program_at, read_program
    from mlirules.drivers.tuning_specs.check import link
    from mlirules.drivers.tuning_specs.compile import configure, packs

    chosen = Target.parse(target)
    loaded = _load(sources or [], target)
    for source in loaded:
        source.faults = [f for f in source.faults if f.code != "overlap" or not precedence]
    _refuse_errors(loaded)
    linked = link(loaded, precedence=precedence) if loaded else None
    unused: list[str] = []
    kept: list[ConfigReport] = []  # what the ops live in
    line = Pipeline.load(pipeline) if pipeline else default_for(chosen.kind)
    # As `compile` does it: packed products take no configuration.
    left_out = packs(linked.rules if linked else [], chosen, line.flags)
    if left_out:
        line = line.model_copy(update={"flags": [f for f in line.flags if f not in left_out]})
        warn(f"compiled without {', '.join(left_out)}: packed products take no configuration")
    with working(f"configuring {model} for {chosen}"):
        reached = "preprocessing"
        text = program_at(read_program(model), chosen, reached, line, path=str(model))

        def configured(rules: list[ConfigRule]) -> list[ConfiguredOp]:
            report = configure(
                text, chosen, rules, flags=line.flags, path=str(model), compile_from=reached
            )
            unused.extend(rule.name for rule in report.unused)
            kept.append(report)
            return report.ops

        rows = _rows(configured([]), configured(linked.rules if linked else []))
    if as_json:
        say_json(
            {"model": str(model), "target": chosen.name, "dispatches": rows, "hit_nothing": unused}
        )
    else:
        shown = [(r["dispatch"], r["op"], r["entry"] or "-", r["default"]) for r in rows]
        out.print(table(["dispatch", "op", "entry", "default configuration"], shown))
        hit = sum(bool(r["entry"]) for r in rows)
        say(f"{len(rows)} configured ops, {hit} hit by entries")
        for name in unused:
            warn(f"the entry {name} hits no op of {model}")
    if unused:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _rows(before: list[ConfiguredOp], after: list[ConfiguredOp]) -> list[dict[str, Any]]:
    """Each op that has a configuration, by default or by an entry."""
    rows = []
    entries = _by_place(after)
    for place, op in _by_place(before).items():
        now = entries.get(place)
        entry = now.marker if now is not None else ""
        if op.lowering_config or entry:
            rows.append(
                {
                    "dispatch": op.dispatch,
                    "op": op.op,
                    "operands": op.shape,
                    "entry": entry,
                    "default": op.lowering_config,
                    "default_translation": op.translation_info,
                    "configuration": now.lowering_config if now is not None else "",
                }
            )
    return rows


def _by_place(ops: list[ConfiguredOp]) -> dict[tuple[str, int], ConfiguredOp]:
    """Ops by dispatch and number: configuring does not change which there are."""
    counts: dict[str, int] = {}
    placed = {}
    for op in ops:
        number = counts[op.dispatch] = counts.get(op.dispatch, 0) + 1
        placed[op.dispatch, number] = op
    return placed


@app.command(
    "import", epilog="Example: mlirules spec import spec.mlir --target hip:gfx942 -o my-configs"
)
def import_command(
    spec: Annotated[Path, typer.Argument(help="The tuning spec, MLIR text.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="The folder.")] = Path("configs"),
    target: TargetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Read a tuning spec back into config rules, one file an entry, with tests made for each.

    What is written matches the same ops and sets the same attributes, which is checked. Exits with
    2 when an entry cannot be said as a rule; the others are written all the same.
    """
    from mlirules.drivers.tuning_specs.check import load_source, round_trip
    from mlirules.language.config.rule import write_config

    source = load_source(str(spec), target=target)
    source.faults += round_trip(source.rules)
    files = {folder / f"{rule.name}.yaml": rule for rule in source.rules}
    there = [path for path in files if path.exists()]
    if there and not force:
        raise MlirulesError.at(
            str(there[0]), "is there already", code="file", suggestion="--force replaces it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, rule in files.items():
        write_bytes(path, write_config(rule.doc).encode())
    errors = [*(f for f in source.errors if f.code != "overlap"), *source.unread]
    if as_json:
        say_json(
            {
                "written": [str(path) for path in files],
                "faults": [fault.as_json() for fault in source.faults],
            }
        )
    else:
        for fault in source.faults:
            out.print(fault.render() + "\n", markup=False, highlight=False, soft_wrap=True)
        for path in files:
            say(f"wrote {path}")
        note(f"{len(files)} rules of {spec}, {len(errors)} entries refused")
    if errors:
        raise typer.Exit(EXIT_INPUT_WRONG)
