"""Rules written in Python: the same rules as in files, with tests made from the rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import yaml

from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.support import files

__all__ = ["RuleText", "rule"]


@dataclass(frozen=True)
class RuleText:
    """A rule as its file has it. Give it to a :class:`Session`, or write it to a file.

    A file needs tests, a session does not.
    """

    document: Mapping[str, object]

    @property
    def name(self) -> str:
        """The rule's name."""
        return str(self.document["rule"])

    @cached_property
    def text(self) -> str:
        """The rule file."""
        return yaml.dump(
            dict(self.document), Dumper=_Blocks, sort_keys=False, width=100, allow_unicode=True
        )

    def __str__(self) -> str:
        return self.text

    def tested(self) -> RuleText:
        """The rule with tests: a program whose numbers it keeps, one for each line that refuses.

        They are made from the rule. Raises :class:`MlirulesError` where there is no program that
        the rule applies to: it could not do anything; and where none was found that it refuses.
        """
        from mlirules.drivers.iree.compiler import op_oracle
        from mlirules.drivers.quality.synthesis import synthesise

        path = f"{self.name}.yaml"
        found = synthesise(load_rule(path, self.text, ops=op_oracle, draft=True))
        if found.positive is None:
            raise MlirulesError.at(
                path,
                "no program was found that the rule applies to: "
                + "; ".join(why for line, why in found.missing if line is None),
                code="no-test",
                suggestion="give tests=[...] with a program of your own",
            )
        tests: list[dict[str, object]] = [
            {
                "name": "a program made from the rule",
                "input": found.positive.text,
                "run": {"devices": ["cpu"]},
            }
        ]
        for number, made in enumerate(found.negatives, 1):
            because = {"because": str(made.line)} if made.line is not None else {}
            name = f"what line {number} refuses"
            tests.append({"name": name, "unchanged": made.text, **because})
        made_whole = replace(self, document={**self.document, "tests": tests})
        load_rule(path, made_whole.text, ops=op_oracle)
        return made_whole

    def write(self, folder: str | Path = ".") -> Path:
        """Write ``NAME.yaml``, whole or not at all; with tests, if it has none yet."""
        whole = self if "tests" in self.document else self.tested()
        path = Path(folder) / f"{self.name}.yaml"
        files.write(path, whole.text)
        return path


@overload
def rule(
    match: str | Sequence[str],
    *,
    rewrite: str | Sequence[str | Mapping[str, str]],
    types: Mapping[str, str] | None = ...,
    where: str | Sequence[str] = ...,
    let: Mapping[str, Any] | None = ...,
    name: str = ...,
    reason: str = ...,
    kind: str = ...,
    tests: Sequence[Mapping[str, Any]] = ...,
    **further: Any,
) -> RuleText: ...
@overload
def rule(match: str | Sequence[str], **parts: Any) -> Callable[[Callable[[], Any]], RuleText]: ...
@overload
def rule(match: Callable[[], Mapping[str, Any]]) -> RuleText: ...


def rule(
    match: str | Sequence[str] | Callable[[], Any],
    *,
    rewrite: str | Sequence[str | Mapping[str, str]] | None = None,
    types: Mapping[str, str] | None = None,
    where: str | Sequence[str] = (),
    let: Mapping[str, Any] | None = None,
    name: str = "",
    reason: str = "",
    kind: str = "",
    tests: Sequence[Mapping[str, Any]] = (),
    **further: Any,
) -> Any:
    """A rule, as files say it: what to match, the types, conditions, and what to put there.

    ::

        mm = mlirules.rule(
            "c = torch.aten.mm(a, b)",
            types={"a": "vtensor<M x K x T>", "b": "vtensor<K x N x T>", "c": "vtensor<M x N x T>"},
            rewrite="c[m, n] += a[m, k] * b[k, n]",
            name="my-mm",
        )

    Without ``rewrite`` it decorates a function that returns that; the rule has the function's name
    and its docstring for a reason. Without anything it decorates one that returns all parts in a
    dictionary. ``kind`` is told by the rewrite where it is not given. ``further`` are other keys of
    a rule file. The rule is read and checked at once: raises :class:`MlirulesError`, located in the
    rule as a file.
    """
    if callable(match):
        parts = dict(match())
        return _of_function(match, lambda n, why: rule(**{"name": n, "reason": why, **parts}))
    if rewrite is None:
        return lambda function: _of_function(
            function,
            lambda n, why: rule(
                match,
                rewrite=function(),
                types=types,
                where=where,
                let=let,
                name=name or n,
                reason=reason or why,
                kind=kind,
                tests=tests,
                **further,
            ),
        )
    matched = [match] if isinstance(match, str) else list(match)
    made = [rewrite] if isinstance(rewrite, str) else list(rewrite)
    document: dict[str, object] = {
        "rule": name or _named(matched),
        "kind": kind or _kind(made),
        "summary": further.pop("summary", "")
        or f"{'; '.join(matched)} becomes {_said(made)}."[:4000],
        "reason": reason or "Written in Python, without a reason.",
        **further,
        **({"types": dict(types)} if types else {}),
        "match": matched,
        **({"let": dict(let)} if let else {}),
        **({"where": [where] if isinstance(where, str) else list(where)} if where else {}),
        "rewrite": made,
        **({"tests": [dict(t) for t in tests]} if tests else {}),
    }
    text = RuleText(document)
    from mlirules.drivers.iree.compiler import op_oracle

    load_rule(f"{text.name}.yaml", text.text, ops=op_oracle, draft=True)
    return text


def _of_function(function: Callable[..., Any], make: Callable[[str, str], RuleText]) -> RuleText:
    name = function.__name__.strip("_").replace("_", "-").lower()
    return make(name, inspect.getdoc(function) or "")


def _named(matched: Sequence[str]) -> str:
    """A name from the ops: ``torch.aten.mm`` gives ``torch-aten-mm``."""
    words = [part.partition("(")[0].partition("=")[2].strip() for part in matched]
    joined = "-".join(words).lower()
    plain = "".join(c if c.isalnum() else "-" for c in joined)
    return "-".join(filter(None, plain.split("-")))[:100] or "rule"


def _kind(rewrite: Sequence[Any]) -> str:
    """Ops for ops is a fusion, anything else converts."""
    ops = all(isinstance(line, str) and _calls_op(line) for line in rewrite)
    return "fusion" if ops else "conversion"


def _calls_op(line: str) -> bool:
    left, _, right = line.partition("=")
    head = right.strip().partition("(")[0]
    return "[" not in left and "." in head and not left.rstrip().endswith(("+", "*"))


def _said(rewrite: Sequence[Any]) -> str:
    return "; ".join(line if isinstance(line, str) else "MLIR of its own" for line in rewrite)


class _Blocks(yaml.SafeDumper):
    """Programs as blocks, one line of YAML for each of theirs."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _string)
