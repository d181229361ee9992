"""The operations of the installed compiler: which there are, and what is near to a wrong name."""

from __future__ import annotations

import functools
import importlib
import inspect
import mmap
import re
from pathlib import Path

from mlirules.drivers.iree.bindings import ir
from mlirules.language.faults import MlirulesError, did_you_mean
from mlirules.support import children

LIBS = Path(ir.__file__).parent / "_mlir_libs"


def revision() -> str:
    """The very compiler that is installed, for keys: quicker to tell than its release."""
    from iree.compiler import version as made

    return f"{made.VERSION} {made.REVISIONS.get('IREE', '')}"


@functools.cache
def shared_context() -> ir.Context:
    """A context for questions about ops; no program is parsed in it."""
    made = ir.Context()
    made.enable_multithreading(False)
    return made


def is_registered_op(name: str) -> bool:
    """Whether ``name`` (``torch.aten.mm``) is an operation of the installed compiler."""
    return bool(shared_context().is_registered_operation(name))


@functools.cache
def _all_ops() -> frozenset[str]:
    # The bindings cannot list operations, so the library's string literals are the candidates and
    # the context has the last word. About a second, paid only when something must be suggested.
    pattern = re.compile(rb"\0([a-z][a-z0-9_]*(?:\.[A-Za-z_]\w*)+)(?=\0)")
    with (
        (LIBS / "libIREECompiler.so").open("rb") as library,
        mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        candidates = {match.group(1).decode() for match in pattern.finditer(data)}
    return frozenset(name for name in candidates if is_registered_op(name))


def registered_ops(dialect: str | None = None) -> list[str]:
    """The operations of ``dialect``, or of every dialect, sorted. The first call takes a second."""
    return sorted(op for op in _all_ops() if dialect is None or op.partition(".")[0] == dialect)


@functools.cache
def known_dialects() -> tuple[str, ...]:
    """The namespaces of all dialects of the installed compiler, sorted."""
    shown = children.run([tool_path("iree-opt"), "--show-dialects"], timeout=60)
    listed = shown.stdout.rpartition(":")[2]
    return tuple(sorted(name.strip() for name in listed.split(",") if name.strip()))


def op_suggestion(name: str) -> str:
    """A ``did you mean`` sentence for an operation that is not registered, or an empty string."""
    dialect = name.partition(".")[0]
    if dialect not in known_dialects():
        return did_you_mean(dialect, known_dialects())
    return did_you_mean(name, registered_ops(dialect))


def tool_path(name: str) -> Path:
    """The path of a binary of the compiler's wheel: ``iree-compile``, ``iree-opt``, ``iree-link``.

    Raises MlirulesError when the wheel has no such binary.
    """
    path = LIBS / name
    if not path.is_file():
        raise MlirulesError.at(name, f"the installed compiler has no {name!r}", code="tool")
    return path


def op_documentation(name: str) -> str:
    """What the installed compiler's bindings say of an op, in Markdown; empty: nothing.

    Dialects without a Python module (torch among them) have no text.
    """
    dialect = name.partition(".")[0]
    if not re.fullmatch(r"[a-z][a-z0-9_]*", dialect):
        return ""
    try:
        module = importlib.import_module(f"iree.compiler.dialects.{dialect}")
    except ImportError:
        return ""
    for found in vars(module).values():
        if isinstance(found, type) and getattr(found, "OPERATION_NAME", "") == name:
            return inspect.cleandoc(found.__doc__ or "")
    return ""


def op_oracle(name: str) -> tuple[bool, list[str]]:
    """Whether the installed compiler has an op, and the ops of its dialect (for suggestions)."""
    if is_registered_op(name):
        return True, []
    return False, registered_ops(name.split(".")[0]) or registered_ops()
