"""Reading a command's arguments without typer, as long as they are plain.

What is out of the ordinary (help, a mistake, an unusual spelling) is none of this module's
business: it gives up, and typer reads the same arguments again.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mlirules.commands.options import Argument, Option

__all__ = ["arguments"]


class _Unusual(Exception):
    """typer shall read this."""


@dataclass
class _Parameter:
    name: str
    kind: Any  # bool, str, int, float, Path, an enumeration, or a tuple of words
    many: bool
    default: Any
    said: Option | Argument

    def read(self, word: str) -> Any:
        """The value that a word stands for."""
        if isinstance(self.kind, tuple):
            if word not in self.kind:
                raise _Unusual
            return word
        try:
            value = self.kind(word)
        except ValueError:
            raise _Unusual from None
        if isinstance(self.said, Option) and isinstance(value, (int, float)):
            low, high = self.said.min, self.said.max
            if value != value or (low is not None and value < low):
                raise _Unusual
            if high is not None and value > high:
                raise _Unusual
        return value


def arguments(function: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """What to call a command with; None where typer shall say it."""
    try:
        return _read(_parameters(function), list(words))
    except _Unusual:
        return None


def _parameters(function: Callable[..., None]) -> list[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if get_origin(hint) is not Annotated:
            raise _Unusual
        kind, *said = get_args(hint)
        if len(said) != 1 or not isinstance(said[0], (Option, Argument)):
            raise _Unusual
        if get_origin(kind) in (Union, types.UnionType):
            inner = [k for k in get_args(kind) if k is not type(None)]
            if len(inner) != 1:
                raise _Unusual
            (kind,) = inner
        many = get_origin(kind) is list
        if many:
            (kind,) = get_args(kind)
        if get_origin(kind) is Literal and all(isinstance(word, str) for word in get_args(kind)):
            kind = get_args(kind)
        elif (not _is_words(kind) and kind not in (bool, str, int, float, Path)) or (
            kind is bool and many
        ):
            raise _Unusual
        found.append(_Parameter(name, kind, many, parameter.default, said[0]))
    return found


_ONE = frozenset([bool, str, int, float, Path])


def _is_words(kind: object) -> bool:
    """Whether it is an enumeration of words."""
    return (
        isinstance(kind, type)
        and issubclass(kind, enum.Enum)
        and all(isinstance(member.value, str) for member in kind)
    )


def _read(parameters: Sequence[_Parameter], words: list[str]) -> dict[str, object]:
    named: dict[str, tuple[_Parameter, bool]] = {}
    places: list[_Parameter] = []
    for parameter in parameters:
        if isinstance(parameter.said, Argument):
            places.append(parameter)
            continue
        for spelling, value in _spellings(parameter, parameter.said):
            named[spelling] = (parameter, value)
    if any(place.many for place in places[:-1]):
        raise _Unusual
    given: dict[str, object] = {}
    free: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            free += waiting
        elif not word.startswith("-") or word == "-":
            free.append(word)
        else:
            _option(named, word, waiting, given)
    for place in places:
        if place.many:
            taken, free = free, []
            if taken:
                given[place.name] = [place.read(word) for word in taken]
        elif free:
            given[place.name] = place.read(free.pop(0))
    if free:
        raise _Unusual
    for parameter in parameters:
        if parameter.name not in given:
            if parameter.default is inspect.Parameter.empty:
                raise _Unusual
            given[parameter.name] = parameter.default
        if isinstance(parameter.said, Option) and parameter.said.callback is not None:
            given[parameter.name] = parameter.said.callback(given[parameter.name])
    return given


def _spellings(parameter: _Parameter, said: Option) -> list[tuple[str, bool]]:
    """How an option is written, and what a flag then is."""
    if said.names:
        if any("/" in name for name in said.names):
            raise _Unusual
        return [(name, True) for name in said.names]
    name = parameter.name.replace("_", "-")
    if parameter.kind is bool:
        return [(f"--{name}", True), (f"--no-{name}", False)]
    return [(f"--{name}", True)]


def _option(
    named: dict[str, tuple[_Parameter, bool]], word: str, waiting: Any, given: dict[str, Any]
) -> None:
    """Take an option, and the word after it where that is its value."""
    spelling, equals, value = word.partition("=")
    if equals and not word.startswith("--"):
        raise _Unusual
    found = named.get(spelling)
    if found is None:
        raise _Unusual
    parameter, flag = found
    if parameter.kind is bool:
        if equals:
            raise _Unusual
        given[parameter.name] = flag
        return
    if not equals:
        value = next(waiting, "-")
        if value.startswith("-"):  # missing, or meant so
            raise _Unusual
    read = parameter.read(value)
    if parameter.many:
        given.setdefault(parameter.name, []).append(read)
    else:
        given[parameter.name] = read
