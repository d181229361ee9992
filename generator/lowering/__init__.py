"""Lowering a rule's rewrite to MLIR."""
