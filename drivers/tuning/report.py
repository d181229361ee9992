"""A search as one HTML page that needs nothing else: tables, and plots as inline SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirules.drivers.iree import compiler
from mlirules.drivers.measure import roofline
from mlirules.drivers.tuning.outcome import Outcome, Tuned
from mlirules.drivers.tuning.store import Measured
from mlirules.language.faults import MlirulesError

_WIDTH, _HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 14, 42

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: #1c2733; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #e3e8ee; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; border-radius: 4px; }
figure { display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }
figcaption { font-size: 13px; color: #51606f; max-width: 29rem; }
svg { background: #fbfcfd; border: 1px solid #e3e8ee; border-radius: 4px; }
svg text { font: 11px system-ui, sans-serif; fill: #51606f; }
.good { color: #11734b; } .bad { color: #a12626; } .note { color: #51606f; }
"""


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log: bool = False

    def at(self, value: float, start: float, stop: float) -> float:
        low, high, value = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / ((high - low) or 1)
        return start + share * (stop - start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            made = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
            inside = [t for t in made if self.low <= t <= self.high * 1.0001]
            tens = [t for t in inside if f"{t:e}".startswith("1.0")]
            return inside if len(inside) <= 9 else tens
        step = 10.0 ** math.floor(math.log10((self.high - self.low) or 1))
        if (self.high - self.low) / step > 5:
            step *= 2
        elif (self.high - self.low) / step < 2.5:
            step /= 2
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, int(self.high / step + 1e-9) + 1)]


class _Plot:
    """One SVG plot with axes."""

    def __init__(self, x: _Axis, y: _Axis, x_label: str, y_label: str, title: str) -> None:
        self.x, self.y = x, y
        self._parts = [
            f'<svg role="img" aria-label="{html.escape(title)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
            f"<title>{html.escape(title)}</title>",
        ]
        for tick in x.ticks():
            at = self.px(tick)
            self._parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM, "#e9edf2"))
            self._parts.append(_text(at, _HEIGHT - _BOTTOM + 15, f"{tick:g}", "middle"))
        for tick in y.ticks():
            at = self.py(tick)
            self._parts.append(_line(_LEFT, at, _WIDTH - _RIGHT, at, "#e9edf2"))
            self._parts.append(_text(_LEFT - 6, at + 4, f"{tick:g}", "end"))
        self._parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"))
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        self._parts.append(
            f'<text x="13" y="{middle:.1f}" text-anchor="middle" '
            f'transform="rotate(-90 13 {middle:.1f})">{html.escape(y_label)}</text>'
        )

    def px(self, value: float) -> float:
        return self.x.at(value, _LEFT, _WIDTH - _RIGHT)

    def py(self, value: float) -> float:
        return self.y.at(value, _HEIGHT - _BOTTOM, _TOP)

    def dot(self, x: float, y: float, colour: str, label: str, size: float = 3.0) -> None:
        self._parts.append(
            f'<circle cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{size}" fill="{colour}" '
            f'fill-opacity="0.75"><title>{html.escape(label)}</title></circle>'
        )

    def path(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> None:
        at = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="1.8"{dashed}/>'
        )

    def bar(self, x0: float, x1: float, y: float, colour: str, label: str) -> None:
        left, right, top = self.px(x0), self.px(x1), self.py(y)
        self._parts.append(
            f'<rect x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}" '
            f'height="{max(_HEIGHT - _BOTTOM - top, 0):.1f}" fill="{colour}">'
            f"<title>{html.escape(label)}</title></rect>"
        )

    def text(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        self._parts.append(_text(self.px(x), self.py(y), words, anchor))

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>"])


def _line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


_BLUE, _GREEN, _GREY, _RED = "#2f6fbb", "#11734b", "#8795a5", "#a12626"


def page(outcome: Outcome) -> str:
    """The report of a search as HTML."""
    title = f"Tuning {outcome.model} for {outcome.target}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        _summary(outcome),
        _profile(outcome),
        _ways(outcome),
    ]
    parts += [_dispatch(t, outcome) for t in outcome.tuned]
    if outcome.under is not None:
        flags = html.escape(" ".join(outcome.under.flags))
        parts.append(f"<h2>Searched again with <code>{flags}</code></h2>")
        parts += [_summary(outcome.under)]
        parts += [_dispatch(t, outcome.under) for t in outcome.under.tuned]
    parts += [_skipped(outcome), "</body></html>", ""]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns whose name ends in ``#`` are numbers; cells are HTML."""
    numbers = [h.endswith("#") for h in head]
    cells: Callable[[Sequence[str], str], str] = lambda row, tag: "".join(  # noqa: E731
        f"<{tag}{' class=n' if n else ''}>{c}</{tag}>" for c, n in zip(row, numbers, strict=True)
    )
    top = cells([html.escape(h.rstrip("#")) for h in head], "th")
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _summary(outcome: Outcome) -> str:
    words = []
    if outcome.interrupted:
        words.append('<p class="bad">The search was interrupted: this is what was found.</p>')
    whole = outcome.whole
    if whole is not None:
        words.append(
            f"<p>The whole program: {whole.default_ms:.3f} ms with the default configurations, "
            f'{whole.tuned_ms:.3f} ms tuned: <b class="good">{whole.ratio:.2f} times as fast</b> '
            f"(spread {whole.spread:.1%}).</p>"
        )
    elif not outcome.winners:
        words.append("<p>Nothing beat the default configurations beyond the noise.</p>")
    rows = []
    for t in outcome.tuned:
        name = t.task.dispatch.name
        if name in outcome.dropped:
            verdict = f'<span class="bad">dropped: {html.escape(outcome.dropped[name])}</span>'
        elif t.winner is None:
            verdict = f'<span class="note">default stays: {html.escape(t.why_not)}</span>'
        else:
            verdict = '<span class="good">kept</span>'
        tuned = f"{t.winner.tuned_ms:.3f}" if t.winner else ""
        gain = f"{t.winner.speedup:.2f}" if t.winner else ""
        rows.append(
            [
                html.escape(t.task.root.title),
                f"{t.share:.1%}",
                f"{t.default_ms:.3f}",
                tuned,
                gain,
                f"{t.noise:.1%}",
                f"{t.drift:.3f}",
                f"{len(t.measured)} of {t.candidates}",
                verdict,
            ]
        )
    device = outcome.profile.device if outcome.profile else ""
    flags = f", flags <code>{html.escape(' '.join(outcome.flags))}</code>" if outcome.flags else ""
    words.append(
        f'<p class="note">{html.escape(device)}, compiler {compiler.version()}{flags}. Times are '
        "medians of runs in turns with the default. Noise: how far the default's own repeats are "
        "apart. Drift: the default at the end over the default at the start.</p>"
    )
    words.append(
        _table(
            [
                "op",
                "share#",
                "default ms#",
                "tuned ms#",
                "times as fast#",
                "noise#",
                "drift#",
                "tried#",
                "verdict",
            ],
            rows,
        )
    )
    return "\n".join(words)


def _profile(outcome: Outcome) -> str:
    if outcome.profile is None:
        return ""
    rows = [
        [
            html.escape(r.name),
            html.escape(r.op),
            html.escape(r.shape),
            f"{r.mean_ms:.4f}",
            f"{r.share:.1%}",
        ]
        for r in outcome.profile.rows[:20]
    ]
    return "<h2>Profile before</h2>" + _table(
        ["dispatch", "op", "shape", "mean ms#", "share#"], rows
    )


def _ways(outcome: Outcome) -> str:
    """Ways to compile the program, and the last comparison of rules, ways, and both."""
    if not outcome.ways:
        return ""
    rows = [
        [
            html.escape(t.way.name),
            f"<code>{html.escape(' '.join([*t.way.rules, *t.way.flags]))}</code>",
            html.escape(t.state),
            f"{t.ratio:.2f}" if t.ratio else "",
            html.escape(t.note),
        ]
        for t in outcome.ways
    ]
    parts = [
        "<h2>Ways to compile the program</h2>",
        _table(["way", "rules and flags", "verdict", "times as fast#", "why"], rows),
    ]
    parts += [
        f'<p class="note">{html.escape(n)}: {html.escape(w)}</p>' for n, w in outcome.unfit.items()
    ]
    if outcome.choices:
        parts.append("<h2>Rules, ways, and both</h2>")
        parts.append(
            _table(
                ["program", "default ms#", "ms#", "times as fast#", "spread#", "verdict"],
                [
                    [
                        html.escape(c.name),
                        f"{c.whole.default_ms:.3f}",
                        f"{c.whole.tuned_ms:.3f}",
                        f"{c.whole.ratio:.2f}",
                        f"{c.whole.spread:.1%}",
                        '<span class="good">chosen</span>'
                        if c == outcome.choice
                        else html.escape(c.whole.difference),
                    ]
                    for c in outcome.choices
                ],
            )
        )
    return "\n".join(parts)


def _dispatch(t: Tuned, outcome: Outcome) -> str:
    parts = [
        f"<h2>{html.escape(t.task.root.title)}</h2>",
        f'<p class="note"><code>{html.escape(t.task.dispatch.name)}</code>, called '
        f"{t.calls} times</p>",
    ]
    timed = [m for m in t.measured if m.result.tuned_ms and m.result.ratio]
    if timed:
        parts += [_progress(t), _distribution(timed), _roofline(t, timed, outcome)]
    states: dict[str, int] = {}
    for m in t.measured:
        states[m.result.state] = states.get(m.result.state, 0) + 1
    listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    parts.append(f'<p class="note">{len(t.measured)} candidates: {html.escape(listed)}.</p>')
    working = [m for m in timed if m.result.state == "ok"]
    best = sorted(working, key=lambda m: -(m.result.ratio or 0))[:8]
    if best:
        parts.append(
            _table(
                ["configuration", "space", "times as fast#", "spread#"],
                [
                    [
                        f"<code>{html.escape(m.candidate.label)}</code>",
                        html.escape(m.candidate.space),
                        f"{m.result.ratio:.2f}",
                        f"{m.result.spread or 0:.1%}",
                    ]
                    for m in best
                ],
            )
        )
    for rule, text in outcome.rules:
        if t.winner is not None and rule.settings == t.winner.settings:
            parts.append(f"<pre>{html.escape(text.partition('tests:')[0])}</pre>")
    return "\n".join(parts)


def _figure(plot: _Plot, caption: str) -> str:
    return f"<figure>{plot.svg()}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _progress(t: Tuned) -> str:
    ratios = [
        (i, m.result.ratio or 0.0, m)
        for i, m in enumerate(t.measured, 1)
        if m.result.tuned_ms and m.result.ratio
    ]
    top = max(r for _, r, _ in ratios)
    low = min(min(r for _, r, _ in ratios), 1.0)
    plot = _Plot(
        _Axis(0, max(len(t.measured), 1)),
        _Axis(low * 0.9, max(top, 1.0) * 1.1, log=True),
        "candidates tried",
        "times as fast as the default",
        "best so far by candidate",
    )
    best = 0.0
    line: list[tuple[float, float]] = []
    for i, ratio, m in ratios:
        plot.dot(i, ratio, _GREY, f"{m.candidate.label}: {ratio:.2f}", 2.2)
        if ratio > best and m.result.state == "ok":
            if line:
                line.append((i, best))
            best = ratio
            line.append((i, best))
    if line:
        line.append((len(t.measured), best))
        plot.path(line, _BLUE)
    plot.path([(0, 1.0), (max(len(t.measured), 1), 1.0)], _RED, "4 3")
    return _figure(plot, "Best so far (line) and every candidate that ran (dots). Dashed: default.")


def _distribution(timed: Sequence[Measured]) -> str:
    logs = sorted(math.log2(m.result.ratio or 1.0) for m in timed)
    low, high = min(logs[0], 0.0), max(logs[-1], 0.0)
    if high - low < 0.2:
        low, high = low - 0.1, high + 0.1
    count = min(24, max(6, len(logs)))
    width = (high - low) / count
    bins = [0] * count
    for value in logs:
        bins[min(count - 1, int((value - low) / width))] += 1
    plot = _Plot(
        _Axis(2**low, 2**high, log=True),
        _Axis(0, max(bins) * 1.1),
        "times as fast as the default",
        "candidates",
        "distribution of candidates",
    )
    for index, number in enumerate(bins):
        if number:
            x0, x1 = 2 ** (low + index * width), 2 ** (low + (index + 1) * width)
            colour = _GREEN if x0 >= 1 else _GREY
            plot.bar(x0, x1, number, colour, f"{number}: {x0:.2f} to {x1:.2f}")
    return _figure(plot, "How many candidates are how fast. Green: faster than the default.")


def _roofline(t: Tuned, timed: Sequence[Measured], outcome: Outcome) -> str:
    root = t.task.root
    try:
        known = roofline.parameters(outcome.target.kind)
    except (MlirulesError, OSError):
        return '<p class="note">No roofline: nothing is known of this device\'s peak.</p>'
    peak, wide = known.peak(root.elements[0]) / 1e9, known.bandwidth_gbs
    intensity = root.flops / root.bytes
    rates = [root.flops / ((m.result.tuned_ms or 1) * 1e6) for m in timed]
    default = root.flops / (t.default_ms * 1e6)
    fastest = max(*rates, default)
    x = _Axis(min(intensity / 8, peak / wide / 4), max(intensity * 8, peak / wide * 4), log=True)
    y = _Axis(min([*rates, default, wide * x.low]) * 0.7, max(peak, fastest) * 1.5, log=True)
    plot = _Plot(x, y, "operations for each byte", "10^9 operations a second", "roofline")
    ridge = peak / wide
    plot.path([(x.low, wide * x.low), (ridge, peak), (x.high, peak)], _BLUE)
    for rate, m in zip(rates, timed, strict=True):
        plot.dot(intensity, rate, _GREY, f"{m.candidate.label}: {rate:.1f}", 2.2)
    plot.dot(intensity, default, _RED, f"default: {default:.1f}", 4.5)
    if t.winner is not None:
        won = root.flops / (t.winner.tuned_ms * 1e6)
        plot.dot(intensity, won, _GREEN, f"winner: {won:.1f}", 4.5)
    return _figure(
        plot,
        f"Line: what this device can do ({peak:g} billion operations and {wide:g} GB a second). "
        "Red: default, green: winner, grey: other candidates.",
    )


def _skipped(outcome: Outcome) -> str:
    if not outcome.skipped:
        return ""
    rows = [[f"<code>{html.escape(n)}</code>", html.escape(w)] for n, w in outcome.skipped.items()]
    return "<h2>Not tuned</h2>" + _table(["dispatch", "why"], rows)
