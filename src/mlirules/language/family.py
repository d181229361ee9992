"""Families: rules that differ in a few lines, written in one file.

``with:`` spells a word (``$word``) in several ways, ``any:`` holds lines that stand for each other.
Their alternatives have names. Each combination of alternatives is a *member*: a rule with a name of
its own, read from the file as if its lines alone stood there. A member's lines keep the places that
they have in the file, so that a fault points to the alternative that is wrong.

Alternatives of one name belong together: where two places name the same ones, a member takes the
same one in both.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.language.faults import Fault, MlirulesError, did_you_mean
from mlirules.language.source import Path_, SourceFile, Text

#: So many members a family has at most.
MAX_MEMBERS = 64

# In brackets: it adds nothing to the member's name.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*|\([a-z0-9]+(-[a-z0-9]+)*\)")
_WORD = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OP = re.compile(r"(?:^|=\s*)(?:torch\.)?[a-z_0-9]+\.([A-Za-z_0-9]+)")
# Keys whose text may be written in parts, some of them alternatives.
_SENTENCES = frozenset({"summary", "reason", "notes", "tolerance"})
_TEXTS = _SENTENCES | {"input", "unchanged", "check", "body"}
# Sections that map names to lines: alternatives in them are further such mappings.
_MAPPINGS = frozenset({"types", "let"})


def members(source: SourceFile) -> list[SourceFile]:
    """The rules that a file holds, each as a file of its own; a plain rule file is its only one.

    Raises :class:`MlirulesError` for alternatives that cannot be told apart or are not known.
    """
    data = source.data
    if not isinstance(data, dict) or not _is_family(data):
        return [source]
    for key in ("match", "where", "rewrite"):
        source.listed(key)
    return _Family(source).members()


def base_name(name: str) -> str:
    """A family's own name: what its members are called where no alternative has a name."""
    return "-".join(part for part in name.split("-") if part != "*")


def _is_family(data: dict[str, object]) -> bool:
    if "with" in data or "*" in str(data.get("rule", "")):
        return True
    pending: list[object] = list(data.values())
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            # A symbol may be called `any`: its type is a text, alternatives are not.
            if isinstance(value.get("any"), (dict, list)):
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False


@dataclass
class _Axis:
    """Alternatives of which a member takes one."""

    names: list[str]
    first: Path_


@dataclass
class _Choice:
    """A place where alternatives stand: the axis that they belong to, and each one's own place."""

    axis: int
    places: dict[str, Path_]


@dataclass
class _Family:
    source: SourceFile
    axes: list[_Axis] = field(default_factory=list)
    words: dict[str, _Choice] = field(default_factory=dict)
    choices: dict[Path_, _Choice] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def members(self) -> list[SourceFile]:
        """Every combination of alternatives."""
        data = self.source.data
        self._spellings(data.get("with"))
        # The match says what the alternatives are, the other sections what follows from them.
        for key in sorted(data, key=lambda k: {"match": 0, "tests": 2}.get(k, 1)):
            if key != "with":
                self._find(data[key], (key,))
        count = 1
        for axis in self.axes:
            count *= len(axis.names)
        if not self.axes and not self.faults:
            self.refuse(
                ("rule",),
                "no-alternatives",
                "the name has a place for alternatives' names, and there are none",
                "write them under `with:` or `any:`, or take the * out of the name",
            )
        if count > MAX_MEMBERS:
            self.refuse(
                self.axes[-1].first,
                "too-large",
                f"the alternatives combine to {count} rules; {MAX_MEMBERS} is the most",
                "divide the file",
            )
        self._raise()
        made = [
            _Member(self, dict(enumerate(chosen))).source()
            for chosen in itertools.product(*(axis.names for axis in self.axes))
        ]
        for word in self.words:
            if word not in self.used:
                self.refuse(
                    ("with", word),
                    "unused",
                    f"no line says ${word}",
                    "remove it, or use it: $" + word,
                    key=True,
                )
        self._raise()
        return made

    def _raise(self) -> None:
        if self.faults:
            unique = dict.fromkeys(self.faults)
            raise MlirulesError(sorted(unique, key=lambda f: (f.span.line, f.span.column)))

    def in_line(self, text: Text, offset: int, length: int, message: str, hint: str) -> None:
        """A fault in a line."""
        self.faults.append(Fault(text.span(offset, length), "alternatives", message, hint))

    def refuse(
        self, path: Path_, code: str, message: str, hint: str = "", *, key: bool = False
    ) -> None:
        """Note a fault at a node of the file."""
        self.faults.append(Fault(self.source.span_at(path, key=key), code, message, hint))

    # -- finding the alternatives

    def _spellings(self, spelt: object) -> None:
        if spelt is None:
            return
        if not isinstance(spelt, dict) or not spelt:
            self.refuse(
                ("with",),
                "wrong-type",
                "`with` must be a mapping of words to their spellings",
                "for example `root: [sqrt, rsqrt]`; a line says $root",
            )
            return
        for word, value in spelt.items():
            path: Path_ = ("with", word)
            if not _SYMBOL.fullmatch(word):
                self.refuse(
                    path,
                    "bad-name",
                    f"{word[:60]!r} is not a word",
                    "letters, digits and _",
                    key=True,
                )
                continue
            choice = self._choice(path, value)
            if choice is None:
                continue
            self.words[word] = choice
            for name, place in choice.places.items():
                found = self.at(place)
                if isinstance(found, (dict, list)) or found is None:
                    self.refuse(
                        place, "wrong-type", f"the spelling {name!r} of ${word} must be a text"
                    )

    def _find(self, value: object, path: Path_) -> None:
        """Note every `any` in a part of the file."""
        if isinstance(value, dict):
            inside = value.get("any")
            if isinstance(inside, (dict, list)) and (
                len(value) == 1 or (len(path) == 1 and path[0] in _MAPPINGS)
            ):
                choice = self._choice((*path, "any"), inside)
                if choice is not None:
                    self.choices[path] = choice
            for key, item in value.items():
                self._find(item, (*path, key))
        elif isinstance(value, list):
            for i, item in enumerate(value):
                self._find(item, (*path, i))

    def _choice(self, path: Path_, value: object) -> _Choice | None:
        if isinstance(value, dict):
            named = {}
            for key in value:
                for name in (part.strip() for part in str(key).split(",")):
                    if name in named:
                        self.refuse(
                            (*path, key), "duplicate-key", f"{name!r} stands twice here", key=True
                        )
                    named[name] = (*path, key)
        elif isinstance(value, list):
            named = self._named(path, value)
        else:
            named = {}
        if not named:
            if not self.faults:
                self.refuse(
                    path,
                    "wrong-type",
                    "alternatives are a mapping of their names to what they say",
                    "`sqrt: y = torch.aten.sqrt(x)`, one a line",
                )
            return None
        known = {n: i for i, axis in enumerate(self.axes) for n in axis.names}
        for name in named:
            if not _NAME.fullmatch(name):
                self.refuse(
                    named[name],
                    "bad-name",
                    f"{name[:60]!r} does not name an alternative: lower-case words and digits "
                    "joined by '-'",
                    key=True,
                )
                return None
        axes = {known[name] for name in named if name in known}
        if not axes:
            if len(named) < 2:
                self.refuse(
                    path,
                    "alternatives",
                    "one alternative is none",
                    did_you_mean(next(iter(named)), known) or "name another one",
                    key=True,
                )
                return None
            self.axes.append(_Axis(list(named), path))
            return _Choice(len(self.axes) - 1, named)
        if len(axes) > 1 or any(name not in known for name in named):
            stray = next(n for n in named if known.get(n) != min(axes))
            names = ", ".join(self.axes[min(axes)].names)
            first = self.source.span_at(self.axes[min(axes)].first, key=True).line
            self.refuse(
                named[stray],
                "alternatives",
                f"{stray!r} is none of the alternatives of line {first}: {names}",
                did_you_mean(stray, self.axes[min(axes)].names)
                or "alternatives that belong together have the same names everywhere",
                key=True,
            )
            return None
        (axis,) = axes
        return _Choice(axis, named)

    def _named(self, path: Path_, items: list[object]) -> dict[str, Path_]:
        """Names for alternatives in a list: words by themselves, equations by their op."""
        out: dict[str, Path_] = {}
        for i, item in enumerate(items):
            line = item[0] if isinstance(item, list) and item else item
            text = line if isinstance(line, str) else ""
            found = _OP.search(text)
            name = found[1].strip("_").replace("_", "-").lower() if found else text
            if not _NAME.fullmatch(name) or name in out:
                self.refuse(
                    (*path, i),
                    "alternatives",
                    f"two alternatives would be named {name!r}"
                    if name in out
                    else "nothing here to name the alternative by",
                    "name them: write `NAME: ...` in place of `- ...`",
                )
                return {}
            out[name] = (*path, i)
        return out

    def at(self, path: Path_) -> Any:
        """What stands at a place of the file."""
        value: Any = self.source.data
        for part in path:
            value = value[part]
        return value


@dataclass
class _Member:
    """One member of a family in the making."""

    family: _Family
    chosen: dict[int, str]

    def source(self) -> SourceFile:
        """The member as a file."""
        given = self.family.source
        self.made = given.another()
        self.marks, self.key_marks = given.marks, given.key_marks
        data: dict[str, object] = {}
        self.made.marks[()] = given.text_at(())
        for key, value in given.data.items():
            if key == "with":
                continue
            kept, found = self._value(value, (key,), (key,))
            if kept:
                data[key] = found
                self._key((key,), (key,))
        name = data.get("rule")
        if isinstance(name, str):
            data["rule"] = self._name(name)
            self.made.family = base_name(name)
        self.made.member = " ".join(self.chosen.values())
        self.made.data = data
        return self.made

    def _name(self, name: str) -> str:
        own = "-".join(n for n in self.chosen.values() if not n.startswith("("))
        if "*" not in name.split("-"):
            return f"{name}-{own}" if own else name
        if not own:
            return base_name(name)
        return "-".join(own if part == "*" else part for part in name.split("-"))

    def _key(self, old: Path_, new: Path_) -> None:
        if old in self.key_marks:
            self.made.key_marks[new] = self.key_marks[old]

    def _taken(self, path: Path_) -> tuple[bool, Path_]:
        """Whether the alternatives at a place have the chosen one, and where that stands."""
        choice = self.family.choices[path]
        place = choice.places.get(self.chosen[choice.axis])
        return place is not None, place or path

    def _value(self, value: object, old: Path_, new: Path_) -> tuple[bool, Any]:
        """A part of the file as the member has it; whether it has it at all."""
        if old in self.family.choices and isinstance(value, (dict, list)) and len(value) == 1:
            there, place = self._taken(old)
            return self._value(self.family.at(place), place, new) if there else (False, None)
        self.made.marks[new] = self.marks.get(old) or self.family.source.text_at(old)
        if isinstance(value, dict):
            return True, self._mapping(value, old, new)
        if isinstance(value, list):
            if isinstance(new[-1], str) and new[-1] in _TEXTS:
                return True, self._joined(value, old, new)
            return True, self._list(value, old, new)
        if isinstance(value, str) and "$" in value:
            text = self._spelt(self.made.marks[new])
            self.made.marks[new] = text
            return True, text.value
        return True, value

    def _mapping(self, value: dict[str, object], old: Path_, new: Path_) -> dict[str, object]:
        out: dict[str, object] = {}
        for key, item in value.items():
            if key == "any" and old in self.family.choices:
                there, place = self._taken(old)
                inside = self.family.at(place) if there else {}
                if not isinstance(inside, dict):
                    self.family.refuse(
                        place,
                        "wrong-type",
                        f"an alternative here is a mapping, as `{old[-1]}:` is",
                    )
                    continue
                for name, more in inside.items():
                    self._entry(out, name, more, (*place, name), (*new, name))
                continue
            self._entry(out, key, item, (*old, key), (*new, key))
        return out

    def _entry(
        self, out: dict[str, object], key: str, item: object, old: Path_, new: Path_
    ) -> None:
        if key in out:
            self.family.refuse(
                old,
                "duplicate-key",
                f"the key {key[:60]!r} stands here and outside of the alternatives",
                "keep one of them",
                key=True,
            )
        kept, found = self._value(item, old, new)
        if kept:
            out[key] = found
            self._key(old, new)

    def _list(self, value: Sequence[object], old: Path_, new: Path_) -> list[Any]:
        out: list[object] = []
        for item, place in self._items(value, old):
            at = (*new, len(out))
            if new == ("tests",) and isinstance(item, dict) and "for" in item:
                if not self._for(item["for"], (*place, "for")):
                    continue
                item = {key: part for key, part in item.items() if key != "for"}
            kept, found = self._value(item, place, at)
            if kept:
                out.append(found)
        return out

    def _items(self, value: Sequence[object], old: Path_) -> Iterator[tuple[Any, Path_]]:
        """The items of a list, the chosen alternatives' lines among them."""
        for i, item in enumerate(value):
            place = (*old, i)
            if place not in self.family.choices:
                yield item, place
                continue
            there, taken = self._taken(place)
            found = self.family.at(taken) if there else []
            if isinstance(found, list):
                yield from self._items(found, taken)
            else:
                yield found, taken

    def _for(self, names: object, path: Path_) -> bool:
        """Whether a test is for this member."""
        listed = names if isinstance(names, list) else [names]
        asked: dict[int, list[str]] = {}
        for i, name in enumerate(listed):
            axis = next((n for n, a in enumerate(self.family.axes) if name in a.names), None)
            if axis is None:
                known = [n for a in self.family.axes for n in a.names]
                self.family.refuse(
                    (*path, i) if isinstance(names, list) else path,
                    "alternatives",
                    f"{str(name)[:60]!r} is no alternative of this file",
                    did_you_mean(str(name), known) or "known: " + ", ".join(known),
                )
                return False
            asked.setdefault(axis, []).append(name)
        return all(self.chosen[axis] in taken for axis, taken in asked.items())

    def _joined(self, parts: Sequence[object], old: Path_, new: Path_) -> Any:
        """A text that is written in parts."""
        texts: list[Text] = []
        for item, place in self._items(parts, old):
            if not isinstance(item, str):
                return copy.deepcopy(item)  # the model says what is wrong with it
            mark = self.marks.get(place) or self.family.source.text_at(place)
            if texts and not texts[-1].value.endswith("\n"):
                end = _places(texts[-1])[-1]
                gap = " " if new[-1] in _SENTENCES else "\n"
                texts.append(replace(mark, value=gap, places=(end, end)))
            texts.append(self._spelt(mark) if "$" in item else mark)
        if not texts:
            return ""
        made = _concatenated(texts, self.made)
        self.made.marks[new] = made
        return made.value

    def _spelt(self, text: Text) -> Text:
        """A line with the words of `with:` as this member spells them."""
        parts: list[Text] = []
        at = 0
        for found in _WORD.finditer(text.value):
            word = found[1]
            choice = self.family.words.get(word)
            if choice is None:
                # A body's own words ($x: the type of x) are the checker's business.
                continue
            self.family.used.add(word)
            name = self.chosen[choice.axis]
            place = choice.places.get(name)
            if place is None:
                self.family.in_line(
                    text,
                    found.start(),
                    len(found[0]),
                    f"${word} has no spelling for the alternative {name!r}",
                    f"add `{name}:` to it under `with:`",
                )
                continue
            spelling = self.family.source.text_at(place)
            value = str(self.family.at(place))
            if spelling.value != value:
                spelling = replace(spelling, value=value, places=None)
            parts += [_part(text, at, found.start()), spelling]
            at = found.end()
        if not parts:
            return text
        return _concatenated([*parts, _part(text, at, len(text.value))], self.made)


def _places(text: Text) -> list[int]:
    """Where each character of a text, and its end, stands in the file."""
    if text.places is not None:
        return list(text.places)
    start = text.source.offset(text.line, text.column)
    return list(range(start, start + len(text.value) + 1))


def _part(text: Text, start: int, end: int) -> Text:
    places = _places(text)[start : end + 1]
    return replace(text, value=text.value[start:end], places=tuple(places))


def _concatenated(texts: Sequence[Text], source: SourceFile) -> Text:
    """Texts from several places as one; each character keeps its own."""
    places: list[int] = []
    for text in texts:
        places += _places(text)[:-1]
    places.append(_places(texts[-1])[-1])
    line, column = source.line_column(places[0])
    value = "".join(text.value for text in texts)
    return Text(value, source, line, column, places=tuple(places))
