"""Which rule application took and made which op: what ties a difference to the rules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirules.language.faults import Fault, MlirulesError, Span


@dataclass
class Provenance:
    """Applications by number, and the ops that they took from A and made in B, by number."""

    applications: dict[int, dict[str, Any]]
    consumer: dict[int, int] = field(default_factory=dict)
    maker: dict[int, int] = field(default_factory=dict)
    _chain: dict[int, int] = field(default_factory=dict)
    _members: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, applications: Iterable[dict[str, Any]]) -> Provenance:
        """From applications as plain data (their ``consumed``, ``made`` and ``builds_on``)."""
        made = cls({a["number"]: a for a in applications})
        for number, a in made.applications.items():
            for op in a.get("consumed", ()):
                made.consumer.setdefault(op, number)
            for op in a.get("made", ()):
                made.maker[op] = number
            for earlier in a.get("builds_on", ()):
                if made.chain(number) != made.chain(earlier):
                    made._chain[made.chain(number)] = made.chain(earlier)
        for number in sorted(made.applications):
            made._members.setdefault(made.chain(number), []).append(number)
        return made

    @classmethod
    def load(cls, path: Path) -> Provenance:
        """From a trace file. Raises :class:`MlirulesError`, located, for what is no trace."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MlirulesError.at(str(path), f"cannot be read: {error}", code="file") from None
        found = []
        for n, line in enumerate(lines, 1):
            try:
                application = json.loads(line)
            except ValueError:
                application = None
            if isinstance(application, dict) and "decision" in application:
                continue  # what a cost stage weighed
            if not isinstance(application, dict) or "consumed" not in application:
                raise MlirulesError(
                    Fault(
                        Span(str(path), n, 1, 1, line[:120]),
                        "trace",
                        "is not an application of a trace",
                        "traces are written by `mlirules apply --trace FILE`",
                    )
                )
            found.append(application)
        return cls.of(found)

    def chain(self, number: int) -> int:
        """The first of the applications that build on each other, of which this is one."""
        while number in self._chain:
            number = self._chain[number]
        return number

    def members(self, numbers: Iterable[int]) -> list[int]:
        """All applications of the chains that these belong to, in order."""
        wanted = {self.chain(n) for n in numbers}
        return sorted(n for chain in wanted for n in self._members[chain])

    def rules(self, numbers: Iterable[int]) -> list[str]:
        """The rules of applications."""
        return [self.applications[n]["rule"] for n in numbers]

    def as_json(self) -> list[dict[str, object]]:
        """The applications, without their IR."""
        keys = ("number", "rule", "location", "op", "bindings")
        return [{k: a[k] for k in keys if k in a} for a in self.applications.values()]

    def check(self, before: int, after: int) -> None:
        """Raise :class:`MlirulesError` when the trace tells of ops that the programs do not have.

        ``before`` and ``after`` are how many ops the programs have.
        """
        if max(self.consumer, default=-1) >= before or max(self.maker, default=-1) >= after:
            raise MlirulesError.at(
                "--trace",
                "the trace was made from other programs: it tells of ops that these do not have",
                code="trace",
                suggestion="give the program that was rewritten and the one that came out",
            )
