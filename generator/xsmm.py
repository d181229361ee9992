"""Products of fixed size by libxsmm, as object files.

libxsmm (BSD-3-Clause) writes the code of a product for its sizes and a kind of CPU. Its packages
bring that as a program, which writes C around assembly: nothing of libxsmm is loaded into this
process, none of it is needed where the kernel runs, and the CPU is the one that is asked for,
whatever this machine has.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlirules.generator.objects import NO_COMPILER, ObjectError, c_compiler, compiled
from mlirules.language.rule import Rule
from mlirules.support import children
from mlirules.support.limits import Limits, limited

__all__ = ["CALLED_WITH", "CPUS", "MISSING", "Product", "generator", "lacking", "made_by"]

#: How a body calls a product: a, b and c, each as a pointer and how far into it.
CALLED_WITH = "(memref<f32>, index, memref<f32>, index, memref<f32>, index)"
MISSING = "libxsmm_gemm_generator is not here: install libxsmm (Debian, Ubuntu: libxsmm-dev)"

#: By the bytes of a CPU's vectors: what libxsmm calls such CPUs, and what the C compiler does.
CPUS = {32: ("hsw", ("-mavx2", "-mfma")), 64: ("skx", ("-mavx512f",))}

# libxsmm's function says of the registers that it uses, and not that it reads and writes memory. It
# is not inlined: a caller knows nothing of it. Nor is there anything below the stack's end.
_C = """\
#include <stddef.h>
static void product(const float *, const float *, float *) __attribute__((noinline, noclone));
void {symbol}(const float *a, size_t a_at, const float *b, size_t b_at, float *c, size_t c_at) {{
  product(a + a_at, b + b_at, c + c_at);
}}
{code}"""
_FLAGS = ("-DNDEBUG", "-mno-red-zone", "-fomit-frame-pointer")


@dataclass(frozen=True)
class Product:
    """One product: its sizes, and the bytes of the vectors of the CPU that it is for."""

    sizes: tuple[int, int, int, int, int, int]  # m, n, k, lda, ldb, ldc
    beta: int
    vector_bytes: int

    @property
    def symbol(self) -> str:
        """The name of its function. Executables are linked together: equal products share one."""
        said = "_".join(map(str, (*self.sizes, self.beta)))
        return f"mlirules_xsmm_{CPUS[self.vector_bytes][0]}_{said}"

    def object(self) -> Path:
        """Its object file. Raises :class:`ObjectError`."""
        text = _C.format(symbol=self.symbol, code=self.code())
        return compiled(self.symbol, text.encode(), (*CPUS[self.vector_bytes][1], *_FLAGS))

    def code(self) -> str:
        """What libxsmm writes: a function ``product`` in C. Raises :class:`ObjectError`."""
        program = generator()
        if program is None:
            raise ObjectError(MISSING, missing=True)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "product.c"
            words = [
                *("dense", str(made), "product", *map(str, self.sizes)),
                *("1", str(self.beta), "0", "0"),  # alpha, beta; neither a nor c is aligned
                *(CPUS[self.vector_bytes][0], "nopf", "SP"),
            ]
            try:
                done = children.run(limited([program, *words], Limits(cpu_s=60)), timeout=60)
            except children.TimedOut as stopped:
                raise ObjectError(f"libxsmm_gemm_generator {stopped}") from None
            if done.status or not made.is_file():
                said = done.ending or done.stdout.strip()[:500] or "it wrote nothing"
                raise ObjectError(f"libxsmm_gemm_generator {' '.join(words[2:])}: {said}")
            return made.read_text()


def generator() -> str | None:
    """libxsmm's program that writes code, or None where it is not installed."""
    return shutil.which("libxsmm_gemm_generator")


def lacking(rule: Rule) -> str | None:
    """Why a rule cannot apply here: it links products of libxsmm in, which is not installed."""
    if not any(variant.xsmm for variant in rule.variants):
        return None
    if generator() is None:
        return MISSING
    return NO_COMPILER if c_compiler() is None else None


def made_by() -> str:
    """Which program writes the code: what is kept of its products is for this one alone."""
    program = generator()
    if program is None:
        return ""
    stat = Path(program).stat()
    return f"{program} {stat.st_size} {stat.st_mtime_ns}"
