"""``mlirules fmt``: rule files, written the one way."""

from __future__ import annotations

from difflib import unified_diff
from typing import Annotated

from mlirules.commands.common import Json, note, say, say_json, write_bytes
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED

EXAMPLE = "mlirules fmt my-rules"


def command(
    paths: Annotated[list[str], Argument(help="Rule files, folders or shipped rule sets.")],
    check: Annotated[
        bool, Option("--check", help="Write nothing; exit with 1 when a file would change.")
    ] = False,
    diff: Annotated[bool, Option("--diff", help="Write nothing; show what would change.")] = False,
    as_json: Json = False,
) -> None:
    """Write rule files the one way: a line for each item, equations with their signs aligned.

    Comments, bodies and the tests' programs stay as they are, and so does what a rule means.
    """
    from mlirules.language.format import formatted
    from mlirules.language.rulefiles import rule_files

    files = list(dict.fromkeys(file for path in paths for file in rule_files(path)))
    changed = []
    for file in files:
        before = file.read_text(encoding="utf-8")
        after = formatted(file, before)
        if after == before:
            continue
        changed.append(str(file))
        if diff:
            rows = unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                str(file),
                str(file),
            )
            say("".join(rows))
        elif not check:
            write_bytes(file, after.encode())
    if as_json:
        say_json({"files": len(files), "changed": changed, "written": not (check or diff)})
    else:
        for name in changed:
            note(f"{name}: {'would be written anew' if check or diff else 'written anew'}")
        note(f"{len(files)} files, {len(changed)} {'to change' if check or diff else 'changed'}")
    if check and changed:
        raise Exit(EXIT_CHECK_FAILED)
