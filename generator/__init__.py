"""The generator: from a located rule model to PDLL, PDL and MLIR text."""
