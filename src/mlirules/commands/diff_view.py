"""Differences on a terminal: unified, side by side, and in short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from mlirules.commands.common import out, table

if TYPE_CHECKING:
    from mlirules.drivers.irdiff.changes import Change, Diff
    from mlirules.drivers.irdiff.layout import Row

_STYLES = {"deleted": "red", "inserted": "green", "changed": "yellow", "same": ""}
_STRONG = {"deleted": "bold white on red", "inserted": "bold white on dark_green"}


def show(
    diff: Diff,
    *,
    side_by_side: bool = False,
    context: int = 2,
    limit: int | None = None,
    names: tuple[str, str] | None = None,
) -> None:
    """Print a difference on stdout, at most ``limit`` lines of it."""
    lines = unified(diff, context, names) if not side_by_side else _columns(diff, context, names)
    for line in lines[:limit]:
        out.print(line, soft_wrap=True)
    if limit is not None and len(lines) > limit:
        out.print(Text(f"... {len(lines) - limit} more lines", style="dim"))


def plain(diff: Diff, *, context: int = 2, names: tuple[str, str] | None = None) -> list[str]:
    """The unified difference as lines without colours."""
    return [line.plain for line in unified(diff, context, names)]


def headline(change: Change) -> str:
    """A change in one line: number, class, ops, what differs, and the rule that made it."""
    said = f"{change.number}: {change.kind}: {change.summary()}"
    if change.details:
        said += "".join(f"; {what}: {a} -> {b}" for what, a, b in change.details)
    if change.follows:
        said += " (follows)"
    if change.rules:
        numbers = ", ".join(f"#{n}" for n in change.applications[:6])
        said += f"  [by {', '.join(change.rules)} {numbers}]"
    return said if len(said) <= 400 else said[:396] + " ..."


def unified(diff: Diff, context: int, names: tuple[str, str] | None = None) -> list[Text]:
    """The lines of the unified view."""
    lines = _title(diff, names)
    told: set[int] = set()
    pluses: list[Text] = []
    for row in _folded(diff, context):
        if isinstance(row, int):
            lines += pluses
            pluses = []
            lines.append(Text(f"  ... {row} unchanged", style="dim"))
            continue
        fresh = [c for c in row.changes if c.number not in told]
        if row.status in ("same", "changed") or fresh:
            lines += pluses
            pluses = []
        for change in fresh:
            told.add(change.number)
            lines.append(Text(f"@@ {headline(change)} @@", style="cyan"))
        if row.status == "same":
            lines.append(Text("  " + (row.left or "")))
        elif row.status == "changed" and row.left is not None and row.right is not None:
            lines += _changed(row.left, row.right)
        else:
            if row.left is not None:
                lines.append(Text("- " + row.left, style="red"))
            if row.right is not None:
                pluses.append(Text("+ " + row.right, style="green"))
    return lines + pluses


def _folded(diff: Diff, context: int) -> list[Row | int]:
    from mlirules.drivers.irdiff import layout

    return list(layout.folded(layout.rows(diff), context)) if diff.changes else []


def _title(diff: Diff, names: tuple[str, str] | None) -> list[Text]:
    if not diff.changes:
        return []
    before, after = names or (diff.before.path, diff.after.path)
    return [Text(f"--- {before}", style="bold red"), Text(f"+++ {after}", style="bold green")]


def _changed(left: str, right: str) -> list[Text]:
    from mlirules.drivers.irdiff.layout import words

    if left == right:
        return [Text("~ " + left, style="yellow")]
    out_lines = []
    for sign, status, pieces in zip("-+", ("deleted", "inserted"), words(left, right), strict=True):
        line = Text(sign + " ", style=_STYLES[status])
        for piece, differs in pieces:
            line.append(piece, style=_STRONG[status] if differs else _STYLES[status])
        out_lines.append(line)
    return out_lines


def _columns(diff: Diff, context: int, names: tuple[str, str] | None) -> list[Text]:
    width = max(20, (out.width - 3) // 2)
    lines = _title(diff, names)
    told: set[int] = set()
    left: list[tuple[str, str]] = []
    right: list[tuple[str, str]] = []

    def flush() -> None:
        for k in range(max(len(left), len(right))):
            one = left[k] if k < len(left) else ("", "")
            two = right[k] if k < len(right) else ("", "")
            line = Text(_fit(one[0], width).ljust(width), style=one[1])
            lines.append(Text.assemble(line, (" │ ", "dim"), (_fit(two[0], width), two[1])))
        left.clear()
        right.clear()

    for row in _folded(diff, context):
        if isinstance(row, int):
            flush()
            lines.append(Text(f"... {row} unchanged", style="dim"))
            continue
        fresh = [c for c in row.changes if c.number not in told]
        if fresh or row.status in ("same", "changed"):
            flush()
        for change in fresh:
            told.add(change.number)
            lines.append(Text(f"@@ {headline(change)} @@", style="cyan"))
        style = _STYLES[row.status]
        if row.left is not None:
            left.append((row.left, style))
        if row.right is not None:
            right.append((row.right, style))
        if row.status in ("same", "changed"):
            flush()
    flush()
    return lines


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def summary(diff: Diff) -> None:
    """How many changes of which class, and by which rules."""
    if not diff.changes:
        out.print("no difference", style="green")
        return
    follow = sum(change.follows for change in diff.changes)
    parts = [f"{n} {kind}" for kind, n in diff.counts.most_common()]
    said = f"{len(diff.changes)} changes: " + ", ".join(parts)
    if follow:
        said += f" ({follow} follow from others)"
    out.print(said, style="bold", highlight=False, soft_wrap=True)


def rules_table(diff: Diff) -> None:
    """The changes by the rule that made them."""
    counts: dict[str, int] = {}
    for change in diff.changes:
        for rule in change.rules or ["(no rule)"]:
            counts[rule] = counts.get(rule, 0) + 1
    rows = sorted(counts.items(), key=lambda item: -item[1])
    out.print(table(["changes#", "by rule"], [(n, rule) for rule, n in rows]))
