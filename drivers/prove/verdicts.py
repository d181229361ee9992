"""Verdicts that are kept, each with the hash of all that it follows from.

What ships stands in ``verdicts.json`` (written by ``mlirules prove --store``); what a user proves
is kept in the cache. A verdict is that of a rule only as long as its hash is the same: the rule's
own lines, those of every rule and definition that says what its ops mean, and the prover's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirules.drivers.prove.binding import op_key
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import Rule
from mlirules.support import cache, files

#: Raised with every change after which a verdict that was given may no longer be.
PROVER = 7

#: The verdicts that ship.
FILE = Path(__file__).with_name("verdicts.json")

#: What of a rule its verdict depends on.
_PARTS = ("rule", "commutative", "types", "match", "let", "where", "rewrite")


def own_hash(rule: Rule) -> str:
    """The hash of a rule's own lines."""
    parts = rule.doc.model_dump(mode="json", include=set(_PARTS))
    return _digest([PROVER, parts])


@dataclass
class Hashes:
    """Hashes of rules together with what the conversion rules say of their ops."""

    #: Conversion rules and definitions by the op that they say something about.
    by_op: Mapping[str, list[Rule]]

    @classmethod
    def of(cls, meanings: Any) -> Hashes:
        """By the rules and the definitions of meanings."""
        ops = {*meanings.rules, *meanings.definitions}
        return cls(
            {op: [*meanings.definitions.get(op, ()), *meanings.rules.get(op, ())] for op in ops}
        )

    def full(self, rule: Rule) -> str:
        """The hash of a rule and of all that says what its ops mean."""
        waiting = [rule]
        seen: dict[int, str] = {id(rule): own_hash(rule)}
        ops: set[str] = set()
        while waiting:
            for op in ops_of(waiting.pop()) - ops:
                ops.add(op)
                for other in self.by_op.get(op, ()):
                    if id(other) not in seen:
                        seen[id(other)] = own_hash(other)
                        waiting.append(other)
        first, *rest = seen.values()
        return _digest([first, sorted(rest)])


def ops_of(rule: Rule) -> set[str]:
    """The ops that a rule finds and makes."""
    found: set[str] = set()
    calls = [p.equation.call for p in rule.match]
    calls += [s.call for _, s in rule.rewrite if isinstance(s, ast.OpEquation)]
    for call in calls:
        one_of = rule.one_of.get(call.fn)
        found |= set(one_of.ops) if one_of is not None else {op_key(call)}
        for arg in call.args:
            inner = [n for n in walk_expression(arg) if isinstance(n, ast.Call)]
            found |= {op_key(n) for n in inner if "." in n.fn}
    return found


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ---- what ships -------------------------------------------------------------------------------


def shipped(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """The verdicts that ship, by rule; empty where the file is missing."""
    if not file.is_file():
        return {}
    found: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))
    return found


#: The sets whose verdicts ship, and what writes them anew.
SETS = ("torch/fusions", "torch/unfuse", "torch/decompose", "torch/algebra", "linalg")
RENEW = f"mlirules prove {' '.join(SETS)} --timeout 4 --no-run --store"


def stale(rules: Iterable[Rule], file: Path = FILE) -> list[str]:
    """The rules whose own lines are not those that a shipped verdict is about."""
    found = shipped(file)
    return [r.name for r in rules if r.name not in found or found[r.name]["own"] != own_hash(r)]


def ship(new: Iterable[dict[str, Any]], names: Iterable[str], file: Path = FILE) -> None:
    """Write verdicts to those that ship; ``names``: the rules that there are."""
    known = set(names)
    kept = {n: v for n, v in shipped(file).items() if n in known}
    for verdict in new:
        entry = {k: v for k, v in verdict.items() if k not in ("rule", "seconds", "refutation")}
        if "line" in entry:
            # Where the rules lie is the machine's affair.
            entry["line"] = ":".join(str(entry["line"]).rsplit(":", 2)[1:])
        kept[verdict["rule"]] = entry
    files.write(file, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())


def badge(rule: Rule, known: Mapping[str, dict[str, Any]] | None = None) -> str | None:
    """What is known of a rule by the verdicts that ship; None where nothing is, or no more.

    Only the rule's own lines are held against the verdict: the rules that say what its ops mean
    are those that ship with it.
    """
    entry = (shipped() if known is None else known).get(rule.name)
    if entry is None or entry["own"] != own_hash(rule):
        return None
    return sentence(entry)


def sentence(entry: Mapping[str, object]) -> str:
    """A verdict in words."""
    if entry["verdict"] in ("proven", "bounded"):
        how = "bit for bit" if entry["arithmetic"] == "bit for bit" else "over the reals"
        return f"{entry['verdict']} equal {how}: {entry['reason']}"
    return f"{entry['verdict']}: {entry['reason']}"


# ---- what a user proves -----------------------------------------------------------------------


def recalled(key: str, timeout: float) -> dict[str, Any] | None:
    """A verdict that was kept under a hash; None where less time was spent on it than there is."""
    data = cache.read_checked(_place(key))
    if data is None:
        return None
    found: dict[str, Any] = json.loads(data)
    final = found["verdict"] in ("proven", "refuted")
    return found if final or found["timeout"] >= timeout else None


def keep(key: str, verdict: dict[str, object], timeout: float) -> None:
    """Keep a verdict under a hash."""
    data = json.dumps({**verdict, "timeout": timeout}).encode()
    cache.write_checked(_place(key), data)
    cache.keep_newest(_place(key).parent, 4000)


def _place(key: str) -> Path:
    return cache.directory() / "verdicts" / key
