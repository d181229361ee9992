"""What the checks of a config rule share."""

from __future__ import annotations

from mlirules.language.config.model import ConfigDoc
from mlirules.language.config.op import TargetFacts, TargetOracle
from mlirules.language.faults import Fault
from mlirules.language.source import Path_, SourceFile


class Findings:
    """What checks share: the rule, what its targets can do, and the faults found."""

    def __init__(self, source: SourceFile, doc: ConfigDoc, facts: TargetOracle | None) -> None:
        self.source = source
        self.doc = doc
        self.oracle = facts
        self.faults: list[Fault] = []
        self.facts: list[TargetFacts] = []
        self.kinds: list[str] = []

    def fault(
        self, path: Path_, code: str, message: str, hint: str = "", *, key: bool = False
    ) -> None:
        """Add a fault at a place in the file; ``key``: at the key itself."""
        self.faults.append(Fault(self.source.span_at(path, key=key), code, message, hint))
