"""What was decided at a place of a program, and by what."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Decision"]


@dataclass
class Decision:
    """Whether a rule goes ahead at a place, and the numbers behind it."""

    rule: str
    applies: bool
    #: ``learned``, ``roofline``, ``measured``, or ``none`` where none could say anything.
    model: str
    target: str
    location: str
    op: str
    #: Milliseconds of the piece without and with the rule.
    before_ms: float | None = None
    after_ms: float | None = None
    ratio: float | None = None
    #: Measured: quartiles of the ratio over the rounds, and their number.
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: int | None = None
    #: Measured: the numbers came from an earlier run.
    cached: bool = False
    #: The model's totals: launches, flops and bytes before and after.
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    #: A hash of what was weighed.
    key: str = ""
    #: Learned: which model, and what it was measured on.
    source: str = ""
    reason: str = ""

    def as_json(self) -> str:
        """The decision as one line of JSON, for a trace."""
        found = {k: v for k, v in asdict(self).items() if v not in (None, {}, "")}
        return json.dumps({"decision": found}, ensure_ascii=False)

    def __str__(self) -> str:
        what = "applied" if self.applies else "left alone"
        if self.before_ms is None or self.after_ms is None:
            return f"{self.rule} {what} at {self.location}: {self.reason}"
        low, high = self.ratio_low, self.ratio_high
        spread = "" if low is None else f", {low:.2f} to {high:.2f}"
        kept = ", kept from an earlier run" if self.cached else ""
        kept += f": {self.source}" if self.source else ""
        return (
            f"{self.rule} {what} at {self.location}: {self.before_ms:.3g} ms without, "
            f"{self.after_ms:.3g} ms with it ({self.ratio:.2f} times as fast{spread}; "
            f"{self.model}{kept}); {self.reason}"
        )
