"""Specs: what a rule set becomes for the compiler, and the pipelines that string sets together."""
