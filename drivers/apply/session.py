"""A session: all that is kept from one program to the next, and nothing else is.

A session holds a compiler context, the rule sets that were read (by content: a file that was edited
is read again), engines with what they have decided, and binaries of small programs. Everything in
it is bounded. It belongs to one thread; several of them work side by side without knowing of each
other.

    with Session():
        transform(program, "cpu")

What is not given a session runs in that of its thread, which is made when it is first asked for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Generic, TypeVar

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.iree import compiler
from mlirules.language.library import Contents, RuleSet, open_rules
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import rule_files

__all__ = ["Bounded", "Session", "current"]

Key = TypeVar("Key")
Item = TypeVar("Item")


class Bounded(Generic[Key, Item]):
    """What was used last, up to ``limit`` items; the one not used for longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: OrderedDict[Key, Item] = OrderedDict()

    def get(self, key: Key) -> Item | None:
        """The item of ``key``, which counts as a use; None when there is none."""
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: Key, item: Item) -> Item:
        """Keep ``item``, and give it back."""
        self._items[key] = item
        self._items.move_to_end(key)
        while len(self._items) > self.limit:
            self._items.popitem(last=False)
        return item

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)


class Session:
    """One compiler context, and what was read and made for it."""

    #: How many engines, rule sets and binaries are kept.
    ENGINES = 256
    LIBRARIES = 64
    BINARIES = 4096

    def __init__(self) -> None:
        self.context = compiler.context()
        self.binaries: Bounded[object, object] = Bounded(self.BINARIES)
        self._contents = Contents()
        self._opened: dict[tuple[str, ...], RuleSet] | None = None
        self._engines: Bounded[tuple[str, ...], Engine] = Bounded(self.ENGINES)
        self._libraries: Bounded[object, RuleSet] = Bounded(self.LIBRARIES)
        self._tokens: list[Token[Session | None]] = []

    def library(self, paths: Sequence[str]) -> RuleSet:
        """Rule sets by name or path, opened once while no file of theirs says anything else.

        Raises :class:`MlirulesError` with the faults of all rules.
        """
        opened = self._opened
        if opened is not None and tuple(paths) in opened:
            return opened[tuple(paths)]
        listed = {path: rule_files(path) for path in paths}
        files = [str(file) for path in paths for file in listed[path]]
        key = (tuple(paths), *((file, self._contents.of(file).digest) for file in files))
        found = self._libraries.get(key)
        if found is None:
            rules = open_rules(
                paths,
                ops=compiler.op_oracle,
                compiler=compiler.revision(),
                contents=self._contents,
                listed=listed,
            )
            found = self._libraries.put(key, rules)
        if opened is not None:
            opened[tuple(paths)] = found
        return found

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Within the block rule sets are as they were when they were first asked for in it.

        The stages of one compilation name the same sets, and looking at hundreds of files for each
        takes longer than the stages.
        """
        outermost = self._opened is None
        if outermost:
            self._opened = {}
        try:
            yield
        finally:
            if outermost:
                self._opened = None

    def engine(self, key: tuple[str, ...], rules: Sequence[Rule] = ()) -> Engine:
        """The engine kept under ``key``, which says what its rules are by their content."""
        found = self._engines.get(key)
        return found if found is not None else self._engines.put(key, Engine(rules, self.context))

    def engine_for(self, rules: Sequence[Rule]) -> Engine:
        """An engine for these rules; what it has decided is kept between programs.

        A rule that was changed in memory has the text of the one that it was made from: it is given
        an engine of its own.
        """
        key = tuple(_digest(rule) for rule in rules)
        found = self._engines.get(key)
        if found is None or not all(map(_same, rules, map(found.rule, rules))):
            found = self._engines.put(key, Engine(rules, self.context))
        return found

    def __enter__(self) -> Session:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        _CURRENT.reset(self._tokens.pop())


# Not the session itself: which one a thread (or a task) is in.
_CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


def current() -> Session:
    """The session that this thread is in; a new one where it is in none."""
    found = _CURRENT.get()
    if found is None:
        found = Session()
        _CURRENT.set(found)
    return found


def _same(one: Rule, other: Rule | None) -> bool:
    """Whether two rules of one text still say the same."""
    return one is other or (
        other is not None
        and one.match == other.match
        and one.index_match == other.index_match
        and one.types == other.types
        and one.let == other.let
        and one.where == other.where
        and one.rewrite == other.rewrite
        and one.variants == other.variants
    )


def _digest(rule: Rule) -> str:
    """What a rule is: its file's path and content."""
    content = hashlib.sha256(rule.source.text.encode()).hexdigest()
    return f"{rule.path}:{rule.name}:{content}"
