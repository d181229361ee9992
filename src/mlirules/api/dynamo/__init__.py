"""The backend of `torch.compile`: graphs compiled as far as possible, the rest eager and told."""
