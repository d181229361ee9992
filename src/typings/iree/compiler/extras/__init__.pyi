"""Importers: they need PyTorch."""
