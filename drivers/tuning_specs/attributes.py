"""Attribute text of a tuning spec, read with the place of every part.

The bindings know the values of some attributes and the places of none; a fault in a spec must point
at the tile list or key that is wrong, so the text itself is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_SPACE = re.compile(r"(?:[ \t\r\n,]|//[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_$][\w.$]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_KEY = re.compile(r'(?:"([^"\n]*)"|([A-Za-z_][\w.$-]*))\s*=(?!=)')
_TYPE = re.compile(r"\s*:\s*[a-z]\w*")
_CLOSE = {"<": ">", "[": "]", "{": "}", "(": ")"}
MAX_DEPTH = 40


class AttrError(Exception):
    """Attribute text that cannot be read; ``pos`` is its offset."""

    def __init__(self, message: str, pos: int) -> None:
        super().__init__(message)
        self.pos = pos


@dataclass
class Attr:
    """An attribute: a tag with items, a list, a mapping, or a single value."""

    pos: int
    end: int
    kind: str  # tag, list, dict, group, value
    tag: str = ""
    value: int | float | str | bool | None = None
    items: list[Attr] = field(default_factory=list)
    #: Named parts and where their names stand.
    keys: dict[str, tuple[int, Attr]] = field(default_factory=dict)

    def get(self, key: str) -> Attr | None:
        """A named part."""
        found = self.keys.get(key)
        return None if found is None else found[1]

    def numbers(self) -> list[int] | None:
        """A list of whole numbers, or None when this is none."""
        if self.kind != "list" or any(type(i.value) is not int for i in self.items):
            return None
        return [i.value for i in self.items if isinstance(i.value, int)]

    def walk(self) -> Iterator[Attr]:
        """This attribute and all its parts."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            yield part
            waiting += reversed([*part.items, *(a for _, a in part.keys.values())])


def aliases_of(text: str) -> dict[str, int]:
    """Where the value of each attribute alias (``#name = ...``) of a program stands."""
    return {m[1]: m.end() for m in re.finditer(r"^#([A-Za-z_]\w*)\s*=\s*", text, re.MULTILINE)}


def read(text: str, pos: int, aliases: dict[str, int] | None = None) -> Attr:
    """The attribute that stands at ``pos``. Raises :class:`AttrError`."""
    return _Reader(text, aliases or {}).value(pos, 0)[0]


def read_at(text: str, pos: int) -> Attr:
    """The attribute that ``text`` spells, every part of it placed at ``pos`` of another text."""
    made = read(text, 0)
    for part in made.walk():
        part.pos = part.end = pos
        part.keys = {key: (pos, value) for key, (_, value) in part.keys.items()}
    return made


class _Reader:
    def __init__(self, text: str, aliases: dict[str, int]) -> None:
        self.text = text
        self.aliases = aliases

    def skip(self, pos: int) -> int:
        found = _SPACE.match(self.text, pos)
        return found.end() if found else pos

    def value(self, pos: int, depth: int) -> tuple[Attr, int]:
        """The attribute at ``pos`` and where the text goes on (an alias stands elsewhere)."""
        if depth > MAX_DEPTH:
            raise AttrError("nested too deep", pos)
        pos = self.skip(pos)
        if pos >= len(self.text):
            raise AttrError("the text ends here", pos)
        char = self.text[pos]
        if char == "#":
            return self.tagged(pos, depth)
        if char in "[{<(":
            kind = {"[": "list", "{": "dict", "<": "group", "(": "group"}[char]
            made = self.group(pos, pos, kind, "", depth)
            return made, made.end
        found = _STRING.match(self.text, pos)
        if found:
            return self.plain(pos, found.end(), found[1])
        found = _NUMBER.match(self.text, pos)
        if found:
            typed = _TYPE.match(self.text, found.end())
            number = float(found[0]) if re.search(r"[.eE]", found[0]) else int(found[0])
            return self.plain(pos, typed.end() if typed else found.end(), number)
        found = _NAME.match(self.text, pos)
        if found is None:
            raise AttrError(f"unexpected {char!r}", pos)
        word = found[0]
        if word in ("affine_map", "dense", "tensor", "vector", "array"):
            return self.plain(pos, self.balanced(found.end()), word)
        return self.plain(pos, found.end(), {"true": True, "false": False}.get(word, word))

    @staticmethod
    def plain(pos: int, end: int, value: float | str | bool) -> tuple[Attr, int]:
        return Attr(pos, end, "value", value=value), end

    def tagged(self, pos: int, depth: int) -> tuple[Attr, int]:
        found = _NAME.match(self.text, pos + 1)
        if found is None:
            raise AttrError("an attribute's name is missing after '#'", pos)
        if "." not in found[0]:
            at = self.aliases.get(found[0])
            if at is None or at > pos:
                raise AttrError(f"the alias #{found[0]} is not defined", pos)
            return self.value(at, depth + 1)[0], found.end()
        if self.text[found.end() : found.end() + 1] != "<":
            return Attr(pos, found.end(), "tag", found[0]), found.end()
        made = self.group(pos, found.end(), "tag", found[0], depth)
        return made, made.end

    def group(self, start: int, pos: int, kind: str, tag: str, depth: int) -> Attr:
        close = _CLOSE[self.text[pos]]
        made = Attr(start, pos, kind, tag)
        pos = self.skip(pos + 1)
        while self.text[pos : pos + 1] != close:
            if pos >= len(self.text):
                raise AttrError("this is not closed", start)
            key = self.key(pos)
            if key is None:
                item, pos = self.value(pos, depth + 1)
                made.items.append(item)
            else:
                name, after = key
                if name in made.keys:
                    raise AttrError(f"{name!r} stands twice", pos)
                value, end = self.value(after, depth + 1)
                made.keys[name] = (pos, value)
                pos = end
            pos = self.skip(pos)
        made.end = pos + 1
        return made

    def key(self, pos: int) -> tuple[str, int] | None:
        found = _KEY.match(self.text, pos)
        if found is None:
            return None
        return found[1] if found[1] is not None else found[2], found.end()

    def balanced(self, pos: int) -> int:
        depth = 0
        while pos < len(self.text):
            char = self.text[pos]
            if char in "<([{":
                depth += 1
            elif char in ")]}" or (char == ">" and self.text[pos - 1] != "-"):
                depth -= 1
                if depth <= 0:
                    return pos + 1
            elif depth == 0:
                return pos
            pos += 1
        return pos
