"""Constant expressions, evaluated here instead of by a program within the compilation.

What a function computes of weights alone (packed for a product, turned, scaled by a norm's factors)
IREE takes out of it into initializers. It compiles these to machine code, in a whole compilation of
its own, and runs that: half the time of some models. Here the compiler stops after its global
optimization, :mod:`initializers` gives the globals their values, and the compiler goes on from
there. What is not known here is left to it.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from mlirules.drivers.iree import bytecode, compiler, program
from mlirules.drivers.iree.compiler import Job, Program, ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["compiled", "evaluated", "lowered"]

#: The phase at whose end the compiler evaluates what it has taken out of functions.
_PHASE = "global-optimization"
_FLAG = "--iree-opt-const-eval"
_EVALUATING = "mlirules.drivers.iree.initializers"
#: What the bindings load when they meet the first op of a dialect: the largest.
_DIALECTS = ("iree.compiler.dialects.hal", "iree.compiler.dialects.util")
#: Constants of fewer elements are not worth stopping for.
_FEW = 64
#: A program of fewer ops has too few expressions to be worth another start of the compiler.
_FEW_OPS = 64
_CONSTANTS = frozenset(("arith.constant", "torch.vtensor.literal", "util.global"))
#: What IREE 3.13 says of its own program for a constant of which parts are written, as masks are.
_PARTS = "restricted to workgroup distributed contexts"


def compiled(source: Program, job: Job) -> bytes:
    """What a program compiles to, its constant expressions evaluated where that gains something.

    Where the compiler fails at a constant of which parts are written, all that is known here are
    evaluated, however little that gains, and the others when the program starts. Raises
    CompileError.
    """
    given, then = evaluated(source, job)
    try:
        return compiler.compile_job(given, then)
    except compiler.CompileError as error:
        if given is not source or not any(_PARTS in fault.message for fault in error.faults):
            raise
        made = None if _is_late(job) else _evaluated(source, job, partly=True)
        if made is None:
            raise
        return compiler.compile_job(made, replace(job, compile_from=_PHASE))


def evaluated(source: Program, job: Job) -> tuple[Program, Job]:
    """A program for :func:`compiler.compile_job`, its constant expressions evaluated.

    As they were where there is nothing to gain, where the job begins after the phase or says itself
    what is to be evaluated, and where one of its expressions is not known here. Raises CompileError
    as the compiler does up to there.
    """
    made = _at_phase(source, job)
    return (source, job) if made is None else (made, replace(job, compile_from=_PHASE))


def lowered(source: Program, job: Job) -> Program:
    """Like :func:`compiler.lower` to global optimization, in the context of the program's."""
    made = _at_phase(source, job)
    if made is None:
        return compiler.lower(source, job, _PHASE)
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        written = Path(directory) / "module.mlirbc"
        with written.open("wb") as file:
            made.module.operation.write_bytecode(file)
        module = program.of_bytecode(written, source.module.context)
    return Program(module, source.origin)


def _load() -> None:
    """Load what reads and evaluates a program after the phase."""
    for name in (_EVALUATING, *_DIALECTS):
        importlib.import_module(name)


def _at_phase(source: Program, job: Job) -> Program | None:
    """The program after the phase, in a context of its own; None: the compiler is to do it."""
    if _is_late(job) or not _has_weights(source.module):
        return None
    return _evaluated(source, job)


def _is_late(job: Job) -> bool:
    """Whether the job begins after the phase, or says itself what is to be evaluated."""
    phases = compiler.PHASES
    late = job.compile_from is not None and phases.index(job.compile_from) >= phases.index(_PHASE)
    return late or any(flag.partition("=")[0] == _FLAG for flag in job.flags)


def _evaluated(source: Program, job: Job, *, partly: bool = False) -> Program | None:
    """The program after the phase, in a context of its own; None: an expression is not known."""
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        written = Path(directory) / "module.mlirbc"
        flags = (*job.flags, f"{_FLAG}=false")
        # What evaluates brings numpy, which small programs do without; there is time to load it
        # while the compiler works.
        job = replace(job, flags=flags)
        compiler.lower_file(source, job, _PHASE, written, meanwhile=_load)
        # In a context of its own the file's resources keep their names.
        module = program.of_bytecode(written, compiler.context())
        blobs = bytecode.resources(written)
    from mlirules.drivers.iree.initializers import evaluate

    return Program(module, source.origin) if evaluate(module, blobs, partly=partly) else None


def _has_weights(module: ir.Module) -> bool:
    """Whether enough is computed, and some of it perhaps of weights alone."""
    found = False
    for count, op in enumerate(ops_below(module.operation), 1):
        found = found or (op.name in _CONSTANTS and _is_weight(op))
        if found and count >= _FEW_OPS:
            return True
    return False


def _is_weight(op: ir.Operation) -> bool:
    value = op.attributes.get("initial_value" if op.name == "util.global" else "value")
    type_ = getattr(value, "type", None)
    if not isinstance(type_, ir.RankedTensorType) or math.prod(type_.shape) < _FEW:
        return False
    return not (isinstance(value, ir.DenseElementsAttr) and value.is_splat)
