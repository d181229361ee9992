"""A small kernel as a program holds it, for tests of what is done to kernels."""

from __future__ import annotations

from mlirules.drivers.apply.session import Session
from mlirules.drivers.iree.compiler import ir

#: A buffer of seven by 64 numbers; each of seven workgroups adds one to a row.
KERNEL = """
stream.executable private @add attributes {mlirules.target = "cpu"} {
  stream.executable.export public @add workgroups() -> (index, index, index) {
    %c1 = arith.constant 1 : index
    %many = arith.constant WORKGROUPS : index
    stream.return %c1, %many, %c1 : index, index, index
  }
  builtin.module {
    func.func @add(%x: !stream.binding, %y: !stream.binding) attributes {
        translation_info = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>} {
      %c0 = arith.constant 0 : index
      %a = stream.binding.subspan %x[%c0] : !stream.binding -> memref<7x64xf32>
      %b = stream.binding.subspan %y[%c0] : !stream.binding -> memref<7x64xf32>
      %row = stream.dispatch.workgroup.id[1] : index
      %one = arith.constant dense<1.0> : vector<64xf32>
      %read = vector.load %a[%row, %c0] : memref<7x64xf32>, vector<64xf32>
      %more = arith.addf %read, %one : vector<64xf32>
      vector.store %more, %b[%row, %c0] : memref<7x64xf32>, vector<64xf32>
      return
    }
  }
}
"""


def parsed(text: str) -> ir.Module:
    with Session().context:
        return ir.Module.parse(text)
