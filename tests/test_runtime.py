"""Programs on real devices: every element type, scalars, failures, and arrays in files."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mlirules.drivers.iree import npz, runtime
from mlirules.drivers.iree.compiler import compile_module
from mlirules.drivers.iree.runtime import Entry, RunError, parse_input, run, run_each
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError

CPU = Target.parse("cpu")
ADD = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %r = arith.addf %a, %b : tensor<2x3xf32>
  return %r : tensor<2x3xf32>
}
"""
DIVIDE = """
func.func @main(%i: i64) -> tensor<1xi64> {
  %e = tensor.empty() : tensor<1xi64>
  %t = tensor.from_elements %i : tensor<1xi64>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                       iterator_types = ["parallel"]}
       ins(%t : tensor<1xi64>) outs(%e : tensor<1xi64>) {
  ^bb0(%a: i64, %b: i64):
    %seven = arith.constant 7 : i64
    %q = arith.divsi %seven, %a : i64
    linalg.yield %q : i64
  } -> tensor<1xi64>
  return %r : tensor<1xi64>
}
"""
VALUES: Sequence[tuple[str, Any]] = [
    ("!torch.vtensor<[2,3],f32>", np.arange(6, dtype=np.float32).reshape(2, 3)),
    ("!torch.vtensor<[2],f64>", np.array([1e-300, np.nan])),
    ("!torch.vtensor<[],f16>", np.array(1.5, np.float16)),
    ("!torch.vtensor<[2,2],bf16>", np.array([[1, 2], [3, np.inf]], ml_dtypes.bfloat16)),
    ("!torch.vtensor<[4],f8E4M3FN>", np.array([1, 2, 3, 4], ml_dtypes.float8_e4m3fn)),
    ("!torch.vtensor<[4],f8E5M2>", np.array([1, 2, 3, 4], ml_dtypes.float8_e5m2)),
    ("!torch.vtensor<[3],i1>", np.array([True, False, True])),
    ("!torch.vtensor<[2],ui8>", np.array([3, 255], np.uint8)),
    ("!torch.vtensor<[2],si8>", np.array([-3, 127], np.int8)),
    ("!torch.vtensor<[2],si16>", np.array([-3, 300], np.int16)),
    ("!torch.vtensor<[2],si32>", np.array([-3, 2**31 - 1], np.int32)),
    ("!torch.vtensor<[2],si64>", np.array([-3, 2**62])),
    ("!torch.vtensor<[2,0],si64>", np.zeros((2, 0), np.int64)),
    ("!torch.vtensor<[2],complex<f32>>", np.array([1 + 2j, 3], np.complex64)),
    ("!torch.vtensor<[1],complex<f64>>", np.array([1 + 2j])),
    ("!torch.int", np.array(2**40)),
    ("!torch.float", np.array(0.1)),
    ("!torch.bool", np.array(True)),
]


def identity() -> str:
    types = ", ".join(kind for kind, _ in VALUES)
    arguments = ", ".join(f"%a{i}: {kind}" for i, (kind, _) in enumerate(VALUES))
    names = ", ".join(f"%a{i}" for i in range(len(VALUES)))
    return f"func.func @main({arguments}) -> ({types}) {{\n  return {names} : {types}\n}}\n"


@pytest.fixture(scope="module")
def add() -> bytes:
    return compile_module(ADD, CPU)


def check_identity(results: list[np.ndarray[Any, Any]]) -> None:
    assert len(results) == len(VALUES)
    for (kind, value), result in zip(VALUES, results, strict=True):
        assert result.shape == value.shape, kind
        assert result.dtype == (np.int32 if kind == "!torch.bool" else value.dtype), kind
        assert result.astype(value.dtype).tobytes() == value.tobytes(), kind


@pytest.mark.parametrize("isolated", [False, True])
def test_every_type_goes_in_and_comes_back(isolated: bool) -> None:
    vmfb = compile_module(identity(), CPU)
    check_identity(
        run(vmfb, [value for _, value in VALUES], CPU, place=runtime.Place(isolated=isolated))
    )


@pytest.mark.vulkan
@pytest.mark.parametrize("isolated", [False, True])
def test_every_type_comes_back_from_vulkan(vulkan: str, isolated: bool) -> None:
    target = Target.parse(vulkan)
    vmfb = compile_module(identity(), target)
    check_identity(
        run(vmfb, [value for _, value in VALUES], target, place=runtime.Place(isolated=isolated))
    )


def test_bfloat16_is_computed() -> None:
    kind = "!torch.vtensor<[3],bf16>"
    text = f"""
func.func @main(%a: {kind}) -> {kind} {{
  %r = torch.aten.mul.Tensor %a, %a : {kind}, {kind} -> {kind}
  return %r : {kind}
}}
"""
    values = np.array([1, 2, 3], ml_dtypes.bfloat16)
    (result,) = run(compile_module(text, CPU), [values], CPU)
    assert result.dtype == ml_dtypes.bfloat16
    assert result.tolist() == [1, 4, 9]


@pytest.mark.vulkan
def test_vulkan_computes(vulkan: str) -> None:
    target = Target.parse(vulkan)
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    (result,) = run(compile_module(ADD, target), [a, a], target, place=runtime.Place(timeout=120))
    np.testing.assert_array_equal(result, 2 * a)


@pytest.mark.vulkan
def test_after_a_failure_an_accelerator_is_opened_anew(vulkan: str) -> None:
    # CUDA's device fails in every later program, once one has failed on it.
    target = Target.parse(vulkan)
    binary = compile_module(ADD, target)
    a = np.ones((2, 3), np.float32)
    before = runtime.device(target.device)
    assert runtime.device(target.device) is before
    with pytest.raises(RunError):
        runtime.Program(compile_module(ADD, CPU), [a, np.ones((3, 4), np.float32)], CPU.device)()
    assert runtime.device(target.device) is before  # a failure elsewhere is none of its own
    kept = runtime.Program(binary, [a, a], target.device)
    with pytest.raises(RunError):
        runtime.Program(binary, [a, np.ones((3, 4), np.float32)], target.device)()
    assert runtime.device(target.device) is not before
    for program in (kept, runtime.Program(binary, [a, a], target.device)):
        np.testing.assert_array_equal(program.results()[0], 2 * a)


@pytest.mark.parametrize("isolated", [False, True])
def test_a_program_for_another_device_says_for_which(isolated: bool) -> None:
    binary = compile_module(ADD, Target.parse("vulkan:baseline"))
    inputs = [np.zeros((2, 3), np.float32)] * 2
    with pytest.raises(RunError, match="another device than it is run on: --target vulkan"):
        run(binary, inputs, CPU, place=runtime.Place(isolated=isolated))


def test_the_layout_of_an_input_does_not_matter(add: bytes) -> None:
    a = np.arange(6, dtype=np.float32).reshape(3, 2).T
    (result,) = run(add, [a, a], CPU)
    np.testing.assert_array_equal(result, 2 * a)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the faults of Linux's pages")
def test_large_results_are_written_where_earlier_ones_were() -> None:
    resource = pytest.importorskip("resource")
    shape = "tensor<4096x4096xf32>"
    text = f"""func.func @main(%a: {shape}) -> {shape} {{
      %b = arith.addf %a, %a : {shape}
      return %b : {shape}
    }}
    """
    ones = np.ones((4096, 4096), np.float32)
    program = runtime.Program(compile_module(text, CPU), [ones], "local-sync")
    # The third call asks for nothing new.
    for _ in range(3):
        program()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        program()
    # The 64 MiB of each call are 32 pages of the largest kind.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 32


def test_the_synchronous_device_agrees(add: bytes) -> None:
    a = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(
        run(add, [a, a], CPU, place=runtime.Place(device="local-sync")), [2 * a]
    )


def test_entries_show_the_calling_convention(add: bytes) -> None:
    assert runtime.entries(add) == [Entry("main", "rr", "r")]
    assert runtime.entries(compile_module(DIVIDE, CPU)) == [Entry("main", "I", "r")]


A = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    ("inputs", "function", "said"),
    [
        ([A], "main", "takes 2 arguments, 1 given"),
        ([A, A], "mian", "did you mean 'main'"),
        ([A, A.astype(np.float64)], "main", "expected f32"),
        ([A, A[:1]], "main", "expected 2 but have 1"),
        ([A, A.astype(np.str_)], "main", "no device holds"),
    ],
)
def test_wrong_inputs_are_refused(
    add: bytes, inputs: list[Any], function: str, said: str, isolated: bool
) -> None:
    with pytest.raises(MlirulesError, match=said) as refused:
        run(add, inputs, CPU, function, place=runtime.Place(isolated=isolated))
    assert "runtime/src" not in str(refused.value)


@pytest.mark.parametrize(("value", "said"), [(2.5, "an integer"), ([1, 2], "a scalar")])
def test_a_scalar_must_be_one(value: Any, said: str) -> None:
    with pytest.raises(MlirulesError, match=said):
        run(compile_module(DIVIDE, CPU), [value], CPU)


def test_a_crashing_program_is_survived() -> None:
    vmfb = compile_module(DIVIDE, CPU)
    np.testing.assert_array_equal(run(vmfb, [2], CPU), [[3]])
    with pytest.raises(RunError, match="SIGFPE") as crashed:
        run(vmfb, [0], CPU, place=runtime.Place(isolated=True))
    assert crashed.value.kind == "crash"


def test_a_crash_is_the_fault_of_the_call_that_it_was_at() -> None:
    vmfb = compile_module(DIVIDE, CPU)
    before, crashed, after = run_each(
        vmfb, [("main", [2]), ("main", [0]), ("main", [2])], CPU, isolated=True
    )
    assert isinstance(crashed, RunError)
    assert crashed.kind == "crash"
    for made in (before, after):
        assert not isinstance(made, MlirulesError)
        np.testing.assert_array_equal(made, [[3]])


def test_a_time_out_stops_the_program(add: bytes) -> None:
    with pytest.raises(RunError) as stopped:
        run(add, [A, A], CPU, place=runtime.Place(timeout=0.001))
    assert stopped.value.kind == "timeout"


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(MlirulesError, match="not a compiled program"):
        run(b"nonsense", [], CPU)


def test_an_absent_device_is_said() -> None:
    target = Target.parse("hip:gfx942")
    if target.available() is None:
        pytest.skip("there is a HIP device here")
    with pytest.raises(MlirulesError, match="hip: "):
        run(b"", [], target)


def test_devices_lists_the_cpu() -> None:
    assert {"local-task", "local-sync"} <= {device.driver for device in runtime.devices()}


def test_npz_arrays_come_in_order_with_their_real_types(tmp_path: Path) -> None:
    bits = np.array([1, 2], ml_dtypes.bfloat16).view(np.uint16)
    arrays: dict[str, Any] = {f"a{i}": np.array(i) for i in range(12)}
    arrays |= {"a0": bits, "r0": np.array(9)}
    np.savez(tmp_path / "data.npz", **arrays)
    inputs = npz.load(tmp_path / "data.npz", ["bfloat16", None])
    assert inputs[0].tolist() == [1, 2]
    assert [int(value) for value in inputs[1:]] == list(range(1, 12))
    assert npz.load(tmp_path / "data.npz", prefix="r") == [9]
    with pytest.raises(MlirulesError, match="cannot read arrays"):
        npz.load(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("2x3xf32=1 2 3 4 5 6", np.float32, [[1, 2, 3], [4, 5, 6]]),
        ("2x3xf32=[[1 2 3][4 5 6]]", np.float32, [[1, 2, 3], [4, 5, 6]]),
        ("2x2xbf16=7", ml_dtypes.bfloat16, [[7, 7], [7, 7]]),
        ("2xi1=true 0", np.bool_, [True, False]),
        ("2xcomplex<f32>=1+2j 3", np.complex64, [1 + 2j, 3]),
        ("0x3xf32=", np.float32, []),
        ("f32=3", np.float32, 3),
        ("2xui8=3 255", np.uint8, [3, 255]),
        ("3", np.int64, 3),
        ("-2.5", np.float64, -2.5),
        ("true", np.bool_, True),
    ],
)
def test_inputs_are_parsed(text: str, dtype: Any, expected: Any) -> None:
    value = parse_input(text)
    assert value.dtype == dtype
    assert value.tolist() == expected


def test_inputs_are_read_from_files(tmp_path: Path) -> None:
    values = np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)
    values.tofile(tmp_path / "raw.bin")
    np.save(tmp_path / "array.npy", A)
    assert parse_input(f"2x2xbf16=@{tmp_path}/raw.bin").tolist() == values.tolist()
    np.testing.assert_array_equal(parse_input(f"@{tmp_path}/array.npy"), A)


@pytest.mark.parametrize(
    "text", ["foo", "2xf32=1 2 3", "2xui8=300 1", "xf32=3", "@/nowhere.npy", "2xf32=one 2"]
)
def test_a_wrong_input_is_refused(text: str) -> None:
    with pytest.raises(MlirulesError) as refused:
        parse_input(text)
    assert "@file.npy" in refused.value.faults[0].suggestion


def test_a_shape_and_type_alone_is_drawn() -> None:
    first, second = parse_input("2x3xf32"), parse_input("2x3xf32", seed=1)
    assert (first.shape, first.dtype) == ((2, 3), np.float32)
    assert np.array_equal(first, parse_input("2x3xf32"))
    assert not np.array_equal(first, second)
    assert {*parse_input("64xsi64").tolist()} == {0, 1}
    assert parse_input("4xi1").dtype == np.bool_


def test_an_unknown_element_type_has_a_suggestion() -> None:
    with pytest.raises(MlirulesError, match="did you mean 'f32'"):
        parse_input("2xf31=1 2")
