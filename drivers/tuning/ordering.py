"""In which order candidates are tried: the sooner a good one comes, the less must be measured.

``random`` shuffles by a seed. ``heuristic`` prefers reduction tiles that are powers of two,
register tiles with much work for what they load, and tiles that divide the work evenly among the
cores. ``learned`` fits a random forest to stored results (of other ops, and of this one as they
come) and tries what it expects to be fastest. ``optuna`` asks Optuna's tree-structured Parzen
estimator, which knows this op's results only.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from mlirules.drivers.tuning.dispatches import Root
from mlirules.drivers.tuning.measure import Result
from mlirules.drivers.tuning.space import Candidate
from mlirules.drivers.tuning.store import Measured
from mlirules.language.faults import MlirulesError, did_you_mean

METHODS = ("random", "heuristic", "learned", "optuna")

#: What a candidate that did not work counts as, in doublings of time against the default.
FAILED = 3.0

History = Mapping[str, tuple[Root, Sequence[Measured]]]


class Order(Protocol):
    """Says which candidates to try next."""

    def take(self, count: int) -> list[Candidate]:
        """The next ``count`` candidates; fewer at the end."""
        ...

    def tell(self, candidate: Candidate, result: Result) -> None:
        """What was measured."""
        ...


def check(method: str) -> None:
    """Raises MlirulesError for an unknown method."""
    if method not in METHODS:
        raise MlirulesError.at(
            "--order",
            f"unknown order {method!r}",
            code="order",
            suggestion=did_you_mean(method, METHODS) or "known: " + ", ".join(METHODS),
        )


def order(
    method: str,
    candidates: Sequence[Candidate],
    root: Root,
    *,
    seed: int = 0,
    history: History | None = None,
) -> Order:
    """An order over ``candidates``. Raises MlirulesError for an unknown method."""
    check(method)
    shuffled = list(candidates)
    random.Random(seed).shuffle(shuffled)
    if method == "random":
        return _Fixed(shuffled)
    if method == "heuristic":
        return _Fixed(sorted(shuffled, key=lambda c: heuristic(c, root)))
    if method == "optuna":
        return _Optuna(shuffled, seed)
    return _Learned(shuffled, root, history or {}, seed)


class _Fixed:
    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._left = list(candidates)

    def take(self, count: int) -> list[Candidate]:
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def tell(self, candidate: Candidate, result: Result) -> None:
        pass


# ---- what can be said of a candidate without running it -------------------------------------

#: Inner and outer tile levels of each kind of target.
_INNER = ("vector_common_parallel", "thread", "subgroup")
_OUTER = ("distribution", "workgroup")
_REDUCED = ("vector_reduction", "reduction")


def tiles_of(candidate: Candidate, root: Root) -> dict[str, dict[str, int]]:
    """The tiles that threads get (outer), registers get (inner), and of reductions, by loop."""
    given = candidate.settings.tiles
    extent = root.extent
    outer = next((given[level] for level in _OUTER if level in given), {})
    inner = next((given[level] for level in _INNER if level in given), {})
    reduced = next((given[level] for level in _REDUCED if level in given), {})
    return {
        "outer": {p: min(outer.get(p) or extent[p], extent[p]) for p in _parallel(root)},
        "inner": {p: min(inner.get(p) or extent[p], extent[p]) for p in _parallel(root)},
        "reduced": {
            r: min(reduced.get(r) or extent[r], extent[r])
            for r in root.loops
            if r in root.reductions
        },
    }


def _parallel(root: Root) -> list[str]:
    return [loop for loop in root.loops if loop not in root.reductions]


def _product(values: Iterable[int]) -> int:
    return math.prod(values)


def quantisation(candidate: Candidate, root: Root, cores: int) -> float:
    """The share of the cores' time that is lost where tiles do not divide the work evenly."""
    outer = tiles_of(candidate, root)["outer"]
    groups = _product(-(-root.extent[p] // t) for p, t in outer.items())
    padded = groups * _product(outer.values()) / max(1, _product(root.extent[p] for p in outer))
    waves = -(-groups // cores)
    return 1 - groups / (waves * cores) / padded


def loaded(candidate: Candidate, root: Root) -> tuple[float, float]:
    """Elements that one register tile loads and computes, for one step of all reduction tiles."""
    tiles = tiles_of(candidate, root)
    sizes = {**tiles["inner"], **tiles["reduced"]}
    area = 0.0
    for indices in root.indices[: len(root.indices) - root.results]:
        area += _product(_spread(index, sizes) for index in indices)
    return area, float(_product(sizes.values()))


def _spread(index: str, sizes: Mapping[str, int]) -> int:
    total = 1
    for term in index.split("+"):
        factors = term.split("*")
        step = math.prod(int(f) for f in factors if f.isdigit())
        total += sum(step * (sizes[f] - 1) for f in factors if f in sizes)
    return total


def heuristic(candidate: Candidate, root: Root, cores: int = 0) -> tuple[float, ...]:
    """A sort key: the smaller the better. No measurement goes into it."""
    cores = cores or os.cpu_count() or 1
    tiles = tiles_of(candidate, root)
    area, volume = loaded(candidate, root)
    step = _product(tiles["reduced"].values())
    power = 0.0 if step & (step - 1) == 0 else 1.0
    bits = root.operands[0].bytes / max(1, root.operands[0].size)
    lanes = max(1.0, 64 / bits)
    accumulators = _product(tiles["inner"].values()) / lanes
    spilled = max(0.0, math.log2(max(accumulators, 1) / 16))
    narrow = _narrow(tiles["inner"], root, lanes)
    lost = quantisation(candidate, root, cores)
    # Unrolling a reduction saves no loads and costs instructions; beyond a vector, many.
    steps = math.log2(max(step, 1))
    unrolled = steps / 32 + max(0.0, steps - 4) / 4
    if root.kind == "attention":
        # A step is over keys, the lanes of the scores, and rescales the sums that it loads.
        keys = tiles["reduced"].get("s", 1)
        power = 0.0 if keys & (keys - 1) == 0 else 1.0
        spilled, unrolled = 0.0, max(0.0, math.log2(lanes / keys)) / 100
    cost = 8 * area / volume + 2 * spilled + narrow + 4 * lost + unrolled + power
    return (cost, area / volume, lost)


def _narrow(inner: Mapping[str, int], root: Root, lanes: float) -> float:
    """How far the result's innermost tile is from filling whole vectors, in doublings."""
    last = root.indices[-1][-1] if root.indices[-1] else ""
    width = inner.get(last, 1)
    return abs(math.log2(max(width, 1) / lanes)) if width < lanes else 0.0


def features(candidate: Candidate, root: Root, cores: int = 0) -> dict[str, float]:
    """A candidate in numbers, comparable between ops of one class."""
    cores = cores or os.cpu_count() or 1
    tiles = tiles_of(candidate, root)
    out: dict[str, float] = {f"kind:{root.kind}": 1.0, f"space:{candidate.space}": 1.0}
    for loop, size in root.extent.items():
        out[f"size:{loop}"] = math.log2(size)
    for part, sizes in tiles.items():
        for loop, size in sizes.items():
            out[f"{part}:{loop}"] = math.log2(max(size, 1))
    for level, sizes in candidate.settings.tiles.items():
        if level.startswith("cache"):
            out.update({f"{level}:{n}": math.log2(max(s, 1)) for n, s in sizes.items()})
    area, volume = loaded(candidate, root)
    groups = _product(-(-root.extent[p] // t) for p, t in tiles["outer"].items())
    out |= {
        "area": math.log2(area),
        "volume": math.log2(volume),
        "intensity": math.log2(volume / area),
        "groups": math.log2(groups),
        "accumulators": math.log2(max(1, _product(tiles["inner"].values()))),
        "lost": quantisation(candidate, root, cores),
        "heuristic": heuristic(candidate, root, cores)[0],
        "width": math.log2(max(1, tiles["inner"].get(root.indices[-1][-1], 1)))
        if root.indices[-1]
        else 0.0,
    }
    return out


def cost_of(result: Result) -> float:
    """Doublings of time against the default: smaller is faster."""
    if result.ratio is None or result.state not in ("ok", "slow"):
        return FAILED
    return min(FAILED, -math.log2(result.ratio))


# ---- learned -------------------------------------------------------------------------------


def _missing(message: str) -> MlirulesError:
    return MlirulesError.not_installed("--order", message, "tune", besides=", or --order heuristic")


class _Learned:
    """A random forest over :func:`features`, fitted again after each batch."""

    def __init__(
        self, candidates: Sequence[Candidate], root: Root, history: History, seed: int
    ) -> None:
        try:
            import sklearn.ensemble  # noqa: F401
        except ImportError:
            raise _missing("the learned order needs scikit-learn") from None
        self._root, self._seed = root, seed
        self._left = sorted(candidates, key=lambda c: heuristic(c, root))
        self._rows: list[dict[str, float]] = []
        self._costs: list[float] = []
        self._weights: list[float] = []
        self._own = 0
        for other, measured in history.values():
            if other.kind != root.kind or other == root:
                continue
            costs = [cost_of(m.result) for m in measured if m.result.state != "same"]
            # How much the default can be beaten differs from op to op: what transfers is how a
            # candidate compares with the best one of its op.
            best = min(costs, default=0.0)
            for m in measured:
                if m.result.state != "same":
                    self._rows.append(features(m.candidate, other))
                    self._costs.append(cost_of(m.result) - best)
                    self._weights.append(1.0)
        self._own_rows: list[dict[str, float]] = []
        self._own_costs: list[float] = []

    def take(self, count: int) -> list[Candidate]:
        if not self._left:
            return []
        known = len(self._rows) + len(self._own_rows)
        if known >= 8:
            self._left = self._ranked()
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def tell(self, candidate: Candidate, result: Result) -> None:
        if result.state == "same":
            return
        self._own_rows.append(features(candidate, self._root))
        self._own_costs.append(cost_of(result))

    def _ranked(self) -> list[Candidate]:
        import numpy as np
        from sklearn.ensemble import RandomForestRegressor

        best = min(self._own_costs, default=0.0)
        rows = self._rows + self._own_rows
        costs = self._costs + [c - best for c in self._own_costs]
        weights = self._weights + [4.0] * len(self._own_rows)
        left = [features(c, self._root) for c in self._left]
        names = sorted({name for row in [*rows, *left[:1]] for name in row})
        forest = RandomForestRegressor(
            n_estimators=60, min_samples_leaf=2, max_features=0.5, random_state=self._seed, n_jobs=1
        )
        forest.fit(_matrix(rows, names), np.asarray(costs), sample_weight=np.asarray(weights))
        each = np.stack([t.predict(_matrix(left, names)) for t in forest.estimators_])
        # A little courage: what the trees disagree about may be better than its mean.
        score = each.mean(axis=0) - 0.3 * each.std(axis=0)
        return [self._left[i] for i in np.argsort(score, kind="stable")]


# ---- Optuna --------------------------------------------------------------------------------


class _Optuna:
    """Optuna's sampler over the knobs: what it asks for is the nearest candidate that is left."""

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise _missing("this order needs Optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._library: Any = optuna
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._left = {c.key: c for c in candidates}
        self._places: dict[str, dict[str, int]] = {}
        choices: dict[str, set[Any]] = {"space": {c.space for c in candidates}}
        for candidate in candidates:
            for name, value in candidate.knobs:
                choices.setdefault(name, set()).add(value)
        values = {name: sorted(found) for name, found in choices.items()}
        # Knobs count in steps: tile sizes grow by factors. Spaces may lack each other's knobs.
        self._distributions: dict[str, Any] = {
            name: optuna.distributions.IntDistribution(0, max(1, len(found) - 1))
            for name, found in values.items()
        }
        for key, candidate in self._left.items():
            chosen = {"space": candidate.space, **dict(candidate.knobs)}
            self._places[key] = {
                name: found.index(chosen[name]) if name in chosen else 0
                for name, found in values.items()
            }

    def take(self, count: int) -> list[Candidate]:
        taken = []
        for _ in range(min(count, len(self._left))):
            trial = self._study.ask(self._distributions)
            key = min(self._left, key=lambda k: self._distance(k, trial.params))
            # What is told is what was tried, not what was asked for.
            self._study.tell(trial, state=self._library.trial.TrialState.FAIL)
            taken.append(self._left.pop(key))
        return taken

    def tell(self, candidate: Candidate, result: Result) -> None:
        if result.state == "same" or candidate.key not in self._places:
            return
        self._left.pop(candidate.key, None)
        self._study.add_trial(
            self._library.trial.create_trial(
                params=self._places[candidate.key],
                distributions=self._distributions,
                value=cost_of(result),
            )
        )

    def _distance(self, key: str, asked: Mapping[str, int]) -> int:
        place = self._places[key]
        return sum(abs(place[name] - asked[name]) for name in asked)


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Any:
    import numpy as np

    return np.asarray([[row.get(name, -1.0) for name in names] for row in rows], dtype=np.float32)


# ---- comparing orders ----------------------------------------------------------------------


def until_good(
    chosen: Order, measured: Mapping[str, Measured], *, within: float = 0.05, batch: int = 4
) -> int:
    """How many candidates an order tries until the first one within 5 % of the best of all.

    ``measured`` holds every candidate of the order by key; nothing is measured anew.
    """
    working = [
        m.result.ratio
        for m in measured.values()
        if m.result.state == "ok" and m.result.ratio is not None
    ]
    enough = max(working, default=0.0) * (1 - within)
    tried = 0
    while taken := chosen.take(batch):
        for candidate in taken:
            tried += 1
            result = measured[candidate.key].result
            if result.state == "ok" and (result.ratio or 0) >= enough:
                return tried
            chosen.tell(candidate, result)
    return tried
