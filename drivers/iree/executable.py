"""What a compiled program is to those who run it: its functions, how it is called, and where."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Entry", "Executable", "Place"]


@dataclass(frozen=True)
class Entry:
    """A function of a compiled program with the kinds of its arguments and results.

    One letter each: ``r`` a tensor, ``i`` / ``I`` an integer of 32 / 64 bits, ``f`` / ``F`` a
    float of 32 / 64 bits.
    """

    name: str
    arguments: str
    results: str


@dataclass(frozen=True)
class Executable:
    """A compiled program, and how it is called."""

    vmfb: bytes
    function: str = "main"
    #: The archives of weights that it loads from, ``[SCOPE=]FILE``.
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a call is run, if not as its target has it."""

    #: A runtime URI instead of the target's own.
    device: str | None = None
    #: Forces or forbids a child process (default: only for targets other than ``cpu``, and
    #: whenever there is a timeout).
    isolated: bool | None = None
    #: In seconds.
    timeout: float | None = None
