"""Weights in archives are mapped: what a program does not touch is never read."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import as_program
from mlirules.drivers.iree import runtime, weights
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.makeway import for_weights
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.pipeline import Pipeline

N = 2048
BYTES = 4 * N * N
TENSOR = f"!torch.vtensor<[4,{N}],f32>"
WEIGHT = f"!torch.vtensor<[{N},{N}],f32>"


def _program() -> str:
    rows = []
    for name in "ab":
        rows += [
            f"%{name}0 = util.global.load @{name} : tensor<{N}x{N}xf32>",
            f"%{name}1 = torch_c.from_builtin_tensor %{name}0 : tensor<{N}x{N}xf32> -> {WEIGHT}",
            f"%{name}2 = torch.aten.transpose.int %{name}1, %i0, %i1 : "
            f"{WEIGHT}, !torch.int, !torch.int -> {WEIGHT}",
        ]
    body = "\n  ".join(
        [
            "%i0 = torch.constant.int 0",
            "%i1 = torch.constant.int 1",
            *rows,
            f"%m = torch.aten.mm %x, %a2 : {TENSOR}, {WEIGHT} -> {TENSOR}",
            f"%y = torch.aten.mm %m, %b2 : {TENSOR}, {WEIGHT} -> {TENSOR}",
            f"return %y : {TENSOR}",
        ]
    )
    held = "\n".join(
        f'util.global private @{name} = #stream.parameter.named<"model"::"{name}"> '
        f": tensor<{N}x{N}xf32>"
        for name in "ab"
    )
    return f"{held}\nfunc.func @main(%x: {TENSOR}) -> {TENSOR} {{\n  {body}\n}}\n"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Two weights of 16 MiB each, zeros that take no place on the disk."""
    entries = {
        name: {"dtype": "F32", "shape": [N, N], "data_offsets": [n * BYTES, (n + 1) * BYTES]}
        for n, name in enumerate("ab")
    }
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % 64)
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * BYTES)
    return str(path)


def _memory() -> dict[str, int]:
    """Bytes of this process: anonymous memory, pages of files, and what was read by calls."""
    status = Path("/proc/self/status").read_text().splitlines()
    read = Path("/proc/self/io").read_text().splitlines()
    found = {line.split()[0]: int(line.split()[1]) * 1024 for line in status if " kB" in line}
    return {
        "own": found["RssAnon:"],
        "mapped": found["RssFile:"],
        "read": next(int(line.split()[1]) for line in read if line.startswith("rchar")),
    }


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="memory is read from Linux's /proc")
def test_weights_are_mapped_and_not_read_at_start(archive: str) -> None:
    binary, done = compile_program(_program(), Target("cpu"))
    assert any("weights are mapped" in note for note in done.notes)
    assert not set(done.flags) & set(Pipeline.load("cpu-fast").copying_weights)
    x = np.ones((4, N), dtype=np.float32)
    before = _memory()
    program = runtime.Program(binary, [x], "local-sync", "main", [archive])
    loaded = _memory()
    grown = {key: loaded[key] - before[key] for key in before}
    assert max(grown.values()) < BYTES // 4, grown
    assert not program.results()[0].any()
    after = _memory()
    assert after["mapped"] - before["mapped"] > BYTES  # the call itself reads them where they lie
    assert after["own"] - before["own"] < BYTES // 4


def test_flags_that_copy_weights_make_way_unless_they_are_asked_for() -> None:
    packs = "--iree-global-opt-data-tiling"
    pipeline = Pipeline.load("cpu-fast")
    assert packs in pipeline.copying_weights
    small = _program().replace(str(N), "64")
    assert packs in compile_program(small, Target("cpu"), flags=(packs,))[1].flags
    inside = small
    for name in "ab":
        inside = inside.replace(f'#stream.parameter.named<"model"::"{name}">', "dense<1.0>")
    program = as_program(inside, "<program>")
    assert not list(weights.named(program.module))
    assert for_weights(pipeline, program.module) == (pipeline, [])
