"""How lit runs this suite: `lit -sv lit_tests` from an environment with mlirules[test].

Substitutions
    %mlirules   the command line, of the Python that runs lit
    %filecheck  the PyPI `filecheck`; `%FileCheck` and a bare `filecheck` are the same
    %iree-opt   IREE's optimizer driver, for a second opinion on what mlirules printed
    %exits N    runs the rest of the command and fails unless it exits with N
    %examples   the folder of example programs

Parameters
    --param exec_root=DIR   where %t and %T lie (default: one under the temporary folder)
    --param server=SOCKET   a server of tests/served.py, which runs mlirules and filecheck
"""

import os
import shlex
import sys
import tempfile
from pathlib import Path

import lit.formats

bin_dir = Path(sys.executable).parent
here = Path(__file__).resolve().parent


def tool(name: str) -> str:
    """Return the path of a console script beside this Python; its absence ends the run."""
    path = bin_dir / name
    if not path.exists():
        lit_config.fatal(f"{name} is not installed beside {sys.executable}: install mlirules[test]")
    return shlex.quote(str(path))


config.name = "mlirules"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".yaml", ".test"]
# Rules and programs that tests use; they are no tests themselves.
config.excludes = ["Inputs", "rules"]
config.test_source_root = str(here)
# Never beside the sources: a run leaves no Output folders in the checkout.
scratch = Path(tempfile.gettempdir()) / f"mlirules-lit-{os.getuid()}"
config.test_exec_root = lit_config.params.get("exec_root", str(scratch))

config.environment["PATH"] = os.pathsep.join([str(bin_dir), os.environ.get("PATH", "")])
for name in (
    "MLIRULES_CACHE_DIR",
    "PYTHONPATH",
    "HOME",
    "XDG_CACHE_HOME",
    "VIRTUAL_ENV",
    "VK_ICD_FILENAMES",
    "VK_DRIVER_FILES",
):
    if name in os.environ:
        config.environment[name] = os.environ[name]
# Faults are checked as text: no colours, and a width that wraps no line.
config.environment["NO_COLOR"] = "1"
config.environment["COLUMNS"] = "200"

filecheck, mlirules = tool("filecheck"), f"{shlex.quote(sys.executable)} -m mlirules"
server = lit_config.params.get("server")
if server is not None:
    client = [sys.executable, "-I", "-S", str(here.parent / "tests" / "served.py"), server]
    filecheck, mlirules = (shlex.join([*client, name]) for name in ("filecheck", "mlirules"))
config.substitutions += [
    ("%mlirules", mlirules),
    ("%filecheck", filecheck),
    ("%FileCheck", filecheck),
    ("%iree-opt", tool("iree-opt")),
    ("%exits", f"{shlex.quote(sys.executable)} {shlex.quote(str(here / 'exits.py'))}"),
    ("%examples", shlex.quote(str(here.parent / "examples"))),
]
