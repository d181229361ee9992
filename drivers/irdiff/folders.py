"""Differences of differences: what two versions of a compiler or of rules do to many programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlirules.drivers.irdiff.changes import compare_files
from mlirules.language.faults import MlirulesError


@dataclass
class ProgramReport:
    """What differs for one program: changes by signature that only one version makes."""

    name: str
    #: same, differs, only in A, only in B, or the fault that kept it from being compared.
    status: str
    lost: Counter[str] = field(default_factory=Counter)
    gained: Counter[str] = field(default_factory=Counter)


@dataclass
class FolderReport:
    """What differs over a folder of programs."""

    programs: list[ProgramReport]

    @property
    def same(self) -> bool:
        """Whether no program differs."""
        return all(p.status == "same" for p in self.programs)

    def signatures(self) -> list[tuple[str, int, int, list[str]]]:
        """(change, times lost, times gained, programs), the most frequent first."""
        lost: Counter[str] = Counter()
        gained: Counter[str] = Counter()
        where: dict[str, list[str]] = {}
        for program in self.programs:
            lost.update(program.lost)
            gained.update(program.gained)
            for signature in {*program.lost, *program.gained}:
                where.setdefault(signature, []).append(program.name)
        found = [(s, lost[s], gained[s], names) for s, names in where.items()]
        return sorted(found, key=lambda row: (-len(row[3]), -row[1] - row[2], row[0]))

    def as_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "programs": [
                {
                    "name": p.name,
                    "status": p.status,
                    "only_in_a": dict(p.lost),
                    "only_in_b": dict(p.gained),
                }
                for p in self.programs
            ],
            "changes": [
                {"change": s, "only_in_a": a, "only_in_b": b, "programs": names}
                for s, a, b, names in self.signatures()
            ],
        }


def compare_folders(
    a: Path, b: Path, base: Path | None = None, step: Callable[[str], object] = lambda _: None
) -> FolderReport:
    """Compare the programs of two folders by their names.

    With ``base``, a folder of the programs that both were made from, the differences from it are
    compared: what only one of the two versions changed. Folders may hold differences as JSON
    instead of programs. Raises :class:`MlirulesError` when there is nothing to compare.
    """
    left, right = _programs(a), _programs(b)
    names = sorted({*left, *right})
    if not set(left) & set(right):
        raise MlirulesError.at(
            f"{a}, {b}",
            "hold no programs of the same name",
            code="folders",
            suggestion="programs (.mlir) and differences (.json) are compared by their paths",
        )
    reports = []
    for name in names:
        step(name)
        if name not in left or name not in right:
            reports.append(ProgramReport(name, "only in B" if name in right else "only in A"))
            continue
        try:
            reports.append(_one(name, left[name], right[name], base))
        except MlirulesError as error:
            reports.append(ProgramReport(name, str(error.faults[0].render().splitlines()[0])))
    return FolderReport(reports)


def _programs(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise MlirulesError.at(str(folder), "is not a folder", code="folders")
    return {
        str(file.relative_to(folder)): file
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".mlir", ".json") and file.is_file()
    }


def _one(name: str, left: Path, right: Path, base: Path | None) -> ProgramReport:
    if left.suffix == ".json":
        one, other = _saved(left), _saved(right)
    elif base is not None:
        origin = base / name
        one = Counter(c.signature for c in compare_files(origin, left).changes)
        other = Counter(c.signature for c in compare_files(origin, right).changes)
    else:
        one = Counter[str]()
        other = Counter(c.signature for c in compare_files(left, right).changes)
    lost, gained = one - other, other - one
    return ProgramReport(name, "differs" if lost or gained else "same", lost, gained)


def _saved(path: Path) -> Counter[str]:
    try:
        changes = json.loads(path.read_text(encoding="utf-8"))["changes"]
        return Counter(str(change["signature"]) for change in changes)
    except (OSError, ValueError, KeyError, TypeError):
        raise MlirulesError.at(
            str(path),
            "is no difference as JSON",
            code="folders",
            suggestion="`mlirules diff A B --json` writes them",
        ) from None
