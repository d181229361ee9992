// EXPECT: cpu keeps 1
module attributes { transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint } {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}) {
    transform.annotate %op "left.alone" : !transform.any_op
    transform.yield
  }
  transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) -> (!transform.any_op) {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %m, %n, %k = transform.iree.match.contraction %op, lhs_type = f32, rhs_type = f32, output_type = f32, indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>] : !transform.any_op -> !transform.param<i64>
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    %done = transform.foreach_match in %variant
        @m -> @apply
      : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
