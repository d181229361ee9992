"""The figures of a run of the zoo: on the terminal, and as a section of a document."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from zoo_worker import Row

from mlirules.language.faults import MlirulesError

#: What stands around the section that :func:`write` replaces; the target's name goes in.
BEGIN = "<!-- zoo {}: written by benchmarks/zoo.py --report -->"
END = "<!-- end of zoo {} -->"
WORDS = {"right": "right", "left": "left", "wrong": "**wrong**"}


@dataclass(frozen=True)
class Figures:
    """All rows of a target by model and mode."""

    target: str
    models: dict[str, dict[str, Row]]

    @classmethod
    def of(cls, rows: Iterable[Row], target: str) -> "Figures":
        """Sorted by model."""
        models: dict[str, dict[str, Row]] = defaultdict(dict)
        for row in rows:
            models[row.model][row.mode] = row
        return cls(target, dict(sorted(models.items())))

    @property
    def exported(self) -> list[str]:
        """The models that torch.export and the importer accept."""
        return [m for m, rows in self.models.items() if self._is(m, "export", "right")]

    def right(self, mode: str) -> list[str]:
        """The models that are right in a mode."""
        return [m for m in self.exported if self._is(m, mode, "right")]

    @property
    def wrong(self) -> list[str]:
        """The models that the default pipeline compiles to other numbers."""
        return [m for m in self.exported if self._is(m, "default", "wrong")]

    @property
    def lost(self) -> list[str]:
        """The models that plain IREE compiles right, the default pipeline not."""
        plain, ours = self.right("plain"), set(self.right("default"))
        return [m for m in plain if "default" in self.models[m] and m not in ours]

    def measured(self, mode: str) -> int:
        """How many exported models have a row in a mode."""
        return sum(mode in self.models[model] for model in self.exported)

    def seconds(self, mode: str) -> float:
        """Those of all models together."""
        return sum(rows[mode].seconds for rows in self.models.values() if mode in rows)

    def _is(self, model: str, mode: str, outcome: str) -> bool:
        row = self.models[model].get(mode)
        return row is not None and row.outcome == outcome


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.1%})" if total else "-"


def show(console: Console, figures: Figures) -> None:
    """Print the figures, what fails by mode, and the ops that are left."""
    table = Table(title=f"zoo on {figures.target}: {len(figures.models)} models")
    for heading in ("mode", "right", "wrong", "fails", "seconds"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    exported = _share(len(figures.exported), len(figures.models))
    table.add_row("export", exported, "", "", f"{figures.seconds('export'):.0f}")
    for mode in ("convert", "plain", "default", "rules"):
        if not figures.measured(mode):
            continue
        outcomes = Counter(
            figures.models[m][mode].outcome for m in figures.exported if mode in figures.models[m]
        )
        total = figures.measured(mode)
        fails = total - outcomes["right"] - outcomes["wrong"]
        table.add_row(
            mode,
            _share(outcomes["right"], total),
            str(outcomes["wrong"]),
            str(fails),
            f"{figures.seconds(mode):.0f}",
        )
    console.print(table)
    console.print(f"lost to plain IREE: {', '.join(figures.lost) or 'none'}", highlight=False)
    failures = Table(title="not right")
    for heading in ("model", "mode", "outcome", "why"):
        failures.add_column(heading, overflow="fold")
    for mode in ("export", "convert", "default", "rules"):
        for model, rows in figures.models.items():
            row = rows.get(mode)
            if row is None or row.outcome == "right":
                continue
            if mode == "rules" and row.outcome != "left":
                continue  # the default pipeline's, which has been said
            failures.add_row(model, mode, row.outcome, Text(row.why[:200]))
    if failures.row_count:
        console.print(failures)
    left = Counter(
        op
        for rows in figures.models.values()
        for op in {**(rows["rules"].left if "rules" in rows else {}), **_converted(rows)}
    )
    if left:
        said = ", ".join(f"{op} {count}" for op, count in left.most_common(40))
        console.print(f"ops left, by models: {said}", highlight=False)


def _converted(rows: dict[str, Row]) -> dict[str, int]:
    return rows["convert"].left if "convert" in rows else {}


def section(figures: Figures, zoo: int) -> str:
    """The figures as a piece of a Markdown document; `zoo` counts the models that there are."""
    exported = figures.exported
    compiled = [m for m in exported if {"plain", "default"} & figures.models[m].keys()]
    lines = [
        f"Of {zoo} models {len(figures.models)} have been exported so far: {len(exported)} are "
        f"accepted by torch.export and the importer. {len(compiled)} of these have been compiled "
        f"for {figures.target}:",
        "",
        "| | right | wrong | seconds to compile, all |",
        "|---|---|---|---|",
    ]
    names = {
        "plain": "plain iree-compile",
        "default": "default pipeline",
        "rules": "rules alone (`--no-fallback`)",
    }
    for mode, name in names.items():
        wrong = sum(
            rows[mode].outcome == "wrong" for rows in figures.models.values() if mode in rows
        )
        right = _share(len(figures.right(mode)), figures.measured(mode))
        lines.append(f"| {name} | {right} | {wrong} | {figures.seconds(mode):.0f} |")
    lost = ", ".join(figures.lost) or "none"
    both = [m for m in compiled if {"plain", "default"} <= figures.models[m].keys()]
    right = {mode: len(set(both) & set(figures.right(mode))) for mode in ("default", "plain")}
    lines += [
        "",
        f"Of the {len(both)} compiled both ways {right['default']} are right with the default "
        f"pipeline, {right['plain']} with plain iree-compile.",
    ]
    lines += ["", f"Right with plain iree-compile and not with the default pipeline: {lost}.", ""]
    lines += ["| not right | mode | outcome | why |", "|---|---|---|---|"]
    for mode in ("export", "default", "rules", "plain"):
        for model, rows in figures.models.items():
            row = rows.get(mode)
            if row and row.outcome != "right" and (mode != "rules" or row.outcome == "left"):
                lines.append(f"| {model} | {mode} | {row.outcome} | {_cell(row.why)} |")
    lines += [
        "",
        "| model | plain | default | rules alone | plain s | default s | ops left |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in exported:
        rows = figures.models[model]
        if not any(mode in rows for mode in names):
            continue  # not compiled yet
        cells = [_outcome(rows.get(mode)) for mode in names]
        times = [f"{rows[m].seconds:.1f}" if m in rows else "-" for m in ("plain", "default")]
        left = sum(rows["default"].left.values()) if "default" in rows else 0
        lines.append(f"| {model} | {' | '.join(cells)} | {' | '.join(times)} | {left} |")
    return "\n".join(lines)


def _outcome(row: Row | None) -> str:
    return "-" if row is None else WORDS.get(row.outcome, f"fails ({row.outcome})")


def _cell(text: str) -> str:
    return text[:160].replace("|", "\\|").replace("<", "&lt;")


def write(path: Path, figures: Figures, zoo: int) -> None:
    """Put the section between its marks in the document. Raises MlirulesError without them."""
    text = path.read_text(encoding="utf-8")
    begin, end = BEGIN.format(figures.target), END.format(figures.target)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise MlirulesError.at(str(path), f"has no section between {begin!r} and {end!r}")
    path.write_text(f"{before}{begin}\n{section(figures, zoo)}\n{end}{after}", encoding="utf-8")
