"""The command line. Thin: each command is a module of :mod:`mlirules.commands`.

Exit codes: 0 done, 1 a check failed, 2 the input is wrong (a usage error is one), 70 a bug of
mlirules itself, 130 interrupted.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextvars import ContextVar
from typing import Annotated

import typer

from mlirules.commands.common import EXIT_INTERNAL, err, say
from mlirules.language import consent
from mlirules.language.faults import (
    EXIT_CHECK_FAILED,
    EXIT_INPUT_WRONG,
    CheckFailed,
    Fault,
    MlirulesError,
    Span,
)

_DEBUG: ContextVar[bool] = ContextVar("debug", default=False)


#: The commands in the order of the help, and the modules that hold them.
COMMANDS = {
    "check": "check",
    "new": "new",
    "test": "test",
    "generate": "generate",
    "apply": "apply",
    "compile": "compile",
    "bench": "bench",
    "run": "run",
    "profile": "profile",
    "tune": "tune",
    "explain": "explain",
    "diff": "diff",
    "verify": "verify",
    "prove": "prove",
    "bisect": "bisect",
    "import": "import_",
    "docs": "docs",
    "lsp": "lsp",
    "demo": "demo",
    "version": "version",
    "spec": "spec",
}


def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    _DEBUG.set(debug)


def build(only: str | None = None) -> typer.Typer:
    """The command line; with ``only`` that command alone, which is all that running it takes."""
    app = typer.Typer(
        name="mlirules",
        help="Compiler rewrite rules as YAML: check them, test them, apply them, compile with "
        "them.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 the input is wrong.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Help in boxes loads a Markdown reader, which takes longer than all else.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name in COMMANDS if only is None else (only,):
        module = importlib.import_module(f"mlirules.commands.{COMMANDS[name]}")
        epilog = f"Example: {module.EXAMPLE}"
        if hasattr(module, "app"):  # a command with commands of its own
            app.add_typer(module.app, epilog=epilog)
        else:
            app.command(name, epilog=epilog)(module.command)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. ``arguments`` default to those of the process."""
    given = sys.argv[1:] if arguments is None else arguments
    own = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in own
    named = next((word for word in given if not word.startswith("-")), None)
    try:
        with consent.given():
            build(named if named in COMMANDS else None)(args=given, prog_name="mlirules")
    except MlirulesError as error:
        _faults(error.faults, as_json)
        sys.exit(EXIT_INPUT_WRONG)
    except CheckFailed as error:
        if as_json:
            say(json.dumps({"failed": str(error)}, indent=2))
        else:
            err.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_CHECK_FAILED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        span = Span(str(error.filename or "<file>"))
        _faults([Fault(span, "file", error.strerror or str(error))], as_json)
        sys.exit(EXIT_INPUT_WRONG)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug, told in one line
        if _DEBUG.get():
            import traceback

            traceback.print_exc()
        said = " ".join(str(error).split())[:300]
        err.print(
            f"internal error: {type(error).__name__}: {said}\n"
            "This is a bug of mlirules. Please report it with the output of "
            "`mlirules --debug ...`.",
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(EXIT_INTERNAL)


def _faults(faults: list[Fault], as_json: bool) -> None:
    if as_json:
        say(json.dumps({"faults": [fault.as_json() for fault in faults]}, indent=2))
        return
    for number, fault in enumerate(faults):
        first, _, rest = fault.render().partition("\n")
        if number:
            err.print()
        style = "bold red" if fault.severity == "error" else "bold yellow"
        err.print(first, style=style, markup=False, highlight=False, soft_wrap=True)
        if rest:
            err.print(rest, markup=False, highlight=False, soft_wrap=True)
