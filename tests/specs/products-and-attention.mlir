// A transform library of the older kind, without an entry attribute: attention by name, products by
// maps, one of them with two dims of rows of which the first may be anything.
#layout = #iree_gpu.mma_layout<MFMA_F32_32x32x8_F16, col_major = true>

module attributes { transform.with_named_sequence } {
  transform.named_sequence @configure(%op: !transform.any_op {transform.readonly}, %config: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }

  transform.named_sequence @configure_attention(%op: !transform.any_op {transform.readonly}, %config: !transform.any_param {transform.readonly}, %parts: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.annotate %op "decomposition_config" = %parts : !transform.any_op, !transform.any_param
    transform.yield
  }

  transform.named_sequence @match_attention(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    transform.match.operation_name %op ["iree_linalg_ext.online_attention"] : !transform.any_op
    %queries = transform.get_operand %op[0] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %queries = tensor<?x?x?x?xf16> : !transform.any_value
    %config = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_gpu.lowering_config<{workgroup = [1, 1, 64, 0, 0, 0], reduction = [0, 0, 0, 0, 0, 64], promote_operands = [1, 2]}>,
      translation_info = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<VectorDistribute>
        workgroup_size = [64, 2] subgroup_size = 64,
        {llvm_func_attrs = {"amdgpu-waves-per-eu" = "2", "denormal-fp-math-f32" = "preserve-sign"}}>> -> !transform.any_param
    %parts = transform.param.constant {
      qk_attrs = {lowering_config = #iree_gpu.lowering_config<{mma_kind = #iree_gpu.virtual_mma_layout<VMFMA_F32_32x32x16_F16, col_major = true>,
        subgroup_basis = [[1, 1, 2, 1, 1, 1], [0, 1, 2, 4, 5]], promote_operands = [1]}>},
      pv_attrs = {lowering_config = #iree_gpu.lowering_config<{mma_kind = #layout,
        subgroup_basis = [[1, 1, 2, 1, 1, 1], [0, 1, 2, 3, 5]], promote_operands = [1]}>}
    } -> !transform.any_param
    transform.yield %op, %config, %parts : !transform.any_op, !transform.any_param, !transform.any_param
  }

  transform.named_sequence @match_mmt_128x1280x2048(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %m, %n, %k = transform.iree.match.contraction %op,
      lhs_type = f16, rhs_type = f16, output_type = f32,
      indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>]
      : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %m, [128] : !transform.param<i64>
    transform.iree.match.dims_equal %n, [1280] : !transform.param<i64>
    transform.iree.match.dims_equal %k, [2048] : !transform.param<i64>
    %config = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_gpu.lowering_config<{promote_operands = [0, 1], mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>,
        subgroup_basis = [[2, 1, 1], [0, 1, 2]], reduction = [0, 0, 128], workgroup = [64, 16, 0]}>,
      translation_info = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<VectorDistribute>
        workgroup_size = [64, 2, 1] subgroup_size = 64,
        {gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_num_stages = 2, reorder_workgroups_strategy = <Transpose>>}>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }

  transform.named_sequence @match_rows(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %m, %n, %k = transform.iree.match.contraction %op,
      lhs_type = i8, rhs_type = i8, output_type = i32,
      indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>]
      : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %batch, [] : !transform.param<i64>
    transform.iree.match.dims_equal %m, [-1, 64] : !transform.param<i64>
    transform.iree.match.dims_equal %n, [128] : !transform.param<i64>
    transform.iree.match.dims_equal %k, [256] : !transform.param<i64>
    %config = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_gpu.lowering_config<{promote_operands = [0, 1], mma_kind = #iree_gpu.mma_layout<MFMA_I32_16x16x32_I8>,
        subgroup_basis = [[1, 2, 2, 1], [0, 1, 2, 3]], reduction = [0, 0, 0, 64], workgroup = [1, 64, 64, 0]}>,
      translation_info = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<VectorDistribute>
        workgroup_size = [256, 1, 1] subgroup_size = 64>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }

  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) {
    transform.foreach_match in %variant
      @match_attention -> @configure_attention,
      @match_mmt_128x1280x2048 -> @configure,
      @match_rows -> @configure
      : (!transform.any_op) -> (!transform.any_op)
    transform.yield
  }
}
