"""Reading ``kind: config`` rules and checking them before the compiler sees them.

The compiler takes many wrong configurations without a word: an unknown key, a tile list of the
wrong rank, a matcher that matches nothing. Each of them is a located fault here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
import yaml

from mlirules.rules.config import (
    KEYS,
    PIPELINES,
    Basis,
    ConfigDoc,
    ConfigTest,
    Decomposition,
    DimRange,
    Match,
    Measured,
    MmaKind,
    PipelineOptions,
    Settings,
    SubConfig,
    basis_counts,
    levels_of,
    mma_name,
    plain,
)
from mlirules.rules.faults import Fault, MlirulesError, did_you_mean
from mlirules.rules.loader import LIBRARY, join, kind_of, model_fault, rule_files
from mlirules.rules.model import RunSpec
from mlirules.rules.notation import ast
from mlirules.rules.notation.parser import NotationError, parse_statement
from mlirules.rules.rule import InFile
from mlirules.rules.source import MAX_FAULTS, Path_, SourceFile, load_yaml

#: Element types at the point where configurations are chosen: signless, without torch's.
ELEMENTS = (
    "f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ",
    "i1", "i4", "i8", "i16", "i32", "i64", "index",
)  # fmt: skip

CONFIGS = LIBRARY / "configs"


@dataclass(frozen=True)
class TargetFacts:
    """What a target can do, as the compiler tells. Zero or empty: it does not tell."""

    name: str
    mma_kinds: frozenset[str] = frozenset()
    subgroup_sizes: tuple[int, ...] = ()
    max_threads: int = 0  # in a workgroup
    max_workgroup: tuple[int, ...] = ()  # along x, y, z
    shared_bytes: int = 0
    vector_bytes: int = 0  # cpu: of one native vector


#: The facts of a target by its name. Raises MlirulesError for one that does not exist.
TargetOracle = Callable[[str], TargetFacts]


@dataclass(frozen=True)
class Operand:
    """An operand of the matched op: its name, its indices over the loops, its element type."""

    name: str
    indices: tuple[ast.Expr, ...]
    element: str = ""


@dataclass
class ConfigRule(InFile):
    """A checked config rule."""

    doc: ConfigDoc
    source: SourceFile
    #: Loop names, outermost first: the columns of every tile list.
    loops: tuple[str, ...]
    #: Loops that the result is not indexed by.
    reductions: frozenset[str] = frozenset()
    #: Inputs in order, the result last; empty for ``op: operation``.
    operands: tuple[Operand, ...] = ()
    equation: ast.IndexEquation | None = None
    origin: str = ""
    order: int = field(default=0)

    @property
    def match(self) -> Match:
        """What the rule matches."""
        return self.doc.match

    @property
    def settings(self) -> Settings:
        """What it sets."""
        return self.doc.set

    @property
    def tests(self) -> list[ConfigTest]:
        """The inline tests."""
        return self.doc.tests

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its targets: cpu, cuda, hip, vulkan."""
        return frozenset(t.partition(":")[0] for t in self.doc.targets)

    def fits(self, target: str) -> bool:
        """Whether the rule is for a target; one without architecture stands for all of its kind."""
        return target in self.doc.targets or target.partition(":")[0] in self.doc.targets

    @cached_property
    def dims(self) -> dict[str, DimRange]:
        """The limits of each dim; an exact size is a range of one."""
        return {
            name: size if isinstance(size, DimRange) else DimRange(min=size, max=size)
            for name, size in self.match.dims.items()
        }

    def exact(self, loop: str) -> int | None:
        """The size of a dim where the rule gives one size only."""
        limits = self.dims.get(loop)
        if limits is None or limits.min is None or limits.min != limits.max:
            return None
        return limits.min

    @cached_property
    def entry(self) -> str:
        """The matcher's name in a spec: op, shape and types."""
        match self.match.op:
            case "operation":
                stem = (self.match.name or "op").rpartition(".")[2]
            case "contraction":
                stem = _contraction_name(self)
            case other:
                stem = {"convolution": "conv"}.get(other, other)
        sizes = "x".join(str(self.exact(d) or ("R" if d in self.dims else "D")) for d in self.loops)
        types = "_".join(dict.fromkeys(o.element for o in self.operands))
        parts = [p for p in (stem, sizes if self.operands else "", types) if p]
        return "match_" + "_".join([*parts, self.name.replace("-", "_")])


def _contraction_name(rule: ConfigRule) -> str:
    batch = [
        i for i in rule.operands[-1].indices
        if all(i_in(o, i) for o in rule.operands)
    ]  # fmt: skip
    kinds = [o.indices[-1] for o in rule.operands[:-1] if o.indices]
    transposed = len(kinds) == 2 and all(
        isinstance(k, ast.Name) and k.id in rule.reductions for k in kinds
    )
    return ("batch_" if batch else "") + ("mmt" if transposed else "matmul")


def i_in(operand: Operand, index: ast.Expr) -> bool:
    """Whether an operand is read by this very loop."""
    return isinstance(index, ast.Name) and any(
        isinstance(i, ast.Name) and i.id == index.id for i in operand.indices
    )


# ---- reading -------------------------------------------------------------------------------


def load_config(
    path: str | Path, text: str | None = None, *, facts: TargetOracle | None = None
) -> ConfigRule:
    """Read and check one config rule.

    ``facts`` tells what targets can do; without it, matrix instructions, workgroup limits and
    architectures are not checked. Raises :class:`MlirulesError` with all faults of the file.
    """
    return config_of(load_yaml(path, text), facts=facts)


def config_of(source: SourceFile, *, facts: TargetOracle | None = None) -> ConfigRule:
    """The config rule that a YAML file holds. Errors as for :func:`load_config`."""
    if not isinstance(source.data, dict):
        raise MlirulesError(
            Fault(source.span_at(()), "not-a-rule", "a rule file is a mapping of keys to values",
                  "it starts with `rule: NAME`")
        )  # fmt: skip
    try:
        doc = ConfigDoc.model_validate(source.data)
    except pydantic.ValidationError as error:
        found = [f for e in error.errors(include_url=False)[:MAX_FAULTS] for f in _shape(source, e)]
        raise MlirulesError(_sorted(found)) from None
    checker = _Checker(source, doc, facts)
    rule = checker.run()
    if checker.faults or rule is None:
        raise MlirulesError(_sorted(checker.faults))
    return rule


def load_configs(
    paths: Iterable[str | Path], *, facts: TargetOracle | None = None
) -> list[ConfigRule]:
    """The config rules of rule sets, in order; other kinds in a folder are passed over.

    Raises :class:`MlirulesError` with the faults of all files, and for a file named here that
    holds another kind of rule.
    """
    members: dict[str, ConfigRule] = {}
    faults: list[Fault] = []
    paths = list(paths)
    for path in paths:
        files = rule_files(path)
        for file in files:
            try:
                source = load_yaml(file)
                kind = kind_of(source)
                if kind != "config":
                    if len(files) == 1:
                        faults.append(
                            Fault(source.span_at(("kind",)), "wrong-kind",
                                  "a configuration stage takes rules of `kind: config`",
                                  "rewrite rules go into another phase")
                        )  # fmt: skip
                    continue
                rule = config_of(source, facts=facts)
            except MlirulesError as error:
                faults.extend(error.faults)
                continue
            faults += join(members, rule, file)
    if faults:
        raise MlirulesError(faults)
    if not members:
        raise MlirulesError.at(
            ", ".join(map(str, paths)), "holds no config rule", code="no-rules",
            suggestion="config rules say `kind: config`",
        )  # fmt: skip
    return list(members.values())


def write_config(doc: ConfigDoc, schema: str = "") -> str:
    """A config rule as YAML that :func:`load_config` reads back to the same model.

    ``schema`` is the path for the editor's modeline; none is written when it is empty.
    """
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return head + yaml.dump(
        plain(doc), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100,
        default_flow_style=False,
    )  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """Blocks for texts of several lines, one line for small mappings and lists."""

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:
        small = all(isinstance(v, (int, float, str, bool)) for v in mapping.values())
        short = small and not {"rule", "pipeline", "name", "op", "device"} & set(mapping)
        return super().represent_mapping(tag, mapping, flow_style=short or flow_style)

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        small = all(isinstance(v, (int, float, str, bool, type(None))) for v in sequence)
        return super().represent_sequence(tag, sequence, flow_style=small or flow_style)


def _text_node(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text_node)


# ---- the shape of the file -----------------------------------------------------------------

_MODELS: dict[tuple[str, ...], type[pydantic.BaseModel]] = {
    (): ConfigDoc,
    ("match",): Match,
    ("set",): Settings,
    ("set", "mma_kind"): MmaKind,
    ("set", "subgroup_basis"): Basis,
    ("set", "lane_basis"): Basis,
    ("set", "pipeline_options"): PipelineOptions,
    ("set", "decomposition"): Decomposition,
    ("set", "decomposition", "qk"): SubConfig,
    ("set", "decomposition", "pv"): SubConfig,
    ("measured",): Measured,
    ("tests",): ConfigTest,
    ("tests", "run"): RunSpec,
}


def _keys_at(loc: Path_) -> list[str]:
    names = tuple(p for p in loc if isinstance(p, str))
    if names[:2] == ("match", "dims"):
        return list(DimRange.model_fields)
    model = _MODELS.get(names)
    return list(model.model_fields) if model is not None else []


# What pydantic adds to a place to tell the branches of a union apart.
_BRANCH = re.compile(r"^(constrained-.*|dict\[.*|str|int|MmaKind|Basis|DimRange|function-.*)$")


def _shape(source: SourceFile, error: Any) -> list[Fault]:
    """What one error of the model means. A union reports each branch: keep the one written."""
    raw = tuple(error["loc"])
    branches = [p for p in raw if isinstance(p, str) and _BRANCH.match(p)]
    key = raw[-1:] == ("[key]",)
    loc = tuple(p for p in raw if p == "[key]" or p not in branches)
    loc = tuple(p for p in loc if p != "[key]")
    if branches:
        value: Any = source.data
        holder = raw[: raw.index(branches[0])]
        for part in holder:
            value = value[part]
        wants_mapping = not branches[0].startswith(("constrained-int", "str", "int"))
        if isinstance(value, dict) != wants_mapping:
            if not isinstance(value, (dict, int, str)) and not wants_mapping:
                return [Fault(source.span_at(holder), "wrong-type",
                              f"{_dotted(holder)}: {error['msg'].lower()}")]  # fmt: skip
            return []
        if isinstance(value, dict) and branches[0] == "Basis" and "counts" not in value:
            return []
        if isinstance(value, dict) and branches[0].startswith("dict[") and "counts" in value:
            return []
    if key:
        span = source.span_at(loc, key=True)
        return [
            Fault(span, "bad-name", f"{str(loc[-1])[:60]!r} is not a name",
                  "up to 60 letters, digits and _, not starting with a digit")
        ]  # fmt: skip
    return model_fault(source, error, loc=loc, keys=_keys_at(loc[:-1]))


def _dotted(loc: Path_) -> str:
    return "`" + ".".join(str(p) for p in loc) + "`"


def _sorted(faults: Iterable[Fault]) -> list[Fault]:
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda f: (f.span.line, f.span.column, f.code))


# ---- the meaning of the file ---------------------------------------------------------------

_PARALLEL = frozenset({
    "distribution", "cache_parallel", "vector_common_parallel", "vector_inner_parallel",
    "workgroup", "thread",
})  # fmt: skip
_REDUCTION = frozenset({"cache_reduction", "vector_reduction", "reduction", "partial_reduction"})
#: Levels from the outermost in: what stands later tiles what stands before.
_NESTED = (
    ("distribution", "cache_parallel", "vector_common_parallel"),
    ("cache_reduction", "vector_reduction"),
    ("workgroup", "thread"),
)

#: The compiler refuses an op that needs more than this many native vectors.
MAX_NATIVE_VECTORS = 512

_MMA = re.compile(
    r"^(?P<set>V?D?[A-Z]+\d?(?:_[A-Z]+)*)_(?P<acc>[A-Z]+\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(?:x\d+B?)?_(?P<lhs>[A-Z]+\d+[A-Z0-9]*)(?:_(?P<rhs>[A-Z]+\d+[A-Z0-9]*))?$"
)


@dataclass(frozen=True)
class Mma:
    """A matrix instruction by its name: shape and element types."""

    m: int
    n: int
    k: int
    lhs: str
    rhs: str
    acc: str


def mma_of(name: str) -> Mma | None:
    """What a matrix instruction's name says, or None when it is not spelt like one."""
    found = _MMA.match(name)
    if found is None:
        return None
    lhs = _element(found["lhs"])
    rhs = _element(found["rhs"]) if found["rhs"] else lhs
    return Mma(int(found["m"]), int(found["n"]), int(found["k"]), lhs, rhs, _element(found["acc"]))


def _element(word: str) -> str:
    return re.sub(r"^(BF|F|I)(?=\d)", lambda m: m[0].lower(), word)


def element_bits(element: str) -> int:
    """The width of an element type in bits."""
    found = re.search(r"\d+", element)
    return int(found[0]) if found else 64


class _Checker:
    """Checks what the model cannot say; collects faults."""

    def __init__(self, source: SourceFile, doc: ConfigDoc, facts: TargetOracle | None) -> None:
        self.source = source
        self.doc = doc
        self.oracle = facts
        self.faults: list[Fault] = []
        self.facts: list[TargetFacts] = []
        self.kinds: list[str] = []

    def fault(
        self, path: Path_, code: str, message: str, hint: str = "", *, key: bool = False
    ) -> None:
        self.faults.append(Fault(self.source.span_at(path, key=key), code, message, hint))

    def run(self) -> ConfigRule | None:
        self.targets()
        rule = self.matched()
        self.vocabulary()
        if rule is not None and not self.faults:
            self.tiles(rule)
            self.gpu(rule)
            self.decomposition(rule)
        if rule is not None:
            self.tests(rule)
        return rule

    # -- targets

    def targets(self) -> None:
        for i, name in enumerate(self.doc.targets):
            kind = name.partition(":")[0]
            if kind not in PIPELINES:
                self.fault(("targets", i), "target", f"unknown target {name!r}",
                           did_you_mean(name, PIPELINES) or "known: " + ", ".join(PIPELINES))
                continue  # fmt: skip
            if kind not in self.kinds:
                self.kinds.append(kind)
            # A kind without architecture is every target of it: nothing to look up.
            if self.oracle is not None and (":" in name or kind in ("cpu", "vulkan")):
                try:
                    self.facts.append(self.oracle(name))
                except MlirulesError as error:
                    for fault in error.faults:
                        self.fault(("targets", i), "target", fault.message, fault.suggestion)

    # -- match

    def matched(self) -> ConfigRule | None:
        match = self.doc.match
        if match.op == "operation":
            return self.by_name(match)
        for key, given in (("name", match.name), ("operands", match.operands)):
            if given:
                self.fault(("match", key), "match-key", f"`{key}:` belongs to `op: operation`",
                           "say what is computed with `compute:`", key=True)
        if match.compute is None:
            self.fault(("match", "op"), "missing-key", "the key 'compute' is missing",
                       f"say what the {match.op} computes: `compute: {_EXAMPLES[match.op]}`")
            return None
        text = self.source.text_at(("match", "compute"))
        try:
            statement = parse_statement(match.compute)
        except NotationError as error:
            self.faults.append(Fault(text.span(error.pos, error.length), "syntax", error.message,
                                     error.suggestion))  # fmt: skip
            return None
        if not isinstance(statement, ast.IndexEquation):
            self.fault(("match", "compute"), "compute", "this is no index equation",
                       f"write for example {_EXAMPLES[match.op]}")
            return None
        return self.computed(match, statement)

    def by_name(self, match: Match) -> ConfigRule | None:
        for key, given in (("compute", match.compute), ("types", match.types),
                           ("dims", match.dims)):  # fmt: skip
            if given:
                self.fault(("match", key), "match-key",
                           f"`{key}:` does not go with `op: operation`",
                           "give operand types: `operands: ['tensor<?x64xf16>']`", key=True)
        if match.name is None:
            self.fault(("match", "op"), "missing-key", "the key 'name' is missing",
                       "name the op: `name: iree_linalg_ext.online_attention`")
        if not match.loops:
            self.fault(("match", "op"), "missing-key", "the key 'loops' is missing",
                       "name the op's loops, outermost first: `loops: [m, n, k]`")
        for i, text in enumerate(match.operands):
            if text is not None and not _TENSOR.fullmatch(text):
                self.fault(("match", "operands", i), "operand-type",
                           f"{text[:60]!r} is no tensor type",
                           "write for example 'tensor<?x64xf16>'")
        return ConfigRule(self.doc, self.source, tuple(match.loops))

    def computed(self, match: Match, equation: ast.IndexEquation) -> ConfigRule | None:
        before = len(self.faults)
        inputs = self.inputs(match.op, equation)
        loops = self.loops(match, equation, inputs)
        if len(self.faults) > before:
            return None
        out = Operand(equation.target, equation.indices)
        reductions = frozenset(loops) - {
            n for i in equation.indices for n in index_names(i)
        }
        operands = []
        for operand in (*inputs, out):
            element = match.types.get(operand.name)
            if element is None:
                self.fault(("match", "types") if match.types else ("match", "compute"), "types",
                           f"the element type of {operand.name!r} is missing",
                           f"`types: {{{operand.name}: f32}}`", key=bool(match.types))
                element = ""
            operands.append(Operand(operand.name, operand.indices, element))
        known = {o.name for o in operands}
        if match.op == "attention":
            known |= {"scale", "max", "sum"}
        for name, element in match.types.items():
            if name not in known:
                self.fault(("match", "types", name), "types", f"`compute` has no operand {name!r}",
                           did_you_mean(name, known) or "it has " + ", ".join(sorted(known)),
                           key=True)  # fmt: skip
            if element not in ELEMENTS:
                self.fault(("match", "types", name), "types",
                           f"{element[:40]!r} is no element type",
                           did_you_mean(element, ELEMENTS) or "known: " + ", ".join(ELEMENTS))
        for name, size in match.dims.items():
            if name not in loops:
                self.fault(("match", "dims", name), "dims", f"`compute` has no loop {name!r}",
                           did_you_mean(name, loops) or "it has " + ", ".join(loops), key=True)
            elif isinstance(size, DimRange):
                self.range(name, size)
            if name in loops and match.op != "convolution" and not any(
                isinstance(i, ast.Name) and i.id == name for o in operands for i in o.indices
            ):
                self.fault(("match", "dims", name), "dims",
                           f"no operand is indexed by {name!r} alone: its size cannot be seen",
                           key=True)  # fmt: skip
        if len(self.faults) > before:
            return None
        return ConfigRule(self.doc, self.source, loops, reductions, tuple(operands), equation)

    def range(self, name: str, size: DimRange) -> None:
        path: Path_ = ("match", "dims", name)
        if size.min is None and size.max is None and size.multiple_of is None:
            self.fault(path, "dims", f"the range of {name!r} says nothing",
                       "give min, max or multiple_of", key=True)
        low = size.min or 1
        if size.max is not None:
            if low > size.max:
                self.fault((*path, "min"), "dims",
                           f"the smallest size {low} is above the largest {size.max}")
            elif size.multiple_of and size.max // size.multiple_of * size.multiple_of < low:
                self.fault((*path, "multiple_of"), "dims",
                           f"no multiple of {size.multiple_of} lies between {low} and "
                           f"{size.max}: the entry could never match")  # fmt: skip

    def inputs(self, op: str, equation: ast.IndexEquation) -> list[Operand]:
        path: Path_ = ("match", "compute")
        if equation.bounds:
            self.fault(path, "compute", "loop bounds are not written here",
                       "sizes stand in `dims:`")
        value = equation.value
        accesses: list[ast.Access] = []
        if op in ("contraction", "convolution"):
            if equation.op != "+=":
                self.fault(path, "compute", f"a {op} accumulates with +=, not {equation.op}")
            parts = [value.left, value.right] if (
                isinstance(value, ast.Binary) and value.op == "*"
            ) else [value]  # fmt: skip
            accesses = [p for p in parts if isinstance(p, ast.Access)]
            if len(accesses) != 2:
                self.fault(path, "compute", f"a {op} is a product of two operands",
                           f"write for example {_EXAMPLES[op]}")
        elif op == "attention":
            if not (isinstance(value, ast.Call) and value.fn == "attention"):
                self.fault(path, "compute", "write attention(q[...], k[...], v[...])",
                           _EXAMPLES[op])
            else:
                accesses = [p for p in value.args if isinstance(p, ast.Access)]
                if not 3 <= len(accesses) == len(value.args) <= 4:
                    self.fault(path, "compute",
                               "attention has queries, keys, values and possibly a mask",
                               _EXAMPLES[op])  # fmt: skip
        else:
            accesses = list(_accesses(value))
        out: dict[str, Operand] = {}
        for access in accesses:
            if not isinstance(access.base, ast.Name):
                self.fault(path, "compute", "an operand is a name with indices")
                continue
            operand = Operand(access.base.id, access.items)
            known = out.get(operand.name)
            if known is not None and list(map(render, known.indices)) != list(
                map(render, operand.indices)
            ):
                self.fault(path, "compute", f"{operand.name!r} is read in two ways")
            if operand.name == equation.target:
                self.fault(path, "compute", f"{operand.name!r} is the result",
                           "+= reads it already")
            out[operand.name] = operand
            for item in access.items:
                if not _linear(item):
                    self.fault(path, "compute", f"the index {render(item)} is not linear")
        return list(out.values())

    def loops(
        self, match: Match, equation: ast.IndexEquation, inputs: Sequence[Operand]
    ) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for index in (*equation.indices, *(i for o in inputs for i in o.indices)):
            if not isinstance(index, (ast.Name, ast.Binary, ast.Literal)):
                self.fault(("match", "compute"), "compute", "an index is a loop or a sum of them")
                continue
            for name in index_names(index):
                names.setdefault(name)
        if match.loops:
            if sorted(match.loops) != sorted(names):
                self.fault(("match", "loops"), "loops",
                           f"the loops of `compute` are {', '.join(names)}",
                           "give each of them once, outermost first", key=True)
            return tuple(match.loops)
        return tuple(names)

    # -- set: words

    def vocabulary(self) -> None:
        settings = self.doc.set
        for kind in self.kinds:
            if settings.pipeline not in PIPELINES[kind]:
                owners = [k for k, names in PIPELINES.items() if settings.pipeline in names]
                hint = did_you_mean(settings.pipeline, PIPELINES[kind]) or (
                    f"{kind} has " + ", ".join(PIPELINES[kind])
                )
                where = f"; it is one of {' and '.join(owners)}" if owners else ""
                self.fault(("set", "pipeline"), "pipeline",
                           f"{kind} has no pipeline {settings.pipeline!r}{where}", hint)
                return
            given = settings.model_dump(exclude_defaults=True)
            for key in given:
                if key not in KEYS[kind] and key not in ("pipeline", "tiles"):
                    self.fault(("set", key), "set-key", f"{kind} has no {key!r}",
                               "known there: pipeline, tiles, " + ", ".join(sorted(KEYS[kind])),
                               key=True)  # fmt: skip
            levels = levels_of(kind, settings.pipeline)
            for level in settings.tiles:
                if level not in levels:
                    known = ", ".join(levels) or "none"
                    self.fault(("set", "tiles", level), "tile-level",
                               f"{settings.pipeline} on {kind} has no tile level {level!r}",
                               did_you_mean(level, levels) or f"it has {known}", key=True)

    # -- set: numbers

    def tiles(self, rule: ConfigRule) -> None:
        settings = self.doc.set
        self.levels(rule, settings.tiles, ("set", "tiles"))
        for level in ("distribution", "workgroup", "block"):
            if level in levels_of(self.kinds[0], settings.pipeline) and not any(
                settings.tiles.get(level, {}).values()
            ):
                self.fault(("set", "tiles") if settings.tiles else ("set", "pipeline"),
                           "no-distribution",
                           f"no {level} tiles: the work would not be spread over workers",
                           f"give `{level}:` tiles of the parallel dims", key=bool(settings.tiles))
        for nest in _NESTED:
            self.nested(rule, [(n, settings.tiles[n]) for n in nest if n in settings.tiles])
        if self.kinds == ["cpu"]:
            self.vectors(rule)

    def levels(
        self, rule: ConfigRule, tiles: dict[str, dict[str, int]], path: Path_
    ) -> None:
        for level, sizes in tiles.items():
            for loop, size in sizes.items():
                place = (*path, level, loop)
                if loop not in rule.loops:
                    self.fault(place, "tile-dim", f"the op has no loop {loop!r}",
                               did_you_mean(loop, rule.loops) or "it has " + ", ".join(rule.loops),
                               key=True)  # fmt: skip
                elif not rule.operands or not size:
                    continue
                elif level in _PARALLEL and loop in rule.reductions:
                    self.fault(place, "tile-kind",
                               f"{loop!r} is summed over; {level} tiles the dims of the result",
                               key=True)  # fmt: skip
                elif level in _REDUCTION and loop not in rule.reductions:
                    self.fault(place, "tile-kind",
                               f"{loop!r} is a dim of the result; {level} tiles what is summed "
                               "over", key=True)  # fmt: skip

    def nested(self, rule: ConfigRule, levels: list[tuple[str, dict[str, int]]]) -> None:
        for loop in rule.loops:
            outer_name, outer = "dim", rule.exact(loop)
            for name, sizes in levels:
                size = sizes.get(loop, 0)
                if not size:
                    continue
                if outer and name not in ("distribution", "workgroup") and outer % size:
                    self.fault(("set", "tiles", name, loop), "tile-divides",
                               f"{size} does not divide the {outer_name} of {loop!r}, {outer}")
                outer_name, outer = f"{name} tile", size

    def vectors(self, rule: ConfigRule) -> None:
        """Ops on vectors that are too large are refused after minutes of work, or not at all."""
        if not rule.operands:
            return
        sizes = {
            loop: size
            for level in ("vector_common_parallel", "vector_reduction", "vector_inner_parallel")
            for loop, size in self.doc.set.tiles.get(level, {}).items()
            if size
        }
        if not sizes:
            return
        native = min((f.vector_bytes for f in self.facts if f.vector_bytes), default=64)
        limit = native * MAX_NATIVE_VECTORS
        needs = [
            (f"the vectors of {o.name!r}", math.prod(_extent(i, sizes) for i in o.indices)
             * element_bits(o.element) // 8)
            for o in rule.operands
        ]  # fmt: skip
        if rule.match.op in ("contraction", "convolution"):  # every product of it counts
            bits = element_bits(rule.operands[-1].element)
            needs.append(("the products of one vector step", math.prod(sizes.values()) * bits // 8))
        for what, size in needs:
            if size >= limit:
                self.fault(("set", "tiles"), "vector-size",
                           f"{what} take {size} bytes; the compiler refuses {limit} and more",
                           "make the vector tiles smaller", key=True)
                return

    # -- GPUs

    def gpu(self, rule: ConfigRule) -> None:
        settings = self.doc.set
        size = settings.workgroup_size
        if set(self.kinds) & {"cuda", "hip"} and settings.pipeline in (
            "TileAndFuse", "VectorDistribute"
        ):  # fmt: skip
            for key in ("workgroup_size", "subgroup_size"):
                if getattr(settings, key) is None:
                    self.fault(("set", "pipeline"), "missing-key", f"the key {key!r} is missing",
                               f"{settings.pipeline} needs `{key}:`")
        if "vulkan" in self.kinds and size is None:
            self.fault(("set", "pipeline"), "missing-key", "the key 'workgroup_size' is missing",
                       f"{settings.pipeline} needs `workgroup_size:`")
        if settings.pipeline in ("MatmulPromoteVectorize", "CooperativeMatrixVectorize"):
            for key in ("pipeline_depth", "store_stage"):
                if getattr(settings, key) is None:
                    self.fault(("set", "pipeline"), "missing-key", f"the key {key!r} is missing",
                               f"{settings.pipeline} needs `{key}:`, for example 1")
        for facts in self.facts:
            if settings.subgroup_size is not None and facts.subgroup_sizes and (
                settings.subgroup_size not in facts.subgroup_sizes
            ):  # fmt: skip
                sizes = ", ".join(map(str, facts.subgroup_sizes))
                self.fault(("set", "subgroup_size"), "subgroup-size",
                           f"{facts.name} has no subgroups of {settings.subgroup_size}",
                           f"it has {sizes}")  # fmt: skip
            if size is not None and facts.max_threads and math.prod(size) > facts.max_threads:
                self.fault(("set", "workgroup_size"), "workgroup-size",
                           f"{math.prod(size)} threads; {facts.name} has at most "
                           f"{facts.max_threads} in a workgroup", key=True)  # fmt: skip
            for i, (n, most) in enumerate(zip(size or (), facts.max_workgroup, strict=False)):
                if n > most:
                    self.fault(("set", "workgroup_size", i), "workgroup-size",
                               f"{n} threads along one side; {facts.name} has at most {most}")
        options = settings.pipeline_options
        if rule.match.op == "convolution" and options is not None and (
            options.use_igemm_convolution
        ):  # fmt: skip
            self.fault(("set", "pipeline_options", "use_igemm_convolution"), "set-key",
                       "as a matrix product the convolution has other loops than `compute`",
                       "leave it out", key=True)
        self.basis(rule, settings.subgroup_basis, ("set", "subgroup_basis"))
        self.basis(rule, settings.lane_basis, ("set", "lane_basis"))
        if settings.subgroup_basis is not None and size and settings.subgroup_size:
            wanted = math.prod(basis_counts(settings.subgroup_basis).values())
            have = math.prod(size) // settings.subgroup_size
            if math.prod(size) % settings.subgroup_size or wanted != have:
                self.fault(("set", "subgroup_basis"), "subgroup-basis",
                           f"{wanted} subgroups of {settings.subgroup_size} are "
                           f"{wanted * settings.subgroup_size} threads, but the workgroup has "
                           f"{math.prod(size)}",
                           f"workgroup_size: [{wanted * settings.subgroup_size}, 1, 1]",
                           key=True)  # fmt: skip
        self.promoted(rule, settings.promote_operands, ("set", "promote_operands"))
        if settings.mma_kind is not None:
            self.mma(rule, settings.mma_kind, ("set", "mma_kind"), types=True)
            self.mma_tiles(rule)

    def promoted(self, rule: ConfigRule, given: Sequence[int], path: Path_) -> None:
        inputs = len(rule.operands) or 24
        for i, position in enumerate(given):
            if not 0 <= position < inputs:
                self.fault((*path, i), "operand", f"there is no operand {position}",
                           f"positions are 0 to {inputs - 1}")

    def basis(
        self, rule: ConfigRule, basis: Basis | dict[str, int] | None, path: Path_
    ) -> None:
        if basis is None:
            return
        names = [*basis_counts(basis), *(basis.over if isinstance(basis, Basis) else ())]
        for name in names:
            if name not in rule.loops:
                self.fault(path, "tile-dim", f"the op has no loop {name!r}",
                           did_you_mean(name, rule.loops) or "it has " + ", ".join(rule.loops),
                           key=True)  # fmt: skip

    def mma(
        self, rule: ConfigRule, given: str | MmaKind, path: Path_, *, types: bool = False
    ) -> None:
        name = mma_name(given)
        place = path if isinstance(given, str) else (*path, "name")
        parsed = mma_of(name)
        if parsed is None:
            self.fault(place, "mma-kind", f"{name[:60]!r} is no matrix instruction",
                       "for example MFMA_F32_16x16x16_F16 or NV_MMA_SYNC_F32_16x8x16_F16")
            return
        for facts in self.facts:
            # Virtual ones are made of the target's own, and are not in its list.
            virtual = name.startswith(_VIRTUAL) and any(
                known.startswith("MFMA_") for known in facts.mma_kinds
            )
            if not virtual and name not in facts.mma_kinds:
                listed = sorted(facts.mma_kinds)
                self.fault(place, "mma-kind",
                           f"{facts.name} has no matrix instruction {name}",
                           did_you_mean(name, listed) or "it has " + (", ".join(listed) or "none"))
                return
        if types and rule.match.op in ("contraction", "convolution"):
            have = tuple(o.element for o in rule.operands)
            need = (parsed.lhs, parsed.rhs, parsed.acc)
            if have[:2] != need[:2] or element_bits(have[2]) > element_bits(need[2]):
                self.fault(place, "mma-kind",
                           f"{name} multiplies {need[0]} by {need[1]} into {need[2]}; the op "
                           f"multiplies {have[0]} by {have[1]} into {have[2]}")  # fmt: skip

    def mma_tiles(self, rule: ConfigRule) -> None:
        """Each subgroup's share of a workgroup tile is a whole number of instructions."""
        settings = self.doc.set
        if rule.match.op != "contraction" or settings.mma_kind is None:
            return
        mma = mma_of(mma_name(settings.mma_kind))
        if mma is None:
            return
        lhs, rhs, out = rule.operands
        inner = {
            "m": [n for n in _plain_names(out) if n in _plain_names(lhs)
                  and n not in _plain_names(rhs)],
            "n": [n for n in _plain_names(out) if n in _plain_names(rhs)
                  and n not in _plain_names(lhs)],
        }  # fmt: skip
        counts = basis_counts(settings.subgroup_basis) if settings.subgroup_basis else {}
        for side, names in inner.items():
            if not names or settings.pipeline != "VectorDistribute":
                continue
            loop = names[-1]
            tile = settings.tiles.get("workgroup", {}).get(loop, 0)
            share = getattr(mma, side) * counts.get(loop, 1)
            if tile % share:
                self.fault(("set", "tiles", "workgroup", loop), "tile-divides",
                           f"{tile} is not a multiple of {share}: {counts.get(loop, 1)} subgroups "
                           f"of {getattr(mma, side)} rows or columns of the instruction")
        if settings.pipeline == "VectorDistribute":
            for loop, tile in settings.tiles.get("reduction", {}).items():
                if tile % mma.k:
                    self.fault(("set", "tiles", "reduction", loop), "tile-divides",
                               f"{tile} is not a multiple of {mma.k}, the depth of the "
                               "instruction")  # fmt: skip
        self.shared(rule, mma)

    def shared(self, rule: ConfigRule, mma: Mma) -> None:
        """Promoted operands must fit into the shared memory of each target."""
        settings = self.doc.set
        sizes = {
            **settings.tiles.get("workgroup", {}),
            **{
                loop: tile * (mma.k if settings.pipeline == "TileAndFuse" else 1)
                for loop, tile in settings.tiles.get("reduction", {}).items()
            },
        }
        need = 0
        for position in settings.promote_operands:
            operand = rule.operands[position]
            count = math.prod(_extent(i, sizes) for i in operand.indices)
            need += count * element_bits(operand.element) // 8
        for facts in self.facts:
            if facts.shared_bytes and need > facts.shared_bytes:
                self.fault(("set", "promote_operands"), "shared-memory",
                           f"the promoted operands take {need} bytes of shared memory; "
                           f"{facts.name} has {facts.shared_bytes}",
                           "make the workgroup or reduction tiles smaller", key=True)  # fmt: skip

    def decomposition(self, rule: ConfigRule) -> None:
        parts = self.doc.set.decomposition
        if parts is None:
            return
        path: Path_ = ("set", "decomposition")
        if rule.match.op not in ("attention", "operation"):
            self.fault(path, "decomposition", f"a {rule.match.op} is not decomposed",
                       "decomposition configs are for attention", key=True)
            return
        for name in ("qk", "pv"):
            part: SubConfig | None = getattr(parts, name)
            if part is None:
                continue
            for level in part.tiles:
                known = levels_of(self.kinds[0], self.doc.set.pipeline)
                if level not in known:
                    self.fault((*path, name, "tiles", level), "tile-level",
                               f"{self.kinds[0]} has no tile level {level!r}",
                               did_you_mean(level, known) or "it has " + ", ".join(known),
                               key=True)  # fmt: skip
            for level, sizes in part.tiles.items():
                for loop in sizes:
                    if loop not in rule.loops:
                        self.fault((*path, name, "tiles", level, loop), "tile-dim",
                                   f"the op has no loop {loop!r}",
                                   "it has " + ", ".join(rule.loops), key=True)
            for i, loop in enumerate(part.over):
                if loop not in rule.loops:
                    self.fault((*path, name, "over", i), "tile-dim",
                               f"the op has no loop {loop!r}", "it has " + ", ".join(rule.loops))
            self.basis(rule, part.subgroup_basis, (*path, name, "subgroup_basis"))
            self.basis(rule, part.lane_basis, (*path, name, "lane_basis"))
            self.promoted(rule, part.promote_operands, (*path, name, "promote_operands"))
            if part.mma_kind is not None:
                self.mma(rule, part.mma_kind, (*path, name, "mma_kind"))
            if self.kinds == ["cpu"] and (part.mma_kind or part.subgroup_basis):
                self.fault((*path, name), "set-key", "cpu has no matrix instructions or subgroups",
                           "give `tiles:` only", key=True)

    # -- tests

    def tests(self, rule: ConfigRule) -> None:
        positive = negative = False
        reasons = self.reasons(rule)
        for i, test in enumerate(self.doc.tests):
            positive |= test.input is not None
            negative |= test.unchanged is not None
            place: Path_ = ("tests", i, "name")
            if (test.input is None) == (test.unchanged is None):
                self.fault(place, "test-input",
                           "a test has either `input:` or `unchanged:`",
                           "`input:`: a program with an op that the entry hits; `unchanged:`: one "
                           "without", key=True)  # fmt: skip
            if test.unchanged is not None:
                for key in ("check", "run", "hits"):
                    if getattr(test, key) is not None:
                        self.fault(("tests", i, key), "test-input",
                                   f"an `unchanged:` test has no `{key}:`", key=True)
                if test.because is None:
                    self.fault(place, "because", "the test does not say what must refuse",
                               f"add `because:`, one of {', '.join(reasons)}", key=True)
                elif test.because not in reasons:
                    self.fault(("tests", i, "because"), "because",
                               f"`match` has no {test.because!r}",
                               did_you_mean(test.because, reasons)
                               or "it has " + ", ".join(reasons))  # fmt: skip
            elif test.because is not None:
                self.fault(("tests", i, "because"), "test-input",
                           "`because:` belongs to an `unchanged:` test", key=True)
            if test.target is not None and not rule.fits(test.target):
                self.fault(("tests", i, "target"), "target",
                           f"the rule is not for {test.target!r}",
                           "it is for " + ", ".join(self.doc.targets))
        for found, code, what in (
            (positive, "no-positive-test", "a program that the entry hits (`input:`)"),
            (negative, "no-negative-test", "one that it must not hit (`unchanged:`)"),
        ):
            if not found:
                self.fault(("tests",), code, f"no test shows {what}", key=True)

    def reasons(self, rule: ConfigRule) -> list[str]:
        """What a `because:` may name."""
        match = rule.match
        if match.op == "operation":
            return ["name", *(f"operands.{i}" for i, t in enumerate(match.operands) if t)]
        types = [f"types.{n}" for n in match.types]
        return ["op", "compute", *types, *(f"dims.{n}" for n in match.dims)]


_VIRTUAL = ("VMFMA_", "VDMFMA_")
_TENSOR = re.compile(r"tensor<(?:(?:\?|\d+)x)*(?:[a-z][A-Za-z0-9]*)>")
_EXAMPLES = {
    "contraction": "c[m, n] += a[m, k] * b[k, n]",
    "convolution": "o[n, i, j, f] += x[n, i + u, j + v, c] * w[u, v, c, f]",
    "attention": "o[b, h, m, n] = attention(q[b, h, m, d], k[b, h, s, d], v[b, h, s, n])",
    "generic": "s[i] += x[i, j]",
}


def _accesses(node: ast.Expr) -> Iterator[ast.Access]:
    match node:
        case ast.Access():
            yield node
        case ast.Call(args=args):
            for item in args:
                yield from _accesses(item)
        case ast.Unary(operand=operand):
            yield from _accesses(operand)
        case ast.Binary(left=left, right=right):
            yield from _accesses(left)
            yield from _accesses(right)
        case ast.Conditional(condition=c, then=a, otherwise=b):
            for part in (c, a, b):
                yield from _accesses(part)


def index_names(node: ast.Expr) -> Iterator[str]:
    """The loops of an index, in the order in which they stand."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Binary(left=left, right=right):
            yield from index_names(left)
            yield from index_names(right)


def _linear(node: ast.Expr) -> bool:
    match node:
        case ast.Name() | ast.Literal():
            return True
        case ast.Binary(op="+", left=left, right=right):
            return _linear(left) and _linear(right)
        case ast.Binary(op="*", left=left, right=right):
            pair = (left, right)
            return any(isinstance(p, ast.Literal) for p in pair) and all(map(_linear, pair))
    return False


def _extent(node: ast.Expr, sizes: dict[str, int]) -> int:
    """How many elements an index reaches when each loop runs over its tile."""
    match node:
        case ast.Name(id=name):
            return max(1, sizes.get(name, 1))
        case ast.Literal(value=int()):
            return 1
        case ast.Binary(op="+", left=left, right=right):
            return _extent(left, sizes) + _extent(right, sizes) - 1
        case ast.Binary(op="*", left=left, right=ast.Literal(value=int() as factor)):
            return (_extent(left, sizes) - 1) * factor + 1
        case ast.Binary(op="*", left=ast.Literal(value=int() as factor), right=right):
            return (_extent(right, sizes) - 1) * factor + 1
    return 1


def _plain_names(operand: Operand) -> list[str]:
    return [i.id for i in operand.indices if isinstance(i, ast.Name)]


def affine_map(rule: ConfigRule, operand: Operand) -> str:
    """An operand's indexing map over the rule's loops, as the compiler spells it."""
    results = ", ".join(render(i) for i in operand.indices)
    return f"affine_map<({', '.join(rule.loops)}) -> ({results})>"


def render(node: ast.Expr, names: dict[str, str] | None = None) -> str:
    """An index as text; ``names`` renames the loops."""
    match node:
        case ast.Name(id=name):
            return (names or {}).get(name, name)
        case ast.Literal(value=value):
            return str(value)
        case ast.Binary(op=op, left=left, right=right):
            return f"{render(left, names)} {op} {render(right, names)}"
    return "?"
