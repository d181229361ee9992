"""Compiler rewrite rules as YAML: written as equations, applied, checked and measured on IREE.

The names below are the library's front door. Each is imported on first use, so that
`import mlirules` costs nothing and loads no compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mlirules.support import package

if TYPE_CHECKING:
    from mlirules.api.fusions import fusion
    from mlirules.api.report import report
    from mlirules.api.rules import rule
    from mlirules.api.session import Session
    from mlirules.drivers.iree.compiler import CompileError, compile_module, parse
    from mlirules.drivers.iree.runtime import Place, run
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, Run, Transformed, transform
    from mlirules.language.faults import Fault, MlirulesError, Span

__version__ = package.VERSION
# A checkout without symbolic links: its `drivers` and `generator` are found where they lie.
__path__ += package.beside()

__all__ = [
    "CompileError",
    "Fault",
    "MlirulesError",
    "Pipeline",
    "Place",
    "Run",
    "Session",
    "Span",
    "Target",
    "Transformed",
    "__version__",
    "compile_module",
    "fusion",
    "parse",
    "report",
    "rule",
    "run",
    "transform",
]

_HOME = {
    "CompileError": "mlirules.drivers.iree.compiler",
    "Fault": "mlirules.language.faults",
    "MlirulesError": "mlirules.language.faults",
    "Pipeline": "mlirules.drivers.pipelines.transform",
    "Place": "mlirules.drivers.iree.runtime",
    "Run": "mlirules.drivers.pipelines.transform",
    "Session": "mlirules.api.session",
    "Span": "mlirules.language.faults",
    "Target": "mlirules.drivers.iree.targets",
    "Transformed": "mlirules.drivers.pipelines.transform",
    "fusion": "mlirules.api.fusions",
    "compile_module": "mlirules.drivers.iree.compiler",
    "parse": "mlirules.drivers.iree.compiler",
    "report": "mlirules.api.report",
    "rule": "mlirules.api.rules",
    "run": "mlirules.drivers.iree.runtime",
    "transform": "mlirules.drivers.pipelines.transform",
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
