"""What a search is asked for, what it tells on the way, and what it found."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import profile as profiling
from mlirules.drivers.tuning.measure import Task
from mlirules.drivers.tuning.results import Winner
from mlirules.drivers.tuning.store import Measured
from mlirules.drivers.tuning.ways import Tried, Way
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import MlirulesError


@dataclass(frozen=True)
class Options:
    """How to search.

    ``budget`` limits the candidates for one dispatch, stored ones included; ``seconds`` limits the
    time for all of them (0: no limit). Dispatches that take at least ``share`` of the program's
    time are tuned, at most
    ``most`` of them; ``only`` names dispatches instead.
    """

    target: Target
    budget: int = 64
    seconds: float = 0.0
    seed: int = 0
    order: str = "heuristic"
    flags: tuple[str, ...] = ()
    share: float = 0.05
    most: int = 8
    only: tuple[str, ...] = ()
    rounds: int = 5
    check: bool = True
    #: Archives of weights outside the program, ``[SCOPE=]FILE``.
    parameters: tuple[str, ...] = ()


@dataclass
class Tuned:
    """What became of one dispatch."""

    task: Task
    share: float
    calls: int
    candidates: int
    measured: list[Measured] = field(default_factory=list)
    #: Results that were stored by an earlier run.
    resumed: int = 0
    default_ms: float = 0.0
    noise: float = 0.0
    drift: float = 1.0
    winner: Winner | None = None
    why_not: str = ""

    @property
    def best(self) -> Measured | None:
        """The fastest candidate with right numbers."""
        working = [m for m in self.measured if m.result.state == "ok"]
        return max(working, key=lambda m: m.result.ratio or 0, default=None)


@dataclass
class Whole:
    """The program with and without the winners."""

    default_ms: float
    tuned_ms: float
    ratio: float
    spread: float
    difference: str = ""


@dataclass(frozen=True)
class Choice:
    """The whole program compiled in one way: with rules, with a way's flags, or with both."""

    name: str
    way: Way | None
    rules: tuple[tuple[ConfigRule, str], ...]
    whole: Whole
    unsure: float


@dataclass
class Outcome:
    """A finished (or interrupted) search."""

    model: str
    target: Target
    flags: tuple[str, ...]
    profile: profiling.Profile | None
    tuned: list[Tuned] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    whole: Whole | None = None
    #: Winners that made the program slower, and why each was dropped.
    dropped: dict[str, str] = field(default_factory=dict)
    rules: list[tuple[ConfigRule, str]] = field(default_factory=list)
    interrupted: bool = False
    #: Ways to compile the program that were tried, and what won of those and the rules together.
    ways: list[Tried] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    choice: Choice | None = None
    #: Ways that the rules cannot be used with, and why.
    unfit: dict[str, str] = field(default_factory=dict)
    #: The search under the best way's flags, on the program as it rewrites it.
    under: Outcome | None = None

    @property
    def winners(self) -> list[Winner]:
        """What won and was not dropped."""
        return [
            t.winner
            for t in self.tuned
            if t.winner is not None and t.task.dispatch.name not in self.dropped
        ]


@dataclass(frozen=True)
class Event:
    """What happens, for whoever watches: ``kind`` is ``dispatch``, ``result`` or ``note``."""

    kind: str
    text: str = ""
    dispatch: Tuned | None = None
    result: Measured | None = None
    done: int = 0
    total: int = 0


def parse_budget(text: str, place: str = "--budget") -> tuple[int, float]:
    """Candidates for a dispatch and seconds for all; the other one is without limit.

    Raises MlirulesError, at ``place``, for what is neither.
    """
    found = re.fullmatch(r"(\d+)(s|m|h)?", text)
    if not found or int(found[1]) == 0:
        raise MlirulesError.at(
            place,
            f"not a budget: {text!r}",
            code="budget",
            suggestion="write 100 (candidates for each dispatch), 90s, 10m or 2h",
        )
    if found[2] is None:
        return int(found[1]), 0.0
    return 1 << 30, int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]
