"""What a command says of its arguments. Two read it: :mod:`mlirules.commands.quick` and typer.

typer, with the help, the messages and the completion of shells that it brings, takes longer to load
than many a command takes. What stands in these classes says the same in no time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

__all__ = ["Argument", "BadParameter", "Command", "Exit", "Group", "Option", "for_typer"]


class Exit(Exception):
    """The command ends here, with this exit code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.exit_code = code


class BadParameter(Exception):
    """Arguments that do not go together: a usage error, exit code 2."""


class Option:
    """An option: its spellings (none: the parameter's name), and what it takes."""

    def __init__(
        self,
        *names: str,
        help: str,  # noqa: A002 - as typer has it
        min: float | None = None,  # noqa: A002
        max: float | None = None,  # noqa: A002
        callback: Callable[[Any], Any] | None = None,
    ) -> None:
        self.names = names
        self.help = help
        self.min = min
        self.max = max
        self.callback = callback


class Argument:
    """An argument that is told by its place."""

    def __init__(self, *, help: str, metavar: str | None = None) -> None:  # noqa: A002
        self.help = help
        self.metavar = metavar


#: What runs when a command is given.
Command = Callable[..., None]


class Group:
    """A command that has commands of its own."""

    def __init__(self, name: str, help: str) -> None:  # noqa: A002
        self.name = name
        self.help = help
        #: By their names: what runs, and the last line of their help.
        self.commands: dict[str, tuple[Command, str]] = {}

    def command(self, name: str, *, epilog: str) -> Callable[[Command], Command]:
        """Take a function as the command ``name``."""

        def take(function: Command) -> Command:
            self.commands[name] = (function, epilog)
            return function

        return take


def for_typer(function: Command) -> Command:
    """The command as typer takes it: with its classes in the annotations, and its exceptions."""
    import typer

    def translated(hint: object) -> Any:
        if get_origin(hint) is not Annotated:
            return hint
        kind, *said = get_args(hint)
        return Annotated[(kind, *map(_translated, said))]

    @functools.wraps(function)
    def command(**given: object) -> None:
        try:
            function(**given)
        except Exit as done:
            raise typer.Exit(done.exit_code) from None
        except BadParameter as wrong:
            raise typer.BadParameter(str(wrong)) from None

    hints = get_type_hints(function, include_extras=True)
    hints = {name: translated(hint) for name, hint in hints.items()}
    said = inspect.signature(function)
    parameters = [p.replace(annotation=hints[n]) for n, p in said.parameters.items()]
    command.__annotations__ = hints
    command.__dict__["__signature__"] = said.replace(parameters=parameters)
    return command


def _translated(said: object) -> Any:
    import typer

    if isinstance(said, Option):
        return typer.Option(
            *said.names, help=said.help, min=said.min, max=said.max, callback=said.callback
        )
    if isinstance(said, Argument):
        return typer.Argument(help=said.help, metavar=said.metavar)
    return said
