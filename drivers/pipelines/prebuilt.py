"""What a wheel brings ready-made: shipped pipelines, their rule sets, the rules' PDL, targets.

    python -m mlirules.drivers.pipelines.prebuilt FOLDER

writes them, as the build of a wheel does (``build_backend/``). Each is named by its content and by
the versions it holds for, and read by what keeps the same in the user's cache: of another compiler,
of files that were edited, of other code nothing is found, and it is made as in a checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.measure import roofline
from mlirules.generator.emit import pdll
from mlirules.language import library
from mlirules.language.pipeline import PIPELINES, Pipeline
from mlirules.language.rule import Rule
from mlirules.support import cache

__all__ = ["make", "patterns"]


def make(folder: Path) -> str:
    """Write below ``folder`` what ships ready-made; says in a line what it is.

    It works in a cache of its own, given by ``MLIRULES_CACHE_DIR``, which must be empty: what is
    kept there goes into the wheel. Raises MlirulesError for faults in what ships, and where
    mlir-pdll is missing.
    """
    names = sorted(path.stem for path in PIPELINES.glob("*.yaml"))
    stages = [stage for name in names for stage in Pipeline.load(name).stages]
    for path in roofline.PARAMETERS.glob("*.yaml"):
        roofline.parameters(path.stem)
    for kind in ("pipelines", "targets"):
        shutil.copytree(cache.directory() / kind, folder / kind)
    sets = sorted({name for stage in stages for name in stage.rules})
    version = compiler.revision()
    held = {
        name: library.ship(name, folder, ops=compiler.op_oracle, compiler=version) for name in sets
    }
    rules: dict[str, Rule] = {}
    for stage in stages:
        # The walk alone never asks MLIR's driver.
        if stage.driver != "walk":
            rules |= {entry.name: entry.rule for name in stage.rules for entry in held[name]}
    pdll.ship(list(rules.values()), folder, patterns)
    return (
        f"{len(names)} pipelines, {len(sets)} rule sets and the PDL of {len(rules)} rules "
        f"for IREE {version}, by {pdll.release()}"
    )


def patterns(text: str) -> dict[str, str]:
    """The patterns of a module of PDL by their names, each as text of its own."""
    module = ir.Module.parse(text, compiler.context())
    listed = [op.operation for op in module.body.operations]
    return {ir.StringAttr(op.attributes["sym_name"]).value: str(op) for op in listed}


def _main() -> None:
    with tempfile.TemporaryDirectory() as own:
        os.environ["MLIRULES_CACHE_DIR"] = own
        print(make(Path(sys.argv[1])))


if __name__ == "__main__":
    _main()
