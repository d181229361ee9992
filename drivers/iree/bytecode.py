"""Bytecode in memory that lies where the compiler wants it.

A program with weights says that its bytecode must begin at an address that 64 divides, and is
refused elsewhere: in Python's bytes nearly always, and in a file whenever the compiler reads that
into memory of its own instead of mapping it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from mlirules.drivers.iree.bindings import ir

__all__ = ["MAGIC", "is_aligned", "is_mapped", "parse", "parse_file", "resource_name", "resources"]

_Bytes: TypeAlias = bytes | mmap.mmap

#: How MLIR bytecode begins.
MAGIC = b"ML\xefR"
#: More than any bytecode asks for.
_ALIGNMENT = 4096
#: A section's first byte, where an alignment follows.
_ALIGNED = 0x80
# LLVM maps files from this size on, unless they end where a page does.
_MAPPED, _PAGE = 4 * 4096, 4096


def is_mapped(size: int) -> bool:
    """Whether the compiler maps a file of ``size`` bytes, which puts it at a page's beginning."""
    return size >= _MAPPED and size % _PAGE != 0


def is_aligned(data: bytes) -> bool:
    """Whether bytecode asks for an address; what cannot be read does not.

    Weights do. Their section says so but where it happens to begin at such a place in the file.
    """
    try:
        at = _number(data, len(MAGIC))[1]
        at = data.index(b"\0", at) + 1  # who wrote it
        while at < len(data):
            section = data[at]
            length, at = _number(data, at + 1)
            if section & _ALIGNED or (section == _RESOURCES and length):
                return True
            at += length
    except (IndexError, ValueError):
        pass
    return False


def _number(data: _Bytes, at: int) -> tuple[int, int]:
    """MLIR's numbers of variable length: the zeros at the end of the first byte tell the bytes."""
    first = data[at]
    if first & 1:
        return first >> 1, at + 1
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    more = (first & -first).bit_length()
    return int.from_bytes(data[at : at + more], "little") >> more, at + more


#: Sections by their numbers: https://mlir.llvm.org/docs/BytecodeFormat.
_STRINGS, _RESOURCES, _RESOURCE_PLACES = 0, 5, 6
#: The kind of a resource that is bytes.
_BLOB = 0


def resources(path: str | Path) -> Mapping[str, memoryview]:
    """The bytes of a file's resources by their names, mapped; a fault in it leaves them out.

    The bindings give them in no way but printed. The format is that of MLIR's bytecode.
    """
    with Path(path).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = memoryview(mapped)
    try:
        return dict(_resources(mapped, whole))
    except (IndexError, ValueError, KeyError, UnicodeDecodeError):
        return {}


def _resources(data: _Bytes, whole: memoryview) -> Iterator[tuple[str, memoryview]]:
    sections = dict(_sections(data))
    if _RESOURCE_PLACES not in sections or _RESOURCES not in sections:
        return
    names = _strings(data, *sections[_STRINGS])
    (at, end), (entry, _) = sections[_RESOURCE_PLACES], sections[_RESOURCES]
    _external, at = _number(data, at)
    while at < end:  # groups: of whom (a name, a dialect), how many
        _owner, at = _number(data, at)
        count, at = _number(data, at)
        for _ in range(count):
            name, at = _number(data, at)
            size, at = _number(data, at)
            kind, at = data[at], at + 1
            if kind == _BLOB and size:
                alignment, start = _number(data, entry)
                length, start = _number(data, start)
                start += -start % alignment
                yield names[name], whole[start : start + length]
            entry += size


def _sections(data: _Bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """The sections' numbers, and where each begins and ends."""
    at = _number(data, len(MAGIC))[1]
    at = data.find(b"\0", at) + 1  # who wrote it
    while at < len(data):
        number = data[at]
        length, at = _number(data, at + 1)
        if number & _ALIGNED:
            alignment, at = _number(data, at)
            at += -at % alignment
        yield number & ~_ALIGNED, (at, at + length)
        at += length


def _strings(data: _Bytes, at: int, end: int) -> list[str]:
    """The strings of a file: their lengths come last one first, before their bytes."""
    count, at = _number(data, at)
    lengths = []
    for _ in range(count):
        length, at = _number(data, at)
        lengths.append(length)
    found = []
    start = end - sum(lengths)
    for length in reversed(lengths):
        found.append(data[start : start + length - 1].decode())
        start += length
    return found


def resource_name(printed: str) -> str:
    """The name in a printed ``dense_resource<name> : type``; an odd one is quoted."""
    inner = printed[len("dense_resource<") : printed.rindex("> : ")]
    return inner[1:-1] if inner.startswith('"') else inner


def parse(data: bytes, context: ir.Context) -> ir.Module:
    """The module in ``data``. Raises MLIRError."""
    if is_aligned(data):
        space = ctypes.create_string_buffer(len(data) + _ALIGNMENT)
        start = ctypes.addressof(space)
        start += -start % _ALIGNMENT
        ctypes.memmove(start, data, len(data))
        faults: list[ir.DiagnosticInfo] = []

        def told(diagnostic: ir.Diagnostic) -> bool:
            faults.append(ir.DiagnosticInfo(diagnostic))
            return True

        quiet = context.attach_diagnostic_handler(told)
        try:
            made = _library().mlirModuleCreateParse(_pointer(context), _Text(start, len(data)))
        finally:
            quiet.detach()
        if made.pointer:
            capsule = ctypes.pythonapi.PyCapsule_New
            capsule.restype = ctypes.py_object
            capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return ir.Module._CAPICreate(capsule(made.pointer, _MODULE, None))
        raise _error(faults)
    return ir.Module.parse(data, context)


def _error(faults: list[ir.DiagnosticInfo]) -> ir.MLIRError:
    """What the bindings raise of a program that they cannot parse."""
    said = [f"error: {str(fault.location)[4:-1]}: {fault.message}" for fault in faults]
    error = ir.MLIRError("\n".join(["Unable to parse module assembly:", *said]))
    vars(error).update(_message="Unable to parse module assembly", _error_diagnostics=faults)
    return error


def parse_file(path: str | Path, context: ir.Context) -> ir.Module:
    """The module in a file, whose weights are mapped where that can be. Raises MLIRError."""
    path = Path(path)
    if is_mapped(path.stat().st_size):
        return ir.Module.parseFile(str(path), context)
    data = path.read_bytes()
    if is_aligned(data):
        return parse(data, context)
    return ir.Module.parseFile(str(path), context)


#: What the bindings call a module that is handed over; a capsule keeps a pointer to it.
_MODULE = b"iree.compiler.ir.Module._CAPIPtr"


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Handle(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p),)


@functools.cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(Path(ir.__file__).parent / "_mlir_libs" / "libIREECompiler.so"))
    found.mlirModuleCreateParse.restype = _Handle
    found.mlirModuleCreateParse.argtypes = [_Handle, _Text]
    return found


def _name(held: ir.Context) -> bytes:
    told = ctypes.pythonapi.PyCapsule_GetName
    told.restype = ctypes.c_char_p
    told.argtypes = [ctypes.py_object]
    return bytes(told(held._CAPIPtr))


def _pointer(held: ir.Context) -> _Handle:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return _Handle(get(held._CAPIPtr, _name(held)))
