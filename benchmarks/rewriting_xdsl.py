"""The xDSL side of the rewriting benchmark: torch ops in IRDL, and the two lowerings."""

from abc import ABC
from collections import Counter
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.arith import Arith, ConstantOp, MaximumfOp
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    Builtin,
    FloatAttr,
    IntAttr,
    ModuleOp,
    TensorType,
    f32,
)
from xdsl.dialects.func import Func
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import FillOp, GenericOp, MatmulOp, YieldOp
from xdsl.dialects.tensor import EmptyOp, Tensor
from xdsl.ir import (
    Attribute,
    Block,
    Dialect,
    ParametrizedAttribute,
    Region,
    SSAValue,
    TypeAttribute,
)
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.printer import Printer


@irdl_attr_definition
class VTensorType(ParametrizedAttribute, TypeAttribute):
    """`!torch.vtensor<[8,8],f32>`, static dims only."""

    name = "torch.vtensor"
    shape: ArrayAttr[IntAttr]
    dtype: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        """Read `<[dims],dtype>`."""
        with parser.in_angle_brackets():
            dims = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: IntAttr(parser.parse_integer())
            )
            parser.parse_punctuation(",")
            return [ArrayAttr(dims), parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        """Write `<[dims],dtype>`."""
        printer.print_string(f"<[{','.join(str(dim.data) for dim in self.shape)}],")
        printer.print_attribute(self.dtype)
        printer.print_string(">")

    def builtin(self) -> TensorType[Attribute]:
        """Return the tensor type of the same shape and element type."""
        return TensorType(self.dtype, [dim.data for dim in self.shape])


class Unary(IRDLOperation, ABC):
    """One operand, one result, printed as torch-mlir prints it."""

    operand = operand_def()
    result = result_def()
    assembly_format: ClassVar[str] = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, result_type: Attribute) -> None:
        super().__init__(operands=[operand], result_types=[result_type])


@irdl_op_definition
class ReluOp(Unary):
    """`torch.aten.relu`."""

    name = "torch.aten.relu"


@irdl_op_definition
class MmOp(IRDLOperation):
    """`torch.aten.mm`."""

    name = "torch.aten.mm"
    lhs = operand_def(VTensorType)
    rhs = operand_def(VTensorType)
    result = result_def(VTensorType)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)"


@irdl_op_definition
class ToBuiltinOp(Unary):
    """`torch_c.to_builtin_tensor`."""

    name = "torch_c.to_builtin_tensor"


@irdl_op_definition
class FromBuiltinOp(Unary):
    """`torch_c.from_builtin_tensor`."""

    name = "torch_c.from_builtin_tensor"


TORCH = Dialect("torch", [MmOp, ReluOp], [VTensorType])
TORCH_C = Dialect("torch_c", [ToBuiltinOp, FromBuiltinOp])

IDENTITY = AffineMapAttr(AffineMap.identity(2))
PARALLEL = IteratorTypeAttr.parallel()


def builtin_value(value: SSAValue, rewriter: PatternRewriter) -> SSAValue:
    """Return `value` as a builtin tensor: what a cast made it from, or a new cast."""
    if isinstance(value.owner, FromBuiltinOp):
        return value.owner.operand
    assert isinstance(value.type, VTensorType)
    cast = ToBuiltinOp(value, value.type.builtin())
    rewriter.insert(cast)
    return cast.result


class LowerMm(RewritePattern):
    """mm to a zero-filled matmul."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MmOp, rewriter: PatternRewriter) -> None:
        """Replace `op`."""
        lhs, rhs = builtin_value(op.lhs, rewriter), builtin_value(op.rhs, rewriter)
        assert isinstance(op.result.type, VTensorType)
        zero = ConstantOp(FloatAttr(0.0, f32))
        empty = EmptyOp([], op.result.type.builtin())
        fill = FillOp([zero.result], [empty.tensor])
        product = MatmulOp([lhs, rhs], [fill.res[0]])
        back = FromBuiltinOp(product.res[0], op.result.type)
        rewriter.replace(op, [zero, empty, fill, product, back], [back.result])


class LowerRelu(RewritePattern):
    """relu to an elementwise maximum with zero."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReluOp, rewriter: PatternRewriter) -> None:
        """Replace `op`."""
        source = builtin_value(op.operand, rewriter)
        assert isinstance(op.result.type, VTensorType)
        empty = EmptyOp([], op.result.type.builtin())
        block = Block(arg_types=[f32, f32])
        zero = ConstantOp(FloatAttr(0.0, f32))
        largest = MaximumfOp(block.args[0], zero.result)
        block.add_ops([zero, largest, YieldOp(largest.result)])
        generic = GenericOp(
            [source],
            [empty.tensor],
            Region(block),
            [IDENTITY, IDENTITY],
            [PARALLEL, PARALLEL],
            [empty.tensor.type],
        )
        back = FromBuiltinOp(generic.res[0], op.result.type)
        rewriter.replace(op, [empty, generic, back], [back.result])


def make_context() -> Context:
    """Return a context with the dialects of the program and of what it becomes."""
    context = Context()
    for dialect in (Builtin, Func, Arith, Tensor, Linalg, TORCH, TORCH_C):
        context.load_dialect(dialect)
    return context


def parse(text: str, context: Context) -> ModuleOp:
    """Parse a module's text."""
    return Parser(context, text).parse_module()


def rewrite(module: ModuleOp) -> None:
    """Lower every mm and relu in one walk.

    Neither new ops are revisited nor dead ones looked for: the program needs neither, and both
    would only cost xDSL time.
    """
    applier = GreedyRewritePatternApplier([LowerMm(), LowerRelu()], dce_enabled=False)
    PatternRewriteWalker(applier, apply_recursively=False).rewrite_module(module)


def count_ops(module: ModuleOp) -> dict[str, int]:
    """Count the ops of a module by name."""
    return Counter(op.name for op in module.walk())
