"""The one door to the compiler: contexts, parsing, passes, and compilation in a subprocess.

Outside this folder no module imports ``iree.compiler``. Rewriting happens in process; compilation
runs the ``iree-compile`` binary, because a crash of the compiler must not take its caller along.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import iree.compiler
from iree.compiler import ir, rewrite
from iree.compiler.passmanager import PassManager

from mlirules.drivers.iree import dialects, program
from mlirules.drivers.iree.program import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean

__all__ = [
    "PHASES",
    "WHOLE_BUFFERS",
    "CompileError",
    "PassManager",
    "Program",
    "Source",
    "compile_here",
    "compile_module",
    "constraints_of",
    "context",
    "flags_for",
    "ir",
    "is_registered_op",
    "known_dialects",
    "lower",
    "lower_to",
    "op_documentation",
    "op_suggestion",
    "parse",
    "registered_ops",
    "rewrite",
    "run_passes",
    "run_tool",
    "single_threaded",
    "smtlib",
    "tool_path",
    "version",
]

dialects.install()

#: Values of ``--compile-to`` and ``--compile-from``, in the order the compiler passes them.
PHASES = (
    "start",
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
    "end",
)

#: What a program with kernels of its own needs on Vulkan.
WHOLE_BUFFERS = "--iree-scheduling-optimize-bindings=false"

_LIBS = Path(next(iter(iree.compiler.__path__))) / "_mlir_libs"
_STDIN = "<stdin>"
#: What the compiler calls a program without a file, as one given to the bindings.
_UNNAMED = ("-", _STDIN)

#: What can be compiled. The locations of a bare module mean no text that is known.
Source: TypeAlias = str | ir.Module | Program

_Lines: TypeAlias = Callable[[], Sequence[str]]


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


# ---------------------------------------------------------------- contexts and parsing


def context() -> ir.Context:
    """A fresh context with every dialect of the compiler."""
    return ir.Context()


@functools.cache
def _shared_context() -> ir.Context:
    return ir.Context()


def version() -> str:
    """The installed compiler's release, as ``3.13.0``."""
    return importlib.metadata.version("iree-base-compiler")


def is_registered_op(name: str) -> bool:
    """Whether ``name`` (``torch.aten.mm``) is an operation of the installed compiler."""
    return bool(_shared_context().is_registered_operation(name))


@functools.cache
def _all_ops() -> frozenset[str]:
    # The bindings cannot list operations, so the library's string literals are the candidates and
    # the context has the last word. About a second, paid only when something must be suggested.
    pattern = re.compile(rb"\0([a-z][a-z0-9_]*(?:\.[A-Za-z_]\w*)+)(?=\0)")
    with (
        (_LIBS / "libIREECompiler.so").open("rb") as library,
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
    shown = subprocess.run(
        [tool_path("iree-opt"), "--show-dialects"], capture_output=True, text=True, timeout=60
    )
    listed = shown.stdout.rpartition(":")[2]
    return tuple(sorted(name.strip() for name in listed.split(",") if name.strip()))


def op_suggestion(name: str) -> str:
    """A ``did you mean`` sentence for an operation that is not registered, or an empty string."""
    dialect = name.partition(".")[0]
    if dialect not in known_dialects():
        return did_you_mean(dialect, known_dialects())
    return did_you_mean(name, registered_ops(dialect))


def parse(text: str | bytes, path: str = "<string>", ctx: ir.Context | None = None) -> ir.Module:
    """Parse and verify MLIR ``text``; ``path`` is what faults call it.

    Raises MlirulesError with every diagnostic located, and near names for an unknown operation.
    """
    try:
        return ir.Module.parse(text, ctx if ctx is not None else context())
    except ir.MLIRError as error:
        said = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        raise MlirulesError(_faults_of(error, "mlir", path, said)) from error


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run a textual pass ``pipeline`` (``builtin.module(...)``) on ``module``, in place.

    Raises MlirulesError when the pipeline does not parse and CompileError when a pass fails;
    ``module`` is then in an intermediate state.
    """
    try:
        manager = PassManager.parse(pipeline, module.context)
    except ValueError as error:
        raise MlirulesError(_pipeline_fault(str(error), pipeline)) from error
    try:
        manager.run(module.operation)
    except ir.MLIRError as error:
        faults = _faults_of(error, "pass", "<module>", "")
        raise CompileError("error", str(error), faults, _op_in(str(error))) from error


def _pipeline_fault(message: str, pipeline: str) -> Fault:
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


def _faults_of(error: ir.MLIRError, code: str, path: str, text: str) -> list[Fault]:
    lines = text.split("\n")
    faults = []
    for diagnostic in error.error_diagnostics:
        notes = [note.message for note in diagnostic.notes if _worth_telling(note.message)]
        message = "; ".join([_clean(diagnostic.message), *notes])
        span = _span_of(str(diagnostic.location), path, lines)
        faults.append(Fault(span, code, message, _suggest(message)))
    return faults or [Fault(Span(path), code, str(error).strip())]


def _worth_telling(note: str) -> bool:
    return not note.startswith(("see current operation", "Available dialects"))


def _span_of(location: str, path: str, lines: Sequence[str]) -> Span:
    found = re.search(r'"([^"]*)":(\d+):(\d+)', location)
    if not found or found[2] == "0":
        return Span(path)
    if found[1] not in _UNNAMED:  # a loc(...) written in the text names another file
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


# ---------------------------------------------------------------- tools and compilation


def tool_path(name: str) -> Path:
    """The path of a binary of the compiler's wheel: ``iree-compile``, ``iree-opt``, ``iree-link``.

    Raises MlirulesError when the wheel has no such binary.
    """
    path = _LIBS / name
    if not path.is_file():
        raise MlirulesError.at(name, f"the installed compiler has no {name!r}", code="tool")
    return path


def run_tool(
    name: str,
    arguments: Sequence[str],
    *,
    stdin: str = "",
    path: str = "<string>",
    timeout: float | None = None,
) -> tuple[str, str]:
    """Run a compiler binary with ``stdin`` and return what it printed: (stdout, stderr).

    ``path`` is what faults call the text on stdin; ``timeout`` in seconds. Raises CompileError.
    """
    return _run_tool(name, arguments, stdin, path, timeout, lambda: stdin.split("\n"))


def _run_tool(
    name: str,
    arguments: Sequence[str],
    stdin: str,
    path: str,
    timeout: float | None,
    lines: _Lines,
) -> tuple[str, str]:
    command = [str(tool_path(name)), *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            stdout, stderr = process.communicate()
            message = f"{name} was stopped after {timeout:g} s"
            raise CompileError("timeout", stderr, [Fault(Span(path), "timeout", message)]) from None
        except BaseException:  # an interrupt, too, must not leave the compiler running
            _kill(process)
            raise
    if process.returncode:
        raise _failure(name, process.returncode, stderr, path, lines)
    return stdout, stderr


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
        os.killpg(process.pid, signal.SIGKILL)


@functools.cache
def _known_flags() -> frozenset[str]:
    said, _ = run_tool("iree-compile", ["--help-hidden"])
    return frozenset(re.findall(r"^\s+(--[\w-]+)", said, re.MULTILINE))


def has_flag(name: str) -> bool:
    """Whether iree-compile knows a flag (``--iree-opt-data-tiling``)."""
    return name in _known_flags()


def flags_for(
    target: Target, source: Source = "", *, compile_from: str | None = None
) -> tuple[str, ...]:
    """The flags that a program needs to be compiled for ``target``.

    Besides the target's own: torch input when the program has torch operations or casts, and
    64-bit floats kept when the signature of a public function has them (the compiler turns them
    into 32 bits otherwise; keeping them elsewhere breaks programs that only compute with f64
    scalars inside). A text that does not parse gets the target's own: compiling it will say why.
    """
    found = _program(source)
    return _flags_for(target, program.facts(found.module) if found else None, compile_from)


def _flags_for(
    target: Target, facts: program.Facts | None, compile_from: str | None
) -> tuple[str, ...]:
    flags = list(target.flags)
    if facts is None:
        return tuple(flags)
    if compile_from is None and facts.torch:
        flags.append("--iree-input-type=torch")
    if target.kind == "vulkan" and facts.kernels:
        # Tensors in one buffer come with offsets, which SPIR-V code generation only understands in
        # types that it has made itself: a kernel's buffers begin where its tensors do.
        flags.append(WHOLE_BUFFERS)
    if facts.wide:
        flags.append("--iree-input-demote-f64-to-f32=false")
    return tuple(flags)


#: Texts longer than this are parsed in a context of their own, with which their weights go.
_LARGE = 1 << 20


def _program(source: Source) -> Program | None:
    """A source as a module; None for a text that does not parse."""
    if isinstance(source, Program):
        return source
    if isinstance(source, ir.Module):
        return Program(source)
    try:
        here = context() if len(source) > _LARGE else _shared_context()
        return Program(ir.Module.parse(source, here), source)
    except ir.MLIRError:
        return None


def compile_module(
    source: Source,
    target: Target,
    *,
    flags: Sequence[str] = (),
    timeout: float | None = None,
    path: str = "<string>",
    compile_from: str | None = None,
    diagnostics: list[Fault] | None = None,
) -> bytes:
    """Compile a program for ``target`` and return the vmfb.

    ``flags`` are added after those of :func:`flags_for` and win over them; ``timeout`` is in
    seconds; ``path`` is what faults call the program; ``compile_from`` resumes at a phase.
    Warnings are appended to ``diagnostics`` when given. Raises CompileError, also where the
    compiler reports an error but exits with success, and MlirulesError for flags that it would
    ignore for this target.
    """
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        output = Path(directory) / "module.vmfb"
        extra = ["-o", str(output)]
        _compile(source, target, flags, extra, timeout, path, compile_from, diagnostics)
        return output.read_bytes()


def lower_to(
    source: Source,
    target: Target,
    phase: str,
    *,
    flags: Sequence[str] = (),
    timeout: float | None = None,
    path: str = "<string>",
    compile_from: str | None = None,
    diagnostics: list[Fault] | None = None,
) -> str:
    """The program as MLIR text after compilation up to ``phase`` (one of :data:`PHASES`).

    Arguments and errors as for :func:`compile_module`.
    """
    _check_phase(phase, "--compile-to")
    extra = [f"--compile-to={phase}", "-o", "-"]
    return _compile(source, target, flags, extra, timeout, path, compile_from, diagnostics)


def lower(
    source: Program,
    target: Target,
    phase: str,
    *,
    flags: Sequence[str] = (),
    timeout: float | None = None,
    path: str = "<string>",
    compile_from: str | None = None,
) -> Program:
    """Like :func:`lower_to`, as a module in the context of the program's."""
    _check_phase(phase, "--compile-to")
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        output = Path(directory) / "module.mlirbc"
        extra = [f"--compile-to={phase}", "--emit-mlir-bytecode", "-o", str(output)]
        _compile(source, target, flags, extra, timeout, path, compile_from, None)
        try:
            module = program.of_bytecode(output, source.module.context)
        except ir.MLIRError as error:
            raise MlirulesError(_faults_of(error, "mlir", f"{path} after {phase}", "")) from error
    return Program(module, source.origin)


def _compile(
    source: Source,
    target: Target,
    flags: Sequence[str],
    extra: Sequence[str],
    timeout: float | None,
    path: str,
    compile_from: str | None,
    diagnostics: list[Fault] | None,
) -> str:
    found = _program(source)
    lines = _lines_of(source)
    arguments = [*_arguments(target, found, flags, compile_from), *extra]
    if found is None:  # the compiler says what is wrong with it
        assert isinstance(source, str)
        stdout, stderr = _run_tool("iree-compile", ["-", *arguments], source, path, timeout, lines)
    else:
        with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
            # As bytecode, because writing weights as text and reading that takes seconds.
            handed = Path(directory) / "module.mlirbc"
            with handed.open("wb") as file:
                found.module.operation.write_bytecode(file)
            command = [str(handed), *arguments]
            stdout, stderr = _run_tool("iree-compile", command, "", path, timeout, lines)
    said = _checked_diagnostics(stderr, flags, path, lines)
    if diagnostics is not None:
        diagnostics.extend(said)
    return stdout


def _lines_of(source: Source) -> _Lines:
    """The lines that locations in the source mean, found when something must be located."""

    @functools.cache
    def lines() -> Sequence[str]:
        if isinstance(source, str):
            return source.split("\n")
        return source.lines() if isinstance(source, Program) else ()

    return lines


def _arguments(
    target: Target, source: Program | None, flags: Sequence[str], compile_from: str | None
) -> list[str]:
    _check_flags(target, flags)
    facts = None if source is None else program.facts(source.module)
    _check_kernels(target, facts)
    arguments = list(_flags_for(target, facts, compile_from))
    if compile_from is not None:
        _check_phase(compile_from, "--compile-from")
        arguments.append(f"--compile-from={compile_from}")
    given = {flag.partition("=")[0] for flag in flags}
    if "--iree-llvmcpu-target-cpu" in given:  # the features are those of the CPU it replaces
        given.add("--iree-llvmcpu-target-cpu-features")
    return [a for a in arguments if a.partition("=")[0] not in given] + list(flags)


def _checked_diagnostics(
    stderr: str, flags: Sequence[str], path: str, lines: _Lines
) -> list[Fault]:
    """What a compilation that reported success printed. Raises CompileError for ignored flags."""
    said = list(_diagnostics(stderr, path, lines))
    # A torch pattern may complain about an op of the program that another pattern then converts.
    # An error about the flags or their files means that something asked for was left out.
    asked = " ".join(["iree-compile", "MLIR Textual PassPipeline Parser", *flags])
    ignored = [f for f in said if f.severity == "error" and f.span.path in asked]
    if ignored:
        raise CompileError("error", stderr, ignored, _op_in(stderr))
    return said


def compile_here(
    source: str | ir.Module,
    target: Target,
    *,
    flags: Sequence[str] = (),
    path: str = "<string>",
) -> bytes:
    """Like :func:`compile_module`, inside this process: no start of ``iree-compile`` to pay for.

    For worker processes that compile many small programs and can be spared: a crash of the
    compiler ends this process, and nothing can stop a compilation that hangs. While it compiles,
    what any thread writes to file descriptor 2 is taken for the compiler's. Flags that hold for a
    whole process start one all the same. Raises CompileError.
    """
    if not _for_a_session(tuple(flags)):
        return compile_module(source, target, flags=flags, path=path)
    text = source if isinstance(source, str) else source.operation.get_asm()
    arguments = tuple(_arguments(target, _program(source), flags, None))
    lines = _lines_of(text)
    vmfb: bytes | None = None
    with _stderr_captured() as said:
        try:
            vmfb = _invoke(_session(arguments), text)
        except ValueError as error:  # flags it does not know, or a program it could not serialize
            os.write(2, f"error: {' '.join(str(error).split())}\n".encode())
    stderr = "".join(said)
    if vmfb is None:
        raise _failure("iree-compile", 1, stderr, path, lines)
    _checked_diagnostics(stderr, flags, path, lines)
    return vmfb


def _embedding_api() -> Any:
    return importlib.import_module("iree.compiler.api")  # initialises a compiler: when needed only


@functools.cache
def _for_a_session(flags: tuple[str, ...]) -> bool:
    """Whether no flag is one of those that exist once in a process, unknown to a session."""
    with _stderr_captured():
        try:
            _embedding_api().Session().set_flags(*flags)
        except ValueError as error:
            return "option not found" not in str(error)
    return True


@functools.cache
def _session(flags: tuple[str, ...]) -> Any:
    session = _embedding_api().Session()
    session.set_flags(*flags)
    return session


def single_threaded() -> None:
    """Let :func:`compile_here` use no threads of its own, from now on in this process.

    To be called once, before the first compilation; worth it where several workers share the
    cores.
    """
    _embedding_api()._initializeGlobalCL("mlirules", "--mlir-disable-threading")


def _invoke(session: Any, text: str) -> bytes | None:
    api = _embedding_api()
    source = api.Source.wrap_buffer(session, text.encode() + b"\0", buffer_name=_STDIN)
    invocation = session.invocation()
    try:
        invocation.enable_console_diagnostics()
        if not (invocation.parse_source(source) and invocation.execute()):
            return None
        output = api.Output.open_membuffer()
        try:
            invocation.output_vm_bytecode(output)
            return bytes(output.map_memory())
        finally:
            output.close()
    finally:
        invocation.close()
        source.close()


@contextlib.contextmanager
def _stderr_captured() -> Iterator[list[str]]:
    """What is written to file descriptor 2 inside, as one string in the list, afterwards."""
    said: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def _check_phase(phase: str, flag: str) -> None:
    if phase not in PHASES:
        raise MlirulesError.at(
            flag,
            f"unknown phase {phase!r}",
            code="phase",
            suggestion=did_you_mean(phase, PHASES) or "known: " + ", ".join(PHASES),
        )


def _check_kernels(target: Target, facts: program.Facts | None) -> None:
    others = facts.kernels - {target.kind} if facts is not None else set()
    if others:
        raise MlirulesError.at(
            str(target),
            f"the program holds kernels written for {', '.join(sorted(others))}",
            code="kernel-target",
            suggestion="apply the rules with the target that the program is compiled for",
        )


def _check_flags(target: Target, flags: Sequence[str]) -> None:
    spec = "--iree-codegen-tuning-spec-path"
    if not target.reads_tuning_spec and any(f.partition("=")[0] == spec for f in flags):
        raise MlirulesError.at(
            spec,
            f"the compiler ignores a tuning spec for {target.name!r} without a word",
            code="flag",
            suggestion="use --iree-codegen-transform-dialect-library=FILE for this target",
        )


# ---------------------------------------------------------------- what the compiler printed

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


def _diagnostics(stderr: str, path: str, lines: _Lines) -> Iterator[Fault]:
    for printed in stderr.splitlines():
        found = _DIAGNOSTIC.match(printed)
        if found:
            line, column = int(found["line"]), int(found["column"] or 0)
            message = _clean(found["message"])
            if found["path"] in _UNNAMED:
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


def _failure(name: str, code: int, stderr: str, path: str, lines: _Lines) -> CompileError:
    errors = [f for f in _diagnostics(stderr, path, lines) if f.severity == "error"]
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
    op = _op_in(stderr) or _op_at(faults[0].span)
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


def _op_in(stderr: str) -> str | None:
    found = re.search(
        r"failed to legalize operation '([\w.$]+)'"
        r"|'([a-z_]\w*\.[\w.$]+)' op "
        r"|custom op '([\w.$]+)'"
        r'|see current operation: (?:%[\w:, #%]+ = )?"?([a-z_]\w*\.[\w.$]+)',
        stderr,
    )
    return next(filter(None, found.groups()), None) if found else None


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


def indexing_maps(op: ir.Operation) -> list[Any] | None:
    """The indexing maps of a structured op (named or generic), or None for other ops."""
    from iree.compiler.dialects import linalg  # takes a tenth of a second; few rules need it

    maps = linalg.get_indexing_maps(op)
    return None if maps is None else [ir.AffineMapAttr(m).value for m in maps]


def is_contraction(op: ir.Operation) -> bool:
    """Whether a linalg op, named or generic, is a contraction."""
    from iree.compiler.dialects import linalg

    return bool(linalg.isa_contraction_op(op))


def is_convolution(op: ir.Operation) -> bool:
    """Whether a linalg op, named or generic, is a convolution."""
    from iree.compiler.dialects import linalg

    return bool(linalg.isa_convolution_op(op))


def constraints_of(module: ir.Module) -> Iterator[ir.Operation]:
    """The ops of a module in which the compiler states what configurations must satisfy."""

    yield from (
        op for op in ops_below(module.operation) if op.name == "iree_codegen.smt.constraints"
    )


def smtlib(op: ir.Operation) -> str:
    """What an op of :func:`constraints_of` states, as SMT-LIB text."""
    from iree.compiler.dialects import iree_codegen

    return str(iree_codegen.convert_constraints_op_to_smtlib(op))
