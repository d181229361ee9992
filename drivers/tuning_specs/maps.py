"""The loops of structured ops by what they do, told from their indexing maps."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from mlirules.drivers.iree.affine import loops_of
from mlirules.drivers.iree.compiler import ir


def exprs(affine: ir.AffineMap) -> list[str]:
    """The results of a map as text over d0, d1, ..."""
    return list(_exprs(str(affine)))


@functools.lru_cache(maxsize=1024)
def _exprs(affine: str) -> tuple[str, ...]:
    text = affine.partition("->")[2].strip()
    inner = text[1 : text.rindex(")")]
    return tuple(part.strip() for part in inner.split(",") if part.strip())


def indices(affine: ir.AffineMap, names: Sequence[str]) -> list[str]:
    """The results of a map over named loops."""
    return [re.sub(r"\bd(\d+)\b", lambda m: names[int(m[1])], e) for e in exprs(affine)]


def used(affine: ir.AffineMap) -> list[set[int]]:
    """The loops that each result of a map goes over."""
    return [loops_of(e) for e in affine.results]


def groups_by_number(op_class: str, maps: Sequence[ir.AffineMap]) -> list[list[int]]:
    """The loops by what they do, in the order in which the matcher returns their sizes."""
    reads = [{d for together in used(m) for d in together} for m in maps]
    rank = maps[0].n_dims
    if op_class == "contraction":
        wanted: list[tuple[bool, ...]] = [
            (True, True, True),
            (True, False, True),
            (False, True, True),
            (True, True, False),
        ]
        kinds = [tuple(d in reads[i] for i in range(3)) for d in range(rank)]
    elif op_class == "attention":
        wanted = [
            (True, True, True, True),
            (True, False, False, True),
            (False, False, True, True),
            (True, True, False, False),
            (False, True, True, False),
        ]
        kinds = [tuple(d in reads[i] for i in (0, 1, 2, 4)) for d in range(rank)]
    else:
        return convolution_groups(maps, rank)
    return [[d for d in range(rank) if kinds[d] == w] for w in wanted]


def convolution_groups(maps: Sequence[ir.AffineMap], rank: int) -> list[list[int]]:
    """Batch, image, output channels, filter, input channels and depth of a convolution."""
    read = used(maps[0])
    plain = {d for together in read if len(together) == 1 for d in together}
    summed = {d for together in read if len(together) > 1 for d in together}
    weights = {d for together in used(maps[1]) for d in together}
    out = {d for together in used(maps[2]) for d in together}
    groups = [
        (plain & out) - weights,  # batch
        summed & out,  # image
        (out & weights) - plain - summed,  # output channels
        summed - out,  # filter
        (plain & weights) - out,  # input channels
        plain & weights & out,  # depth
    ]
    return [[d for d in range(rank) if d in group] for group in groups]


def steps(maps: Sequence[ir.AffineMap]) -> tuple[list[int], list[int]]:
    """Strides and dilations of a convolution: how far an image and a filter loop go at a step."""
    factors: dict[int, int] = {}
    for text in exprs(maps[0]):
        for term in text.split("+"):
            found = re.search(r"d(\d+)", term)
            times = re.search(r"(?:^|[\s*])(\d+)(?:$|[\s*])", term)
            if found:
                factors[int(found[1])] = int(times[1]) if times else 1
    found_groups = convolution_groups(maps, maps[0].n_dims)
    image, window = found_groups[1], found_groups[3]
    return [factors.get(d, 1) for d in image], [factors.get(d, 1) for d in window]


def groups(op_class: str, maps: Sequence[ir.AffineMap], names: Sequence[str]) -> list[list[str]]:
    """The loops of an op by name, in groups of what they do."""
    return [[names[d] for d in group] for group in groups_by_number(op_class, maps)]


WORDS = {
    "contraction": ("b", "m", "n", "k"),
    "attention": ("b", "m", "n", "k1", "k2"),
    "convolution": ("n", "i", "f", "u", "c", "g"),
}


def loop_names(op_class: str, maps: Sequence[ir.AffineMap]) -> list[str] | None:
    """Names of the loops by what they do; None when the maps are not those of the class."""
    groups = groups_by_number(op_class, maps)
    rank = maps[0].n_dims
    names: list[str] = [""] * rank
    for word, group in zip(WORDS[op_class], groups, strict=True):
        for number, d in enumerate(group):
            if op_class == "convolution" and word in "iu":
                names[d] = {"i": "ijl", "u": "uvw"}[word][number] if number < 3 else f"{word}{d}"
            elif len(group) == 1:
                names[d] = word
            else:
                names[d] = f"{word}_{number}" if word[-1].isdigit() else f"{word}{number}"
    if not all(names) or not groups[3]:
        return None
    return names


def first_use(compute: str, names: Sequence[str]) -> list[str]:
    """The loops of an equation in the order of their first use."""
    seen = re.findall(r"\[([^\]]*)\]", compute)
    words = [w for part in seen for w in re.findall(r"[A-Za-z_]\w*", part)]
    return [w for w in dict.fromkeys(words) if w in names]
