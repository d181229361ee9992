"""Reading rule files: YAML with marks, the typed model, the notation, and the rule's own logic.

:func:`load_rule` gives a checked :class:`~mlirules.language.rule.Rule` or raises
:class:`~mlirules.language.faults.MlirulesError` with every fault of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mlirules.language.checks.checker import OpOracle
from mlirules.language.checks.rule import RuleChecker
from mlirules.language.checks.shape import location, mended, model_fault, typed
from mlirules.language.family import members
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.rule import (
    InFile,
    Line,
    Rule,
)
from mlirules.language.source import SourceFile, load_yaml
from mlirules.support import files as on_disk
from mlirules.support import package

R = TypeVar("R", bound=InFile)

LIBRARY = package.RULES

# Faults that may only follow from a test that the model refused.
_OF_ALL_TESTS = ("no-positive-test", "no-negative-test", "test-input")

_NOTATION = ("types", "match", "let", "where", "rewrite")


def load_rule(path: str | Path, text: str | None = None, *, ops: OpOracle | None = None) -> Rule:
    """Read, parse and check one rule file: the first member of a family, with all of it checked.

    ``ops`` tells whether the installed compiler has an op; without it op names are not checked.
    Raises :class:`MlirulesError` with all faults of the file.
    """
    return rules_of(load_yaml(path, text), ops=ops)[0]


def rules_of(source: SourceFile, *, ops: OpOracle | None = None) -> list[Rule]:
    """The rewrite rules that a YAML file holds: one, or the members of a family in their order.

    Arguments and errors as for :func:`load_rule`. A fault that not every member has says which do.
    """
    made = members(source)
    if len(made) == 1:
        return [rule_of(made[0], ops=ops)]
    rules: list[Rule] = []
    found: dict[Fault, list[str]] = {}
    for member in made:
        try:
            rules.append(rule_of(member, ops=ops))
        except MlirulesError as error:
            for fault in error.faults:
                found.setdefault(fault, []).append(member.member)
    if found:
        raise MlirulesError(_in_order(_of_members(found, len(made))))
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MlirulesError(
            Fault(
                source.span_at(("rule",)),
                "duplicate-rule",
                f"two of the file's rules would be named {twice!r}",
                "name the alternatives so that each combination has a name of its own",
            )
        )
    return rules


def _of_members(found: dict[Fault, list[str]], count: int) -> Iterable[Fault]:
    for fault, who in found.items():
        if len(who) == count:
            yield fault
        else:
            more = f" and {len(who) - 3} more" if len(who) > 3 else ""
            yield replace(fault, message=f"{fault.message} (in {', '.join(who[:3])}{more})")


def kind_of(source: SourceFile) -> str:
    """The kind of rule that a file says it holds; empty when it says none."""
    kind = source.data.get("kind") if isinstance(source.data, dict) else None
    return kind if isinstance(kind, str) else ""


def rule_of(source: SourceFile, *, ops: OpOracle | None = None) -> Rule:
    """The rewrite rule of a file that holds one. Arguments and errors as for :func:`load_rule`."""
    if kind_of(source) == "config":
        raise MlirulesError(
            Fault(
                source.span_at(("kind",)),
                "wrong-kind",
                "a config rule rewrites nothing",
                "it goes into a stage of phase `configuration`, or to --configs",
            )
        )
    if not isinstance(source.data, dict):
        raise MlirulesError(
            Fault(
                source.span_at(()),
                "not-a-rule",
                "a rule file is a mapping of keys to values",
                "it starts with `rule: NAME`",
            )
        )
    source.listed("match", "where", "rewrite")
    doc, errors = typed(source.data)
    faults = [f for e in errors for f in model_fault(source, e)]
    # All faults in one run: with the model's faults mended, the rest can be judged as well.
    judged = doc if doc is not None else mended(source.data, errors)
    checker = RuleChecker(source, source.data, ops)
    for loc in map(location, errors):
        if loc and loc[0] in _NOTATION:
            checker.skip(Line(str(loc[0]), (*loc, "")[1], source.text_at(loc)))
    rule = None
    if judged is None:
        checker.notation_only()
    else:
        rule = checker.rule(judged)
    broken = {f.span.line for f in faults}
    if any(location(e)[-1:] in (("tests",), ("input",), ("unchanged",)) for e in errors):
        checker.faults = [f for f in checker.faults if f.code not in _OF_ALL_TESTS]
    faults += [f for f in checker.faults if doc is not None or f.span.line not in broken]
    if faults:
        raise MlirulesError(_in_order(faults))
    assert rule is not None
    return rule


def _in_order(faults: Iterable[Fault]) -> list[Fault]:
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda f: (f.span.line, f.span.column, f.code))


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
    return name if alone and not on_disk.is_folder(Path(path)) and _held(files[0], name) else None


def _held(file: Path, name: str) -> bool:
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


def join(known: dict[str, R], rule: R, file: Path) -> list[Fault]:
    """Add a rule to a set, by name; a second one of that name in another file is a fault."""
    first = known.get(rule.name)
    if first is not None:
        if Path(first.path) == file:
            return []  # the file was named twice
        return [duplicate(rule, first.path)]
    rule.order = len(known)
    rule.origin = str(origin_of(file.parent) / (rule.name if rule.source.family else file.stem))
    known[rule.name] = rule
    return []


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


def load_rules(paths: Iterable[str | Path], *, ops: OpOracle | None = None) -> list[Rule]:
    """Read rule sets in order. Raises :class:`MlirulesError` with the faults of all files."""
    known: dict[str, Rule] = {}
    faults: list[Fault] = []
    for path in paths:
        files = rule_files(path)
        only = asked_for(path, files)
        for file in files:
            try:
                source = load_yaml(file)
                if kind_of(source) == "config" and len(files) > 1:
                    continue  # a folder may hold both
                found = rules_of(source, ops=ops)
            except MlirulesError as error:
                faults.extend(error.faults)
                continue
            for rule in found:
                if only in (None, rule.name):
                    faults += join(known, rule, file)
    if faults:
        raise MlirulesError(faults)
    if not known:
        raise no_rules(paths)
    return list(known.values())
