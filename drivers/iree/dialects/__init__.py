"""Stand-ins for the dialects that the compiler's wheel has no Python module for.

Whenever an op, a value or a type of a dialect crosses into Python, the bindings try to import that
dialect's module. When there is none the failing import is repeated every time, 35 to 70
microseconds a crossing, which dwarfs the cost of a Python-driven rewrite. An importable module that
registers a class for the namespace makes it 0.5 microseconds.
"""

from __future__ import annotations

import importlib.util
import sys
import types

from iree.compiler import ir
from iree.compiler._mlir_libs import _mlir

#: Registered dialects of the compiler; those with a module of their own in the wheel are skipped.
DIALECTS = (
    "arm_neon",
    "arm_sme",
    "arm_sve",
    "bufferization",
    "check",
    "chlo",
    "emitc",
    "hal_inline",
    "hal_loader",
    "index",
    "io_parameters",
    "iree_cpu",
    "iree_encoding",
    "iree_linalg_ext",
    "iree_map",
    "iree_vector_ext",
    "ml_program",
    "nvgpu",
    "pcf",
    "pdl_interp",
    "quant",
    "rocm",
    "spirv",
    "stablehlo",
    "tm_tensor",
    "torch",
    "torch_c",
    "ub",
    "vhlo",
    "vmvx",
)


#: Dialects whose module takes long to load and says nothing that is asked for here: ops of theirs
#: are plain ones unless somebody imports the module.
SLOW = ("linalg", "llvm")


def _stand_in(namespace: str) -> types.ModuleType:
    """A module whose import registers a dialect class for ``namespace``."""
    module = types.ModuleType(f"{__name__}.{namespace}", f"Stand-in for dialect {namespace!r}.")
    body = {"DIALECT_NAMESPACE": namespace, "__module__": module.__name__}
    vars(module)["_Dialect"] = _mlir.register_dialect(type("_Dialect", (ir.Dialect,), body))
    return module


def install() -> tuple[str, ...]:
    """Register the stand-ins with the bindings, once a process; the namespaces they serve."""
    served = []
    for namespace in DIALECTS:
        name = f"{__name__}.{namespace}"
        if name in sys.modules:
            return ()
        if importlib.util.find_spec(f"iree.compiler.dialects.{namespace}") is None:
            sys.modules[name] = _stand_in(namespace)
            served.append(namespace)
    for namespace in SLOW:
        if f"iree.compiler.dialects.{namespace}" not in sys.modules:
            name = f"{__name__}.{namespace}"
            sys.modules[name] = types.ModuleType(name, "Keeps the module of its name away.")
    # Ours first: the bindings take the first module that there is.
    found = _mlir.globals.dialect_search_modules
    _mlir.globals.dialect_search_modules = [__name__, *found]
    return tuple(served)
