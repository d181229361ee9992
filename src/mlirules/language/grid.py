"""What kernels know of the grid that they run in: places, limits, and the mark of their target."""

from __future__ import annotations

#: The attribute of an executable that says for which kind of target its kernel is written.
TARGET = "mlirules.target"
#: The tensors of the rule that it reads, and that it writes, in the order of its buffers.
READS, WRITES = "mlirules.reads", "mlirules.writes"
#: Most threads that a workgroup may have anywhere, and most workgroups along x, y and z.
MAX_THREADS = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
#: What a body may read beside tensors and numbers: its place in the grid, and in the workgroup.
PLACES = {
    **{
        f"block_{axis}": f"stream.dispatch.workgroup.id[{n}] : index"
        for n, axis in enumerate("xyz")
    },
    **{f"thread_{axis}": f"gpu.thread_id {axis}" for axis in "xyz"},
}


#: What `let:`, `where:` and `grid:` of a variant may ask of the target beside the match's sizes.
FACTS = (
    "vector_bytes",
    "unit_bytes",
    "dot_bytes",
    "bf16_bytes",
    "bf16_tile_rows",
    "byte_tile_rows",
    "cores",
)
#: A CPU's tile registers (AMX): how many, and the most rows and bytes a row of each.
TILES, TILE_ROWS, TILE_BYTES = 8, 16, 64
#: The numbers of the tile registers, by the names that a body gives to the CPU's operations.
TILE_NAMES = tuple(f"tile{n}" for n in range(TILES))
