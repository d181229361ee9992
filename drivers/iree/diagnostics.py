"""What the compiler says of a program, as located faults."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.iree.ops import is_registered_op, op_suggestion
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean

STDIN = "<stdin>"
#: What the compiler calls a program without a file, as one given to the bindings.
UNNAMED = ("-", STDIN)
Lines: TypeAlias = Callable[[], Sequence[str]]


class CompileError(MlirulesError):
    """The compiler did not deliver.

    ``kind`` is ``error`` (it said why), ``crash`` (it died) or ``timeout``. ``faults`` holds the
    errors located in the program, the first real one first; ``op`` names the operation it is
    about, when the compiler told; ``stderr`` is all it printed.
    """

    def __init__(
        self, kind: str, stderr: str, faults: Sequence[Fault], op: str | None = None
    ) -> None:
        super().__init__(faults)
        self.kind = kind
        self.stderr = stderr
        self.op = op


def pipeline_fault(message: str, pipeline: str) -> Fault:
    """A pass pipeline that does not parse, at its place."""
    found = re.search(r":(\d+):(\d+): error: (.*)", message)
    if not found:
        return Fault(Span("<pipeline>"), "pipeline", message.strip())
    line, column = int(found[1]), int(found[2])
    # The parser strips the outer `builtin.module(` before it counts columns.
    inner = message.splitlines()[1] if len(message.splitlines()) > 1 else ""
    start = pipeline.find(inner) if inner else -1
    return Fault(
        Span("<pipeline>", line, column + max(start, 0), source_line=pipeline),
        "pipeline",
        found[3],
    )


def faults_of(error: ir.MLIRError, code: str, path: str, text: str) -> list[Fault]:
    """The bindings' errors, located in the program."""
    lines = text.split("\n")
    faults = []
    for diagnostic in error.error_diagnostics:
        notes = [note.message for note in diagnostic.notes if _worth_telling(note.message)]
        message = "; ".join([_clean(diagnostic.message), *notes])
        span = _span_of(str(diagnostic.location), path, lines)
        faults.append(Fault(span, code, message, _suggest(message)))
    return faults or [Fault(Span(path), code, str(error).strip())]


def _worth_telling(note: str) -> bool:
    return not note.startswith(
        ("see current operation", "Available dialects", "in bytecode version")
    )


def _span_of(location: str, path: str, lines: Sequence[str]) -> Span:
    found = re.search(r'"([^"]*)":(\d+):(\d+)', location)
    if not found or found[2] == "0":
        return Span(path)
    if found[1] not in UNNAMED:  # a loc(...) written in the text names another file
        return Span(found[1], int(found[2]), int(found[3]))
    return _source_span(path, int(found[2]), int(found[3]), lines)


def _source_span(path: str, line: int, column: int, lines: Sequence[str]) -> Span:
    if not 1 <= line <= len(lines):
        return Span(path, line, column)
    source = lines[line - 1]
    word = re.match(r"[\w.!%@#$-]+", source[column - 1 :])
    return Span(path, line, column, len(word[0]) if word else 1, source)


def _clean(message: str) -> str:
    """``message`` without the operation that the compiler prints after it, often pages long."""
    legalize = r"(failed to legalize operation '[^']*'(?: that was explicitly marked illegal)?): .*"
    return re.sub(legalize, r"\1", message.strip(), flags=re.DOTALL)


def _suggest(message: str) -> str:
    unknown = re.search(
        r"custom op '([\w.]+)' is unknown|unregistered operation '([\w.]+)'"
        r"|not found for custom op '([\w.]+)'",
        message,
    )
    if not unknown:
        return ""
    return op_suggestion(unknown[1] or unknown[2] or unknown[3])


_DIAGNOSTIC = re.compile(
    r"^(?P<path>[^\s:][^:\n]*):(?P<line>\d+)(?::(?P<column>\d+))?: "
    r"(?P<severity>error|warning): (?P<message>.*)$"
)
_PLAIN = re.compile(r"^(?:[\w/.-]+: )?(?:(?:error|ERROR|LLVM ERROR|warning): )(?P<message>.*)$")
_CONSEQUENCES = (
    "failed to run translation of source executable",
    "failed to run pass pipeline",
    "failed to link executable",
    "failed to serialize executable",
)


def diagnostics(stderr: str, path: str, lines: Lines) -> Iterator[Fault]:
    """The errors and warnings that the compiler printed."""
    for printed in stderr.splitlines():
        found = _DIAGNOSTIC.match(printed)
        if found:
            line, column = int(found["line"]), int(found["column"] or 0)
            message = _clean(found["message"])
            if found["path"] in UNNAMED:
                span = _source_span(path, line, column, lines()) if line else Span(path)
            elif found["path"] == "<unknown>":
                span = Span("iree-compile")
            else:
                span = _file_span(found["path"], line, column)
            yield Fault(span, "compile", message, _suggest(message), found["severity"])
            continue
        plain = _PLAIN.match(printed)
        if plain:
            severity = "warning" if "warning: " in printed[: plain.start("message")] else "error"
            yield Fault(
                Span("iree-compile"), "compile", plain["message"].strip(), severity=severity
            )


def _file_span(path: str, line: int, column: int) -> Span:
    try:
        lines = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError):  # a location need not name a file that exists here
        lines = []
    return _source_span(path, line, column, lines)


def failure(name: str, code: int, stderr: str, path: str, lines: Lines) -> CompileError:
    """Why the compiler did not deliver, from its exit code and what it printed."""
    errors = [f for f in diagnostics(stderr, path, lines) if f.severity == "error"]
    causes = [f for f in errors if not f.message.startswith(_CONSEQUENCES)]
    # A linker error has no place in the program, but what fails in consequence has.
    located = next((f.span for f in errors if f not in causes and f.span.line), None)
    if located is not None:
        causes = [f if f.span.line else replace(f, span=located) for f in causes]
    faults = list(dict.fromkeys(causes or errors[:1]))
    crashed = code < 0 or code >= 128 or "Stack dump:" in stderr
    if crashed:
        where = _crash_site(stderr)
        message = f"{name} crashed ({_signal_name(code)})" + (f" in {where}" if where else "")
        faults.append(Fault(Span(path), "crash", message))
    if not faults:
        said = [line for line in stderr.splitlines() if line.strip()]
        message = said[0].strip() if said else f"{name} failed with exit code {code}"
        # "Unknown command line argument": without the binary's path and its advice to read --help
        message = message.removeprefix(f"{name}: ").partition("  Try: ")[0]
        # The tool always proposes some flag, however far.
        given, near = re.search(r"'(-[^'=]*)", message), re.search(r"mean '([^']+)'", stderr)
        suggestion = did_you_mean(given[1], [near[1]]) if given and near else ""
        faults.append(Fault(Span(name), "compile", message, suggestion))
    op = op_in(stderr) or _op_at(faults[0].span)
    return CompileError("crash" if crashed else "error", stderr, faults, op)


def _op_at(span: Span) -> str | None:
    """The operation whose name stands at ``span``, or later in its line."""
    found = re.search(r"\b[a-z_]\w*\.[a-zA-Z_][\w.]*", span.source_line[span.column - 1 :])
    return found[0] if found and is_registered_op(found[0]) else None


def _signal_name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


_NOT_THE_SITE = ("llvm::", "SignalHandler", "(/", "__", "raise", "abort", "std::")


def _crash_site(stderr: str) -> str:
    """The innermost frame of the compiler's own code, which tells one crash from another."""
    for frame in re.finditer(
        r"^\s*#\d+ 0x[0-9a-f]+ (.+?)(?: \S+\.\w+:\d+:\d+)?$", stderr, re.MULTILINE
    ):
        symbol = frame[1].removeprefix("void ")
        if not symbol.startswith(_NOT_THE_SITE):
            return symbol.replace("(anonymous namespace)::", "").partition("(")[0]
    return ""


def op_in(stderr: str) -> str | None:
    """The op that a message is about, where it names one."""
    found = re.search(
        r"failed to legalize operation '([\w.$]+)'"
        r"|'([a-z_]\w*\.[\w.$]+)' op "
        r"|custom op '([\w.$]+)'"
        r'|see current operation: (?:%[\w:, #%]+ = )?"?([a-z_]\w*\.[\w.$]+)',
        stderr,
    )
    return next(filter(None, found.groups()), None) if found else None
