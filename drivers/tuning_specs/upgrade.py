"""Specs of older releases in the spelling of this one, every change listed.

An old spec often does not parse any more, so its words are gone through, comments and strings left
out, and only where a word stands for sure for another is it replaced. What then parses is read
entry by entry, for changes that need to know the op's loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.tuning_specs import dag
from mlirules.drivers.tuning_specs.attributes import Attr
from mlirules.drivers.tuning_specs.maps import groups_by_number
from mlirules.drivers.tuning_specs.reader import Spec, SpecEntry, read_spec
from mlirules.language.config.model import CPU_LEVELS, PIPELINES

#: How pipelines were called: a prefix for the kind of target, and now an attribute of their own.
_PREFIXES = (
    ("LLVMGPU", "iree_gpu.pipeline", "hip"),
    ("CPU", "iree_cpu.pipeline", "cpu"),
    ("SPIRV", "iree_gpu.spirv_pipeline", "vulkan"),
)
#: Lists of tile sizes on CPUs, by how many there are.
_CPU_LISTS = {
    len(CPU_LEVELS): CPU_LEVELS,
    4: ("distribution", "vector_common_parallel", "vector_reduction", "vector_inner_parallel"),
    3: ("distribution", "vector_common_parallel", "vector_reduction"),
}
_WORD = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|[#%@^!]?[A-Za-z_$][\w.$]*|\d+|\S|\s+')


@dataclass(frozen=True)
class Change:
    """What was replaced, and where; ``now`` equal to ``old``: it has no counterpart."""

    path: str
    line: int
    column: int
    old: str
    now: str
    why: str = ""

    def __str__(self) -> str:
        what = f"{self.old} -> {self.now or 'nothing'}" if self.old != self.now else self.old
        return f"{self.path}:{self.line}:{self.column}: {what}" + (
            f" ({self.why})" if self.why else ""
        )

    def as_json(self) -> dict[str, object]:
        """The change as plain data."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "old": self.old,
            "new": self.now,
            "why": self.why,
        }


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    now: str
    why: str = ""


def upgrade(text: str, path: str) -> tuple[str, list[Change]]:
    """The text in this release's spelling, and what changed.

    Raises :class:`~mlirules.language.faults.MlirulesError` when it does not parse even so.
    """
    first = list(_respelt(text))
    respelt = _applied(text, first)
    spec = read_spec(respelt, path)
    found = {edit: None for entry in spec.entries for edit in _by_entry(spec, entry)}
    second = sorted(found, key=lambda e: e.start)  # several entries may share a constant
    made = _applied(respelt, second)
    read_spec(made, path)
    changes = _changes(text, path, first, text) + _changes(text, path, second, respelt, first)
    return made, sorted(changes, key=lambda c: (c.line, c.column))


def needs_upgrade(text: str) -> bool:
    """Whether a text has words of older releases."""
    return next(_respelt(text), None) is not None


def _changes(
    text: str, path: str, edits: Sequence[_Edit], made: str, earlier: Sequence[_Edit] = ()
) -> list[Change]:
    """Edits of ``made`` as changes of ``text``, which ``earlier`` edits have made it from."""
    out = []
    line, start = 1, 0
    before = list(reversed(earlier))
    grown = 0  # how much longer earlier edits have made the text up to here
    for edit in edits:
        while before and before[-1].start + grown < edit.start:
            one = before.pop()
            grown += len(one.now) - (one.end - one.start)
        at = edit.start - grown
        line += text.count("\n", start, at)
        start = at
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        old = " ".join(made[edit.start : edit.end].split())
        out.append(Change(path, line, column, old, edit.now, edit.why))
    return out


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    parts, at = [], 0
    for edit in edits:
        parts += [text[at : edit.start], edit.now]
        at = edit.end
    return "".join([*parts, text[at:]])


def _respelt(text: str) -> Iterator[_Edit]:
    """Words that stand for others whatever is around them."""
    words = [m for m in _WORD.finditer(text) if not m[0].isspace() and not m[0].startswith("//")]
    context = compiler.context()
    for i, word in enumerate(words):
        before = words[i - 1][0] if i else ""
        two = words[i - 2][0] if i > 1 else ""
        after = words[i + 1][0] if i + 1 < len(words) else ""
        pipeline = _pipeline(word[0])
        if pipeline is not None and (before == "=" and two == "pipeline"):
            yield _Edit(word.start(), word.end(), pipeline)
        elif pipeline is not None and before == "<":
            yield _Edit(word.start(), word.end(), f"pipeline = {pipeline}")
        elif word[0] == "prefetch_shared_memory" and after == "=":
            value = words[i + 2]
            stages = 2 if value[0] == "true" else 0
            yield _Edit(word.start(), value.end(), f"prefetch_num_stages = {stages}")
        elif word[0] == "intrinsic" and after == "=" and before == "<" and "mma_layout" in two:
            yield _Edit(word.start(), words[i + 2].start(), "", "only its name is said")
        elif word[0] == '"iree_linalg_ext.attention"' and before == "[":
            now = '"iree_linalg_ext.online_attention"'
            yield _Edit(word.start(), word.end(), now, "what attention is by then")
        elif _MMA.fullmatch(word[0]):
            now = _instruction(word[0], context)
            if now != word[0]:
                yield _Edit(word.start(), word.end(), now)


def _pipeline(word: str) -> str | None:
    for prefix, attribute, kind in _PREFIXES:
        name = word.removeprefix(prefix)
        if name != word and name in PIPELINES[kind]:
            return f"#{attribute}<{name}>"
    return None


_MMA = re.compile(r"V?D?[MW]+F?MM?A[RC\d]*_(\w+?)_(\d+x\d+x\d+)_(\w+)")


def _instruction(name: str, context: ir.Context) -> str:
    """A matrix instruction's name: the result's type stands first now."""
    found = _MMA.fullmatch(name)
    if found is None or _known(name, context):
        return name
    swapped = f"{name[: found.start(1)]}{found[3]}_{found[2]}_{found[1]}"
    return swapped if _known(swapped, context) else name


def _known(name: str, context: ir.Context) -> bool:
    for layout in ("mma_layout", "virtual_mma_layout"):
        try:
            ir.Attribute.parse(f"#iree_gpu.{layout}<{name}>", context)
        except ir.MLIRError:
            continue
        return True
    return False


# ---- what needs the op's loops -----------------------------------------------------------------


def _by_entry(spec: Spec, entry: SpecEntry) -> Iterator[_Edit]:
    if entry.config is None:
        return
    lowering = entry.config.get("lowering_config")
    translation = entry.config.get("translation_info")
    pipeline = translation.get("pipeline") if translation is not None else None
    name = str(pipeline.items[0].value) if pipeline is not None and pipeline.items else ""
    if lowering is None:
        return
    if pipeline is not None and pipeline.tag == "iree_cpu.pipeline":
        yield from _cpu_lists(spec, lowering)
    roles = _roles(entry, lowering)
    yield from _counts(spec, lowering, name, roles.get("op"))
    for part in ("qk", "pv"):
        attrs = entry.decomposition.get(f"{part}_attrs") if entry.decomposition else None
        config = attrs.get("lowering_config") if attrs is not None else None
        if config is not None:
            yield from _counts(spec, config, "VectorDistribute", roles.get(part))


def _cpu_lists(spec: Spec, lowering: Attr) -> Iterator[_Edit]:
    """Lists without names, as CPUs had them."""
    lists = lowering.get("tile_sizes")
    if lowering.tag != "iree_codegen.lowering_config" or lists is None:
        return
    levels = _CPU_LISTS.get(len(lists.items))
    whole = spec.text[lowering.pos : lowering.end]
    if levels is None:
        yield _Edit(lowering.pos, lowering.end, whole, "no counterpart: name the levels")
        return
    named = [
        f"{level} = {spec.text[item.pos : item.end]}"
        for level, item in zip(levels, lists.items, strict=True)
        if any(item.numbers() or ())
    ]
    yield _Edit(lowering.pos, lowering.end, f"#iree_cpu.lowering_config<{', '.join(named)}>")


@dataclass(frozen=True)
class _Roles:
    """The loops of an op, and those over which rows and columns of results are."""

    rank: int
    over: tuple[int, ...]
    m: int
    n: int


def _roles(entry: SpecEntry, lowering: Attr) -> dict[str, _Roles]:
    asks = entry.asks
    maps = asks.maps
    if asks.program:
        root, _ = dag.parsed(asks.program, compiler.context())
        maps = compiler.indexing_maps(root) or []
    if asks.op_class == "attention" or "iree_linalg_ext.online_attention" in asks.names:
        if asks.op_class == "attention":
            batch, m, n, k1, k2 = groups_by_number("attention", maps)
        else:  # by its name alone: in the order that attentions have
            lists = [a.numbers() or [] for a in lowering.walk()]
            rank = max(map(len, lists), default=0)
            if rank < 4:
                return {}
            batch, (m, n, k1, k2) = list(range(rank - 4)), [[rank - 4 + i] for i in range(4)]
        rank = len(batch) + len(m) + len(n) + len(k1) + len(k2)
        every = range(rank)
        return {
            "qk": _Roles(rank, tuple(d for d in every if d not in n), m[-1], k2[-1]),
            "pv": _Roles(rank, tuple(d for d in every if d not in k1), m[-1], n[-1]),
        }
    if len(maps) != 3:
        return {}
    rank = maps[0].n_dims
    _, m, n, k = groups_by_number("contraction", maps)
    if m and n and k and asks.op_class != "convolution":
        return {"op": _Roles(rank, tuple(range(rank)), m[-1], n[-1])}
    batch, image, channels, *_ = groups_by_number("convolution", maps)
    if not channels or not (image or batch):
        return {}
    return {"op": _Roles(rank, tuple(range(rank)), (image or batch)[-1], channels[-1])}


def _counts(spec: Spec, lowering: Attr, pipeline: str, roles: _Roles | None) -> Iterator[_Edit]:
    """Subgroups along rows and columns, which are counts for every loop now."""
    keys = lowering.items[0].keys if lowering.items else lowering.keys
    found = {k: keys[k] for k in ("subgroup_m_count", "subgroup_n_count") if k in keys}
    if not found:
        return
    places = sorted((at, value.end) for at, value in found.values())
    if pipeline != "VectorDistribute":
        why, now = f"{pipeline} does not read it", ""
    elif roles is None:
        for at, end in places:
            yield _Edit(at, end, spec.text[at:end], "no counterpart: the op's loops are not known")
        return
    else:
        counts = [1] * roles.rank
        for key, loop in (("subgroup_m_count", roles.m), ("subgroup_n_count", roles.n)):
            value = found[key][1].value if key in found else None
            if isinstance(value, int):
                counts[loop] = value
        now = f"subgroup_basis = [{counts}, {list(roles.over)}]"
        why = ""
    for at, end in places:
        if now:
            yield _Edit(at, end, now, why)
            now, why = "", "in subgroup_basis"
        else:
            yield _without_comma(spec.text, at, end, why)


def _without_comma(text: str, at: int, end: int, why: str) -> _Edit:
    """Take out a part of a list with the comma that goes with it."""
    after = re.compile(r"\s*,\s*").match(text, end)
    if after:
        return _Edit(at, after.end(), "", why)
    before = re.search(r",\s*$", text[max(0, at - 200) : at])
    return _Edit(at - len(before[0]) if before else at, end, "", why)
