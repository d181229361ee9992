"""Rules of ``kind: config``: the model, reading and writing."""
