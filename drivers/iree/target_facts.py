"""What a target can do, as the compiler itself tells: instructions, workgroups, memory, vectors."""

from __future__ import annotations

import functools
import re

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.language.config.op import TargetFacts

_PROBE = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"


@functools.lru_cache(maxsize=64)
def facts(name: str) -> TargetFacts:
    """The facts of a target, as ``cuda:sm_80``. Takes one short run of the compiler, once.

    Raises MlirulesError for a target that does not exist.
    """
    target = Target.parse(name)
    text = compiler.lower_to(_PROBE, compiler.Job(target, timeout=120), "preprocessing")
    mma = re.search(r"\bmma = \[([^\]]*)\]", text)
    return TargetFacts(
        name=target.name,
        mma_kinds=frozenset(re.findall(r"<(\w+)>", mma[1])) if mma else frozenset(),
        subgroup_sizes=_numbers(text, "subgroup_size_choices"),
        max_threads=_number(text, "max_thread_count_per_workgroup"),
        max_workgroup=_numbers(text, "max_workgroup_sizes"),
        shared_bytes=_number(text, "max_workgroup_memory_bytes"),
        vector_bytes=_number(text, "native_vector_size"),
    )


def _number(text: str, key: str) -> int:
    found = re.search(rf"\b{key} = (\d+)", text)
    return int(found[1]) if found else 0


def _numbers(text: str, key: str) -> tuple[int, ...]:
    found = re.search(rf"\b{key} = \[([\d, ]+)\]", text)
    return tuple(int(n) for n in found[1].split(",")) if found else ()
