"""PyTorch graphs compiled: what `Session.compile` and the backend of `torch.compile` share."""
