"""Which workgroup of a kernel comes next, as MLIR: one of the core's own part, while there are any.

The runtime's workers take the workgroups that are next, whoever computed what those read, so that
half of it lies in the caches of another core. Here a kernel's workgroups are divided into parts,
one for each core. Who begins a workgroup asks on which core it runs (``rdtscp`` gives the number
that Linux keeps beside the time stamp; what else stands there costs speed alone) and takes the next
of that core's part, or where none is left of the part after it. A part has a counter; those of one
dispatch stand in a *slot* of a buffer that is zero at first, each in a cache line of its own.

As many are taken as begin, and who begins finds one: all others together have taken fewer than all.
"""

from __future__ import annotations

from mlirules.language.grid import TARGET

__all__ = ["LINE", "take", "zeroes"]

#: Numbers of 32 bits in a cache line.
LINE = 16


def take(grid: tuple[int, int, int], parts: int, numbers: int) -> str:
    """A function of the counters and a slot that takes a workgroup; it gives its three indices.

    ``grid`` is how many workgroups there are along each axis, ``numbers`` how many the buffer of
    counters holds.
    """
    total = grid[0] * grid[1] * grid[2]
    counters = f"memref<{numbers}xi32>"
    return f"""func.func private @take(
    %counters: {counters}, %slot: index) -> (index, index, index) {{
  %core_32 = llvm.inline_asm has_side_effects
      "rdtscp", "={{ecx}},~{{eax}},~{{edx}}" : () -> i32
  %core_of = arith.index_castui %core_32 : i32 to index
  %parts = arith.constant {parts} : index
  %all = arith.constant {total} : index
  %line = arith.constant {LINE} : index
  %one = arith.constant 1 : index
  %more = arith.constant 1 : i32
  %own = arith.remui %core_of, %parts : index
  %ended, %taken_place = scf.while (%part = %own) : (index) -> (index, index) {{
    %after = arith.addi %part, %one : index
    %from_all = arith.muli %part, %all : index
    %from = arith.divui %from_all, %parts : index
    %to_all = arith.muli %after, %all : index
    %to = arith.divui %to_all, %parts : index
    %size = arith.subi %to, %from : index
    %offset = arith.muli %part, %line : index
    %at = arith.addi %slot, %offset : index
    %taken_32 = memref.atomic_rmw addi %more, %counters[%at] : (i32, {counters}) -> i32
    %taken = arith.index_castui %taken_32 : i32 to index
    %none_left = arith.cmpi uge, %taken, %size : index
    %place = arith.addi %from, %taken : index
    %next = arith.remui %after, %parts : index
    scf.condition(%none_left) %next, %place : index, index
  }} do {{
  ^bb0(%part: index, %place: index):
    scf.yield %part : index
  }}
  %columns = arith.constant {grid[0]} : index
  %rows = arith.constant {grid[1]} : index
  %x = arith.remui %taken_place, %columns : index
  %above = arith.divui %taken_place, %columns : index
  %y = arith.remui %above, %rows : index
  %z = arith.divui %above, %rows : index
  return %x, %y, %z : index, index, index
}}
"""


def zeroes(symbol: str, numbers: int) -> str:
    """An executable that sets the counters to zero, given a tensor of which it reads nothing."""
    counters = f"memref<{numbers}xi32>"
    return f"""stream.executable private @{symbol} attributes {{{TARGET} = "cpu"}} {{
  stream.executable.export public @{symbol} workgroups() -> (index, index, index) {{
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @{symbol}(%given: !stream.binding, %made: !stream.binding) attributes {{
        translation_info = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>}} {{
      %none = arith.constant 0 : index
      %counters = stream.binding.subspan %made[%none] : !stream.binding -> {counters}
      %zero = arith.constant dense<0> : vector<{LINE}xi32>
      %end = arith.constant {numbers} : index
      %line = arith.constant {LINE} : index
      scf.for %at = %none to %end step %line {{
        vector.store %zero, %counters[%at] : {counters}, vector<{LINE}xi32>
      }}
      return
    }}
  }}
}}
"""
