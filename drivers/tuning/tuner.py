"""The whole search: which dispatches, how long, what wins, and whether the program agrees."""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.devices import device_name
from mlirules.drivers.iree.runtime import Array, Executable
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import profile as profiling
from mlirules.drivers.tuning import (
    constraints,
    dispatches,
    measure,
    ordering,
    results,
    space,
    ways,
)
from mlirules.drivers.tuning.dispatches import Dispatch, Value
from mlirules.drivers.tuning.measure import Result, Runner, RunnerDied, Runners, Task
from mlirules.drivers.tuning.outcome import Choice, Event, Options, Outcome, Tuned, Whole
from mlirules.drivers.tuning.results import Winner
from mlirules.drivers.tuning.space import Candidate, Space
from mlirules.drivers.tuning.store import Measured, Store
from mlirules.drivers.tuning.ways import Given, Tried, Way
from mlirules.drivers.tuning.workers import evaluate
from mlirules.drivers.tuning_specs import compile as configs
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import CheckFailed, MlirulesError, did_you_mean
from mlirules.support.pool import Pool

#: A gain must exceed the default's own noise by this factor, and be at least MIN_GAIN.
NOISE_FACTOR = 2.0
MIN_GAIN = 0.03

#: At most this many configurations are asked of the constraint solver.
MOST_SOLVED = 512

#: The best candidates are timed again, with more turns, before one of them wins.
FINALISTS = 3
MOST_FINALS = 3


Watch = Callable[[Event], None]


def _quiet(_event: Event) -> None:
    pass


@dataclass(frozen=True)
class Means:
    """What a search works with."""

    #: Has everything measured at once; what is there already is not measured again.
    store: Store
    #: Compile and time candidates.
    pool: Pool
    #: Told how it goes.
    watch: Watch = _quiet
    #: In which programs are rewritten (default: that of this thread).
    session: Session = field(default_factory=current, compare=False, repr=False)
    #: Time what this process measures; whoever made the means closes them.
    runners: Runners = field(default_factory=Runners, compare=False, repr=False)


def tune(
    given: Given,
    options: Options,
    means: Means,
    *,
    path: str = "<string>",
    spaces: Sequence[Space] | None = None,
    alternatives: Sequence[Way] = (),
) -> Outcome:
    """Search configurations for the dispatches that dominate ``program``.

    The program is at IREE's input (linalg, or what it converts itself). ``alternatives`` are ways
    to compile all of it, some of them by another pipeline; under the best one, where it gains,
    dispatches are searched again, and what wins in the end is the fastest of rules, way, and both.
    An interrupt ends the search and keeps what was found. Raises MlirulesError where the program
    cannot be run at all.
    """
    watch, program = means.watch, given.text
    target = options.target
    problem = target.available()
    if problem is not None:
        raise MlirulesError.at(
            "--target",
            f"nothing to measure on: {problem}",
            code="device",
            suggestion="--compile-only enumerates and compiles the configurations",
        )
    known = list(spaces) if spaces is not None else space.load_spaces()
    function, inputs = profiling.random_inputs(program, seed=options.seed)
    binary = compiler.compile_module(program, target, flags=options.flags, path=path)
    watch(Event("note", "profiling"))
    default = Executable(binary, function, tuple(options.parameters))
    profile: profiling.Profile | None = None
    try:
        profile = profiling.profile(default, inputs, target, seconds=0.3, model=path)
    except profiling.NoProfiler as error:
        said = error.faults[0].message
        watch(Event("note", f"{said}: dispatches are taken by how much they compute"))
    cut = dispatches.cut(program, target, flags=options.flags, path=path)
    outcome = Outcome(path, target, options.flags, profile, skipped=dict(cut.skipped))
    chosen = list(_chosen(cut.found, _shares(cut.found, profile), options, outcome))
    deadline = time.monotonic() + options.seconds if options.seconds else None
    whole = _Program(given, default, inputs, options, path)
    hunt = _Hunt(options, means, known, outcome, deadline)
    try:
        if alternatives:
            watch(Event("note", f"trying {len(alternatives)} ways to compile the program"))
            outcome.ways = whole.ways(alternatives, means, deadline)
        for dispatch, share in chosen:
            _one(hunt, dispatch, share)
    except KeyboardInterrupt:
        outcome.interrupted = True
    if options.check and outcome.winners and not outcome.interrupted:
        watch(Event("note", "checking the winners in the whole program"))
        _check(whole, outcome)
    _write(program, options, outcome, path)
    for best in _gaining(outcome)[:1] if not outcome.interrupted else []:
        watch(Event("note", f"searching once more under {best.name}"))
        left = max(1.0, deadline - time.monotonic()) if deadline else 0.0
        outcome.under = tune(
            Given(best.program(given, target, path, means.session)),
            replace(options, flags=(*options.flags, *best.flags), seconds=left),
            means,
            path=path,
            spaces=known,
        )
        outcome.interrupted = outcome.under.interrupted
    if outcome.ways and options.check and not outcome.interrupted:
        watch(Event("note", "comparing rules, ways, and both"))
        whole.choose(outcome, means.session)
    elif outcome.rules and outcome.whole is not None:
        outcome.choice = Choice("rules", None, tuple(outcome.rules), outcome.whole, 0.0)
    return outcome


#: At most this many ways are timed again in the end.
FINAL_WAYS = 3

#: A way this much slower than the rules alone is out of the question, whatever the noise.
FAR_BEHIND = 0.7


def _gaining(outcome: Outcome) -> list[Way]:
    """The ways that seem to gain, the best first."""
    least = max(1.0, FAR_BEHIND * outcome.whole.ratio if outcome.whole else 1.0)
    working = [t for t in outcome.ways if t.state == "ok" and (t.ratio or 0) > least]
    return [t.way for t in sorted(working, key=lambda t: -(t.ratio or 0))[:FINAL_WAYS]]


@dataclass
class _Program:
    """The whole program, to be compiled in other ways and timed against its default."""

    given: Given
    #: As it is compiled without any of what is searched for.
    program: Executable
    inputs: Sequence[Array]
    options: Options
    path: str

    def runner(self) -> Runner:
        """What times binaries against the default."""
        values = [Value(tuple(a.shape), _element(a)) for a in self.inputs]
        return Runner(self.path, self.program, values, self.options.target, self.options.seed)

    @property
    def _job(self) -> compiler.Job:
        return compiler.Job(self.options.target, tuple(self.options.flags), 600, self.path)

    def ways(
        self, alternatives: Sequence[Way], means: Means, deadline: float | None
    ) -> list[Tried]:
        """Try each way once; what is in the store is not tried again."""
        options, store = self.options, means.store
        named = f"{self.given.text} {options.target} {' '.join(options.flags)} {compiler.version()}"
        key = hashlib.sha256(named.encode()).hexdigest()[:16]
        device = device_name(options.target.name)
        known = [ways.tried_of(d) for d in store.ways(key, device)]
        runner = self.runner()
        try:
            course = ways.Course(
                known,
                options.rounds,
                keep=lambda tried: store.add_way(key, device, tried.as_json()),
                more=lambda: deadline is None or time.monotonic() < deadline,
                session=means.session,
            )
            return ways.search(alternatives, self.given, runner, self._job, course)
        finally:
            runner.close()

    def choose(self, outcome: Outcome, session: Session) -> None:
        """Time rules, the best ways, and both with the default; the fastest that gains wins."""
        target, flags, path = self.options.target, self.options.flags, self.path
        made: dict[str, tuple[Way | None, list[tuple[ConfigRule, str]], bytes]] = {}
        if outcome.rules:
            job = compiler.Job(target, tuple(flags), path=path)
            binary, _ = configs.compile_with(self.given.text, job, [r for r, _ in outcome.rules])
            made["rules"] = (None, outcome.rules, binary)
        for number, way in enumerate(_gaining(outcome)):
            text, binary = ways.compiled(way, self.given, self._job, session)
            made[way.name] = (way, [], binary)
            rules = outcome.rules
            if number == 0 and outcome.under is not None and outcome.under.rules:
                rules = outcome.under.rules
            if not rules:
                continue
            try:
                job = compiler.Job(target, (*flags, *way.flags), path=path)
                with_rules, report = configs.compile_with(text, job, [r for r, _ in rules])
            except (MlirulesError, CheckFailed) as error:
                outcome.unfit[way.name] = f"the rules do not go with it: {error}"
                continue
            if report.hits:
                made[f"{way.name} with rules"] = (way, rules, with_rules)
        if not made:
            return
        runner = self.runner()
        try:
            answer = runner.contest(
                {**{n: b for n, (_, _, b) in made.items()}, "again": self.program.vmfb},
                rounds=2 * self.options.rounds + 1,
            )
        except RunnerDied as died:
            raise CheckFailed(f"the tuned program failed ({died})") from died
        finally:
            runner.close()
        noise = _verdict(answer, "again")
        floor = max(abs(noise.whole.ratio - 1), noise.unsure)
        for name, (chosen, rules, _) in made.items():
            verdict = _verdict(answer, name)
            outcome.choices.append(
                Choice(name, chosen, tuple(rules), verdict.whole, verdict.unsure)
            )
        winner: Choice | None = None
        for choice in outcome.choices:  # the simplest first: a tie is theirs
            margin = max(MIN_GAIN, NOISE_FACTOR * max(floor, choice.unsure))
            if choice.whole.difference or choice.whole.ratio < 1 + margin:
                continue
            if winner is None or choice.whole.ratio > 1.01 * winner.whole.ratio:
                winner = choice
        outcome.choice = winner


def _shares(found: Sequence[Dispatch], profile: profiling.Profile | None) -> dict[str, float]:
    """What part of a call each dispatch takes; without a profile, of its loops' iterations."""
    if profile is not None:
        return {row.name: row.share for row in profile.rows}
    work = {d.name: float(d.count * math.prod(d.root.sizes)) for d in found}
    return {name: each / sum(work.values()) for name, each in work.items()}


def _chosen(
    found: Sequence[Dispatch], share: Mapping[str, float], options: Options, outcome: Outcome
) -> Iterator[tuple[Dispatch, float]]:
    """The dispatches to tune, the longest first; equal ones once."""
    for name in options.only:
        if name not in {d.name for d in found}:
            raise MlirulesError.at(
                "--only",
                f"no dispatch {name!r} that can be tuned",
                code="dispatch",
                suggestion=did_you_mean(name, [d.name for d in found])
                or outcome.skipped.get(name, ""),
            )
    groups: dict[str, list[Dispatch]] = {}
    for dispatch in found:
        groups.setdefault(dispatch.root.key, []).append(dispatch)
    totals = {key: sum(share.get(d.name, 0.0) for d in group) for key, group in groups.items()}
    taken = 0
    for key, group in sorted(groups.items(), key=lambda g: -totals[g[0]]):
        first = max(group, key=lambda d: share.get(d.name, 0.0))
        if options.only:
            named = [d for d in group if d.name in options.only]
            if named:
                yield named[0], totals[key]
        elif totals[key] < options.share:
            outcome.skipped[first.name] = f"{totals[key]:.1%} of the time"
        elif taken >= options.most:
            outcome.skipped[first.name] = f"{options.most} others take more time"
        else:
            taken += 1
            yield first, totals[key]


def candidates_of(dispatch: Dispatch, options: Options, spaces: Sequence[Space]) -> list[Candidate]:
    """The valid configurations of a dispatch: the compiler's own space, else declared ones."""
    # More than the budget, so that an order has something to choose from.
    wanted = min(4 * options.budget, MOST_SOLVED)
    stated = constraints.candidates(
        dispatch, options.target, wanted, seed=options.seed, flags=options.flags
    )
    return stated or space.enumerate_candidates(dispatch.root, options.target, spaces)


@dataclass(frozen=True)
class _Hunt:
    """A search under way: what it is asked for, what it works with, what it found."""

    options: Options
    means: Means
    spaces: Sequence[Space]
    outcome: Outcome
    #: By the clock of :func:`time.monotonic`.
    deadline: float | None


def _one(hunt: _Hunt, dispatch: Dispatch, share: float) -> None:
    """Search for one dispatch, which takes that ``share`` of the program's time."""
    options, store, outcome = hunt.options, hunt.means.store, hunt.outcome
    candidates = candidates_of(dispatch, options, hunt.spaces)
    if not candidates:
        outcome.skipped[dispatch.name] = (
            f"no space for {dispatch.root.kind} on {options.target.kind} fits it"
        )
        return
    task = measure.prepare(dispatch, options.target, flags=options.flags, seed=options.seed)
    tuned = Tuned(task, share, dispatch.count, len(candidates))
    outcome.tuned.append(tuned)
    store.add_task(task, compiler.version())
    measured = {m.candidate.key: m for m in store.results(task.key)}
    tuned.measured = list(measured.values())
    tuned.resumed = len(measured)
    _baseline(task, tuned, hunt.means)
    total = min(len(candidates), options.budget)
    hunt.means.watch(Event("dispatch", dispatch.name, tuned, total=total))
    try:
        _search(hunt, tuned, candidates, measured)
    finally:
        drifted = _baseline(task, tuned, hunt.means)
        tuned.drift = drifted
    _decide(tuned, options, hunt.means)


def _baseline(task: Task, tuned: Tuned, means: Means) -> float:
    """Time the default again. Returns how it differs from the first time: 1.0 is not at all."""
    samples = means.runners.of(task).baseline()
    means.store.add_baseline(task.key, device_name(task.target), samples)
    middle = statistics.median(samples)
    if not tuned.default_ms:
        tuned.default_ms = 1e3 * middle
    # Neighbours in time: what slows the machine down for long slows both.
    neighbours = [a / b for a, b in itertools.pairwise(samples)]
    tuned.noise = max(tuned.noise, measure.uncertainty_of(neighbours))
    return 1e3 * middle / tuned.default_ms


def _search(
    hunt: _Hunt, tuned: Tuned, candidates: Sequence[Candidate], measured: dict[str, Measured]
) -> None:
    """Measure candidates in the order asked for, while the budget and the time last."""
    options, store, pool, task = hunt.options, hunt.means.store, hunt.means.pool, tuned.task
    runners = hunt.means.runners
    line = ordering.order(
        options.order,
        candidates,
        task.root,
        seed=options.seed,
        history={k: v for k, v in store.history(task.target).items() if k != task.key},
    )
    binaries = {
        m.result.binary: m.candidate.key
        for m in measured.values()
        if m.result.binary and m.result.state != "same"
    }
    for known in measured.values():
        line.tell(known.candidate, known.result)
    done, total = len(measured), min(len(candidates), options.budget)
    while done < total and (hunt.deadline is None or time.monotonic() < hunt.deadline):
        batch = line.take(pool.width)
        if not batch:
            break
        fresh = [c for c in batch if c.key not in measured][: total - done]
        for candidate, result in evaluate(pool, task, fresh, binaries, options.rounds, runners):
            made = Measured(candidate, result)
            store.add(task.key, candidate, result)
            measured[candidate.key] = made
            tuned.measured.append(made)
            if result.binary and result.state != "same":
                binaries[result.binary] = candidate.key
            line.tell(candidate, result)
            done += 1
            hunt.means.watch(Event("result", "", tuned, made, done, total))


@dataclass(frozen=True)
class _Final:
    """A candidate timed again, with more turns."""

    measured: Measured
    ratio: float
    unsure: float
    samples: list[float]


def _decide(tuned: Tuned, options: Options, means: Means) -> None:
    """Time the best candidates again against the default; the best of them wins if it gains.

    What seemed good by chance falls back then, and the next best are timed again, too.
    """
    finals: dict[str, _Final] = {}
    for _ in range(MOST_FINALS):
        working = sorted(
            (m for m in tuned.measured if m.result.state == "ok"),
            key=lambda m: -(m.result.ratio or 0),
        )
        if not working:
            slow = [m.result.ratio for m in tuned.measured if m.result.state == "slow"]
            tuned.why_not = (
                f"no configuration came near it: the best is {max(r or 0 for r in slow):.3f} "
                "times as fast"
                if slow
                else "no configuration of the space worked"
            )
            return
        if working[0].candidate.key in finals:
            break
        fresh = [m for m in working[:FINALISTS] if m.candidate.key not in finals]
        try:
            finals |= _again(tuned, fresh, options, means)
        except RunnerDied as died:
            tuned.why_not = f"the best configurations failed when timed again ({died})"
            return
    best = max(finals.values(), key=lambda f: f.ratio, default=None)
    if best is None:
        tuned.why_not = tuned.why_not or "nothing was left when timed again"
        return
    margin = max(MIN_GAIN, NOISE_FACTOR * max(tuned.noise, best.unsure))
    if best.ratio < 1 + margin:
        tuned.why_not = (
            f"the best is {best.ratio:.3f} times as fast, less than the margin of {margin:.1%} "
            f"that the noise asks for"
        )
        return
    own = 1e3 * statistics.median(best.samples)
    tuned.why_not = ""
    tuned.winner = Winner(
        tuned.task.root,
        best.measured.candidate.settings,
        own * best.ratio,
        own,
        best.unsure,
        len(best.samples),
        device_name(tuned.task.target),
        tuned.noise,
        len(tuned.measured),
        options.flags,
    )


def _again(
    tuned: Tuned, fresh: Sequence[Measured], options: Options, means: Means
) -> dict[str, _Final]:
    """Time candidates again, and the default against itself: that is what noise means."""
    task = tuned.task
    binaries = {m.candidate.key: measure.compile_candidate(task, m.candidate) for m in fresh}
    answer = means.runners.of(task).contest(
        {**binaries, "again": task.default}, rounds=4 * options.rounds + 1
    )
    samples = answer["samples"]
    default = samples["default"]
    itself = [d / a for d, a in zip(default, samples["again"], strict=True)]
    tuned.noise = max(abs(statistics.median(itself) - 1), measure.uncertainty_of(itself))
    made = {}
    for m in fresh:
        key, own = m.candidate.key, samples[m.candidate.key]
        ratios = [d / t for d, t in zip(default, own, strict=True)]
        ratio, wrong = statistics.median(ratios), answer["differences"][key]
        result = replace(
            m.result,
            state="wrong" if wrong else "ok",
            note=wrong or m.result.note,
            ratio=ratio,
            default_ms=1e3 * statistics.median(default),
            tuned_ms=1e3 * statistics.median(own),
            spread=measure.spread_of(ratios),
            rounds=len(ratios),
        )
        now = Measured(m.candidate, result)
        tuned.measured[tuned.measured.index(m)] = now
        means.store.add(task.key, m.candidate, result)
        if wrong:
            tuned.why_not = f"wrong numbers: {wrong}"
        else:
            made[key] = _Final(now, ratio, measure.uncertainty_of(ratios), own)
    return made


# ---- the winners in the whole program ------------------------------------------------------


def with_configurations(sources: str, winners: Sequence[Winner], target: Target) -> str:
    """A program at ``executable-sources`` with the winners' configurations on their ops."""
    wanted = {
        w.root.key: space.compilation_info(w.settings, w.root.loops, target.kind) for w in winners
    }
    return measure.annotate(sources, wanted)[0]


def _check(whole: _Program, outcome: Outcome) -> None:
    """Drop each winner that makes the program slower or wrong, alone or with the others."""
    options = whole.options
    target = options.target
    job = compiler.Job(target, tuple(options.flags), path=whole.path)
    sources = compiler.lower_to(whole.given.text, job, measure.SOURCES)
    names = {t.winner.root.key: t.task.dispatch.name for t in outcome.tuned if t.winner}

    def built(winners: Sequence[Winner]) -> bytes:
        return compiler.compile_job(
            with_configurations(sources, winners, target),
            replace(job, compile_from=measure.SOURCES),
        )

    winners = outcome.winners
    binaries = {"all": built(winners)}
    if len(winners) > 1:
        for w in winners:
            binaries[names[w.root.key]] = built([w])
    runner = whole.runner()
    try:
        while binaries:
            answer = runner.contest(binaries, rounds=2 * options.rounds + 1)
            alone = {n: _verdict(answer, n) for n in binaries}
            worse = {n: v.why for n, v in alone.items() if n != "all" and v.why}
            if not worse and alone["all"].why and len(winners) == 1:
                worse = {names[winners[0].root.key]: alone["all"].why}
            elif not worse and alone["all"].why:
                # Each is good alone: the one that gains least goes.
                least = min((n for n in alone if n != "all"), key=lambda n: alone[n].whole.ratio)
                worse = {least: f"together with the others: {alone['all'].why}"}
            if not worse:
                outcome.whole = alone["all"].whole
                return
            outcome.dropped.update(worse)
            winners = outcome.winners
            binaries = {"all": built(winners)} if winners else {}
            if len(winners) > 1:
                binaries |= {names[w.root.key]: built([w]) for w in winners}
    except RunnerDied as died:
        raise CheckFailed(f"the tuned program failed ({died})") from died
    finally:
        runner.close()


def _element(array: Array) -> str:
    from mlirules.drivers.iree import runtime

    return next(name for name, dtype in runtime.DTYPES.items() if dtype == array.dtype)


@dataclass(frozen=True)
class _Verdict:
    whole: Whole
    why: str
    unsure: float


def _verdict(answer: dict[str, Any], name: str) -> _Verdict:
    default, own = answer["samples"]["default"], answer["samples"][name]
    ratios = [d / o for d, o in zip(default, own, strict=True)]
    ratio = statistics.median(ratios)
    whole = Whole(
        1e3 * statistics.median(default),
        1e3 * statistics.median(own),
        ratio,
        measure.spread_of(ratios),
        answer["differences"][name],
    )
    why = ""
    if whole.difference:
        why = f"wrong numbers in the whole program: {whole.difference}"
    elif ratio < 1 - max(0.01, NOISE_FACTOR * measure.uncertainty_of(ratios)):
        why = f"the whole program takes {1 / ratio:.3f} times as long"
    return _Verdict(whole, why, measure.uncertainty_of(ratios))


def _write(program: str, options: Options, outcome: Outcome, path: str) -> None:
    """The winners' rules, each proved to take effect in the compiled program."""
    for tuned in outcome.tuned:
        winner, name = tuned.winner, tuned.task.dispatch.name
        if winner is None or name in outcome.dropped:
            continue
        try:
            made = results.rules_of([winner], options.target)
            job = compiler.Job(options.target, tuple(options.flags), path=path)
            report = configs.configure(program, job, [r for r, _ in made])
        except (MlirulesError, CheckFailed) as error:
            outcome.dropped[name] = f"its rule does not hold: {error}"
            continue
        if not report.hits:
            outcome.dropped[name] = "its rule hits nothing in the compiled program"
            continue
        outcome.rules += made


def compile_only(
    program: str,
    options: Options,
    *,
    path: str = "<string>",
    spaces: Sequence[Space] | None = None,
    watch: Watch = _quiet,
) -> dict[str, list[tuple[Candidate, Result]]]:
    """Enumerate and compile candidates without running any: for targets that are not here.

    Results by dispatch, ``ok`` or ``fails``.
    """
    known = list(spaces) if spaces is not None else space.load_spaces()
    out: dict[str, list[tuple[Candidate, Result]]] = {}
    for dispatch in dispatches.cut(program, options.target, flags=options.flags, path=path).found:
        candidates = candidates_of(dispatch, options, known)
        if not candidates:
            continue
        task = measure.prepare(dispatch, options.target, flags=options.flags)
        line = ordering.order(options.order, candidates, task.root, seed=options.seed)
        rows = out.setdefault(dispatch.name, [])
        for number, candidate in enumerate(line.take(options.budget), 1):
            made = measure.compiled(task, candidate)
            result = made.failed or Result(
                candidate.key, "ok", binary=measure.digest_of(made.binary), compile_s=made.seconds
            )
            rows.append((candidate, result))
            watch(
                Event(
                    "result",
                    dispatch.name,
                    None,
                    Measured(candidate, result),
                    number,
                    min(len(candidates), options.budget),
                )
            )
    return out
