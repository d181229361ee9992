"""Proofs of rewrite rules: both sides as tensors of index expressions, equal for all sizes."""
