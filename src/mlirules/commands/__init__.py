"""The commands of the command line, one module each.

A module has ``EXAMPLE`` (a command that works) and ``command`` (the typer function). Drivers are
imported inside the functions: ``mlirules --help`` loads no compiler.
"""
