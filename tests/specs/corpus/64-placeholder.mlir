// EXPECT: cpu reads 0
module attributes { transform.with_named_sequence } {
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.readonly}) -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    transform.yield %variant : !transform.any_op
  }
}
