"""A search as one HTML page that needs nothing else: tables, and plots as inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.measure.profile import Profile
from mlirules.drivers.tuning import plots
from mlirules.drivers.tuning.outcome import Choice, Outcome, Tuned, Whole
from mlirules.drivers.tuning.plots import Picture
from mlirules.drivers.tuning.results import Winner
from mlirules.drivers.tuning.store import Measured
from mlirules.drivers.tuning.ways import Tried
from mlirules.support import pages

_PAGE = Path(__file__).with_name("report.html.j2")
#: The best candidates and the longest dispatches that the page lists.
_CANDIDATES, _DISPATCHES = 8, 20


@dataclass(frozen=True)
class _Op:
    """A row of a search's first table: a dispatch, and whether its winner is kept."""

    title: str
    share: float
    default_ms: float
    noise: float
    drift: float
    tried: int
    candidates: int
    winner: Winner | None
    #: Why the winner was dropped; None: it was not.
    dropped: str | None
    why_not: str


@dataclass(frozen=True)
class _Dispatch:
    """A dispatch's own part: its plots, its best candidates, and the rules that came of it."""

    title: str
    name: str
    calls: int
    pictures: tuple[Picture, ...]
    #: Candidates ran, but nothing is known of the device's peak.
    peakless: bool
    tried: int
    #: Candidates by what became of them, in the order of the states' names.
    states: tuple[tuple[str, int], ...]
    best: tuple[Measured, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True)
class _Search:
    """What one search found: with the flags that were given, or with those of the best way."""

    flags: str
    interrupted: bool
    whole: Whole | None
    won: bool
    device: str
    ops: tuple[_Op, ...]
    dispatches: tuple[_Dispatch, ...]


@dataclass(frozen=True)
class _Page:
    """All that the template shows."""

    title: str
    compiler: str
    search: _Search
    under: _Search | None
    profile: Profile | None
    ways: tuple[Tried, ...]
    unfit: Mapping[str, str]
    choices: tuple[Choice, ...]
    choice: Choice | None
    skipped: Mapping[str, str]
    #: Dispatches of the profile that are listed.
    listed: int = _DISPATCHES


def page(outcome: Outcome) -> str:
    """The report of a search as HTML."""
    view = _Page(
        f"Tuning {outcome.model} for {outcome.target}",
        compiler.version(),
        _search(outcome),
        _search(outcome.under) if outcome.under is not None else None,
        outcome.profile,
        tuple(outcome.ways),
        outcome.unfit,
        tuple(outcome.choices),
        outcome.choice,
        outcome.skipped,
    )
    return pages.render(_PAGE, page=view)


def _search(outcome: Outcome) -> _Search:
    return _Search(
        " ".join(outcome.flags),
        outcome.interrupted,
        outcome.whole,
        bool(outcome.winners),
        outcome.profile.device if outcome.profile is not None else "",
        tuple(_op(t, outcome) for t in outcome.tuned),
        tuple(_dispatch(t, outcome) for t in outcome.tuned),
    )


def _op(t: Tuned, outcome: Outcome) -> _Op:
    return _Op(
        t.task.root.title,
        t.share,
        t.default_ms,
        t.noise,
        t.drift,
        len(t.measured),
        t.candidates,
        t.winner,
        outcome.dropped.get(t.task.dispatch.name),
        t.why_not,
    )


def _dispatch(t: Tuned, outcome: Outcome) -> _Dispatch:
    timed = [m for m in t.measured if m.result.tuned_ms and m.result.ratio]
    pictures: list[Picture] = []
    roofline = None
    if timed:
        roofline = plots.roofline(t, timed, outcome.target)
        pictures = [plots.progress(t), plots.distribution(timed)]
    if roofline is not None:
        pictures.append(roofline)
    working = [m for m in timed if m.result.state == "ok"]
    won = t.winner.settings if t.winner is not None else None
    return _Dispatch(
        t.task.root.title,
        t.task.dispatch.name,
        t.calls,
        tuple(pictures),
        bool(timed) and roofline is None,
        len(t.measured),
        tuple(sorted(Counter(m.result.state for m in t.measured).items())),
        tuple(sorted(working, key=lambda m: -(m.result.ratio or 0))[:_CANDIDATES]),
        tuple(text.partition("tests:")[0] for rule, text in outcome.rules if rule.settings == won),
    )
