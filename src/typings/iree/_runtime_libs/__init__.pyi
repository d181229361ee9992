"""The binaries of the runtime: asked for their path alone."""
