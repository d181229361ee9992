// A config rule takes effect in a torch program, and the generated spec says what it does.
// RUN: %mlirules compile %s --configs %S/Inputs/mm.yaml -o %t.vmfb 2>&1 | %filecheck %s --check-prefix=HIT
// RUN: %mlirules spec link %S/Inputs/mm.yaml -o %t.mlir
// RUN: %filecheck %s --check-prefix=SPEC < %t.mlir
// HIT: compiled without computed-products of the pipeline cpu-fast
// HIT: configured main$async_dispatch_0_matmul_64x64x32_f32 by mm-64-f32: #iree_cpu.lowering_config<distribution = [16, 32, 0], vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 8]>
// SPEC: mm-64-f32: generated from lit_tests/spec/Inputs/mm.yaml:1
// SPEC: named_sequence @match_matmul_64xDxD_f32_mm_64_f32
// SPEC-NEXT: -> (!transform.any_op, !transform.any_param, !transform.any_param)
// SPEC-NEXT: transform.iree.match.has_no_lowering_config
// SPEC: transform.iree.match.dims_equal %m, [64]
// SPEC: transform.foreach_match
// SPEC-NEXT: @match_matmul_64xDxD_f32_mm_64_f32 -> @apply_config
func.func @main(%a: !torch.vtensor<[64,32],f32>, %b: !torch.vtensor<[32,64],f32>) -> !torch.vtensor<[64,64],f32> {
  %c = torch.aten.mm %a, %b : !torch.vtensor<[64,32],f32>, !torch.vtensor<[32,64],f32> -> !torch.vtensor<[64,64],f32>
  return %c : !torch.vtensor<[64,64],f32>
}
