// EXPECT: hip:gfx942 refuses never-matches
module attributes { transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint } {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, %config: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %image, %out, %filter, %in, %depth, %strides, %dilations = transform.iree.match.convolution %op, lhs_type = f16, rhs_type = f16, output_type = f32, indexing_maps = [affine_map<(n, i, j, f, u, v, c) -> (n, i * 2 + u, j * 2 + v, c)>, affine_map<(n, i, j, f, u, v, c) -> (f, u, v, c)>, affine_map<(n, i, j, f, u, v, c) -> (n, i, j, f)>] : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %strides, [1, 1] : !transform.param<i64>
    %config = transform.param.constant #iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{reduction = [0, 0, 0, 0, 1, 1, 32], thread = [1, 1, 4, 4, 0, 0, 0], workgroup = [1, 4, 16, 64, 0, 0, 0]}>, translation_info = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [256, 1, 1] subgroup_size = 64>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    %done = transform.foreach_match in %variant
        @m -> @apply
      : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
