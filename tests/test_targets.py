"""Targets as they are written, and what is said about those that are not."""

import pytest

from mlirules.drivers.iree import targets, vulkan
from mlirules.drivers.iree.compiler import compile_module
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError

MATMUL = """
func.func @main(%a: tensor<64x64xf16>, %b: tensor<64x64xf16>) -> tensor<64x64xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%c : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = linalg.matmul ins(%a, %b : tensor<64x64xf16>, tensor<64x64xf16>)
                     outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
"""


@pytest.mark.parametrize("name", targets.known())
def test_a_known_target_keeps_its_name(name: str) -> None:
    target = Target.parse(name)
    assert target.name == str(target) == name
    assert target.flags
    assert target.device


def test_targets_are_equal_when_written_alike() -> None:
    assert {Target.parse("cuda:sm_80"): 1}[Target.parse("cuda:sm_80")] == 1
    assert Target.parse("cuda:sm_80") != Target.parse("cuda:sm_86")


def test_the_architecture_reaches_the_compiler() -> None:
    assert "--iree-cuda-target=sm_86" in Target.parse("cuda:sm_86").flags
    assert "--iree-rocm-target=gfx942" in Target.parse("hip:gfx942").flags
    assert "--iree-vulkan-target=rdna3" in Target.parse("vulkan:rdna3").flags


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cud", "did you mean 'cpu'?"),
        ("gfx942", "did you mean 'hip:gfx942'?"),
        ("", "known: cpu, cpu:x86-64-v3"),
        ("cuda", "write for example 'cuda:sm_80'"),
        ("cuda:sm_90", "cuda:sm_89"),
        ("cpu:x86", "known: cpu, cpu:x86-64-v3"),
        ("vulkan:", "known: cpu, cpu:x86-64-v3"),
    ],
)
def test_a_wrong_target_is_refused_with_the_known_ones(text: str, said: str) -> None:
    with pytest.raises(MlirulesError) as refused:
        Target.parse(text)
    (fault,) = refused.value.faults
    assert fault.code == "target"
    assert said in fault.suggestion


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_89", "hip:gfx942", "vulkan:rdna3"])
def test_a_matmul_compiles_without_the_device(name: str) -> None:
    assert len(compile_module(MATMUL, Target.parse(name))) > 1000


def test_the_cpu_is_always_available() -> None:
    assert Target.parse("cpu").available() is None


LLVMPIPE = """\
# --device=vulkan://GPU-6d65
#   llvmpipe (LLVM 15.0.6, 256 bits)
name: llvmpipe (LLVM 15.0.6, 256 bits)
api: 1.3.230
driver: llvmpipe
features: storageBuffer8BitAccess=yes storageBuffer16BitAccess=yes shaderInt8=yes shaderFloat16=yes
subgroup: size=8 operations=0x000000bf minSubgroupSize=8 maxSubgroupSize=8
"""


def test_the_vulkan_device_is_described_to_the_compiler() -> None:
    device = vulkan.parse(LLVMPIPE)
    assert device is not None
    assert device.name.startswith("llvmpipe")
    described = device.target()
    assert "compute = fp32|int32|fp64|int64|int16|fp16|int8, storage = b32|b64|b16|b8" in described
    assert "subgroup = shuffle|arithmetic, subgroup_size_choices = [8]" in described
    assert "spirv:v1.6" in described


def test_a_vulkan_device_without_features_gets_the_portable_description() -> None:
    device = vulkan.parse("name: small\napi: 1.1.0\nfeatures: shaderInt8=no\nsubgroup: size=16\n")
    assert device is not None
    assert "compute = fp32|int32, storage = b32, subgroup = none" in device.target()
    assert "spirv:v1.3" in device.target()


def test_only_the_first_vulkan_device_is_described() -> None:
    device = vulkan.parse(LLVMPIPE + LLVMPIPE.replace("llvmpipe (", "another ("))
    assert device is not None
    assert device.name.startswith("llvmpipe")


def test_no_vulkan_device_is_described_where_none_is() -> None:
    assert vulkan.parse("# Enumerated devices for driver 'vulkan'\n") is None


def test_vulkan_is_available_where_a_driver_is(vulkan: str) -> None:
    assert Target.parse(vulkan).available() is None


def test_an_absent_device_has_a_reason() -> None:
    reason = Target.parse("hip:gfx942").available()
    if reason is None:
        pytest.skip("there is a HIP device here")
    assert reason.startswith("hip: ")
