"""``mlirules import``: a PyTorch module as torch-dialect MLIR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from mlirules.commands.common import Json, note, say_json, working
from mlirules.commands.options import Argument, Option
from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules import model.py:Net -o net.mlir --golden net.npz"


def command(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="FILE.py:MODEL, PACKAGE.MODULE:MODEL, or a FILE.pt2 of torch.export.save.",
        ),
    ],
    output: Annotated[
        Path,
        Option("--output", "-o", help="The MLIR file to write; .mlirbc: as bytecode."),
    ],
    inputs: Annotated[
        list[str] | None,
        Option(
            "--input",
            "-i",
            help="An example input, [NAME=]VALUE: 1x3x224x224xf32 (random), 1x16xsi64=1, "
            "@file.npy, true, 3. In order, those with names last.",
        ),
    ] = None,
    golden: Annotated[
        Path | None, Option(help="Write PyTorch's inputs and results to this .npz.")
    ] = None,
    externalize: Annotated[
        Path | None,
        Option(help="Write the weights to this .safetensors or .irpa, not into the program."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        Option(help="NAME=VALUE for the class or function; VALUE is JSON, else a string."),
    ] = None,
    dynamic: Annotated[
        list[str] | None, Option(help="A dimension that varies: a0[0]=N or a0[0]=N:2..64.")
    ] = None,
    no_decompose: Annotated[
        bool, Option("--no-decompose", help="Keep composite ops such as aten.linear.")
    ] = False,
    train: Annotated[bool, Option("--train", help="Import in training mode.")] = False,
    function: Annotated[str, Option(help="The entry function's name.")] = "main",
    seed: Annotated[int, Option(help="Seeds torch: weights and inputs repeat.")] = 0,
    as_json: Json = False,
) -> None:
    """Import a PyTorch module (extra `torch`): its code is executed, it is exported."""
    from mlirules.drivers.frontend.torch import DynamicDim, Options, import_file

    arguments = dict(_argument(text) for text in arg or [])
    dims = [DynamicDim.parse(text) for text in dynamic or []]
    with working(f"importing {model}"):
        done = import_file(
            model,
            output,
            Options(
                arguments=arguments,
                inputs=inputs or (),
                function=function,
                decompose=not no_decompose,
                dynamic=dims,
                train=train,
                seed=seed,
            ),
            golden=golden,
            externalize=externalize,
        )
    if as_json:
        say_json(
            {
                "output": str(output),
                "golden": str(golden) if golden else None,
                "ops": dict(done.ops),
                "foreign": dict(done.foreign),
                "notes": list(done.notes),
                "parameters": len(done.program.parameters),
            }
        )
        return
    note(f"{output}: {sum(done.ops.values())} torch ops of {len(done.ops)} kinds")
    if externalize:
        size = sum(value.nbytes for value in done.program.parameters.values())
        note(f"{externalize}: {len(done.program.parameters)} weights, {size / 1e6:.1f} MB")
    for said in done.notes:
        note(said)
    for name, count in done.foreign.items():
        note(f"the torch dialect has no op for {name} ({count} times)")


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise MlirulesError.at("--arg", f"{text!r} is not NAME=VALUE", code="arg")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
