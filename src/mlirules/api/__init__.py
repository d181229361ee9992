"""The library's front: sessions, what they give, rules written in Python, and PyTorch's backend."""
