"""Programs as stages take them: modules of the session's context, read from text or bytecode."""

from __future__ import annotations

import io
import re
from pathlib import Path

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler, program
from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.diagnostics import faults_of
from mlirules.language.faults import MlirulesError

__all__ = ["as_program", "load_program", "located", "parsed", "read_program", "shared_context"]


def shared_context() -> ir.Context:
    """The context of the session that this thread is in."""
    return current().context


def read_program(path: str | Path) -> str:
    """The text of an MLIR program, weights included: for those who look at the text.

    What is applied and compiled comes from :func:`load_program`. Raises :class:`MlirulesError` when
    it cannot be read.
    """
    try:
        data = Path(path).read_bytes()
        return (
            str(_mapped(Path(path), current()))
            if program.is_bytecode(data)
            else data.decode("utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MlirulesError.at(str(path), f"cannot be read: {reason}", code="file") from None


def load_program(path: str | Path, session: Session | None = None) -> Program:
    """The program in a file of MLIR text or bytecode, as stages take it in ``session``.

    Raises :class:`MlirulesError` when it cannot be read or is wrong, located.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if program.is_bytecode(file.read(len(program.MAGIC))):
                return Program(_mapped(path, session or current()))
        data = path.read_bytes()
        try:
            return Program(parsed(data, str(path), session), path)
        except MlirulesError:
            data.decode("utf-8")  # says better what is wrong, if that is it
            raise
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MlirulesError.at(str(path), f"cannot be read: {reason}", code="file") from None


def _mapped(path: Path, session: Session) -> ir.Module:
    try:
        module = program.of_bytecode(path, session.context)
    except ir.MLIRError as error:
        raise MlirulesError(faults_of(error, "mlir", str(path), "")) from None
    program.inline_resources(module)
    return module


def parsed(text: str | bytes, path: str = "<string>", session: Session | None = None) -> ir.Module:
    """A program's text as a module in a session's context, as stages take it.

    Without ``session`` it is that of this thread, here and below.

    Raises :class:`MlirulesError`, located.
    """
    module = compiler.parse(text, path, (session or current()).context)
    program.inline_resources(module)
    return module


def as_program(
    source: str | ir.Module | Program, path: str, session: Session | None = None
) -> Program:
    """A source as a program of a session's context: the one given, if it is of that."""
    session = session or current()
    if isinstance(source, str):
        return Program(parsed(source, path, session), source)
    given = source if isinstance(source, Program) else Program(source)
    if given.module.context == session.context:
        return given
    data = io.BytesIO()
    given.module.operation.write_bytecode(data)
    return Program(parsed(data.getvalue(), path, session), given.origin)


def located(location: str, path: str) -> str:
    """A location with the program's path: a program that was parsed from text is called ``-``."""
    return re.sub(r"(?<![^\s\[,])-(?=:\d+:\d+)", lambda _: path, location)
