"""Exported PyTorch programs through the compiler wheel's importer.

The wheel's own entry for frozen programs puts the values of parameters and buffers into the graph
in place of their placeholders. That fails for buffers that are not persistent (it looks for them
in the state dict alone) and for values in lists (an index list of None and a table is told to be
heterogeneous). Here they become ``get_attr`` nodes, which the importer takes wherever a node
stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import context, ir
from mlirules.drivers.iree.program import constant_results, function_of
from mlirules.drivers.iree.runtime import SCOPE
from mlirules.language.faults import MlirulesError
from mlirules.language.values import Dyn

if TYPE_CHECKING:
    import torch
    from iree.compiler.extras.fx_importer import FxImporterHooks, GraphNodeImporter, InputInfo

__all__ = ["Program", "fx_import", "import_graph"]

#: Bytes from which on a value is worth leaving the program.
_LARGE = 1024


@dataclass(frozen=True)
class Program:
    """A module in the torch dialect.

    ``parameters`` are the values that it does not hold but loads by name, from an archive
    (:mod:`mlirules.drivers.iree.parameters`): numpy arrays over the model's own memory. bfloat16 is
    held as ml_dtypes' type.
    """

    module: ir.Module
    parameters: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def ops(self) -> Counter[str]:
        """How often each torch op occurs; what the dialect has no op for by its name, too."""
        found: Counter[str] = Counter()
        blocks = [self.module.body]
        while blocks:
            for op in blocks.pop().operations:
                inner = op.operation
                if inner.name == "torch.operator":
                    found[ir.StringAttr(inner.attributes["name"]).value] += 1
                elif inner.name.startswith("torch."):
                    found[inner.name] += 1
                blocks += [block for region in inner.regions for block in region.blocks]
        return found


def fx_import(
    exported: torch.export.ExportedProgram,
    function: str = "main",
    external: bool = False,
    prefix: str = "",
) -> Program:
    """The torch-dialect program of a ``torch.export.ExportedProgram``, which is used up.

    ``function`` names the entry. With ``external``, values of 1 KiB and more stay outside, under
    the names that the model gives them, without ``prefix``. Arguments and results that are no
    tensors (they are constants of the program) are left out. Needs torch. Raises what the importer
    raises for a program it does not understand, and MLIRError for one that is wrong.
    """
    from iree.compiler.extras.fx_importer import FxImporter  # imports torch

    names = _freeze(exported, prefix)
    _tensors_only(exported)
    parameters: dict[str, npt.NDArray[Any]] = {}
    hooks = _external_values(names, parameters) if external else None
    importer = FxImporter(context=context(), hooks=hooks)
    importer.import_graph_module(exported.graph_module, func_name=function)
    # The importer builds ops without a look at their types.
    importer.module.operation.verify()
    return Program(importer.module, parameters)


def import_graph(
    graph_module: torch.fx.GraphModule, held: Mapping[int, str], function: str = "main"
) -> tuple[ir.Module, frozenset[int]]:
    """The torch-dialect module of a functional graph of ATen ops, whose nodes say their values.

    ``held`` are placeholders, by position, that become weights of the scope :data:`SCOPE` with
    these names; the other placeholders are the arguments of ``function``. The second result are
    the positions of results that depend on no argument. Needs torch. Raises what the importer
    raises for a graph that it does not understand.
    """
    from iree.compiler.extras.fx_importer import FxImporter  # imports torch

    importer = FxImporter(context=context())
    importer.import_graph_module(graph_module, func_name=function)
    module = importer.module
    _hold(module, function_of(module, function), held)
    return module, constant_results(module, function)


def _hold(module: ir.Module, function: ir.Operation, held: Mapping[int, str]) -> None:
    """Make weights of some arguments."""
    block = function.regions[0].blocks[0]
    with module.context, ir.Location.unknown(module.context):
        for position in sorted(held, reverse=True):
            argument = block.arguments[position]
            type_ = _builtin_tensor(argument.type)
            # Written as text: the bindings know nothing of the util and stream dialects.
            alone = ir.Module.parse(
                f"util.global private @parameter_{position} = "
                f'#stream.parameter.named<"{SCOPE}"::"{held[position]}"> : {type_}',
                module.context,
            )
            alone.body.operations[0].operation.clone(ir.InsertionPoint.at_block_begin(module.body))
            with ir.InsertionPoint.at_block_begin(block):
                load = ir.Operation.create(
                    "util.global.load",
                    results=[type_],
                    attributes={"global": ir.FlatSymbolRefAttr.get(f"parameter_{position}")},
                )
                value = ir.Operation.create(
                    "torch_c.from_builtin_tensor",
                    results=[argument.type],
                    operands=[load.result],
                )
            argument.replace_all_uses_with(value.result)
            block.erase_argument(position)
        kept = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        inputs = [a.type for a in block.arguments]
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(inputs, kept.results)
        )


def _builtin_tensor(type_: ir.Type) -> ir.Type:
    """The builtin tensor type of a torch tensor's: that has no signs."""
    found = irtypes.tensor(type_)
    if found is None or not found.torch or any(isinstance(d, Dyn) for d in found.dims or ()):
        raise MlirulesError.at(
            "<program>",
            f"a weight of type {type_} cannot be kept outside the program",
            code="weight-type",
            suggestion="import without --externalize",
        )
    return ir.Type.parse(found.builtin_type())


def _freeze(exported: torch.export.ExportedProgram, prefix: str) -> dict[int, str]:
    """Replace the placeholders of parameters, buffers and constants by attributes of the graph.

    The result names the values, by their identity.
    """
    from torch.export.graph_signature import InputKind

    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    # A buffer that is not persistent is among the constants, a persistent one in the state dict.
    held = {**exported.constants, **exported.state_dict}
    targets = {
        spec.arg.name: spec.target
        for spec in exported.graph_signature.input_specs
        if spec.kind in kinds
    }
    module, graph = exported.graph_module, exported.graph
    names: dict[int, str] = {}
    for number, node in enumerate(list(graph.find_nodes(op="placeholder"))):
        if node.name not in targets:
            continue
        target = targets[node.name]
        value = held[target]
        names.setdefault(id(value), target.removeprefix(prefix))
        module.register_buffer(f"_frozen_{number}", value)
        with graph.inserting_before(node):
            constant = graph.get_attr(f"_frozen_{number}")
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    return names


def _tensors_only(exported: torch.export.ExportedProgram) -> None:
    """Drop arguments and results that are constants of the program."""
    import torch

    graph = exported.graph
    for node in list(graph.find_nodes(op="placeholder")):
        if not isinstance(node.meta.get("val"), torch.Tensor) and not node.users:
            graph.erase_node(node)
    output = graph.output_node()
    results = output.args[0]
    kept = tuple(
        result
        for result in (results if isinstance(results, list | tuple) else (results,))
        if isinstance(result, torch.fx.Node) and isinstance(result.meta.get("val"), torch.Tensor)
    )
    output.args = (kept,)


def _external_values(
    names: Mapping[int, str], parameters: dict[str, npt.NDArray[Any]]
) -> FxImporterHooks:
    """Importer hooks that load large values by name, and put them into ``parameters``."""
    import ml_dtypes
    import torch
    from iree.compiler.extras.fx_importer import FxImporterHooks, create_mlir_tensor_type

    class External(FxImporterHooks):
        def __init__(self) -> None:
            self._symbols: dict[int, tuple[str, ir.Type]] = {}

        def resolve_literal(
            self,
            gni: GraphNodeImporter,
            literal: object,
            info: InputInfo | None,  # noqa: ARG002
        ) -> ir.Value | None:
            if not isinstance(literal, torch.Tensor) or id(literal) not in names:
                return None
            if literal.nbytes < _LARGE or not (literal.is_floating_point() or literal.is_complex()):
                return None
            if id(literal) not in self._symbols:
                self._symbols[id(literal)] = self._declare(gni, literal)
            symbol, type_ = self._symbols[id(literal)]
            load = ir.Operation.create(
                "util.global.load",
                results=[type_],
                attributes={"global": ir.FlatSymbolRefAttr.get(symbol)},
            )
            return ir.Operation.create(
                "torch_c.from_builtin_tensor",
                results=[gni._cc.tensor_to_vtensor_type(literal)],
                operands=[load.result],
            ).result

        def _declare(self, gni: GraphNodeImporter, tensor: torch.Tensor) -> tuple[str, ir.Type]:
            name, symbol = names[id(tensor)], f"parameter_{len(self._symbols)}"
            type_ = create_mlir_tensor_type(tensor)
            # Written as text: the bindings know nothing of the util and stream dialects.
            alone = ir.Module.parse(
                f"util.global private @{symbol} = "
                f'#stream.parameter.named<"{SCOPE}"::"{name}"> : {type_}',
                gni.fx_importer.module.context,
            )
            alone.body.operations[0].operation.clone(
                ir.InsertionPoint.at_block_begin(gni.fx_importer.module.body)
            )
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            if plain.dtype == torch.bfloat16:
                parameters[name] = plain.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
            elif plain.element_size() == 1:
                kind = str(plain.dtype).removeprefix("torch.")
                parameters[name] = plain.view(torch.uint8).numpy().view(getattr(ml_dtypes, kind))
            else:
                parameters[name] = plain.numpy()
            return symbol, type_

    return External()
