"""The drivers: the one place that applies, compiles, runs and measures with IREE."""
