"""Which files a rule set is: a file, a folder, or a name below the shipped library.

What stands here reads no YAML (but to find a rule of a family by its name):
a set that was read before is found and used without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mlirules.language.family import members
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.rule import InFile
from mlirules.support import files as on_disk
from mlirules.support import package

LIBRARY = package.RULES
#: How the names of folders begin that hold rules written in Python, while a session lasts.
DRAFTS = "mlirules-drafts-"


def is_draft(file: str | Path) -> bool:
    """Whether a file is no rule file of a user's, but a rule of Python's: it may lack tests."""
    return Path(file).parent.name.startswith(DRAFTS)


def rule_files(path: str | Path, *, pipelines: bool = False) -> list[Path]:
    """The rule files of a rule set: a file, a folder, or a name below the shipped library.

    Pipelines in a folder, as `mlirules tune` writes them beside its rules, are none, unless
    ``pipelines`` asks for them as well.
    """
    given = Path(path)
    candidates = [given, LIBRARY / given, LIBRARY / f"{path}.yaml"]
    for candidate in candidates:
        if on_disk.is_file(candidate):
            if candidate.suffix == ".yml":
                _refuse_suffix([candidate])
            return [candidate]
        if on_disk.is_folder(candidate):
            files, others = _listed(candidate)
            if others:
                _refuse_suffix(others)
            if not pipelines and not candidate.resolve().is_relative_to(LIBRARY):
                files = [file for file in files if not _says(file, _PIPELINE)]
            if not files:
                raise MlirulesError.at(
                    str(candidate),
                    "holds no rule files (*.yaml)",
                    code="no-rules",
                    suggestion="`mlirules new --help` writes one",
                )
            return files
    of_family = _family_of(candidates[:2])
    if of_family is not None:
        return [of_family]
    known = sorted(
        {
            str(folder.relative_to(LIBRARY))
            for p in LIBRARY.rglob("*.yaml")
            for folder in p.parents
            if LIBRARY in folder.parents
        }
    )
    raise MlirulesError(
        Fault(
            Span(str(path)),
            "no-rules",
            "no such rule file, folder or shipped rule set",
            did_you_mean(str(path), known) or "shipped: " + ", ".join(known),
        )
    )


def _family_of(paths: Iterable[Path]) -> Path | None:
    """The file that holds the rule of that name beside others."""
    from mlirules.language.reading import load_yaml  # a folder or a file needs no reading

    for path in paths:
        for file in sorted(path.parent.glob("*.yaml")) if on_disk.is_folder(path.parent) else ():
            try:
                held = members(load_yaml(file))
            except MlirulesError:
                continue  # who reads the whole folder is told
            if any(m.family and m.data.get("rule") == path.name for m in held):
                return file
    return None


def asked_for(path: str | Path, files: list[Path]) -> str | None:
    """The rule that a path asks for where its file holds others, too; None: all that is there."""
    name = Path(path).name
    alone = len(files) == 1 and files[0].name != name and files[0].stem != name
    if not alone or on_disk.is_folder(Path(path)) or on_disk.is_folder(LIBRARY / path):
        return None
    return name if _held(files[0], name) else None


def _held(file: Path, name: str) -> bool:
    from mlirules.language.reading import load_yaml  # likewise

    try:
        return any(m.family and m.data.get("rule") == name for m in members(load_yaml(file)))
    except MlirulesError:
        return False


def _listed(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files below a folder that end in .yaml, and those that end in .yml, in order.

    Each by its whole path, folder by folder: `a/b` stands before `a-c`.
    """
    found: dict[str, list[str]] = {".yaml": [], ".yml": []}
    for top, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".") and (end := os.path.splitext(name)[1]) in found:  # noqa: PTH122
                found[end].append(f"{top}{os.sep}{name}")
    both = [[Path(file) for file in sorted(files, key=_parts)] for files in found.values()]
    return both[0], both[1]


def _parts(file: str) -> list[str]:
    return file.split(os.sep)  # noqa: PTH206 - of every rule there is


def _refuse_suffix(files: list[Path]) -> None:
    raise MlirulesError(
        [
            Fault(
                Span(str(file)),
                "suffix",
                "is not read: rule files end in .yaml",
                f"rename it to {file.with_suffix('.yaml').name}",
            )
            for file in files
        ]
    )


_CONFIG = re.compile(r"^kind:[ \t]*config[ \t]*$", re.MULTILINE)
_PIPELINE = re.compile(r"\A(?:(?!rule:).*\n)*?pipeline:")


def holds_config(file: Path) -> bool:
    """Whether a rule file says that it holds a config rule; told without reading it as YAML."""
    return _says(file, _CONFIG)


def _says(file: Path, what: re.Pattern[str]) -> bool:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            head = opened.read(8192)
    except OSError:
        return False
    return what.search(head) is not None


def duplicate(rule: InFile, path: str) -> Fault:
    """The fault of a rule whose name another one, in the file ``path``, has already."""
    return Fault(
        rule.span,
        "duplicate-rule",
        f"a rule named {rule.name!r} already stands in {path}",
        "give it a name of its own",
    )


def origin_of(folder: Path) -> Path:
    """The path of a folder below the shipped library, or as it is given."""
    try:
        return folder.resolve().relative_to(LIBRARY)
    except ValueError:
        return folder


def no_rules(paths: Iterable[str | Path]) -> MlirulesError:
    """The fault of rule sets in which there is no rule."""
    return MlirulesError.at(
        ", ".join(map(str, paths)),
        "holds no rule file",
        code="no-rules",
        suggestion="rule files end in .yaml",
    )
