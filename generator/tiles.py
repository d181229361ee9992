"""A CPU's tile registers (AMX) as MLIR: what stands before and behind a kernel that uses them.

Linux gives the registers to a process that has asked for them (``arch_prctl`` with
``ARCH_REQ_XCOMP_PERM``; Documentation/arch/x86/xstate.rst). A program may run in any process, so
every workgroup asks: what was given already costs a tenth of a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.language.grid import TILE_NAMES

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def before(shapes: Sequence[tuple[int, int]]) -> list[str]:
    """Rows that ask for the registers and give them their shapes: rows, and bytes a row."""
    described = [0] * 64  # Intel's palette 1: bytes a row from 16 on, rows from 48 on
    described[0] = 1
    for number, (rows, bytes_) in enumerate(shapes):
        described[16 + 2 * number] = bytes_
        described[48 + number] = rows
    listed = ", ".join(str(byte) for byte in described)
    return [
        *(f"%{name} = arith.constant {n} : i8" for n, name in enumerate(TILE_NAMES[: len(shapes)])),
        f"%tiles_call = llvm.mlir.constant({_ARCH_PRCTL} : i64) : i64",
        f"%tiles_ask = llvm.mlir.constant({_ARCH_REQ_XCOMP_PERM} : i64) : i64",
        f"%tiles_for = llvm.mlir.constant({_XFEATURE_XTILEDATA} : i64) : i64",
        '%tiles_told = llvm.inline_asm has_side_effects "syscall", '
        '"={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}" %tiles_call, %tiles_ask, %tiles_for : '
        "(i64, i64, i64) -> i64",
        "%tiles_one = llvm.mlir.constant(1 : i64) : i64",
        "%tiles_at = llvm.alloca %tiles_one x vector<64xi8> {alignment = 64 : i64} : "
        "(i64) -> !llvm.ptr",
        f"%tiles_shapes = llvm.mlir.constant(dense<[{listed}]> : vector<64xi8>) : vector<64xi8>",
        "llvm.store %tiles_shapes, %tiles_at : vector<64xi8>, !llvm.ptr",
        'llvm.call_intrinsic "llvm.x86.ldtilecfg"(%tiles_at) : (!llvm.ptr) -> ()',
    ]


def behind() -> list[str]:
    """Rows that give the registers up: with them set, the system saves 8 KB at every switch."""
    return ['llvm.call_intrinsic "llvm.x86.tilerelease"() : () -> ()']
