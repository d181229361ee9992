"""The one door to IREE: the compiler, the runtime and what targets are."""
