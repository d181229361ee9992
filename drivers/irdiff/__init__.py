"""Structural differences between two programs: graphs, matching, changes, how they are shown.

Names of values, aliases, locations and the order of independent ops do not count.
"""
