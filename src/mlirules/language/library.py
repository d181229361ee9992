"""Rule sets, compiled: what is known of every rule without reading it, and each rule when needed.

Reading and checking a rule file takes milliseconds, of which a set of 600 makes seconds; a program
needs few of the rules. So a set that was read once without a fault is kept in the user's cache
folder: for every file, by a hash of its content, the ops that its rule is about, and the rule as
read. Nothing is kept of a file with a fault, and a file that changed is read and checked anew.

What is kept is JSON with a checksum, made for one version of this package, of the compiler and of
the code that reads rules. Decoding makes nothing but the syntax trees and lines of a rule. Sets
that ship are kept so within the package when a wheel is built; what the user's folder has of them
is newer.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirules.language import elements
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.kept import can_be_kept, decoded, encoded
from mlirules.language.notation import ast
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import (
    LIBRARY,
    asked_for,
    duplicate,
    no_rules,
    origin_of,
    rule_files,
)
from mlirules.language.source import MAX_BYTES
from mlirules.support import cache, package
from mlirules.support import files as on_disk

# A set that was read before is used without what reads rules, which takes long to load.
if TYPE_CHECKING:
    from mlirules.language.checks.checker import OpOracle

__all__ = ["Contents", "Entry", "RuleSet", "code", "open_rules", "reachable", "ship"]


@dataclass(frozen=True)
class Head:
    """What is known of a rule without reading it."""

    name: str
    kind: str
    tags: tuple[str, ...]
    root_ops: frozenset[str]
    #: Every op of the pattern, and every op that the rewrite writes out.
    op_names: frozenset[str]
    produced_ops: frozenset[str]
    #: The rewrite makes ops that it does not name: linalg and what stands in its bodies.
    computes: bool
    #: The file holds all of it: a kernel in C names others.
    whole: bool
    #: Sets of element types, of each of which the program must have one.
    asked: tuple[tuple[str, ...], ...] = ()
    #: The element types that what it makes may bring; None: any.
    brought: tuple[str, ...] | None = None


@dataclass
class Entry:
    """A rule of a set."""

    head: Head
    path: str
    origin: str
    order: int
    #: A hash of the file's content.
    digest: str
    _read: Callable[[], Rule] = field(repr=False)

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.head.name

    @property
    def kind(self) -> str:
        """conversion, fusion or kernel."""
        return self.head.kind

    @property
    def tags(self) -> tuple[str, ...]:
        """The words to select it by."""
        return self.head.tags

    @functools.cached_property
    def rule(self) -> Rule:
        """The rule itself. Raises :class:`MlirulesError` for a rule with a fault."""
        rule = self._read()
        rule.order, rule.origin = self.order, self.origin
        return rule


@dataclass(frozen=True)
class RuleSet:
    """The rules of some rule sets, in order."""

    entries: tuple[Entry, ...]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the rules and where they stand."""
        listed = "\0".join(f"{e.path}\0{e.name}\0{e.digest}" for e in self.entries)
        return hashlib.sha256(listed.encode()).hexdigest()

    def rules(self) -> list[Rule]:
        """All of them, read."""
        return [entry.rule for entry in self.entries]


#: Ops that any program may hold or any rewrite make: constants, lists, casts between torch and
#: builtin types.
_ANYWHERE = frozenset(
    [
        *(f"torch.constant.{kind}" for kind in ("int", "float", "bool", "none", "str", "device")),
        "torch.prim.ListConstruct",
        "torch_c.to_builtin_tensor",
        "torch_c.from_builtin_tensor",
    ]
)


def reachable(
    entries: Sequence[Entry],
    present: Collection[str],
    held: Callable[[], Collection[str]] | None = None,
) -> list[Entry]:
    """The rules that can apply to a program with these ops, or to what another one makes of it.

    ``held`` tells the types of its elements (:mod:`elements`), where a rule asks for some.
    """
    names = {*_ANYWHERE, *present}
    brought: set[str] = set()
    types: set[str] | None = None
    computed, any_type = False, held is None
    left, chosen = list(entries), set()
    while True:
        kept = []
        for entry in left:
            head = entry.head
            missing = set(head.op_names - names)
            if computed:
                missing = {op for op in missing if op.startswith("torch.")}
            roots = not names.isdisjoint(head.root_ops) or (
                computed and any(not op.startswith("torch.") for op in head.root_ops)
            )
            if missing or not roots:
                kept.append(entry)
                continue
            if head.asked and not any_type:
                if types is None:
                    assert held is not None
                    types = {*held(), *brought}
                if any(types.isdisjoint(one) for one in head.asked):
                    kept.append(entry)
                    continue
            chosen.add(entry.name)
            names |= head.produced_ops
            computed = computed or head.computes
            any_type = any_type or head.brought is None
            brought.update(head.brought or ())
            if types is not None:
                types |= brought
        if len(kept) == len(left):
            return [e for e in entries if e.name in chosen]
        left = kept


# ---------------------------------------------------------------- reading sets


def open_rules(
    paths: Iterable[str | Path],
    *,
    ops: OpOracle | None = None,
    compiler: str = "",
    contents: Contents | None = None,
    listed: Mapping[str, list[Path]] | None = None,
) -> RuleSet:
    """The rule sets of these names or paths, in order.

    ``ops`` is for :func:`~mlirules.language.loader.load_rules`, and ``compiler`` says which version
    of the compiler it asks; ``contents`` are those of files that were read before, and ``listed``
    the files of paths, where they are known. Raises :class:`MlirulesError` with the faults of all.
    """
    contents = contents if contents is not None else Contents()
    known: dict[str, Entry] = {}
    faults: list[Fault] = []
    given = list(paths)
    for path in given:
        files = listed[str(path)] if listed is not None else rule_files(path)
        only = asked_for(path, files)
        pack = _Pack(Path(path), files, ops, compiler, contents)
        for file in files:
            try:
                held = pack.entries(file, len(known), alone=len(files) == 1)
            except MlirulesError as error:
                faults += error.faults
                continue
            for found in held:
                if only not in (None, found.name):
                    continue
                first = known.get(found.name)
                if first is None:
                    known[found.name] = found
                elif Path(first.path) != file:
                    faults.append(duplicate(found.rule, first.path))
        pack.keep()
    if faults:
        raise MlirulesError(faults)
    if not known:
        raise no_rules(given)
    return RuleSet(tuple(known.values()))


@dataclass(frozen=True)
class Content:
    """What a file holds; nothing where it cannot be read: reading it as YAML says why."""

    raw: bytes
    digest: str
    #: The state of the file when it was read, as far as the system tells it.
    state: tuple[int, ...]
    #: Whether a later change would show in the state: it was not changed just then.
    settled: bool


class Contents:
    """The content of files that may change meanwhile. One that did not is not read again.

    As in git's index: a file whose state is the same holds the same, unless it was changed so
    shortly before it was read that a second change could bear the same time.
    """

    #: Files that are held; of more, all are read again.
    LIMIT = 8192
    #: Nanoseconds, more than the clocks of file systems are coarse.
    _COARSE = 2_000_000_000

    def __init__(self) -> None:
        self._held: dict[str, Content] = {}

    def of(self, path: str) -> Content:
        """The content of a file as it is now."""
        try:
            found = os.stat(path)  # noqa: PTH116 - of every rule there is
        except (OSError, ValueError):
            return Content(b"", hashlib.sha256().hexdigest(), (), False)
        state = (found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
        held = self._held.get(path)
        if held is not None and held.settled and held.state == state:
            return held
        settled = found.st_ctime_ns + self._COARSE < time.time_ns()
        try:
            raw = _read(path, found.st_size)
        except OSError:
            raw = b""
        if len(self._held) >= self.LIMIT:
            self._held.clear()
        made = Content(raw, hashlib.sha256(raw).hexdigest(), state, settled)
        self._held[path] = made
        return made


def _read(path: str, size: int) -> bytes:
    """The bytes of a file of about this size. One longer than a rule file may be is not kept."""
    # As many bytes as there are: Python makes room for as many as it is asked for, and clears it.
    with open(path, "rb", buffering=0) as opened:  # noqa: PTH123 - of every rule there is
        return opened.read(min(size, MAX_BYTES) + 1) or b""


_FORMAT = 9
#: Where a head says whether the rule is one of several of its file.
_FAMILY = 8
#: So many sets are kept; of more, those that were read longest ago go.
_PACKS = 200


class _Pack:
    """What is kept of the files of one rule set."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        ops: OpOracle | None,
        compiler: str,
        contents: Contents,
    ) -> None:
        self.ops = ops
        self.contents = contents
        self.stamp = [_FORMAT, package.VERSION, compiler, code(), ops is not None]
        self.origins: dict[str, str] = {}
        key = hashlib.sha256(f"{path}\0{files[0].resolve()}".encode()).hexdigest()[:24]
        self.file = cache.directory() / "rules" / f"{key}.json"
        self.heads: dict[str, list[Any]] = {}
        #: Where the bodies are kept, and where in that file they begin.
        self.kept_in: tuple[Path, int] = self.file, 0
        #: The rules of the files that were asked for; None: one that stands in the file.
        self.used: dict[str, list[bytes | None]] = {}
        self.new = False
        if not self._take(self.file, cache.read_head(self.file)):
            name = self.name(path, files[0])
            shipped = None if name is None else cache.shipped_head("rules", name)
            if shipped is not None:
                self._take(*shipped)

    def _take(self, file: Path, read: tuple[bytes, int] | None) -> bool:
        """Use what was kept; False where it is nothing, or made for something else."""
        if read is None:
            return False
        head, at = read
        found = json.loads(head)
        if found["stamp"] != self.stamp:
            return False
        self.heads, self.kept_in = found["heads"], (file, at)
        return True

    def name(self, path: Path, first: Path) -> str | None:
        """What a set that ships is kept as, wherever the package lies; None for other sets."""
        said = list(self.stamp)
        for place in (path, first.resolve()):
            if place.is_absolute():
                whole = place.resolve()
                if not whole.is_relative_to(LIBRARY):
                    return None
                place = whole.relative_to(LIBRARY)
            said.append(place.as_posix())
        return hashlib.sha256(_json(said)).hexdigest()[:32]

    def entries(self, file: Path, order: int, *, alone: bool) -> list[Entry]:
        """The rules in a file; none for a config rule beside others. Raises MlirulesError."""
        found = self.contents.of(str(file))
        digest = found.digest
        kept = self.heads.get(digest)
        if kept is None:
            return self._compiled(file, digest, order, alone=alone)
        if not kept and alone:
            return self._compiled(file, digest, order, alone=True)
        self.used[digest] = [None] * len(kept)
        return [self._entry(file, found, head, order + n, n) for n, head in enumerate(kept)]

    def _entry(self, file: Path, found: Content, kept: list[Any], order: int, n: int) -> Entry:
        """What a file says of its rule of number ``n``, whose place among all is ``order``."""
        path, ops, raw = str(file), self.ops, found.raw
        *head, start, length, check = kept
        stored, first = self.kept_in

        def read() -> Rule:
            body = _body(stored, first + start, length, check) if length else None
            if body is None:
                from mlirules.language.loader import rules_of
                from mlirules.language.reading import load_yaml

                return rules_of(load_yaml(file), ops=ops)[n]
            kept, _, whole = body.partition(b"\n")
            return decoded(json.loads(kept), whole, path, raw.decode("utf-8"), n)

        made = _head(head)
        return Entry(
            made, path, self._origin(file, made.name, head[_FAMILY]), order, found.digest, read
        )

    def _origin(self, file: Path, name: str, family: bool) -> str:
        folder, _, last = str(file).rpartition(os.sep)
        origin = self.origins.get(folder)
        if origin is None:
            origin = self.origins[folder] = str(origin_of(file.parent))
        shown = name if family else os.path.splitext(last)[0]  # noqa: PTH122 - of every rule there is
        return shown if origin == "." else f"{origin}{os.sep}{shown}"

    def _compiled(self, file: Path, digest: str, order: int, *, alone: bool) -> list[Entry]:
        from mlirules.language.loader import kind_of, rules_of
        from mlirules.language.reading import load_yaml

        source = load_yaml(file)
        self.new = True
        self.heads[digest], self.used[digest] = [], []
        if kind_of(source) == "config" and not alone:
            return []
        try:
            rules = rules_of(source, ops=self.ops)
        except MlirulesError:
            del self.heads[digest], self.used[digest]
            raise
        made = []
        for n, rule in enumerate(rules):
            head = _head_of(rule)
            kept = can_be_kept(rule)
            body = b"\n".join(map(_json, (encoded(rule), rule.source.data))) if kept else b""
            self.heads[digest].append([*head, 0, 0, ""])
            self.used[digest].append(body)
            origin = self._origin(file, rule.name, head[_FAMILY])
            read = functools.partial(_same, rule)
            made.append(Entry(_head(head), str(file), origin, order + n, digest, read))
        return made

    def keep(self) -> None:
        """Write what was read anew."""
        if self.new:
            cache.write_with_head(self.file, *self.packed())
            cache.keep_newest(self.file.parent, _PACKS)

    def packed(self) -> tuple[bytes, bytes]:
        """What is known of the files that were asked for, to be kept: the heads, the bodies."""
        heads: dict[str, list[object]] = {}
        bodies: list[bytes] = []
        at = 0
        for digest, held in self.used.items():
            listed: list[object] = []
            for (*head, start, length, check), body in zip(self.heads[digest], held, strict=True):
                if body is None:
                    stored, first = self.kept_in
                    body = _body(stored, first + start, length, check) if length else b""
                if body is None:
                    break  # it is read again when the file is asked for next
                listed.append([*head, at, len(body), _check(body)])
                bodies.append(body)
                at += len(body)
            else:
                heads[digest] = listed
        return _json({"stamp": self.stamp, "heads": heads}), b"".join(bodies)


def _check(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _body(file: Path, start: int, length: int, check: str) -> bytes | None:
    """A rule as it is kept; None where the file was written anew or is broken."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - of every rule that is used
            opened.seek(start)
            body = opened.read(length)
    except OSError:
        return None
    if _check(body) != check:
        cache.broken(file)
        return None
    return body


def code() -> str:
    """What changes when the code that reads rules does, and is the same wherever it lies."""
    return package.content("language", ".py")


def ship(path: str, folder: Path, *, ops: OpOracle, compiler: str) -> list[Entry]:
    """Read a set that ships, and keep it below ``folder``, from which the package will read it.

    Raises :class:`MlirulesError` for rules with faults and for a set that is not of the library.
    """
    files = rule_files(path)
    pack = _Pack(Path(path), files, ops, compiler, Contents())
    name = pack.name(Path(path), files[0])
    if name is None:
        raise MlirulesError.at(path, "is no rule set that ships", code="no-rules")
    made: list[Entry] = []
    for file in files:
        made += pack.entries(file, len(made), alone=len(files) == 1)
    on_disk.write(folder / "rules" / name, cache.with_head(*pack.packed()))
    return made


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _head_of(rule: Rule) -> list[Any]:
    computes = bool(rule.variants) or not all(
        isinstance(made, (ast.OpEquation, ast.Erase)) for _, made in rule.rewrite
    )
    return [
        rule.name,
        rule.doc.kind,
        rule.doc.tags,
        list(rule.root_ops),
        sorted(rule.op_names),
        sorted(rule.produced_ops),
        computes,
        can_be_kept(rule),
        bool(rule.source.family),
        elements.asked(rule),
        elements.brought(rule),
    ]


def _same(rule: Rule) -> Rule:
    return rule


def _head(found: list[Any]) -> Head:
    name, kind, tags, roots, names, produced, computes, whole, _, asked, brought = found
    return Head(
        name,
        kind,
        tuple(tags),
        frozenset(roots),
        frozenset(names),
        frozenset(produced),
        computes,
        whole,
        tuple(map(tuple, asked)),
        None if brought is None else tuple(brought),
    )
