"""``mlirules import``: a PyTorch module as torch-dialect MLIR."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlirules.commands.common import Json, note, say_json, working
from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules import model.py:Net -o net.mlir --golden net.npz"


def command(
    model: Annotated[str, typer.Argument(metavar="FILE.py:MODEL", help="The module to import.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The MLIR file to write.")],
    golden: Annotated[
        Path | None, typer.Option(help="Write PyTorch's inputs and results to this .npz.")
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the class or factory function.")
    ] = None,
    dynamic: Annotated[
        list[str] | None, typer.Option(help="A dimension that varies: a0[0]=N or a0[0]=N:2..64.")
    ] = None,
    no_decompose: Annotated[
        bool, typer.Option("--no-decompose", help="Keep composite ops such as aten.linear.")
    ] = False,
    train: Annotated[bool, typer.Option("--train", help="Import in training mode.")] = False,
    function: Annotated[str, typer.Option(help="The entry function's name.")] = "main",
    seed: Annotated[int, typer.Option(help="Seeds torch: weights and inputs repeat.")] = 0,
    as_json: Json = False,
) -> None:
    """Import a PyTorch module (extra `torch`): FILE.py is executed, MODEL is exported."""
    from mlirules.drivers.frontend.torch import DynamicDim, import_file

    arguments = {}
    for text in arg or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise MlirulesError.at("--arg", f"{text!r} is not NAME=VALUE", code="arg")
        arguments[name] = value
    dims = [DynamicDim.parse(text) for text in dynamic or []]
    with working(f"importing {model}"):
        done = import_file(
            model,
            output,
            golden=golden,
            arguments=arguments,
            function=function,
            decompose=not no_decompose,
            dynamic=dims,
            train=train,
            seed=seed,
        )
    if as_json:
        say_json(
            {
                "output": str(output),
                "golden": str(golden) if golden else None,
                "ops": dict(done.ops),
                "foreign": dict(done.foreign),
            }
        )
        return
    note(f"{output}: {sum(done.ops.values())} torch ops of {len(done.ops)} kinds")
    for name, count in done.foreign.items():
        note(f"the torch dialect has no op for {name} ({count} times)")
