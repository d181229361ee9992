"""``mlirules explain``: why a rule did not apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from mlirules.commands.common import Json, out, say_json, warn
from mlirules.rules.faults import Fault, MlirulesError, Span, did_you_mean

EXAMPLE = "mlirules explain torch-mm-to-linalg model.mlir"


def command(
    rule: Annotated[str, typer.Argument(help="A rule's name, or a rule file.")],
    model: Annotated[Path, typer.Argument(help="The program, MLIR text.")],
    at: Annotated[
        str | None, typer.Option(help="Only ops whose location holds this: a line or FILE:LINE.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many ops.")] = 20,
    as_json: Json = False,
) -> None:
    """For each op that the rule could start at: whether it applies, or the line that says no.

    The op at which the pattern got furthest comes first.
    """
    from mlirules.drivers import compiler
    from mlirules.drivers.pipeline import (
        engine_for,
        inline_integer_resources,
        read_program,
        shared_context,
    )  # fmt: skip

    chosen = _rule(rule)
    text = read_program(model)
    module = compiler.parse(inline_integer_resources(text), str(model), shared_context())
    engine = engine_for([chosen])
    ops = [op for op in _ops(module.operation) if op.name in chosen.root_ops]
    if at is not None:
        ops = [op for op in ops if _fits(_place(op, model), at)]
    verdicts = [(op, engine.explain(chosen, op)) for op in ops]
    faults = engine.matchers[chosen.name].faults
    if faults:
        raise faults[0]
    verdicts.sort(key=lambda v: -(10**9 if v[1] is None else v[1].depth))
    if as_json:
        say_json([_as_json(op, refusal, model) for op, refusal in verdicts])
        return
    if not verdicts:
        where = f" at {at}" if at else ""
        warn(f"{model} holds no {' or '.join(chosen.root_ops)}{where}: {chosen.name} starts there")
        return
    for op, refusal in verdicts[:limit]:
        _show(chosen, op, refusal, model)
    if len(verdicts) > limit:
        out.print(Text(f"... {len(verdicts) - limit} more ops (--limit)"))


def _rule(name: str) -> Any:
    """A rule by file, or by name in the shipped library."""
    from mlirules.drivers.pipeline import rule_set
    from mlirules.rules.loader import LIBRARY, rule_files

    if Path(name).is_file() or (LIBRARY / f"{name}.yaml").is_file():
        return rule_set((name,))[0]
    # Files are named for their op, rules for what they do: the text is quicker than the model.
    files = rule_files(LIBRARY)
    for file in files:
        if f"\nrule: {name}\n" in "\n" + file.read_text(encoding="utf-8"):
            return rule_set((str(file),))[0]
    known = [rule.name for rule in rule_set((str(LIBRARY),))]
    raise MlirulesError(
        Fault(Span(name), "no-rule", "is neither a rule file nor a shipped rule",
              did_you_mean(name, known))
    )  # fmt: skip


def _ops(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _ops(op.operation)


def _place(op: Any, path: Path) -> str:
    from mlirules.drivers.pipeline import located

    shown = str(op.location).removeprefix("loc(").removesuffix(")").replace('"', "")
    return located(shown, str(path))


def _fits(place: str, wanted: str) -> bool:
    """Whether a place is the wanted one: ``LINE``, ``LINE:COLUMN``, ``FILE:LINE``, or all of it."""
    return f":{wanted}:" in f":{place}:"


def _as_json(op: Any, refusal: Any, model: Path) -> dict[str, object]:
    found: dict[str, object] = {
        "location": _place(op, model), "op": op.name, "applies": refusal is None,
    }  # fmt: skip
    if refusal is not None:
        found |= {
            "line": None if refusal.line is None else str(refusal.line),
            "place": None if refusal.line is None else str(refusal.line.span),
            "message": refusal.message, "expected": refusal.expected, "found": refusal.found,
            "depth": refusal.depth,
        }  # fmt: skip
    return found


def _show(rule: Any, op: Any, refusal: Any, model: Path) -> None:
    shown = str(op).splitlines()[0]
    out.print(Text(f"{_place(op, model)}: {shown[:200]}", style="bold"), soft_wrap=True)
    if refusal is None:
        out.print(Text(f"  {rule.name} applies here", style="green"))
        return
    for line in refusal.fault(rule).render().splitlines():
        out.print(Text("  " + line), soft_wrap=True)
    if refusal.expected and refusal.found:
        out.print(Text(f"  expected {refusal.expected}, found {refusal.found}"), soft_wrap=True)
