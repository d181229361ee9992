"""The native modules of the bindings."""
