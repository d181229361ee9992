"""A checked rule as JSON and back, so that it need not be read, parsed and checked again.

What is made of it knows its places when a fault asks for them, its whole model when a test does:
drivers need neither, and reading them takes longer than a small program's compilation.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from mlirules.language.family import members
from mlirules.language.faults import Span
from mlirules.language.notation import ast
from mlirules.language.rule import Before, BodyText, Line, OpPattern, Reordered, Rule, Variant
from mlirules.language.source import Path_, SourceFile, Text

if TYPE_CHECKING:
    from mlirules.language.model import RuleDoc

__all__ = ["can_be_kept", "decoded", "encoded"]

_NODES: tuple[type[ast.Node], ...] = (
    ast.Literal,
    ast.Name,
    ast.Wildcard,
    ast.Pack,
    ast.ListExpr,
    ast.Call,
    ast.Access,
    ast.Unary,
    ast.Binary,
    ast.Conditional,
    ast.OpEquation,
    ast.Bound,
    ast.IndexEquation,
    ast.Assignment,
    ast.Erase,
    ast.DimDecl,
    ast.TypeDecl,
)
_NUMBER: dict[type, int] = {node: number for number, node in enumerate(_NODES)}
_FIELDS: dict[type, list[str]] = {node: [f.name for f in fields(node)] for node in _NODES}
_TUPLE = -1


def _coded(value: object) -> Any:
    """A syntax tree as lists: the number of its class, or that of a tuple, and what it holds."""
    if isinstance(value, tuple):
        return [_TUPLE, *map(_coded, value)]
    number = _NUMBER.get(type(value))
    if number is None:
        assert value is None or isinstance(value, (bool, int, float, str)), value
        return value
    return [number, *(_coded(getattr(value, name)) for name in _FIELDS[type(value)])]


def _made(value: object) -> Any:
    if not isinstance(value, list):
        return value
    inside = [_made(item) for item in value[1:]]
    return tuple(inside) if value[0] == _TUPLE else _NODES[value[0]](*inside)


# Both classes below put a property where the base class has a field, which a type checker refuses
# because nothing could be assigned to it; nothing is: a rule that was kept is not read again.


class _KeptSource(SourceFile):
    """A rule file that was read before: its places are found when a fault asks for them."""

    def __init__(self, path: str, text: str, kept: dict[str, Any], number: int) -> None:
        self.path = path
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self.family, self.member = kept["family"], kept["member"]
        self._named: list[int] = kept["named"]
        self._number = number

    @functools.cached_property
    def _read(self) -> SourceFile:
        from mlirules.language.reading import load_yaml

        source = members(load_yaml(self.path, self.text))[self._number]
        source.listed("match", "where", "rewrite")
        return source

    def span_at(self, path: Path_, *, key: bool = False) -> Span:
        """As of :class:`SourceFile`."""
        if path == ("rule",) and not key:  # where reports send their reader, and patterns come from
            line, column, length = self._named
            return self.span(line, column, length)
        return super().span_at(path, key=key)

    @property
    def data(self) -> Any:
        """The file's plain data."""
        return self._read.data

    @property
    def marks(self) -> dict[Path_, Text]:  # type: ignore[override]
        """A mark for every node."""
        return self._read.marks

    @property
    def key_marks(self) -> dict[Path_, Text]:  # type: ignore[override]
        """A mark for every key."""
        return self._read.key_marks


def _starts(value: str) -> list[int]:
    """Where the rows of a text begin, each at its first character that is no space."""
    found, offset = [], 0
    for row in value.splitlines(keepends=True):
        found.append(offset + len(row) - len(row.lstrip()))
        offset += len(row)
    return found


class _KeptText(Text):
    """A scalar of such a file. Its whole place is known, that of a part is found when asked for."""

    def __init__(
        self, value: str, source: SourceFile, at: Path_, whole: tuple[int, int, int]
    ) -> None:
        self.value = value
        self.source = source
        self._at = at
        self._whole = whole

    def span(self, offset: int = 0, length: int | None = None) -> Span:
        """As of :class:`Text`."""
        if not offset and length is None:
            return self.source.span(*self._whole)
        return super().span(offset, length)

    @property
    def line(self) -> int:  # type: ignore[override]
        """As of :class:`Text`."""
        return self.source.text_at(self._at).line

    @property
    def column(self) -> int:  # type: ignore[override]
        """As of :class:`Text`."""
        return self.source.text_at(self._at).column

    @property
    def block(self) -> bool:  # type: ignore[override]
        """As of :class:`Text`."""
        return self.source.text_at(self._at).block

    @property
    def places(self) -> tuple[int, ...] | None:  # type: ignore[override]
        """As of :class:`Text`."""
        return self.source.text_at(self._at).places

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _KeptText) and self.source is other.source and self._at == other._at
        )


class _KeptBody(_KeptText):
    """A kernel's body: each row's place is known, since every use of the kernel asks for all.

    To read the file again for them takes longer than all else that is done with the kernel.
    """

    def __init__(
        self,
        value: str,
        source: SourceFile,
        at: Path_,
        whole: tuple[int, int, int],
        rows: list[list[int]],
    ) -> None:
        super().__init__(value, source, at, whole)
        self._rows = rows

    @functools.cached_property
    def _row_of(self) -> dict[int, list[int]]:
        return dict(zip(_starts(self.value), self._rows, strict=True))

    def span(self, offset: int = 0, length: int | None = None) -> Span:
        """As of :class:`Text`."""
        row = self._row_of.get(offset) if length is None else None
        if row is None:
            return super().span(offset, length)
        line, column, size = row
        return self.source.span(line, column, size)


@dataclass(frozen=True)
class _KeptVariant:
    """What drivers ask of a :class:`~mlirules.language.kernel.KernelVariant`."""

    targets: list[str]
    body: str
    object: None = None


@dataclass(frozen=True)
class _KeptKernel:
    """What drivers ask of a :class:`~mlirules.language.kernel.Kernel`."""

    inputs: list[str]
    variants: list[_KeptVariant]


class _KeptDoc:
    """What a rule file that was read before holds. Its model is made for more than drivers need.

    It stands where a :class:`~mlirules.language.model.RuleDoc` does, whose fields it has.
    """

    #: What drivers ask of every rule, and what holds where the file does not say it.
    PLAIN: ClassVar[dict[str, object]] = {
        "rule": "",
        "kind": "",
        "summary": "",
        "benefit": 1,
        "tags": [],
        "targets": [],
        "commutative": [],
    }

    def __init__(self, kept: dict[str, Any], whole: bytes) -> None:
        self._plain: dict[str, Any] = kept["plain"]
        self._kernel: dict[str, Any] | None = kept["kernel"]
        self._bodies = [variant["body"][-2] for variant in kept["variants"]]
        #: All that the file holds, as JSON: tests and notes are most of it.
        self._whole = whole

    @functools.cached_property
    def _model(self) -> RuleDoc:
        data = json.loads(self._whole)
        if "kernel" in data:
            from mlirules.language.kernel import KernelDoc

            return KernelDoc.model_validate(data)
        from mlirules.language.model import DraftDoc, RuleDoc

        return (RuleDoc if "tests" in data else DraftDoc).model_validate(data)

    @functools.cached_property
    def kernel(self) -> _KeptKernel:
        """The kernel of a rule that is one."""
        found = self._kernel
        assert found is not None
        variants = map(_KeptVariant, found["targets"], self._bodies)
        return _KeptKernel(found["inputs"], list(variants))

    def __getattr__(self, name: str) -> Any:
        if name in self.PLAIN:
            return self._plain.get(name, self.PLAIN[name])
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._model, name)

    def __eq__(self, other: object) -> bool:
        return self._model == (other._model if isinstance(other, _KeptDoc) else other)

    def __hash__(self) -> int:
        return hash(self._plain["rule"])

    def __repr__(self) -> str:
        return repr(self._model)


def _place(line: Line, *more: str | int) -> list[Any]:
    span = line.span
    whole = [span.line, span.column, span.length]
    return [line.section, line.key, *more, whole, line.text.value]


def _line(found: list[Any], source: SourceFile) -> Line:
    *path, (line, column, length), value = found
    text = _KeptText(value, source, tuple(path), (line, column, length))
    return Line(path[0], path[1], text)


def _body_place(line: Line, *more: str | int) -> list[Any]:
    """What is kept of a kernel's body: also where each of its rows stands."""
    spans = [line.text.span(start) for start in _starts(line.text.value)]
    return [*_place(line, *more), [[span.line, span.column, span.length] for span in spans]]


def _body(found: list[Any], source: SourceFile) -> Line:
    *place, rows = found
    *path, (line, column, length), value = place
    text = _KeptBody(value, source, tuple(path), (line, column, length), rows)
    return Line(path[0], path[1], text)


def can_be_kept(rule: Rule) -> bool:
    """Whether a rule's file says all of it: a kernel in C names further files."""
    return all(variant.doc.object is None for variant in rule.variants)


def encoded(rule: Rule) -> dict[str, object]:
    """A rule as values of JSON, but for what its file holds; one that :func:`can_be_kept`."""
    data = rule.source.data
    kernel = data.get("kernel")
    return {
        "plain": {name: data[name] for name in _KeptDoc.PLAIN if name in data},
        "kernel": kernel
        and {"inputs": kernel["inputs"], "targets": [v["targets"] for v in kernel["variants"]]},
        "family": rule.source.family,
        "member": rule.source.member,
        "named": [rule.span.line, rule.span.column, rule.span.length],
        "types": [[n, _place(line), _coded(decl)] for n, (line, decl) in rule.types.items()],
        "match": [[_place(p.line), _coded(p.equation)] for p in rule.match],
        "index": [[_place(line), _coded(e)] for line, e in rule.index_match],
        "let": [[n, _place(line), _coded(e), value] for n, line, e, value in rule.let],
        "where": [[_place(line), _coded(e)] for line, e in rule.where],
        "rewrite": [
            [_place(line, "body"), {"body": made.text}]
            if isinstance(made, BodyText)
            else [_place(line), _coded(made)]
            for line, made in rule.rewrite
        ],
        "names": sorted(rule.names),
        "variants": [_encoded_variant(n, variant) for n, variant in enumerate(rule.variants)],
    }


def _encoded_variant(number: int, variant: Variant) -> dict[str, object]:
    """A kernel's variant; its text is in the rule's data."""
    at = (number,)
    assert variant.body is not None
    return {
        "let": [
            [name, _place(line, *at, "let", name), _coded(e), value]
            for name, line, e, value in variant.let
        ],
        **{
            section: [[_place(line, *at, section, n), _coded(e)] for n, (line, e) in rows]
            for section, rows in (
                ("where", enumerate(variant.where)),
                ("grid", enumerate(variant.grid)),
                ("workgroup", enumerate(variant.workgroup)),
            )
        },
        "tiles": [
            [
                [_place(line, *at, "tiles", n, part), _coded(e)]
                for part, (line, e) in zip(("rows", "bytes"), tile, strict=True)
            ]
            for n, tile in enumerate(variant.tiles)
        ],
        "reorder": [
            [
                name,
                order.when
                if isinstance(order.when, bool)
                else [_place(order.when[0], *at, "reorder", name, "when"), _coded(order.when[1])],
                [
                    [_place(line, *at, "reorder", name, "view", n), _coded(e)]
                    for n, (line, e) in enumerate(order.view)
                ],
                order.permute,
                [[axis, matrix] for axis, matrix in order.along.items()],
                [
                    [_place(line, *at, "reorder", name, "pad", n), _coded(e)]
                    for n, (line, e) in enumerate(order.pad)
                ],
            ]
            for name, order in variant.reorder.items()
        ],
        "first": [
            [
                name,
                made.element,
                _body_place(made.body, *at, "first", name, "body"),
                *(
                    [
                        [_place(line, *at, "first", name, section, n), _coded(e)]
                        for n, (line, e) in enumerate(rows)
                    ]
                    for section, rows in (
                        ("dims", made.dims),
                        ("grid", made.grid),
                        ("workgroup", made.workgroup),
                    )
                ),
            ]
            for name, made in variant.first.items()
        ],
        "body": _body_place(variant.body, *at, "body"),
    }


def decoded(kept: dict[str, Any], whole: bytes, path: str, text: str, number: int) -> Rule:
    """Rule number ``number`` of a file, from what was kept of it.

    ``whole`` is the rule's data as JSON, which is read where more is asked than drivers do.
    """
    source = _KeptSource(path, text, kept, number)
    doc: Any = _KeptDoc(kept, whole)
    return Rule(
        doc,
        source,
        {n: (_line(line, source), _made(decl)) for n, line, decl in kept["types"]},
        [OpPattern(_line(line, source), _made(e)) for line, e in kept["match"]],
        [(_line(line, source), _made(e)) for line, e in kept["index"]],
        [(n, _line(line, source), _made(e), value) for n, line, e, value in kept["let"]],
        [(_line(line, source), _made(e)) for line, e in kept["where"]],
        [
            (
                _line(line, source),
                BodyText(made["body"]) if isinstance(made, dict) else _made(made),
            )
            for line, made in kept["rewrite"]
        ],
        variants=[
            _decoded_variant(made, doc.kernel.variants[n], source)
            for n, made in enumerate(kept["variants"])
        ],
        names=frozenset(kept["names"]),
    )


def _decoded_variant(kept: dict[str, Any], doc: Any, source: SourceFile) -> Variant:
    def line(found: list[Any]) -> tuple[Line, Any]:
        return _line(found[0], source), _made(found[1])

    def lines(section: str) -> list[tuple[Line, Any]]:
        return [line(found) for found in kept[section]]

    let = [(name, _line(at, source), _made(e), value) for name, at, e, value in kept["let"]]
    body = _body(kept["body"], source)
    tiles = [(line(rows), line(bytes_)) for rows, bytes_ in kept["tiles"]]
    made = Variant(doc, let, lines("where"), lines("grid"), lines("workgroup"), body, tiles)
    for name, when, view, permute, along, pad in kept["reorder"]:
        held = when if isinstance(when, bool) else line(when)
        dims, zeros = ([line(found) for found in section] for section in (view, pad))
        made.reorder[name] = Reordered(held, dims, permute, dict(along), zeros)
    for name, element, at, *sections in kept["first"]:
        rows = [[line(found) for found in section] for section in sections]
        made.first[name] = Before(element, _body(at, source), *rows)
    return made
