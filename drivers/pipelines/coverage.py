"""What specs do to models: which entry configures which op, and what changes between two specs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Pipeline, Recipe, program_at
from mlirules.drivers.tuning_specs.compile import (
    DUMP,
    ConfiguredOp,
    NotApplied,
    configure,
    dumped,
    hook,
)
from mlirules.generator.emit.tuning_spec import MARKER
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import MlirulesError
from mlirules.language.stage import LATER
from mlirules.support import pages

_PAGE = Path(__file__).with_name("coverage.html.j2")


@dataclass(frozen=True)
class Row:
    """A configured op of a model."""

    dispatch: str
    op: str
    operands: str
    entry: str  # the rule that configures it; empty: the default does
    default: str
    default_translation: str
    configuration: str

    def as_json(self) -> dict[str, str]:
        """The row as plain data."""
        return asdict(self)


@dataclass
class Covered:
    """A model's configured ops; ``problem``: why there are none."""

    model: Path
    rows: list[Row] = field(default_factory=list)
    problem: str = ""

    @property
    def by_entry(self) -> Counter[str]:
        """How many ops each rule configures."""
        return Counter(row.entry for row in self.rows if row.entry)

    @property
    def hits(self) -> int:
        """How many ops rules configure."""
        return self.by_entry.total()

    def as_json(self) -> dict[str, object]:
        """The model as plain data."""
        return {
            "model": str(self.model),
            "problem": self.problem,
            "dispatches": [row.as_json() for row in self.rows],
        }


def cover(path: Path, target: Target, rules: Sequence[ConfigRule], line: Pipeline) -> Covered:
    """How the ops of a program are configured with and without rules.

    A model that does not compile, or of which a rule should hit an op and does not, has a
    ``problem``.
    """
    made = Covered(path)
    phases = ["preprocessing", *(s.phase for s in line.stages if s.phase in LATER)]
    reached = max(phases, key=compiler.PHASES.index)
    try:
        recipe = Recipe(read_program(path), target, line, str(path))
        text = program_at(recipe, reached)
        job = compiler.Job(target, tuple(line.flags), path=str(path), compile_from=reached)
        # The reports own the ops: they have to live as long as the rows are made.
        before, after = (configure(text, job, chosen) for chosen in ([], rules))
        made.rows = list(_rows(before.ops, after.ops))
    except (MlirulesError, NotApplied) as error:
        made.problem = str(error)
    return made


def unused(covered: Sequence[Covered], rules: Sequence[ConfigRule]) -> list[str]:
    """Rules that configure no op of any model."""
    hit = {name for made in covered for name in made.by_entry}
    return [rule.name for rule in rules if rule.name not in hit]


def _rows(before: Sequence[ConfiguredOp], after: Sequence[ConfiguredOp]) -> list[Row]:
    """Each op that has a configuration, by default or by an entry."""
    rows = []
    entries = by_place(after)
    for place, op in by_place(before).items():
        now = entries.get(place)
        entry = now.marker if now is not None else ""
        if op.lowering_config or entry:
            rows.append(
                Row(
                    op.dispatch,
                    op.op,
                    op.shape,
                    entry,
                    op.lowering_config,
                    op.translation_info,
                    now.lowering_config if now is not None else "",
                )
            )
    return rows


def by_place(ops: Sequence[ConfiguredOp]) -> dict[tuple[str, int], ConfiguredOp]:
    """Ops by dispatch and number: configuring does not change which there are."""
    counts: dict[str, int] = {}
    placed = {}
    for op in ops:
        number = counts[op.dispatch] = counts.get(op.dispatch, 0) + 1
        placed[op.dispatch, number] = op
    return placed


def page(covered: Sequence[Covered], rules: Sequence[ConfigRule], target: str) -> str:
    """The tables of models, entries and ops as a page that needs nothing else."""
    totals: Counter[str] = Counter()
    for made in covered:
        totals += made.by_entry
    entries = [(rule.name, totals[rule.name]) for rule in rules]
    return pages.render(_PAGE, covered=covered, entries=entries, target=target)


# ---- differences ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """An op that two specs configure differently."""

    dispatch: str
    op: str
    operands: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"  {self.dispatch}, {self.op} of {self.operands}"]
        lines += [f"    - {text}" for text in self.before if text not in self.after]
        lines += [f"    + {text}" for text in self.after if text not in self.before]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The change as plain data."""
        return asdict(self)


def compare(path: Path, target: Target, one: str, other: str) -> tuple[int, list[Change]]:
    """The number of ops of a program, and those that two specs, as text, configure differently.

    Raises CompileError when the program does not compile with one of them.
    """
    program = read_program(path)
    before, after = (configured_by(program, target, spec, path=str(path)) for spec in (one, other))
    changes = []
    for place in sorted({*before, *after}):
        left, right = before.get(place), after.get(place)
        shown = left or right
        assert shown is not None
        if left is None or right is None or left[1] != right[1]:
            changes.append(Change(*shown[0], left[1] if left else (), right[1] if right else ()))
    return len({*before, *after}), changes


def configured_by(
    program: str, target: Target, spec: str | None, *, path: str = "<string>"
) -> dict[tuple[str, int], tuple[tuple[str, str, str], tuple[str, ...]]]:
    """What the compiler makes of a program with a spec: each op, and all attributes it was given.

    Markers of rules are left out: they say who has set what, not what is set.
    """
    with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
        dump = Path(folder) / "configurations"
        flags = [f"{DUMP}={dump}"]
        if spec is not None:
            file = Path(folder) / "spec.mlir"
            file.write_text(spec, encoding="utf-8")
            flags.append(hook(target, file))
        job = compiler.Job(target, tuple(flags), path=path)
        compiler.lower_to(program, job, "executable-configurations")
        context = compiler.context()
        made = {}
        for ops, module in dumped(dump, context):
            for (dispatch, number), op in by_place(ops).items():
                made[f"{Path(dispatch).name}", number] = (
                    (op.dispatch, op.op, op.shape),
                    tuple(_given(op)),
                )
            del module
    return made


def _given(op: ConfiguredOp) -> list[str]:
    given = [f"translation_info = {op.translation_info}"] if op.translation_info else []
    attributes = op.operation.attributes.items()
    given += [f"{key} = {value}" for key, value in attributes if key != MARKER]
    return sorted(given)
