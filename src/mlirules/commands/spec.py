"""``mlirules spec``: tuning specs linked, checked, held against a model, read back into rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mlirules.commands import spec_coverage, spec_models
from mlirules.commands.common import (
    Json,
    note,
    out,
    progress,
    say,
    say_json,
    split,
    warn,
    write_bytes,
)
from mlirules.commands.options import Argument, Exit, Group, Option
from mlirules.commands.spec_models import Sources, TargetOption, load, refuse_errors
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_INPUT_WRONG, Fault, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.tuning_specs.check import Source

EXAMPLE = "mlirules spec check my-spec.mlir configs --target hip:gfx942"

app = Group(
    "spec",
    "Tuning specs and config rules: check, link, import, upgrade, and what they do to models.",
)

app.command("coverage", epilog=f"Example: {spec_coverage.EXAMPLE}")(spec_coverage.command)
app.command("diff", epilog="Example: mlirules spec diff old.mlir new.mlir model.mlir -t cpu")(
    spec_models.diff
)


@app.command(
    "check", epilog="Example: mlirules spec check my-spec.mlir configs --target hip:gfx942"
)
def check(
    sources: Sources,
    target: TargetOption = None,
    prove: Annotated[
        bool, Option("--prove", help="Compile an example for each entry and see it hit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find what is wrong with specs and config rules, also what the compiler accepts in silence.

    Exits with 2 when there is an error, and with 1 when --prove finds an entry that does not hit.
    Warnings leave the exit code alone.
    """
    loaded = load(sources, target)
    faults = [fault for source in loaded for fault in source.faults] + _across(loaded)
    errors = [fault for fault in faults if fault.severity == "error"]
    problems = _proof(loaded) if prove and not errors else []
    if as_json:
        say_json(
            {
                "sources": [
                    {
                        "path": s.path,
                        "entries": [r.name for r in s.rules],
                        "kept": [k.entry.matcher if k.entry else k.part.entry for k in s.kept],
                    }
                    for s in loaded
                ],
                "faults": [fault.as_json() for fault in faults],
                "not_proven": problems,
            }
        )
    else:
        for fault in faults:
            out.print(fault.render() + "\n", markup=False, highlight=False, soft_wrap=True)
        for problem in problems:
            out.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
        read = sum(len(s.rules) for s in loaded)
        entries = sum(s.entries for s in loaded)
        style = "red" if errors or problems else "green"
        proven = f", {read - len(problems)} proven" if prove and not errors else ""
        out.print(
            f"{entries} entries in {len(loaded)} sources, {len(errors)} errors, "
            f"{len(faults) - len(errors)} warnings{proven}",
            style=style,
            highlight=False,
        )
        if target is not None:
            _how_it_goes_in(target)
    if errors:
        raise Exit(EXIT_INPUT_WRONG)
    if problems:
        raise Exit(EXIT_CHECK_FAILED)


def _how_it_goes_in(target: str) -> None:
    """Say by which flag the compiler takes a spec, where the usual one does nothing."""
    from mlirules.generator.emit.tuning_spec import hook

    kind = target.partition(":")[0]
    if kind in ("cuda", "vulkan"):
        note(
            f"on {kind} the compiler takes a spec by {hook(kind, 'SPEC')}; "
            "--iree-codegen-tuning-spec-path is ignored there without a word"
        )


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
    from mlirules.drivers.tuning_specs.examples import with_examples

    rules = [rule for s in loaded for rule in s.rules]
    problems = []
    with progress("proving", len(rules)) as step:
        for rule in rules:
            step(rule.name)
            rule = with_examples(rule)
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
    output: Annotated[Path, Option("--output", "-o", help="The linked spec.")],
    target: TargetOption = None,
    precedence: Annotated[
        Literal["first", "last"] | None,
        Option(help="Which source wins where two entries are for the same op."),
    ] = None,
    prefer: Annotated[
        list[str] | None, Option(help="Rules that win over all others, in order.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write several specs as one, in the strict form; overlaps are found by what entries mean.

    Entries that are for the same op and set different configurations are refused (exit code 2)
    unless --precedence or --prefer says which wins. An entry that can never hit is left out.
    Entries that no rule can say are carried through as they stand, with all that they use.
    """
    from mlirules.drivers.tuning_specs.link import link, linked_text

    loaded = load(sources, target)
    inner = {"overlap"} if precedence or prefer else set()
    for source in loaded:
        source.faults = [f for f in source.faults if f.code not in inner]
    refuse_errors(loaded)
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
                "kept": [str(k.span) for k in linked.kept],
                "empty": linked.empty,
            }
        )
        return
    for overlap in linked.overlaps:
        warn(f"{overlap.first.name} wins over {overlap.second.name}: {overlap.message}")
    for lost, won in linked.dropped:
        note(f"left out {lost.name} ({lost.span}): {won.name} takes every op that it is for")
    for path in linked.empty:
        note(f"{path} changes nothing")
    for kept in linked.kept:
        note(f"kept as it stands, and not compared with the others: {kept.span}")
    entries = len(linked.rules) + sum(
        1 if k.entry is not None else len(k.part.entries) for k in linked.kept
    )
    note(f"{output}: {entries} entries of {len(loaded)} sources")


@app.command(
    "import", epilog="Example: mlirules spec import spec.mlir --target hip:gfx942 -o my-configs"
)
def import_command(
    spec: Annotated[Path, Argument(help="The tuning spec, MLIR text or bytecode.")],
    folder: Annotated[Path, Option("--output", "-o", help="The folder.")] = Path("configs"),
    target: TargetOption = None,
    force: Annotated[bool, Option("--force", help="Replace files that are there.")] = False,
    prove: Annotated[
        list[Path] | None,
        Option(
            "--prove",
            help="A program, or a folder of them: compile each with the spec and with what is "
            "made of the rules, and compare the configurations.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a tuning spec back into config rules, one file an entry, with tests made for each.

    What is written matches the same ops and sets the same attributes, which is checked. Exits with
    2 when an entry cannot be said as a rule; the others are written all the same. Exits with 1 when
    --prove finds an op that gets another configuration.
    """
    from mlirules.drivers.tuning_specs.check import load_source, round_trip
    from mlirules.drivers.tuning_specs.examples import with_examples
    from mlirules.language.config.write import write_config
    from mlirules.language.faults import Fault

    source = load_source(str(spec), target=target)
    source.faults += round_trip(source.rules)
    exampled = [with_examples(rule) for rule in source.rules]
    bare = [
        Fault(
            rule.span,
            "no-example",
            f"no program is known that shows {rule.match.name or rule.match.op}: without tests it "
            "is no rule",
            "`spec link` keeps the entry",
        )
        for rule in exampled
        if not rule.tests
    ]
    source.faults += bare
    files = {folder / f"{rule.name}.yaml": rule for rule in exampled if rule.tests}
    there = [path for path in files if path.exists()]
    if there and not force:
        raise MlirulesError.at(
            str(there[0]), "is there already", code="file", suggestion="--force replaces it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, rule in files.items():
        write_bytes(path, write_config(rule.doc).encode())
    errors = [*(f for f in source.errors if f.code != "overlap"), *source.unread]
    proofs = spec_models.prove(source, prove, target) if prove and not source.errors else []
    if as_json:
        say_json(
            {
                "written": [str(path) for path in files],
                "faults": [fault.as_json() for fault in source.faults],
                "proofs": proofs,
            }
        )
    else:
        for fault in source.faults:
            out.print(fault.render() + "\n", markup=False, highlight=False, soft_wrap=True)
        for path in files:
            say(f"wrote {path}")
        for proof in proofs:
            say(f"{proof['model']}: {proof['configured']} configured ops, {proof['same']} alike")
            for line in proof["differences"]:
                warn(line)
        refused = max(source.entries - len(files), 0)
        note(f"{len(files)} rules of {spec}, {refused} entries refused")
    if errors:
        raise Exit(EXIT_INPUT_WRONG)
    if any(proof["differences"] for proof in proofs):
        raise Exit(EXIT_CHECK_FAILED)


@app.command("upgrade", epilog="Example: mlirules spec upgrade old.mlir -o new.mlir")
def upgrade_command(
    spec: Annotated[Path, Argument(help="The tuning spec, MLIR text.")],
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="The new file; default: nothing is written."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rewrite a spec of an older release in the spelling of this one, and list what changed.

    What has no counterpart is said, and left as it is. Exits with 2 when the new text does not
    parse.
    """
    from mlirules.drivers.tuning_specs.upgrade import upgrade

    text, changes = upgrade(spec_models.text_of(spec), str(spec))
    if output is not None:
        write_bytes(output, text.encode())
    if as_json:
        say_json({"output": str(output or ""), "changes": [c.as_json() for c in changes]})
        return
    for change in changes:
        say(str(change))
    note(f"{len(changes)} changes" + (f", written to {output}" if output else ", nothing written"))
