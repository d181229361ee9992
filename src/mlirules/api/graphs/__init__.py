"""Functional graphs of PyTorch as programs, and these as functions of tensors."""
