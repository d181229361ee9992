"""Exported PyTorch programs through the compiler wheel's importer.

The wheel's own entry for frozen programs puts the values of parameters and buffers into the graph
in place of their placeholders. That fails for buffers that are not persistent (it looks for them
in the state dict alone) and for values in lists (an index list of None and a table is told to be
heterogeneous). Here they become ``get_attr`` nodes, which the importer takes wherever a node
stands.
"""

from __future__ import annotations

from typing import Any

from mlirules.drivers.iree.compiler import context

__all__ = ["fx_import"]


def fx_import(exported: Any, function: str = "main") -> str:
    """The torch-dialect MLIR text of a ``torch.export.ExportedProgram``, which is used up.

    ``function`` names the entry. Needs torch. Raises what the importer raises for a program it
    does not understand.
    """
    from iree.compiler.extras.fx_importer import FxImporter  # imports torch

    _freeze(exported)
    importer = FxImporter(context=context())
    importer.import_graph_module(exported.graph_module, func_name=function)
    return str(importer.module.operation.get_asm())


def _freeze(exported: Any) -> None:
    """Replace the placeholders of parameters, buffers and constants by attributes of the graph."""
    values = frozen_values(exported)
    module, graph = exported.graph_module, exported.graph
    for number, node in enumerate(list(graph.find_nodes(op="placeholder"))):
        if node.name not in values:
            continue
        name = f"_frozen_{number}"
        module.register_buffer(name, values[node.name][1])
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)


def frozen_values(exported: Any) -> dict[str, tuple[str, Any]]:
    """For each placeholder that is no argument: the name of its value, and the value."""
    from torch.export.graph_signature import InputKind

    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    # A buffer that is not persistent is among the constants, a persistent one in the state dict.
    held = {**exported.constants, **exported.state_dict}
    return {
        spec.arg.name: (spec.target, held[spec.target])
        for spec in exported.graph_signature.input_specs
        if spec.kind in kinds
    }
