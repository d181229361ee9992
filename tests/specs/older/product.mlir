// A LLVMGPUVectorDistribute comment
module attributes { transform.with_named_sequence } {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, %c: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %c : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %b, %m, %n, %k = transform.iree.match.contraction %op, lhs_type = f16, rhs_type = f16, output_type = f32, indexing_maps = [affine_map<(d0,d1,d2)->(d0,d2)>, affine_map<(d0,d1,d2)->(d1,d2)>,affine_map<(d0,d1,d2)->(d0,d1)>] : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %m, [2048] : !transform.param<i64>
    %c = transform.param.constant #iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{promote_operands = [0, 1], mma_kind = #iree_gpu.mma_layout<MFMA_F16_16x16x16_F32>, subgroup_m_count = 2 : i64, subgroup_n_count = 2 : i64, reduction = [0, 0, 64], workgroup = [64, 128, 0]}>, translation_info = #iree_codegen.translation_info<pipeline = LLVMGPUVectorDistribute workgroup_size = [256, 1, 1] subgroup_size = 64, {gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_shared_memory = true>}>> -> !transform.any_param
    transform.yield %op, %c : !transform.any_op, !transform.any_param
  }
  transform.named_sequence @__kernel_config(%v: !transform.any_op {transform.consumed}) -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    %r = transform.foreach_match in %v @m -> @apply : (!transform.any_op) -> !transform.any_op
    transform.yield %r : !transform.any_op
  }
}
