"""Weights outside the program: written, checked, mapped."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.programs import load_program, parsed
from mlirules.drivers.iree import parameters, runtime
from mlirules.drivers.iree.compiler import compile_module
from mlirules.drivers.iree.parameters import SUFFIXES, check, write_archive
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.faults import MlirulesError

CPU = Target.parse("cpu")

PROGRAM = """\
util.global private @w = #stream.parameter.named<"model"::"layer.weight"> : tensor<4x64xf32>
func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %w = util.global.load @w : tensor<4x64xf32>
  %y = arith.addf %x, %w : tensor<4x64xf32>
  return %y : tensor<4x64xf32>
}
"""


@pytest.mark.parametrize("suffix", [".safetensors", pytest.param(".irpa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("isolated", [False, True])
def test_archive_is_what_a_program_loads(tmp_path: Path, suffix: str, isolated: bool) -> None:
    archive = tmp_path / f"w{suffix}"
    weight = np.arange(256, dtype=np.float32).reshape(4, 64)
    write_archive(archive, {"other": np.ones(3, np.int8), "layer.weight": weight})
    check(parsed(PROGRAM), [str(archive)], "net.mlir")
    binary = compile_module(PROGRAM, CPU)
    ones = np.ones((4, 64), np.float32)
    for written in (str(archive), f"model={archive}"):
        (got,) = runtime.run(
            binary, [ones], CPU, parameters=[written], place=runtime.Place(isolated=isolated)
        )
        np.testing.assert_array_equal(got, weight + 1)


def test_weights_of_whole_lines_are_aligned_to_be_mapped(tmp_path: Path) -> None:
    archive = tmp_path / "w.safetensors"
    write_archive(archive, {"odd": np.ones(3, np.int8), "whole": np.full(16, 7, np.float32)})
    data = archive.read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    assert (8 + header) % 64 == 0
    assert np.frombuffer(data[8 + header :][:64], np.float32).tolist() == [7.0] * 16


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_that_is_not_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    archive = tmp_path / f"weights{suffix}"
    name = f"_write_{suffix[1:]}"
    written = getattr(parameters, name)
    write_archive(archive, {"w": np.ones(4, np.float32)})
    old = archive.read_bytes()

    def stopped(path: str, values: dict[str, np.ndarray[Any, Any]]) -> None:
        written(path, values)
        assert Path(path).stat().st_size > len(old)
        assert archive.read_bytes() == old
        raise KeyboardInterrupt

    monkeypatch.setattr(parameters, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        write_archive(archive, {"w": np.ones(4000, np.float32)})
    assert archive.read_bytes() == old
    assert list(tmp_path.iterdir()) == [archive]


def test_what_archives_lack_is_told(tmp_path: Path) -> None:
    archive = tmp_path / "w.safetensors"
    write_archive(archive, {"layer.weights": np.ones((4, 64), np.float32)})
    with pytest.raises(MlirulesError, match=r"(?s)no archive holds .*'layer\.weights'"):
        check(parsed(PROGRAM), [str(archive)], "net.mlir")
    write_archive(archive, {"layer.weight": np.ones(64, np.float32)})
    with pytest.raises(MlirulesError, match="has 256 bytes, the program wants 1024"):
        check(parsed(PROGRAM), [str(archive)], "net.mlir")
    archive.write_bytes(b"no archive")
    with pytest.raises(MlirulesError, match="is no archive of weights"):
        check(parsed(PROGRAM), [str(archive)], "net.mlir")
    with pytest.raises(MlirulesError, match="let it end in"):
        write_archive(tmp_path / "w.bin", {})


def test_externalized_model_gives_pytorchs_results(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from mlirules.drivers.frontend.torch import Options, import_file

    program, archive = tmp_path / "net.mlirbc", tmp_path / "net.safetensors"
    sizes = {"in_features": 64, "out_features": 32}
    done = import_file(
        "torch.nn:Linear",
        program,
        Options(arguments=sizes, inputs=["2x64xf32"]),
        golden=tmp_path / "net.npz",
        externalize=archive,
    )
    assert list(done.program.parameters) == ["weight"]  # the bias is small
    assert program.stat().st_size < archive.stat().st_size
    binary, transformed = compile_program(load_program(program), CPU)
    assert not transformed.leftovers
    (got,) = runtime.run(binary, list(done.inputs), CPU, parameters=[str(archive)])
    np.testing.assert_allclose(got, done.results[0], rtol=1e-5, atol=1e-5)
