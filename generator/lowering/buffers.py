"""The buffers of a kernel's tensors, as MLIR."""

from __future__ import annotations

from mlirules.language.values import Tensor


def parts(tensor: Tensor) -> str:
    """A buffer as what C functions take: where it begins, and how far into that."""
    name, rank = tensor.name, tensor.rank
    assert tensor.dtype is not None
    pointer = f"memref<{tensor.dtype.mlir}>"
    made, types = [f"%{name}_base", f"%{name}_offset"], [pointer, "index"]
    if rank:
        made += [f"%{name}_sizes:{rank}", f"%{name}_strides:{rank}"]
        types += ["index"] * (2 * rank)
    return (
        f"{', '.join(made)} = iree_codegen.extract_strided_metadata %{name} : {memref(tensor)} "
        f"-> {', '.join(types)}"
    )


def pointer(tensor: Tensor) -> str:
    """Where a buffer's numbers begin, for the CPU's own operations on memory."""
    name = tensor.name
    assert tensor.dtype is not None
    kind = tensor.dtype.mlir
    rows = [
        f"%{name}_begins = memref.extract_aligned_pointer_as_index %{name}_base : memref<{kind}> "
        "-> index",
        f"%{name}_begins_64 = arith.index_cast %{name}_begins : index to i64",
        f"%{name}_begins_at = llvm.inttoptr %{name}_begins_64 : i64 to !llvm.ptr",
        f"%{name}_offset_64 = arith.index_cast %{name}_offset : index to i64",
        f"%{name}_pointer = llvm.getelementptr %{name}_begins_at[%{name}_offset_64] : "
        f"(!llvm.ptr, i64) -> !llvm.ptr, {kind}",
    ]
    return "\n  ".join(rows)


def builtin(tensor: Tensor) -> str:
    """A tensor's type outside torch's dialect."""
    return Tensor(tensor.name, tensor.dims, tensor.dtype, False).builtin_type()


def memref(tensor: Tensor) -> str:
    """The type of its buffer, which begins at its first number."""
    return builtin(tensor).replace("tensor<", "memref<", 1)
