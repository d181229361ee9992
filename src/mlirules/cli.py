"""The command line. Thin: each command is a module of :mod:`mlirules.commands`.

Exit codes: 0 done, 1 a check failed, 2 the input is wrong (a usage error is one), 70 a bug of
mlirules itself, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any

from mlirules.support import helps
from mlirules.support.package import VERSION

if TYPE_CHECKING:
    import typer

    from mlirules.language.faults import Fault

EXIT_INTERNAL = 70

_DEBUG: ContextVar[bool] = ContextVar("debug", default=False)


#: The commands in the order of the help, and the modules that hold them.
COMMANDS = {
    "check": "check",
    "fmt": "fmt",
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
    "discover": "discover",
    "bisect": "bisect",
    "import": "import_",
    "docs": "docs",
    "lsp": "lsp",
    "studio": "studio",
    "demo": "demo",
    "version": "version",
    "spec": "spec",
}


def build(only: str | None = None) -> typer.Typer:
    """The command line; with ``only`` that command alone, which is all that running it takes."""
    import typer

    from mlirules.commands.options import Group, for_typer

    names = {"help_option_names": ["-h", "--help"]}

    def tell(asked: bool) -> None:
        if asked:
            typer.echo(f"mlirules {VERSION}")
            raise typer.Exit

    # `tell` has ended the process where the version was asked for.
    def common(debug: bool = False, version: bool = False) -> None:  # noqa: ARG001
        _DEBUG.set(debug)

    told = typer.Option("--debug", help="Show the traceback of an internal error.")
    named = typer.Option(
        "--version",
        callback=tell,
        is_eager=True,
        help="Print the version; `version` says more.",
    )
    common.__annotations__ = {
        "debug": Annotated[bool, told],
        "version": Annotated[bool, named],
        "return": None,
    }
    app = typer.Typer(
        name="mlirules",
        help="Compiler rewrite rules as YAML: check them, test them, apply them, compile with "
        "them.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 the input is wrong.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Help in boxes loads a Markdown reader, which takes longer than all else.
        rich_markup_mode=None,
        context_settings=names,
    )
    app.callback()(common)
    for name in COMMANDS if only is None else (only,):
        module = importlib.import_module(f"mlirules.commands.{COMMANDS[name]}")
        epilog = f"Example: {module.EXAMPLE}"
        group = getattr(module, "app", None)
        if isinstance(group, Group):  # a command with commands of its own
            below = typer.Typer(
                name=group.name, help=group.help, no_args_is_help=True, context_settings=names
            )
            for inner, (function, last) in group.commands.items():
                below.command(inner, epilog=last)(for_typer(function))
            app.add_typer(below, epilog=epilog)
        else:
            app.command(name, epilog=epilog)(for_typer(module.command))
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. ``arguments`` default to those of the process."""
    given = sys.argv[1:] if arguments is None else arguments
    # Its plugins are looked for among all packages that are installed, which takes long.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if helps.asked(given):
        kept = helps.Help(given)
        if (text := kept.read()) is None:
            text = kept.keep(_help)
        if text is not None:
            sys.stdout.write(text)
            sys.exit(0)
    _run(given)


def process() -> None:
    """Run the command line as a process of its own, and end it.

    What the compiler holds is left to the system, which takes it back at once: giving it back piece
    by piece, as the end of Python does, takes longer than a command that says something.
    """
    # A command makes much that stays, and few cycles: looking for those seldom is enough.
    gc.set_threshold(300_000, 20, 50)
    from mlirules.language.faults import EXIT_INPUT_WRONG

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: what is said goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    code: object = 0
    try:
        main()
        sys.stdout.flush()
    except SystemExit as done:
        code = done.code
    except BrokenPipeError:  # the reader of a pipe has seen enough
        pass
    except OSError as error:
        os.write(2, f"<output>: error[file]: {error.strerror}\n".encode())
        os._exit(EXIT_INPUT_WRONG)
    if not isinstance(code, int):
        sys.exit(code)  # type: ignore[arg-type]  # a text is said
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            continue
        except OSError as error:
            os.write(2, f"<output>: error[file]: {error.strerror}\n".encode())
            code = code or EXIT_INPUT_WRONG
    os._exit(code)


def _help(given: list[str]) -> str | None:
    """The help as typer writes it; None where there is none."""
    import contextlib
    import io

    named = next((word for word in given if not word.startswith("-")), None)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        try:
            build(named if named in COMMANDS else None)(args=given, prog_name="mlirules")
        except SystemExit as done:
            if not done.code:
                return said.getvalue()
    return None


def _run(given: list[str]) -> None:
    from mlirules.commands.common import err, say
    from mlirules.language import consent
    from mlirules.language.faults import (
        EXIT_CHECK_FAILED,
        EXIT_INPUT_WRONG,
        CheckFailed,
        Fault,
        MlirulesError,
        Span,
    )

    own = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in own
    try:
        with consent.given():
            _command(given)
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


def _command(given: list[str]) -> None:
    """Run the command that the arguments name, and exit."""
    from mlirules.commands import quick
    from mlirules.commands.options import BadParameter, Exit

    if (found := _plain(given)) is not None:
        function, words = found
        if (arguments := quick.arguments(function, words)) is not None:
            try:
                function(**arguments)
            except Exit as done:
                sys.exit(done.exit_code)
            except BadParameter:
                pass  # told by typer, with the usage
            except KeyboardInterrupt:
                sys.exit(130)
            else:
                sys.exit(0)
    named = next((word for word in given if not word.startswith("-")), None)
    build(named if named in COMMANDS else None)(args=given, prog_name="mlirules")


def _plain(given: list[str]) -> tuple[Callable[..., Any], list[str]] | None:
    """The command that is named first, and its arguments."""
    if not given or given[0] not in COMMANDS or "_MLIRULES_COMPLETE" in os.environ:
        return None
    module = importlib.import_module(f"mlirules.commands.{COMMANDS[given[0]]}")
    if not hasattr(module, "app"):
        return module.command, given[1:]
    inner = module.app.commands.get(given[1]) if len(given) > 1 else None
    return None if inner is None else (inner[0], given[2:])


def _faults(faults: list[Fault], as_json: bool) -> None:
    from mlirules.commands.common import err, say

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
