"""The Python function that says what a custom op computes: where it stands, and what it needs.

A rule names it by ``reference: FILE.py:FUNCTION``; the file lies beside the rule. Nothing here
executes it: that it is there is read from its syntax tree.
"""

from __future__ import annotations

import ast as python
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlirules.language.consent import Need, admit, ships
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.notation import ast
from mlirules.language.rule import InFile, Rule
from mlirules.support import files

__all__ = ["Reference", "faults", "reference_of", "root_op"]

#: A larger file is no function beside a rule.
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Reference:
    """A Python function that computes what an op of the program does."""

    op: str
    file: Path
    function: str
    #: Where the rule names it.
    span: Span

    def __str__(self) -> str:
        return f"{self.file.name}:{self.function}"

    def admit(self) -> None:
        """Let it run. Raises :class:`MlirulesError` where the user did not agree."""
        rule = Path(self.span.path)
        if ships(rule) and ships(self.file):
            return
        what = f"is compared with {self}, which runs as it is written"
        for path in (rule, self.file):
            admit(Need(self.span, what, path, python=True))


def root_op(rule: Rule) -> str | None:
    """The op that a rule is about, a custom one by its own name; None where that is not fixed."""
    if not rule.match:
        return None
    call = rule.root.equation.call
    if call.fn != "torch.operator":
        return call.fn
    name = dict(call.attrs).get("name")
    return name.value if isinstance(name, ast.Literal) and isinstance(name.value, str) else None


def reference_of(rule: InFile) -> Reference | None:
    """The function that a rule names. None where it names none, or for no certain op."""
    if not isinstance(rule, Rule) or rule.doc.reference is None:
        return None
    op = root_op(rule)
    if op is None:
        return None
    name, _, function = rule.doc.reference.partition(":")
    span = rule.source.span_at(("reference",))
    return Reference(op, Path(rule.path).parent / name, function, span)


def faults(rule: Rule) -> Iterator[Fault]:
    """What is wrong with a rule's `reference:`, as far as it shows without running it."""
    if rule.doc.reference is None:
        return
    span = rule.source.span_at(("reference",))
    found = reference_of(rule)
    if found is None:
        yield Fault(
            span,
            "reference",
            "the function would stand for the root op, whose name is not fixed",
            'write the root as an op: y = torch.operator(x) {name = "torch.my.op"}',
        )
        return
    try:
        defined = _defined(found.file)
    except MlirulesError as error:
        yield Fault(span, "reference", error.faults[0].message, error.faults[0].suggestion)
        return
    if found.function not in defined:
        yield Fault(
            span,
            "reference",
            f"{found.file.name} defines no {found.function!r}",
            did_you_mean(found.function, defined) or "it is a function of the file's top level",
        )


def _defined(file: Path) -> set[str]:
    """The names that a Python file binds at its top level. Raises :class:`MlirulesError`."""
    if not files.is_file(file):
        raise MlirulesError.at(
            str(file),
            f"there is no file {file.name!r} beside the rule",
            suggestion="the function stands in a Python file in the rule's own folder",
        )
    try:
        data = file.read_bytes()
        if len(data) > _MAX_BYTES:
            raise MlirulesError.at(str(file), f"{file.name} is larger than {_MAX_BYTES} bytes")
        tree = python.parse(data)
    except OSError as error:
        raise MlirulesError.at(str(file), f"cannot read {file.name}: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise MlirulesError.at(str(file), f"{file.name} is no Python{line}: {said}") from None
    out: set[str] = set()
    for node in tree.body:
        if isinstance(node, (python.FunctionDef, python.ClassDef)):
            out.add(node.name)
        elif isinstance(node, (python.Import, python.ImportFrom)):
            out |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, python.Assign):
            out |= {t.id for t in node.targets if isinstance(t, python.Name)}
        elif isinstance(node, python.AnnAssign) and isinstance(node.target, python.Name):
            out.add(node.target.id)
    return out
