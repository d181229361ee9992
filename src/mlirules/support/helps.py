"""Help that was asked for before, or that came with the package: shown without making it again.

It is kept by the content of what it is made from, so it is never that of another version.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder

from mlirules.support import cache, package

__all__ = ["Help", "asked"]


def asked(given: Sequence[str]) -> bool:
    """Whether the arguments ask for help and for nothing else."""
    own = [word for word in given if word not in ("-h", "--help")]
    return len(given) - len(own) == 1 and len(own) <= 2 and not any(w[:1] == "-" for w in own)


class Help:
    """The help that some arguments ask for."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = list(given)
        words = [word for word in given if word[:1] != "-"]
        # Wider than this makes no difference.
        columns = min(_columns(), 80)
        said = [*words, str(columns), *_made_from()]
        self.key = hashlib.sha256("\0".join(said).encode()).hexdigest()[:32]

    def read(self) -> str | None:
        """The text; None when it was not kept."""
        data = cache.kept("help", self.key)
        return None if data is None else data.decode()

    def keep(self, make: Callable[[list[str]], str | None]) -> str | None:
        """Make it and keep it; None where there is no such help."""
        text = make(self.given)
        if text is not None:
            cache.keep("help", self.key, text.encode(), limit=300)
        return text


def _columns() -> int:
    """The columns of the terminal, as :func:`shutil.get_terminal_size` has them."""
    try:
        given = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        given = 0
    if given > 0:
        return given
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def _made_from() -> list[str]:
    """Hashes of what says the help, and of typer, which writes it."""
    files = [str(package.PACKAGE / "cli.py")]
    with os.scandir(package.PACKAGE / "commands") as found:
        files += sorted(entry.path for entry in found if entry.name.endswith(".py"))
    typer = PathFinder.find_spec("typer")
    if typer is not None and typer.origin is not None:
        files.append(typer.origin)  # it holds the version
    hashes = []
    for path in files:
        with open(path, "rb") as opened:  # noqa: PTH123 - the quickest way
            hashes.append(hashlib.sha256(opened.read()).hexdigest())
    return hashes
