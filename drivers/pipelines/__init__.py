"""Pipelines at work: stages, the cost driver, and on through the compiler."""
