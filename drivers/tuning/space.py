"""Search spaces declared in YAML (``specs/spaces/*.yaml``): knobs, tiles, and what must hold.

The expressions of ``tiles`` and ``where`` are those of a rule's ``where``. Names in them are the
knobs, the sizes of the op's loops, and ``lanes`` (elements of the first operand in a native
vector), ``cores``, ``bytes`` (of an element of the first operand) and ``rank`` (loops).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning.dispatches import Root
from mlirules.generator.emit import configuration
from mlirules.language.config.model import PIPELINES, Settings, levels_of
from mlirules.language.evaluate import Evaluator
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.notation import ast
from mlirules.language.notation.parser import NotationError, parse_expression
from mlirules.language.operands import Refused, truth
from mlirules.language.reading import load_yaml
from mlirules.language.source import SourceFile
from mlirules.support import package

SPACES = package.SPECS / "spaces"

#: More candidates than this are a mistake in the space.
MAX_CANDIDATES = 100_000

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]\w*$", max_length=40)]
Choice = int | str
Size = int | str


class SpaceDoc(BaseModel):
    """A search space: for which ops, and which configurations."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    space: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    summary: str = Field(min_length=3)
    targets: list[str] = Field(min_length=1, description="Kinds of target: cpu, vulkan, ...")
    ops: list[Literal["contraction", "convolution", "attention", "reduction", "generic"]] = Field(
        min_length=1, description="Classes of op."
    )
    requires: list[str] = Field(
        default=[], description="What the op must be like; its loops' sizes are names."
    )
    pipeline: str = Field(description="The lowering pipeline.")
    knobs: dict[Name, list[Choice]] = Field(
        min_length=1, description="What can be chosen: numbers, or expressions over the sizes."
    )
    tiles: dict[Name, dict[Name, Size]] = Field(
        description="Tile sizes by level, then by loop: numbers or expressions."
    )
    rest: dict[Name, int] = Field(
        default={},
        description="By level, the tile of loops that `tiles` does not name: parallel loops at "
        "parallel levels, reductions at reduction levels.",
    )
    workgroup_size: list[Size] = Field(default=[], max_length=3)
    subgroup_size: int | None = None
    where: list[str] = Field(default=[], description="What every configuration must satisfy.")


@dataclass(frozen=True)
class Candidate:
    """One configuration of one op."""

    space: str
    #: What was chosen, by knob.
    knobs: tuple[tuple[str, int], ...]
    settings: Settings

    @property
    def key(self) -> str:
        """A digest of the settings: equal for equal configurations of several spaces."""
        plain = json.dumps(self.settings.model_dump(mode="json", exclude_none=True), sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """The knobs, for people."""
        return " ".join(f"{name}={value}" for name, value in self.knobs) or self.space

    def as_json(self) -> dict[str, object]:
        """Plain data that :func:`candidate_of` reads back."""
        return {
            "space": self.space,
            "knobs": dict(self.knobs),
            "settings": self.settings.model_dump(
                mode="json", exclude_none=True, exclude_defaults=True
            ),
        }


def candidate_of(data: Mapping[str, Any]) -> Candidate:
    """A candidate from what :meth:`Candidate.as_json` wrote."""
    settings = Settings.model_validate(data["settings"])
    return Candidate(data["space"], tuple(data["knobs"].items()), settings)


@dataclass(frozen=True)
class _Grid:
    """What the candidates for an op are chosen from."""

    root: Root
    target: Target
    #: The values of each knob, in the order in which they are chosen.
    domains: Mapping[str, list[int]]
    #: The constraints that can be judged once the first, second, ... knob is chosen.
    ready: Sequence[Sequence[int]]


@dataclass
class Space:
    """A checked search space."""

    doc: SpaceDoc
    source: SourceFile = field(repr=False)
    _parsed: dict[str, ast.Expr] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The space's name."""
        return self.doc.space

    def fits(self, root: Root, target: Target) -> bool:
        """Whether the space is for an op on a target."""
        if target.kind not in self.doc.targets or root.kind not in self.doc.ops:
            return False
        env = environment(root, target)
        try:
            return all(truth(self._value(text, env)) for text in self.doc.requires)
        except Refused:  # a loop that `requires` speaks of is not there
            return False

    def candidates(self, root: Root, target: Target) -> Iterator[Candidate]:
        """Every configuration that satisfies the constraints, each once.

        Raises MlirulesError, located, when an expression has no value for this op.
        """
        env = environment(root, target)
        names = list(self.doc.knobs)
        domains = {n: self._domain(n, env) for n in names}
        grid = _Grid(root, target, domains, self._ready(names))
        yield from self._search(grid, dict(env), {})

    def _domain(self, name: str, env: dict[str, object]) -> list[int]:
        values: dict[int, None] = {}
        for index, choice in enumerate(self.doc.knobs[name]):
            where = ("knobs", name, index)
            value = choice if isinstance(choice, int) else self._located(choice, env, where)
            for item in value if isinstance(value, list) else [value]:
                values[int(item)] = None
        return list(values)

    def _ready(self, names: Sequence[str]) -> list[list[int]]:
        """The constraints that can be judged once the first, second, ... knob is chosen."""
        out: list[list[int]] = [[] for _ in names]
        for index, text in enumerate(self.doc.where):
            used = names_in(self._expr(text))
            last = max((i for i, n in enumerate(names) if n in used), default=0)
            out[last].append(index)
        return out

    def _search(
        self, grid: _Grid, env: dict[str, object], chosen: dict[str, int]
    ) -> Iterator[Candidate]:
        """The candidates that go on from the knobs ``chosen``, whose values are in ``env``."""
        depth = len(chosen)
        if depth == len(grid.domains):
            settings = self._settings(grid.root, grid.target, env)
            yield Candidate(self.name, tuple(chosen.items()), settings)
            return
        name = list(grid.domains)[depth]
        for value in grid.domains[name]:
            env[name] = chosen[name] = value
            if all(
                truth(self._located(self.doc.where[i], env, ("where", i)))
                for i in grid.ready[depth]
            ):
                yield from self._search(grid, env, chosen)
            del env[name], chosen[name]

    def _settings(self, root: Root, target: Target, env: dict[str, object]) -> Settings:
        tiles: dict[str, dict[str, int]] = {}
        for level in dict.fromkeys([*self.doc.tiles, *self.doc.rest]):
            given = self.doc.tiles.get(level, {})
            sizes = {
                loop: self._size(size, env, ("tiles", level, loop))
                for loop, size in given.items()
                if loop in root.extent
            }
            if level in self.doc.rest:
                for loop in root.loops:
                    if (loop in root.reductions) == ("reduction" in level):
                        sizes.setdefault(loop, self.doc.rest[level])
            tiles[level] = {loop: sizes[loop] for loop in root.loops if sizes.get(loop)}
        extra: dict[str, object] = {}
        if self.doc.workgroup_size:
            extra["workgroup_size"] = [
                self._size(s, env, ("workgroup_size", i))
                for i, s in enumerate(self.doc.workgroup_size)
            ]
        if self.doc.subgroup_size is not None:
            extra["subgroup_size"] = self.doc.subgroup_size
        known = levels_of(target.kind, self.doc.pipeline)
        ordered = {level: tiles[level] for level in known if tiles.get(level)}
        return Settings.model_validate({"pipeline": self.doc.pipeline, "tiles": ordered, **extra})

    def _size(self, size: Size, env: dict[str, object], where: tuple[str | int, ...]) -> int:
        return size if isinstance(size, int) else int(self._located(size, env, where))

    def _expr(self, text: str) -> ast.Expr:
        if text not in self._parsed:
            self._parsed[text] = parse_expression(text)
        return self._parsed[text]

    def _value(self, text: str, env: dict[str, object]) -> Any:
        return Evaluator(env).eval(self._expr(text))

    def _located(self, text: str, env: dict[str, object], where: tuple[str | int, ...]) -> Any:
        try:
            return self._value(text, env)
        except Refused as refused:
            known = did_you_mean(str(refused).split()[0], env)
            raise MlirulesError(
                Fault(self.source.span_at(where), "space", f"{text}: {refused}", known)
            ) from refused


def names_in(node: object) -> set[str]:
    """The names that an expression uses."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, (list, tuple)):
        return set().union(*(names_in(n) for n in node), set())
    if isinstance(node, ast.Node):
        return set().union(*(names_in(v) for v in vars(node).values()), set())
    return set()


def environment(root: Root, target: Target) -> dict[str, object]:
    """The names that a space's expressions can use, with their values for an op."""
    width = max(1, round(root.operands[0].bytes / max(1, root.operands[0].size)))
    vector = {"cpu": _vector_bytes(), "vulkan": 16}.get(target.kind, 16)
    return {
        **root.extent,
        "lanes": vector // width,
        "bytes": width,
        "rank": len(root.loops),
        "cores": os.cpu_count() or 1,
    }


@functools.cache
def _vector_bytes() -> int:
    """Bytes of the widest vector of this machine's processor."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return 16
    return 64 if "avx512f" in flags else 32 if "avx2" in flags else 16


def load_space(path: str | Path, text: str | None = None) -> Space:
    """Read and check a space. Raises MlirulesError with its faults, located."""
    source = load_yaml(path, text)
    try:
        doc = SpaceDoc.model_validate(source.data)
    except pydantic.ValidationError as error:
        raise MlirulesError(
            [
                Fault(
                    source.span_at(_place(e["loc"])),
                    "space",
                    f"{'.'.join(map(str, e['loc']))}: {e['msg']}",
                    did_you_mean(str(e["loc"][-1]), SpaceDoc.model_fields)
                    if e["type"] == "extra_forbidden" and e["loc"]
                    else "",
                )
                for e in error.errors(include_url=False)
            ]
        ) from None
    space = Space(doc, source)
    faults = list(_faults(space))
    if faults:
        raise MlirulesError(faults)
    return space


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return tuple(p for p in loc if not (isinstance(p, str) and p in ("int", "str")))


def _faults(space: Space) -> Iterator[Fault]:
    doc, source = space.doc, space.source
    for index, kind in enumerate(doc.targets):
        if kind not in PIPELINES:
            yield Fault(
                source.span_at(("targets", index)),
                "space",
                f"unknown kind {kind!r}",
                did_you_mean(kind, PIPELINES),
            )
            continue
        if doc.pipeline not in PIPELINES[kind]:
            yield Fault(
                source.span_at(("pipeline",)),
                "space",
                f"{kind} has no pipeline {doc.pipeline!r}",
                did_you_mean(doc.pipeline, PIPELINES[kind]),
            )
        known = levels_of(kind, doc.pipeline)
        for key in ("tiles", "rest"):
            for level in getattr(doc, key):
                if level not in known:
                    yield Fault(
                        source.span_at((key, level), key=True),
                        "space",
                        f"{doc.pipeline} on {kind} has no tile level {level!r}",
                        did_you_mean(level, known),
                    )
    places: list[tuple[str, tuple[str | int, ...]]] = []
    places += [(t, ("requires", i)) for i, t in enumerate(doc.requires)]
    places += [(t, ("where", i)) for i, t in enumerate(doc.where)]
    places += [
        (s, ("workgroup_size", i)) for i, s in enumerate(doc.workgroup_size) if isinstance(s, str)
    ]
    for level, sizes in doc.tiles.items():
        places += [(s, ("tiles", level, n)) for n, s in sizes.items() if isinstance(s, str)]
    for name, choices in doc.knobs.items():
        places += [(c, ("knobs", name, i)) for i, c in enumerate(choices) if isinstance(c, str)]
    for text, where in places:
        try:
            space._expr(text)
        except NotationError as error:
            yield Fault(source.span_at(where), "space", f"{text}: {error}")


def load_spaces(paths: Sequence[str | Path] = ()) -> list[Space]:
    """Spaces from files and folders; the shipped ones when none are named.

    Raises MlirulesError with the faults of all files, or when there are none.
    """
    files: list[Path] = []
    for given in paths or [SPACES]:
        path = Path(given)
        shipped = SPACES / f"{given}.yaml"
        if path.is_dir():
            files += sorted(path.rglob("*.yaml"))
        elif path.exists() or not shipped.exists():
            files.append(path)
        else:
            files.append(shipped)
    spaces, faults, ways = [], [], 0
    for file in files:
        try:
            source = load_yaml(file)
            if isinstance(source.data, dict) and "ways" in source.data:
                ways += 1  # ways to compile a program (:mod:`ways`), no configurations
                continue
            spaces.append(load_space(file))
        except MlirulesError as error:
            faults += error.faults
    if faults:
        raise MlirulesError(faults)
    if not spaces and not ways:
        raise MlirulesError(Fault(Span(", ".join(map(str, paths))), "space", "holds no space"))
    return spaces


def enumerate_candidates(root: Root, target: Target, spaces: Sequence[Space]) -> list[Candidate]:
    """The valid configurations of all spaces that fit, each once, in the spaces' order.

    Raises MlirulesError for a space that has too many of them.
    """
    found: dict[str, Candidate] = {}
    for space in spaces:
        if not space.fits(root, target):
            continue
        for count, candidate in enumerate(space.candidates(root, target)):
            if count >= MAX_CANDIDATES:
                raise MlirulesError(
                    Fault(
                        space.source.span_at(("space",)),
                        "space",
                        f"more than {MAX_CANDIDATES} configurations for {root.title}",
                        "narrow the knobs or say more in `where`",
                    )
                )
            found.setdefault(candidate.key, candidate)
    return list(found.values())


def compilation_info(settings: Settings, loops: Sequence[str], kind: str) -> str:
    """A configuration as the compiler's attribute."""
    return configuration.spelt(
        configuration.Compilation(
            configuration.of_loops(settings, loops, kind), configuration.translation(settings, kind)
        )
    )
