"""Rules: their faults, sources, notation and model, beside the library of rules itself."""
