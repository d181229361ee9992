"""What mlirules uses of ``iree.compiler.rewrite``."""

import enum
from collections.abc import Callable, Sequence
from typing import Any, overload

from iree.compiler.ir import (
    Attribute,
    InsertionPoint,
    Module,
    Operation,
    Type,
    Value,
    _OperationBase,
)

class GreedyRewriteStrictness(enum.Enum):
    ANY_OP = 0
    EXISTING_AND_NEW_OPS = 1
    EXISTING_OPS = 2

class GreedySimplifyRegionLevel(enum.Enum):
    DISABLED = 0
    NORMAL = 1
    AGGRESSIVE = 2

class PatternRewriter:
    @property
    def ip(self) -> InsertionPoint: ...
    @overload
    def replace_op(self, op: _OperationBase, new_op: _OperationBase) -> None: ...
    @overload
    def replace_op(self, op: _OperationBase, values: Sequence[Value]) -> None: ...
    def erase_op(self, op: _OperationBase) -> None: ...

class PDLResultList:
    @overload
    def append(self, arg: Value, /) -> None: ...
    @overload
    def append(self, arg: Operation, /) -> None: ...
    @overload
    def append(self, arg: Type, /) -> None: ...
    @overload
    def append(self, arg: Attribute, /) -> None: ...

class PDLModule:
    def __init__(self, module: Module) -> None: ...
    def freeze(self) -> FrozenRewritePatternSet: ...
    # What a native function takes is what its pattern hands it: ops, values, types, attributes.
    def register_rewrite_function(self, arg0: str, arg1: Callable[..., Any], /) -> None: ...
    def register_constraint_function(self, arg0: str, arg1: Callable[..., Any], /) -> None: ...

class GreedyRewriteConfig:
    def __init__(self) -> None: ...
    max_iterations: int
    max_num_rewrites: int
    use_top_down_traversal: bool
    enable_folding: bool
    strictness: GreedyRewriteStrictness
    region_simplification_level: GreedySimplifyRegionLevel
    enable_constant_cse: bool

class FrozenRewritePatternSet: ...

@overload
def apply_patterns_and_fold_greedily(
    module: Module, set: FrozenRewritePatternSet, config: GreedyRewriteConfig | None = None
) -> None: ...
@overload
def apply_patterns_and_fold_greedily(
    op: _OperationBase, set: FrozenRewritePatternSet, config: GreedyRewriteConfig | None = None
) -> None: ...
def walk_and_apply_patterns(op: _OperationBase, set: FrozenRewritePatternSet) -> None: ...
