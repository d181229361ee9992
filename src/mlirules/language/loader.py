"""Reading rule files: YAML with marks, the typed model, the notation, and the rule's own logic.

:func:`load_rule` gives a checked :class:`~mlirules.language.rule.Rule` or raises
:class:`~mlirules.language.faults.MlirulesError` with every fault of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mlirules.language.checks.checker import OpOracle
from mlirules.language.checks.rule import RuleChecker
from mlirules.language.checks.shape import location, mended, model_fault, typed
from mlirules.language.family import members
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.reading import load_yaml
from mlirules.language.rule import (
    InFile,
    Line,
    Rule,
)
from mlirules.language.rulefiles import (
    asked_for,
    duplicate,
    is_draft,
    no_rules,
    origin_of,
    rule_files,
)
from mlirules.language.source import SourceFile

R = TypeVar("R", bound=InFile)

# Faults that may only follow from a test that the model refused.
_OF_ALL_TESTS = ("no-positive-test", "no-negative-test", "test-input")

_NOTATION = ("types", "match", "let", "where", "rewrite")


def load_rule(
    path: str | Path, text: str | None = None, *, ops: OpOracle | None = None, draft: bool = False
) -> Rule:
    """Read, parse and check one rule file: the first member of a family, with all of it checked.

    ``ops`` tells whether the installed compiler has an op; without it op names are not checked.
    A ``draft`` is a rule that is no file yet: it may lack its tests. Raises
    :class:`MlirulesError` with all faults of the file.
    """
    return rules_of(load_yaml(path, text), ops=ops, draft=draft)[0]


def rules_of(source: SourceFile, *, ops: OpOracle | None = None, draft: bool = False) -> list[Rule]:
    """The rewrite rules that a YAML file holds: one, or the members of a family in their order.

    Arguments and errors as for :func:`load_rule`. A fault that not every member has says which do.
    """
    made = members(source)
    draft = draft or is_draft(source.path)
    if len(made) == 1:
        return [rule_of(made[0], ops=ops, draft=draft)]
    rules: list[Rule] = []
    found: dict[Fault, list[str]] = {}
    for member in made:
        try:
            rules.append(rule_of(member, ops=ops, draft=draft))
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


def rule_of(source: SourceFile, *, ops: OpOracle | None = None, draft: bool = False) -> Rule:
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
    doc, errors = typed(source.data, draft=draft)
    faults = [f for e in errors for f in model_fault(source, e)]
    # All faults in one run: with the model's faults mended, the rest can be judged as well.
    judged = doc if doc is not None else mended(source.data, errors, draft=draft)
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
