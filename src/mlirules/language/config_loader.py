"""Reading ``kind: config`` rules and checking them before the compiler sees them.

The compiler takes many wrong configurations without a word: an unknown key, a tile list of the
wrong rank, a matcher that matches nothing. Each of them is a located fault here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pydantic

from mlirules.language.checks.config import Checker
from mlirules.language.checks.config_shape import in_order, shape_faults
from mlirules.language.config.model import ConfigDoc
from mlirules.language.config.op import ConfigRule, TargetOracle
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import join, kind_of
from mlirules.language.reading import MAX_FAULTS, load_yaml
from mlirules.language.rulefiles import LIBRARY, rule_files
from mlirules.language.source import SourceFile

__all__ = [
    "CONFIGS",
    "config_of",
    "load_config",
    "load_configs",
]

#: The shipped config rules.
CONFIGS = LIBRARY / "configs"


def load_config(
    path: str | Path, text: str | None = None, *, facts: TargetOracle | None = None
) -> ConfigRule:
    """Read and check one config rule.

    ``facts`` tells what targets can do; without it, matrix instructions, workgroup limits and
    architectures are not checked. Raises :class:`MlirulesError` with all faults of the file.
    """
    return config_of(load_yaml(path, text), facts=facts)


def config_of(
    source: SourceFile, *, facts: TargetOracle | None = None, tests: bool = True
) -> ConfigRule:
    """The config rule that a YAML file holds. Errors as for :func:`load_config`.

    Without ``tests`` none are asked for: a rule that was read from a spec has none.
    """
    if not isinstance(source.data, dict):
        raise MlirulesError(
            Fault(
                source.span_at(()),
                "not-a-rule",
                "a rule file is a mapping of keys to values",
                "it starts with `rule: NAME`",
            )
        )
    try:
        doc = ConfigDoc.model_validate(source.data)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_FAULTS]
        found = [f for e in errors for f in shape_faults(source, e)]
        raise MlirulesError(in_order(found)) from None
    checker = Checker(source, doc, facts)
    rule = checker.run(tests=tests)
    if checker.faults or rule is None:
        raise MlirulesError(in_order(checker.faults))
    return rule


def load_configs(
    paths: Iterable[str | Path], *, facts: TargetOracle | None = None
) -> list[ConfigRule]:
    """The config rules of rule sets, in order; other kinds in a folder are passed over.

    Raises :class:`MlirulesError` with the faults of all files, and for a file named here that
    holds another kind of rule.
    """
    members: dict[str, ConfigRule] = {}
    faults: list[Fault] = []
    paths = list(paths)
    for path in paths:
        files = rule_files(path)
        for file in files:
            try:
                source = load_yaml(file)
                kind = kind_of(source)
                if kind != "config":
                    if len(files) == 1:
                        faults.append(
                            Fault(
                                source.span_at(("kind",)),
                                "wrong-kind",
                                "a configuration stage takes rules of `kind: config`",
                                "rewrite rules go into another phase",
                            )
                        )
                    continue
                rule = config_of(source, facts=facts)
            except MlirulesError as error:
                faults.extend(error.faults)
                continue
            faults += join(members, rule, file)
    if faults:
        raise MlirulesError(faults)
    if not members:
        raise MlirulesError.at(
            ", ".join(map(str, paths)),
            "holds no config rule",
            code="no-rules",
            suggestion="config rules say `kind: config`",
        )
    return list(members.values())
