"""Flags of a pipeline that make way for a program: they do not suit its weights or its products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlirules.drivers.iree import compiler, weights
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import open_ops
from mlirules.drivers.match.values import type_info
from mlirules.drivers.measure.forms import Product
from mlirules.language.pipeline import Pipeline

__all__ = [
    "SMALL",
    "for_configs",
    "for_products",
    "for_weights",
    "instead",
    "multiplied",
    "open_vectors",
    "told",
]

#: Flags with which a failure of IREE 3.13 goes away, by kinds of target and what it says. Here:
#: some sums of rows cannot be shared among the threads of a subgroup.
_INSTEAD = {
    (kind, "failed to distribute"): (
        "--iree-codegen-llvmgpu-use-reduction-vector-distribution=false",
    )
    for kind in ("cuda", "hip")
}

#: Pairs of numbers that the products of a program multiply, below which they are not large: some
#: microseconds of one core, where a second of compiling packs them.
SMALL = 1 << 18
#: Columns of a product, below which packing its rows takes longer than it saves: 512 rows of 4096
#: numbers by two columns take 0.4 of the time as they lie, 256 of 1024 by four 0.6 (a Zen 3).
COLUMNS = 9

#: Products that IREE itself converts, where no rule did.
_LEFT = frozenset(
    [f"torch.aten.{name}" for name in ("mm", "mv", "bmm", "matmul", "linear", "addmm", "addmv")]
    + ["stablehlo.dot", "stablehlo.dot_general", "tosa.matmul"]
)


def instead(kind: str, error: compiler.CompileError) -> tuple[str, ...]:
    """The flags with which a program compiles that failed so for a kind of target; mostly none."""
    for (target, said), flags in _INSTEAD.items():
        if target == kind and any(said in fault.message for fault in error.faults):
            return flags
    return ()


def told(
    pipeline: Pipeline,
    dropped: Sequence[str],
    added: Sequence[str],
    error: compiler.CompileError,
) -> str:
    """What there is to say of a program that was compiled with other flags than its pipeline's."""
    changed = [f"without {', '.join(dropped)} of the pipeline {pipeline.pipeline}"] * bool(dropped)
    changed += [f"with {', '.join(added)}"] * bool(added)
    otherwise = "with which" if not added else "since otherwise"
    why = error.faults[0].message.splitlines()[0]
    return f"compiled {' and '.join(changed)}, {otherwise} the program does not compile: {why}"


def for_weights(pipeline: Pipeline, module: ir.Module) -> tuple[Pipeline, list[str]]:
    """The pipeline as it suits the weights of a program, and what there is to say of that."""
    if not pipeline.copying_weights or next(weights.named(module), None) is None:
        return pipeline, []
    why = "weights are mapped, not read and copied at every start"
    return _without(pipeline, pipeline.copying_weights, why)


def for_products(
    pipeline: Pipeline, module: ir.Module, target: Target | None = None
) -> tuple[Pipeline, list[str]]:
    """The pipeline as it suits the products of a lowered program, and what there is to say.

    Whether they are large enough to be packed says the learned model of the target where it knows
    all of them, else how much they multiply.
    """
    notes: list[str] = []
    if pipeline.padding_vectors and next(open_vectors(module), None) is not None:
        why = (
            "a product gives a vector whose length is known only at run time, and what reads it "
            "would read its padding too"
        )
        pipeline, notes = _without(pipeline, pipeline.padding_vectors, why)
    if pipeline.large_products and not _packing_pays(module, target):
        # What the flags are for, and no refusal: that needs no telling.
        pipeline, _ = _without(pipeline, pipeline.large_products, "")
    return pipeline, notes


def for_configs(pipeline: Pipeline, error: Exception) -> tuple[Pipeline, str]:
    """The pipeline without kernels that take what config rules may be for, and what to say.

    Raises the error where that can be no help: it is another one than that no rule found an op, or
    the pipeline has no such stage.
    """
    from mlirules.drivers.tuning_specs.compile import NothingHit

    aside = [str(stage.name) for stage in pipeline.stages if stage.configurable]
    if not isinstance(error, NothingHit) or not aside:
        raise error
    note = (
        f"compiled without {', '.join(aside)} of the pipeline {pipeline.pipeline}: what kernels "
        "compute takes no configuration"
    )
    kept = [stage for stage in pipeline.stages if not stage.configurable]
    return replace(pipeline, stages=kept), note


def _packing_pays(module: ir.Module, target: Target | None) -> bool:
    works = None if target is None else _layers(module)
    if target is not None and works:
        from mlirules.drivers.measure import learned

        model = learned.for_target(target)
        # Of few columns a model of some hundred shapes has seen few.
        many = [work for work in works if work.columns >= COLUMNS]
        found = [model.seconds(work) for work in many] if model is not None else [{}]
        if all("packed" in seconds for seconds in found):
            packed, unpacked = (sum(s[form] for s in found) for form in ("packed", "unpacked"))
            return unpacked > (1 + learned.MARGINS["unpacked"]) * packed
    return multiplied(module) >= SMALL


def _layers(module: ir.Module) -> list[Product] | None:
    """The products of a lowered program as the model knows them: rows of f32 by a constant; None
    where some are others."""
    found = []
    for op in open_ops(module):
        if op.name in _LEFT:
            return None
        if op.name.startswith("linalg.") and compiler.is_contraction(op):
            work = _layer(op)
            if work is None:
                return None
            found.append(work)
    return found


def _layer(op: ir.Operation) -> Product | None:
    types = [ir.ShapedType(value.type) for value in op.operands]
    if len(types) != 3 or any(t.rank != 2 or str(t.element_type) != "f32" for t in types):
        return None
    if not _is_constant(op.operands[1]) or _is_constant(op.operands[0]):
        return None
    dims = [_dims(t) for t in types]
    if any("?" in each for each in dims):
        return None
    (rows, inner), weights, (rows_too, columns) = ([int(d) for d in each] for each in dims)
    if rows != rows_too or sorted(weights) != sorted((inner, columns)):
        return None
    return Product(rows, inner, columns)


def _is_constant(value: ir.Value) -> bool:
    """Whether a tensor is a constant, or one that was turned: a linear layer's weights are."""
    while not isinstance(value.owner, ir.Block):
        owner = value.owner.operation
        if not _turns(owner):
            return str(owner.name) == "arith.constant"
        value = owner.operands[0]
    return False


def _turns(op: ir.Operation) -> bool:
    """Whether an op gives what it reads with its dims in another order."""
    if op.name == "linalg.transpose":
        return True
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    body = op.regions[0].blocks[0]
    ends = body.operations[len(body.operations) - 1]
    return len(body.operations) == 1 and list(ends.operands) == [body.arguments[0]]


def multiplied(module: ir.Module) -> float:
    """How many pairs of numbers the products of a lowered program multiply.

    Infinite where that is known only at run time. The batch dims of a product count one and a half
    times; its other dims, each of which two of its three tensors have, once. Those of fewer than
    :data:`COLUMNS` columns do not count.
    """
    found = 0.0
    for op in open_ops(module):
        if op.name in _LEFT:
            return math.inf
        if op.name.startswith("linalg.") and compiler.is_contraction(op):
            sizes = [size for value in op.operands for size in _dims(ir.ShapedType(value.type))]
            if "?" in sizes:
                return math.inf
            result = _dims(ir.ShapedType(op.operands[-1].type))
            if result and int(result[-1]) < COLUMNS:
                continue
            found += math.sqrt(math.prod(map(int, sizes)))
    return found


def open_vectors(module: ir.Module) -> Iterator[ir.Operation]:
    """The products whose result has one dim that is not 1, known only at run time."""
    for op in open_ops(module):
        name = op.name
        if name in _LEFT:
            if any(_open_vector(_sizes(result.type)) for result in op.results):
                yield op
        elif (
            name.startswith("linalg.")
            and any(
                isinstance(result.type, ir.RankedTensorType) and _open_vector(_dims(result.type))
                for result in op.results
            )
            and compiler.is_contraction(op)
        ):
            yield op


def _open_vector(sizes: Sequence[str]) -> bool:
    return [size for size in sizes if size != "1"] == ["?"]


def _dims(type_: ir.ShapedType) -> list[str]:
    return [
        "?" if type_.is_dynamic_dim(dim) else str(type_.get_dim_size(dim))
        for dim in range(type_.rank)
    ]


def _sizes(type_: ir.Type) -> list[str]:
    """The sizes of a tensor of torch's or a builtin one; none of another type."""
    _, tensor = type_info(type_)
    dims = () if tensor is None else tensor.dims or ()
    return [str(dim) if isinstance(dim, int) else "?" for dim in dims]


def _without(pipeline: Pipeline, flags: Sequence[str], why: str) -> tuple[Pipeline, list[str]]:
    out = [flag for flag in flags if flag in pipeline.flags]
    if not out:
        return pipeline, []
    kept = [flag for flag in pipeline.flags if flag not in out]
    note = f"compiled without {', '.join(out)} of the pipeline {pipeline.pipeline}: {why}"
    return replace(pipeline, flags=kept), [note]
