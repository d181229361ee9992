"""What mlirules uses of the importer of graphs; what is PyTorch's is Any where that is missing."""

from typing import Any

from iree.compiler.ir import Context, Module, Operation, Type, Value
from torch import Tensor
from torch.fx import GraphModule

class InputInfo: ...

class ContextCache:
    def tensor_to_vtensor_type(self, tensor: Tensor) -> Type: ...

class GraphNodeImporter:
    fx_importer: FxImporter
    _cc: ContextCache

class FxImporterHooks:
    def prepare_module(self, module_op: Operation) -> None: ...
    def resolve_literal(
        self, gni: GraphNodeImporter, literal: Any, info: InputInfo | None
    ) -> Value | None: ...

class FxImporter:
    def __init__(
        self,
        *,
        module: Module | None = None,
        context: Context | None = None,
        config_check: bool = True,
        hooks: FxImporterHooks | None = None,
    ) -> None: ...
    @property
    def module(self) -> Module: ...
    def import_graph_module(
        self,
        gm: GraphModule,
        *,
        func_name: str = "main",
        func_visibility: str | None = None,
        import_symbolic_shape_expressions: bool = False,
    ) -> Operation: ...

def create_mlir_tensor_type(tensor: Tensor) -> Type: ...
