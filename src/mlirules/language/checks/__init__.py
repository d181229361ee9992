"""Checks of rules beyond what their model can say."""
