"""Bytecode with weights is read wherever it lies, and handed to the compiler so that it is."""

import io
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mlirules.drivers.apply.programs import load_program
from mlirules.drivers.iree import bytecode, compiler, runtime
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.faults import MlirulesError

CPU = Target.parse("cpu")


def program(count: int) -> bytes:
    """A function that returns its weights, as bytecode."""
    weights = b"\x40\0\0\0" + struct.pack(f"<{count}f", *range(count))
    type_ = f"tensor<{count}xf32>"
    text = (
        f"func.func @main() -> {type_} {{\n"
        f"  %0 = arith.constant dense_resource<w> : {type_}\n  return %0 : {type_}\n}}\n"
        f'{{-# dialect_resources: {{ builtin: {{ w: "0x{weights.hex()}" }} }} #-}}'
    )
    made = io.BytesIO()
    compiler.parse(text).operation.write_bytecode(made)
    return made.getvalue()


#: One of its files ends where a page does: such a file is not mapped.
SIZES = [*range(16, 60, 4), 4096, *range(5000, 5004)]


def test_what_asks_for_an_address_and_what_does_not() -> None:
    assert bytecode.is_aligned(program(16))
    plain = io.BytesIO()
    compiler.parse("module {}").operation.write_bytecode(plain)
    assert not bytecode.is_aligned(plain.getvalue())
    assert not bytecode.is_aligned(bytecode.MAGIC)
    assert not bytecode.is_aligned(bytecode.MAGIC + b"\xff" * 40)


@pytest.mark.parametrize("count", SIZES)
def test_it_is_read_from_bytes_and_files(count: int, tmp_path: Path) -> None:
    data = program(count)
    file = tmp_path / "program.mlirbc"
    file.write_bytes(data)
    for module in (compiler.parse(data), bytecode.parse_file(file, compiler.context())):
        assert module.operation.verify()
        again = io.BytesIO()
        module.operation.write_bytecode(again)
        assert again.getvalue() == data


def test_it_is_read_wherever_its_weights_begin(tmp_path: Path) -> None:
    """Of 64 lengths of what stands before the weights one puts them where they need no padding."""
    file = tmp_path / "program.mlirbc"
    unmarked = 0
    for attributes in range(64):
        module = compiler.parse(program(16))
        for n in range(attributes):
            module.operation.attributes[f"test.a{n}"] = compiler.ir.UnitAttr.get(module.context)
        made = io.BytesIO()
        module.operation.write_bytecode(made)
        data = made.getvalue()
        sections = dict(bytecode._sections(data))
        begins = sections[bytecode._RESOURCES][0]
        unmarked += not begins % 64 and not any(
            data[at] == bytecode._RESOURCES | bytecode._ALIGNED for at in range(begins - 70, begins)
        )
        assert bytecode.is_aligned(data)
        file.write_bytes(data)
        assert bytecode.parse_file(file, compiler.context()).operation.verify()
    assert unmarked


def test_a_file_that_is_not_mapped_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = program(7000)
    assert bytecode.is_mapped(len(data))
    assert not bytecode.is_mapped(8 * 4096)
    assert not bytecode.is_mapped(400)
    broken = tmp_path / "broken.mlirbc"
    broken.write_bytes(program(16)[:-9])
    with pytest.raises(compiler.ir.MLIRError):
        bytecode.parse_file(broken, compiler.context())
    assert capfd.readouterr().err == ""


def test_a_program_that_is_wrong_says_what_and_where(tmp_path: Path) -> None:
    type_ = "!torch.vtensor<[2],f32>"
    module = compiler.parse(f"func.func @f(%x: {type_}) -> {type_} {{ return %x : {type_} }}")
    block = module.body.operations[0].regions[0].blocks[0]
    (x,) = block.arguments
    with compiler.ir.Location.file("model.py", 7, 0, module.context):
        compiler.ir.Operation.create(
            "torch.aten.relu_",  # which takes no values
            results=[x.type],
            operands=[x],
            ip=compiler.ir.InsertionPoint.at_block_begin(block),
        )
    file = tmp_path / "wrong.mlirbc"
    with file.open("wb") as out:
        module.operation.write_bytecode(out)
    with pytest.raises(MlirulesError) as caught:
        load_program(file)
    (fault,) = caught.value.faults
    assert str(fault.span) == "model.py:7"
    assert fault.message.startswith("'torch.aten.relu_' op operand #0 must be")
    assert "bytecode version" not in fault.message


def test_small_weights_compile() -> None:
    for count in (16, 17, 23):
        binary = compiler.compile_module(Program(compiler.parse(program(count))), CPU)
        (found,) = runtime.run(binary, [], CPU)
        np.testing.assert_array_equal(np.asarray(found), np.arange(count, dtype=np.float32))


def test_a_few_narrow_numbers_of_a_resource_compile() -> None:
    """The frequencies of rotary embeddings in bf16, which IREE alone does not compile."""
    wide, narrow = "!torch.vtensor<[128,4],f32>", "!torch.vtensor<[4],bf16>"
    numbers = np.array([1.0, 0.5, 0.25, 3.0], ml_dtypes.bfloat16)
    text = f"""
func.func @main(%x: !torch.vtensor<[128,1],f32>) -> {wide} {{
  %w = torch.vtensor.literal(dense_resource<w> : tensor<4xbf16>) : {narrow}
  %f32 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %f = torch.aten.to.dtype %w, %f32, %false, %false, %none :
      {narrow}, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %f :
      !torch.vtensor<[128,1],f32>, !torch.vtensor<[4],f32> -> {wide}
  %c = torch.aten.cos %y : {wide} -> {wide}
  return %c : {wide}
}}
{{-# dialect_resources: {{ builtin: {{ w: "0x02000000{numbers.tobytes().hex()}" }} }} #-}}
"""
    binary, _ = compile_program(text, CPU)
    x = np.arange(128, dtype=np.float32)[:, None]
    (found,) = runtime.run(binary, [x], CPU)
    np.testing.assert_allclose(found, np.cos(x * numbers.astype(np.float32)), rtol=0, atol=1e-4)
