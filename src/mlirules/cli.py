"""The command line. Thin: each command is a module of :mod:`mlirules.commands`.

Exit codes: 0 done, 1 a check failed, 2 the input is wrong (a usage error is one), 70 a bug of
mlirules itself, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextvars import ContextVar
from typing import Annotated

import typer

from mlirules.commands import (
    apply,
    bench,
    bisect,
    check,
    demo,
    diff,
    docs,
    explain,
    generate,
    lsp,
    new,
    profile,
    spec,
    tune,
    verify,
    version,
)
from mlirules.commands import compile as compiling
from mlirules.commands import import_ as importing
from mlirules.commands import run as running
from mlirules.commands import test as testing
from mlirules.commands.common import EXIT_INTERNAL, err, say
from mlirules.language.faults import (
    EXIT_CHECK_FAILED,
    EXIT_INPUT_WRONG,
    CheckFailed,
    Fault,
    MlirulesError,
    Span,
)

app = typer.Typer(
    name="mlirules",
    help="Compiler rewrite rules as YAML: check them, test them, apply them, compile with them.",
    epilog="Exit codes: 0 done, 1 a check failed, 2 the input is wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEBUG: ContextVar[bool] = ContextVar("debug", default=False)


@app.callback()
def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    _DEBUG.set(debug)


for _module, _name in (
    (check, "check"),
    (new, "new"),
    (testing, "test"),
    (generate, "generate"),
    (apply, "apply"),
    (compiling, "compile"),
    (bench, "bench"),
    (running, "run"),
    (profile, "profile"),
    (tune, "tune"),
    (explain, "explain"),
    (diff, "diff"),
    (verify, "verify"),
    (bisect, "bisect"),
    (importing, "import"),
    (docs, "docs"),
    (lsp, "lsp"),
    (demo, "demo"),
    (version, "version"),
):
    app.command(_name, epilog=f"Example: {_module.EXAMPLE}")(_module.command)
app.add_typer(spec.app, epilog=f"Example: {spec.EXAMPLE}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. ``arguments`` default to those of the process."""
    given = sys.argv[1:] if arguments is None else arguments
    own = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in own
    try:
        app(args=given, prog_name="mlirules")
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
