"""The one door to the compiler: contexts, parsing, passes, and compilation in a subprocess.

Outside this folder no module imports ``iree.compiler``. Rewriting happens in process; compilation
runs the ``iree-compile`` binary, because a crash of the compiler must not take its caller along.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mlirules.drivers.iree import bytecode, program, tools
from mlirules.drivers.iree.bindings import Op, ir, passmanager, rewrite
from mlirules.drivers.iree.diagnostics import (
    STDIN,
    CompileError,
    Lines,
    diagnostics,
    failure,
    faults_of,
    op_in,
    pipeline_fault,
)
from mlirules.drivers.iree.ops import (
    is_registered_op,
    known_dialects,
    op_documentation,
    op_oracle,
    op_suggestion,
    registered_ops,
    revision,
    tool_path,
)
from mlirules.drivers.iree.program import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.tools import run_tool
from mlirules.language.faults import Fault, MlirulesError, did_you_mean

if TYPE_CHECKING:
    from iree.compiler.api import Session

__all__ = [
    "PHASES",
    "WHOLE_BUFFERS",
    "CompileError",
    "Job",
    "Op",
    "PassManager",
    "Program",
    "Source",
    "compile_here",
    "compile_job",
    "compile_module",
    "context",
    "flags_for",
    "ir",
    "is_registered_op",
    "known_dialects",
    "lower",
    "lower_to",
    "op_documentation",
    "op_oracle",
    "op_suggestion",
    "parse",
    "registered_ops",
    "revision",
    "rewrite",
    "run_passes",
    "run_tool",
    "single_threaded",
    "tool_path",
    "version",
]

PassManager = passmanager.PassManager

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


#: What can be compiled. The locations of a bare module mean no text that is known.
Source: TypeAlias = str | ir.Module | Program


# ---------------------------------------------------------------- contexts and parsing


def context() -> ir.Context:
    """A fresh context with every dialect of the compiler, which works in the caller's thread.

    A fault that MLIR finds in a thread of its own waits for Python's lock, which the caller holds
    until that thread is done: nested modules that were wrong never came back from parsing.
    """
    made = ir.Context()
    made.enable_multithreading(False)
    return made


def version() -> str:
    """The installed compiler's release, as ``3.13.0``."""
    import importlib.metadata  # reads the whole environment's e-mail headers

    return importlib.metadata.version("iree-base-compiler")


def parse(text: str | bytes, path: str = "<string>", ctx: ir.Context | None = None) -> ir.Module:
    """Parse and verify MLIR ``text``; ``path`` is what faults call it.

    Raises MlirulesError with every diagnostic located, and near names for an unknown operation.
    """
    try:
        here = ctx if ctx is not None else context()
        if isinstance(text, bytes) and program.is_bytecode(text):
            return bytecode.parse(text, here)
        return ir.Module.parse(text, here)
    except ir.MLIRError as error:
        said = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        raise MlirulesError(faults_of(error, "mlir", path, said)) from error


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run a textual pass ``pipeline`` (``builtin.module(...)``) on ``module``, in place.

    Raises MlirulesError when the pipeline does not parse and CompileError when a pass fails;
    ``module`` is then in an intermediate state.
    """
    try:
        manager = PassManager.parse(pipeline, module.context)
    except ValueError as error:
        raise MlirulesError(pipeline_fault(str(error), pipeline)) from error
    try:
        manager.run(module.operation)
    except ir.MLIRError as error:
        faults = faults_of(error, "pass", "<module>", "")
        raise CompileError("error", str(error), faults, op_in(str(error))) from error


# ---------------------------------------------------------------- compilation


@functools.cache
def known_flags() -> frozenset[str]:
    """All flags of iree-compile, hidden ones too. The first call starts it."""
    said, _ = run_tool("iree-compile", ["--help-hidden"])
    return frozenset(re.findall(r"^\s+(--[\w-]+)", said, re.MULTILINE))


def has_flag(name: str) -> bool:
    """Whether iree-compile knows a flag (``--iree-opt-data-tiling``)."""
    return name in known_flags()


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


def _program(source: Source) -> Program | None:
    """A source as a module; None for a text that does not parse."""
    if isinstance(source, Program):
        return source
    if isinstance(source, ir.Module):
        return Program(source)
    try:
        return Program(ir.Module.parse(source, context()), source)
    except ir.MLIRError:
        return None


@dataclass(frozen=True)
class Job:
    """What is asked of ``iree-compile`` beside a program and what to make of it."""

    target: Target
    #: Added after those of :func:`flags_for`, and win over them.
    flags: tuple[str, ...] = ()
    #: In seconds.
    timeout: float | None = None
    #: What faults call the program.
    path: str = "<string>"
    #: The phase at which to resume: one of :data:`PHASES`.
    compile_from: str | None = None
    #: Called with each warning.
    warn: Callable[[Fault], object] | None = None
    #: The file for the vmfb: it is left there, and no bytes are returned.
    output: Path | None = None

    @staticmethod
    def of(given: Job | Target | str) -> Job:
        """A job as it is; one for a target, or the name of one, with nothing more asked."""
        return given if isinstance(given, Job) else Job(Target.of(given))


def compile_module(
    source: Source,
    target: Target | str,
    *,
    flags: Sequence[str] = (),
    timeout: float | None = None,
    path: str = "<string>",
    compile_from: str | None = None,
) -> bytes:
    """Compile a program for ``target`` and return the vmfb.

    ``flags`` are added after those of :func:`flags_for` and win over them; ``timeout`` is in
    seconds; ``path`` is what faults call the program; ``compile_from`` resumes at a phase.
    Raises as :func:`compile_job` does, which takes all this as one.
    """
    return compile_job(source, Job(Target.of(target), tuple(flags), timeout, path, compile_from))


def compile_job(source: Source, job: Job) -> bytes:
    """Compile a program and return the vmfb; nothing where the job names a file for it.

    Raises CompileError, also where the compiler reports an error but exits with success, and
    MlirulesError for flags that it would ignore for this target.
    """
    given = {flag.partition("=")[0] for flag in job.flags}
    # A vmfb that is an archive as well has checksums, which take a second for 300 MB of weights.
    extra = [] if _ZIP_FLAG in given else [f"{_ZIP_FLAG}=false"]
    if job.output is not None:
        _compile(source, job, [*extra, "-o", str(job.output)])
        return b""
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        output = Path(directory) / "module.vmfb"
        _compile(source, job, [*extra, "-o", str(output)])
        return output.read_bytes()


def lower_to(source: Source, job: Job | Target | str, phase: str) -> str:
    """The program as MLIR text after compilation up to ``phase`` (one of :data:`PHASES`).

    Errors as for :func:`compile_job`.
    """
    _check_phase(phase, "--compile-to")
    return _compile(source, Job.of(job), [f"--compile-to={phase}", "-o", "-"])


def lower(source: Program, job: Job, phase: str) -> Program:
    """Like :func:`lower_to`, as a module in the context of the program's."""
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        output = Path(directory) / "module.mlirbc"
        lower_file(source, job, phase, output)
        try:
            module = program.of_bytecode(output, source.module.context)
        except ir.MLIRError as error:
            after = f"{job.path} after {phase}"
            raise MlirulesError(faults_of(error, "mlir", after, "")) from error
    return Program(module, source.origin)


def lower_file(
    source: Source,
    job: Job,
    phase: str,
    output: Path,
    *,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Like :func:`lower_to`, as bytecode in the file ``output``; ``meanwhile`` is called then."""
    _check_phase(phase, "--compile-to")
    extra = [f"--compile-to={phase}", "--emit-mlir-bytecode", "-o", str(output)]
    _compile(source, job, extra, meanwhile)


def _compile(
    source: Source,
    job: Job,
    extra: Sequence[str],
    meanwhile: Callable[[], object] | None = None,
) -> str:
    """Run the compiler with ``extra`` arguments, and return what it prints."""
    path, timeout = job.path, job.timeout
    found = _program(source)
    lines = _lines_of(source)
    arguments = [*_arguments(job.target, found, job.flags, job.compile_from), *extra]
    if found is None:  # the compiler says what is wrong with it
        assert isinstance(source, str)
        command = ["iree-compile", "-", *arguments]
        stdout, stderr = tools.run(command, source, path, timeout, lines, meanwhile)
    else:
        with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
            # As bytecode, because writing weights as text and reading that takes seconds.
            handed = Path(directory) / "module.mlirbc"
            with handed.open("wb") as file:
                found.module.operation.write_bytecode(file)
            size = handed.stat().st_size
            if not bytecode.is_mapped(size) and bytecode.is_aligned(handed.read_bytes()):
                # The compiler would refuse it, depending on where it happens to read it to.
                handed = handed.with_suffix(".mlir")
                asm = found.module.operation.get_asm(enable_debug_info=True)
                handed.write_text(asm, encoding="utf-8")
            command = ["iree-compile", str(handed), *arguments]
            stdout, stderr = tools.run(command, "", path, timeout, lines, meanwhile)
    for fault in _checked_diagnostics(stderr, job.flags, path, lines):
        if job.warn is not None:
            job.warn(fault)
    return stdout


def _lines_of(source: Source) -> Lines:
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
    kept = [a for a in arguments if a.partition("=")[0] not in given]
    return [*kept, *_reading_specs_first(flags, compile_from)]


def _reading_specs_first(flags: Sequence[str], compile_from: str | None) -> list[str]:
    """The flags, with what keeps a compilation that reads a transform library from never ending.

    The compiler parses such a file under a lock when the first executable wants it. Verifying it
    waits for the thread pool, and a waiting thread may take up another executable, which wants the
    lock that its own thread holds. So the file is read before there are executables; where that is
    too late or not possible, threads are off.
    """
    flags = list(flags)
    given = dict(flag.partition("=")[::2] for flag in flags)
    spec = given.get(_SPEC_FLAG)
    late = compile_from is not None and PHASES.index(compile_from) >= PHASES.index("preprocessing")
    if _LIBRARY_FLAG in given or (spec and (late or not _PLAIN_PATH.fullmatch(spec))):
        return [*flags, *{"--mlir-disable-threading"}.difference(given)]
    if spec:
        passes = [f"iree-codegen-materialize-tuning-specs{{tuning-spec-path={spec}}}"]
        asked = given.get(_PREPROCESSING)
        if asked is not None:
            flags = [flag for flag in flags if flag.partition("=")[0] != _PREPROCESSING]
            found = re.fullmatch(r"builtin\.module\((.*)\)", asked.strip(), re.DOTALL)
            passes.append(found[1] if found else asked)
        flags.append(f"{_PREPROCESSING}=builtin.module({','.join(passes)})")
    return flags


def _checked_diagnostics(stderr: str, flags: Sequence[str], path: str, lines: Lines) -> list[Fault]:
    """What a compilation that reported success printed. Raises CompileError for ignored flags."""
    said = list(diagnostics(stderr, path, lines))
    # A torch pattern may complain about an op of the program that another pattern then converts.
    # An error about the flags or their files means that something asked for was left out.
    asked = " ".join(["iree-compile", "MLIR Textual PassPipeline Parser", *flags])
    ignored = [f for f in said if f.severity == "error" and f.span.path in asked]
    if ignored:
        raise CompileError("error", stderr, ignored, op_in(stderr))
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
        raise failure("iree-compile", 1, stderr, path, lines)
    _checked_diagnostics(stderr, flags, path, lines)
    return vmfb


def _session_of(flags: tuple[str, ...]) -> Session:
    from iree.compiler import api  # initialises a compiler: when needed only

    session = api.Session()
    session.set_flags(*flags)
    return session


@functools.lru_cache(maxsize=32)
def _for_a_session(flags: tuple[str, ...]) -> bool:
    """Whether no flag is one of those that exist once in a process, unknown to a session."""
    with _stderr_captured():
        try:
            _session_of(flags)
        except ValueError as error:
            return "option not found" not in str(error)
    return True


@functools.lru_cache(maxsize=8)
def _session(flags: tuple[str, ...]) -> Session:
    return _session_of(flags)


def single_threaded() -> None:
    """Let :func:`compile_here` use no threads of its own, from now on in this process.

    To be called once, before the first compilation; worth it where several workers share the
    cores.
    """
    from iree.compiler import api

    api._initializeGlobalCL("mlirules", "--mlir-disable-threading")


def _invoke(session: Session, text: str) -> bytes | None:
    from iree.compiler import api

    source = api.Source.wrap_buffer(session, text.encode() + b"\0", buffer_name=STDIN)
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


_ZIP_FLAG = "--iree-vm-emit-polyglot-zip"
_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
_LIBRARY_FLAG = "--iree-codegen-transform-dialect-library"
_PREPROCESSING = "--iree-preprocessing-pass-pipeline"
#: Paths that a pass option takes as they are.
_PLAIN_PATH = re.compile(r"[\w./+@%:-]+")


def _check_flags(target: Target, flags: Sequence[str]) -> None:
    for before, word in zip(("=", *flags), flags, strict=False):
        # The word after a flag without `=` may be its value.
        if not word.startswith("-") and not (before.startswith("-") and "=" not in before):
            raise MlirulesError.at(
                word,
                "is no flag of iree-compile",
                code="flag",
                suggestion="one program is compiled at a time; flags of the compiler start with -- "
                "and stand after --",
            )
    if not target.reads_tuning_spec and any(f.partition("=")[0] == _SPEC_FLAG for f in flags):
        raise MlirulesError.at(
            _SPEC_FLAG,
            f"the compiler ignores a tuning spec for {target.name!r} without a word",
            code="flag",
            suggestion=f"use {_LIBRARY_FLAG}=FILE for this target",
        )


# ---------------------------------------------------------------- what the compiler printed


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap] | None:
    """The indexing maps of a structured op (named or generic), or None for other ops."""
    from iree.compiler._mlir_libs import _mlirDialectsLinalg as linalg

    maps = linalg.get_indexing_maps(op)
    return None if maps is None else [ir.AffineMapAttr(m).value for m in maps]


def is_contraction(op: ir.Operation) -> bool:
    """Whether a linalg op, named or generic, is a contraction."""
    from iree.compiler._mlir_libs import _mlirDialectsLinalg as linalg

    return linalg.isa_contraction_op(op)


def is_convolution(op: ir.Operation) -> bool:
    """Whether a linalg op, named or generic, is a convolution."""
    from iree.compiler._mlir_libs import _mlirDialectsLinalg as linalg

    return linalg.isa_convolution_op(op)
