"""A difference as one self-contained HTML page: no network, no script needed to read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from mlirules.drivers.irdiff import layout
from mlirules.drivers.irdiff.changes import Diff
from mlirules.language import outputs
from mlirules.support import pages

_CONTEXT = 3
_PAGE = Path(__file__).with_name("page.html.j2")


@dataclass
class _Line:
    """A line of the page: both sides as markup, its class and the changes it belongs to."""

    status: str
    left: Markup
    right: Markup
    left_number: str
    right_number: str
    change: str
    first: bool = False


@dataclass
class _Part:
    """A stretch of lines: folded away when nothing in it changed."""

    folded: bool
    lines: list[_Line]


@dataclass
class _Section:
    """A function with its parts; open when something in it changed."""

    name: str
    parts: list[_Part]
    changes: int


def render(diff: Diff, *, title: str, names: tuple[str, str] | None = None) -> str:
    """The page as text. ``names`` are what the two sides are called."""
    before, after = names or (diff.before.path, diff.after.path)
    rules: dict[str, int] = {}
    for change in diff.changes:
        for rule in change.rules:
            rules[rule] = rules.get(rule, 0) + 1
    return pages.render(
        _PAGE,
        title=title,
        before=before,
        after=after,
        counts=diff.counts.most_common(),
        changes=diff.changes,
        sections=_sections(diff),
        rules=sorted(rules.items()),
        ops=(len(diff.before.ops), len(diff.after.ops)),
        slug=_slug,
    )


def write(path: Path, diff: Diff, *, title: str, names: tuple[str, str] | None = None) -> None:
    """Write the page, whole or not at all."""
    outputs.write(path, render(diff, title=title, names=names))


def _slug(kind: str) -> str:
    return str(kind).replace(" ", "-")


def _sections(diff: Diff) -> list[_Section]:
    rows = layout.rows(diff)
    sections: list[_Section] = []
    current: list[layout.Row] = []
    name, depth = "module", 0
    for row in rows:
        # A section for each op of the outermost level, which is a function mostly.
        if row.opens and depth == 1:
            _close(sections, name, current)
            current, name = [], (row.right or row.left or "").strip().partition("(")[0][:160]
        current.append(row)
        depth += row.opens and not row.closes
        if row.closes and not row.opens:
            depth -= 1
            if depth == 1:
                _close(sections, name, current)
                current, name = [], "module"
    _close(sections, name, current)
    return sections


def _close(sections: list[_Section], name: str, rows: list[layout.Row]) -> None:
    if not rows:
        return
    numbers = {c.number for row in rows for c in row.changes}
    if name == "module" and not numbers:
        return
    sections.append(_Section(name, _parts(rows), len(numbers)))


def _parts(rows: list[layout.Row]) -> list[_Part]:
    parts: list[_Part] = []
    at = 0
    for piece in layout.folded(rows, _CONTEXT):
        if isinstance(piece, int):
            parts.append(_Part(True, _lines(rows[at : at + piece])))
            at += piece
            continue
        if not parts or parts[-1].folded:
            parts.append(_Part(False, []))
        start = at
        at += 1
        parts[-1].lines += _lines(rows[start:at])
    for part in parts:
        if not part.folded:
            part.lines = _abreast(part.lines)
    return parts


def _lines(rows: list[layout.Row]) -> list[_Line]:
    return [_line(row) for row in rows]


def _line(row: layout.Row) -> _Line:
    left, right = escape(row.left or ""), escape(row.right or "")
    if row.status == "changed" and row.left and row.right and row.left != row.right:
        one, two = layout.words(row.left, row.right)
        left, right = _marked(one, "del"), _marked(two, "ins")
    numbers = " ".join(str(c.number) for c in row.changes)
    return _Line(
        row.status, left, right, str(row.left_line or ""), str(row.right_line or ""), numbers
    )


def _marked(pieces: list[tuple[str, bool]], tag: str) -> Markup:
    return Markup("").join(
        Markup("<{0}>{1}</{0}>").format(Markup(tag), piece) if differs else escape(piece)
        for piece, differs in pieces
    )


def _abreast(lines: list[_Line]) -> list[_Line]:
    """Deleted lines beside the lines that the same change inserted."""
    out: list[_Line] = []
    seen: set[str] = set()
    at = 0
    while at < len(lines):
        end = at
        while (
            end < len(lines)
            and lines[end].status in ("deleted", "inserted")
            and lines[end].change == lines[at].change
        ):
            end += 1
        if end == at:
            out.append(lines[at])
            end = at + 1
        else:
            gone = [line for line in lines[at:end] if line.status == "deleted"]
            new = [line for line in lines[at:end] if line.status == "inserted"]
            for k in range(max(len(gone), len(new))):
                one = gone[k] if k < len(gone) else None
                two = new[k] if k < len(new) else None
                status = "replaced" if one and two else "deleted" if one else "inserted"
                out.append(
                    _Line(
                        status,
                        one.left if one else Markup(""),
                        two.right if two else Markup(""),
                        one.left_number if one else "",
                        two.right_number if two else "",
                        lines[at].change,
                    )
                )
        for line in out[-(end - at) :] if end - at <= len(out) else out:
            if line.change and line.change not in seen:
                seen.add(line.change)
                line.first = True
        at = end
    return out
