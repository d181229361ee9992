"""Compiler rewrite rules as YAML: written as equations, applied, checked and measured on IREE.

The names below are the library's front door. Each is imported on first use, so that
`import mlirules` costs nothing and loads no compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlirules.drivers.compiler import CompileError, compile_module, parse
    from mlirules.drivers.pipeline import Pipeline, Transformed, transform
    from mlirules.drivers.runtime import run
    from mlirules.drivers.targets import Target
    from mlirules.rules.faults import Fault, MlirulesError, Span

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Fault",
    "MlirulesError",
    "Pipeline",
    "Span",
    "Target",
    "Transformed",
    "__version__",
    "compile_module",
    "parse",
    "run",
    "transform",
]

_HOME = {
    "CompileError": "mlirules.drivers.compiler",
    "Fault": "mlirules.rules.faults",
    "MlirulesError": "mlirules.rules.faults",
    "Pipeline": "mlirules.drivers.pipeline",
    "Span": "mlirules.rules.faults",
    "Target": "mlirules.drivers.targets",
    "Transformed": "mlirules.drivers.pipeline",
    "compile_module": "mlirules.drivers.compiler",
    "parse": "mlirules.drivers.compiler",
    "run": "mlirules.drivers.runtime",
    "transform": "mlirules.drivers.pipeline",
}


def __getattr__(name: str) -> object:
    """Import the public name `name` from the module that defines it, and keep it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'mlirules' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
