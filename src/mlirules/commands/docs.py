"""``mlirules docs``: pages made from the rules themselves, the JSON Schema, the functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mlirules.commands.common import Json, out, progress, say, say_json, table
from mlirules.commands.options import Argument, BadParameter, Option

if TYPE_CHECKING:
    from mlirules.generator.pages import Page
    from mlirules.language.config.op import ConfigRule
    from mlirules.language.rule import Rule

EXAMPLE = "mlirules docs torch/to-linalg -o site"


def command(
    rules: Annotated[
        list[str] | None,
        Argument(help="Rule sets to write pages for; default: all that ships."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The folder for pages and schema.")
    ] = None,
    functions: Annotated[
        bool, Option("--functions", help="Print the functions that rules can use.")
    ] = False,
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON Schema of a rule file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write rule pages and the JSON Schema to a folder, or print the functions or the schema."""
    from mlirules.generator import pages

    if schema:
        say(pages.schema())
    if functions:
        _functions(as_json)
    if schema or functions:
        return
    if output is None:
        raise BadParameter("say where to write: -o DIR, or use --functions or --schema")
    written = _pages(rules or [""], output)
    if as_json:
        say_json({"written": [n for n, new in written.items() if new], "pages": len(written)})
    else:
        say(f"{output}: {sum(written.values())} of {len(written)} files written")


def _functions(as_json: bool) -> None:
    from mlirules.generator import pages

    rows = pages.functions()
    if as_json:
        say_json([dict(zip(("function", "where", "meaning"), row, strict=True)) for row in rows])
        return
    out.print(table(["function", "where", "meaning"], rows))


def _pages(paths: list[str], output: Path) -> dict[str, bool]:
    from mlirules.drivers.quality.config_test import any_rules
    from mlirules.generator import pages
    from mlirules.language import outputs
    from mlirules.language.rulefiles import LIBRARY

    rules = any_rules([p or str(LIBRARY) for p in paths])
    made = []
    with progress("pages", len(rules)) as step:
        for rule in rules:
            step(rule.name)
            made.append(rule_page(rule))
    files = {"schema/rule.json": pages.schema(), "rules/index.md": pages.index(made)}
    files |= {f"rules/{page.file}": page.text for page in made}
    return {name: outputs.write_changed(output / name, text) for name, text in files.items()}


def rule_page(rule: Rule | ConfigRule) -> Page:
    """The page of a rule of any kind, with what it really does to its first example."""
    from mlirules.drivers.prove.verdicts import badge
    from mlirules.drivers.quality.ruletest import example
    from mlirules.generator import pages
    from mlirules.language.rule import Rule

    shown: tuple[str, ...] = ()
    if isinstance(rule, Rule) and (found := example(rule)) is not None:
        test, after = found
        shown = (test.name, (test.input or "").rstrip(), after.rstrip())
    proof = badge(rule) if isinstance(rule, Rule) else None
    return pages.page(rule.source, rule.doc, rule.origin, shown, proof)
