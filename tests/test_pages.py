"""Large pages under what a program keeps: which memory that is, and that the system is asked."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.iree import calls, compiler, opened, pages, runtime

MAPS = """\
55d0c0000000-55d0c0021000 r--p 00000000 fe:00 1234                       /usr/bin/python3.11
55d0c1000000-55d0c9000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
7f0000200000-7f0000201000 ---p 00000000 00:00 0
7f0000300000-7f0000400000 rw-p 00000000 fe:00 77                         /tmp/a file
7f0000500000-7f0000600000 rw-s 00000000 00:01 9                          /dev/zero (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
"""

FUNCTION = """
util.global private @w = {weights} : tensor<1024x1024xf32>
func.func @main(%x: tensor<1x1024xf32>) -> tensor<1x1024xf32> {{
  %w = util.global.load @w : tensor<1024x1024xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x1024xf32>
  %none = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x1024xf32>) -> tensor<1x1024xf32>
  %y = linalg.matmul ins(%x, %w : tensor<1x1024xf32>, tensor<1024x1024xf32>)
    outs(%none : tensor<1x1024xf32>) -> tensor<1x1024xf32>
  return %y : tensor<1x1024xf32>
}}
"""
SIZE = 1024 * 1024

has_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="the system has no large pages for memory of no file",
)


def test_only_memory_of_no_file_that_may_be_written_counts() -> None:
    heap, block = (0x55D0C1000000, 0x55D0C9000000), (0x7F0000000000, 0x7F0000200000)
    assert pages.anonymous(MAPS) == [heap, block]
    assert pages.anonymous(MAPS, heap=False) == [block]


def test_what_is_new_is_what_was_nowhere_before() -> None:
    draw = random.Random(5)
    for _ in range(300):
        before, now = (_pieces(draw) for _ in range(2))
        left = pages.without(now, before)
        assert _all(left) == _all(now) - _all(before)
        assert all(start < end for start, end in left)


def test_pieces_around_places() -> None:
    pieces = [(10, 20), (30, 40), (50, 60)]
    assert pages.around(pieces, [(35, 36), (31, 90), (12, 12)]) == [(30, 40)]
    assert pages.around(pieces, [(5, 8)]) == []


def _pieces(draw: random.Random) -> list[pages.Piece]:
    edges = sorted(draw.sample(range(60), 2 * draw.randint(0, 6)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def _all(pieces: list[pages.Piece]) -> set[int]:
    return {at for start, end in pieces for at in range(start, end)}


@has_large_pages
def test_large_pages_are_asked_for_under_weights_that_were_there_before() -> None:
    # numpy asks for its own arrays.
    space = mmap.mmap(-1, 4 * SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    weights = np.frombuffer(space, np.float32).reshape(1024, 1024)
    weights[:] = 1
    parameter = '#flow.parameter.named<"model"::"w">'
    binary = compiler.compile_module(FUNCTION.format(weights=parameter), "cpu")
    program = calls.Loaded(binary, "local-sync", parameters={"w": weights})
    ones = np.ones((1, 1024), np.float32)
    x = program.of_array(ones)
    assert not _asked(weights.ctypes.data)
    for call in range(3):
        (y,) = program([x])
        assert np.array_equal(program.array(y), np.full((1, 1024), 1024, np.float32))
        assert _asked(weights.ctypes.data) == (call > 0)


@has_large_pages
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_large_pages_are_asked_for_under_weights_of_the_program(device: str) -> None:
    values = np.random.default_rng(3).integers(-8, 8, SIZE).astype(np.float32)
    literal = f'dense<"0x{values.tobytes().hex()}">'
    binary = compiler.compile_module(FUNCTION.format(weights=literal), "cpu")
    x = np.random.default_rng(4).integers(-8, 8, (1, 1024)).astype(np.float32)
    maps = Path("/proc/self/maps")
    opened.device(device)  # the stacks of its workers are not the program's
    before = pages.anonymous(maps.read_text(), heap=False)
    program = runtime.Program(binary, [x], device)
    for _ in range(2):
        assert np.array_equal(program.results()[0], x @ values.reshape(1024, 1024))
    made = pages.without(pages.anonymous(maps.read_text()), before)
    large = [start for start, end in made if end - start >= pages.LARGE]
    assert large
    assert all(_asked(start) for start in large)


def _asked(address: int) -> bool:
    return any(start <= address < end for start, end in _wanting())


def _wanting() -> list[pages.Piece]:
    """Memory that is marked as one that wants large pages."""
    found, piece = [], (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            start, _, end = first.partition("-")
            piece = (int(start, 16), int(end, 16))
        elif first == "VmFlags:" and "hg" in others:
            found.append(piece)
    return found
