"""The rule language: faults, sources, the notation, models and their checks."""
