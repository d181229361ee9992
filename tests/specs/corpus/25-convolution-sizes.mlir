// EXPECT: cpu reads 1
module attributes { transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint } {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, %config: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op, !transform.any_param) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %image, %out, %filter, %in, %depth, %strides, %dilations = transform.iree.match.convolution %op, lhs_type = f32, rhs_type = f32, output_type = f32, indexing_maps = [affine_map<(n, i, j, f, u, v, c) -> (n, i + u, j + v, c)>, affine_map<(n, i, j, f, u, v, c) -> (u, v, c, f)>, affine_map<(n, i, j, f, u, v, c) -> (n, i, j, f)>] : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %batch, [2] : !transform.param<i64>
    transform.iree.match.dims_equal %image, [16, 16] : !transform.param<i64>
    transform.iree.match.dims_equal %out, [64] : !transform.param<i64>
    transform.iree.match.dims_equal %filter, [3, 3] : !transform.param<i64>
    transform.iree.match.dims_equal %in, [32] : !transform.param<i64>
    transform.iree.match.dims_equal %depth, [] : !transform.param<i64>
    %config = transform.param.constant #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = [1, 4, 16, 64, 0, 0, 0], vector_common_parallel = [1, 1, 4, 16, 0, 0, 0], vector_reduction = [0, 0, 0, 0, 1, 1, 8]>, translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<ConvTileAndDecomposeExpert>>> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    %done = transform.foreach_match in %variant
        @m -> @apply
      : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
