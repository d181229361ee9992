"""Applying rules to modules: the drivers greedy, walk and conversion."""
