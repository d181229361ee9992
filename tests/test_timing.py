"""Paired timing: ratios, spread, drift, interrupts."""

import time

import pytest

from mlirules.drivers.measure import timing


def series(name: str, *samples: float) -> timing.Timing:
    return timing.Timing(name, samples)


def test_ratio_is_taken_within_each_round() -> None:
    # The machine slows down threefold half way: the ratio of each round stays 2.
    found = timing.Comparison(
        "slow", {"slow": series("slow", 2, 2, 6, 6), "fast": series("fast", 1, 1, 3, 3)}
    )
    ratio = found.ratio("fast")
    assert (ratio.median, ratio.low, ratio.high) == (2, 2, 2)
    assert found.drift == 3
    assert ratio.faster(0.9)
    assert not ratio.faster(1.1)
    assert found.ratio("slow", over="fast").slower(0.9)


def test_gain_within_the_noise_is_none() -> None:
    found = timing.Comparison(
        "a", {"a": series("a", 1, 1, 1, 1), "b": series("b", 0.8, 0.8, 1.2, 1.2)}
    )
    assert not found.ratio("b").faster()
    assert not found.ratio("b").slower()


def test_contenders_take_turns_and_every_other_round_runs_backwards() -> None:
    called: list[str] = []

    def work(name: str) -> None:
        called.append(name)
        time.sleep(timing.SHORTEST_SAMPLE_S)

    found = timing.paired({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=4, warmup=1)
    # Each sample is a call that is not timed and one that is.
    assert "".join(called) == "aabb" + "aabbbbaaaabbbbaa"
    assert len(found["a"].samples) == 4
    assert found["a"].median >= timing.SHORTEST_SAMPLE_S


def test_short_work_is_repeated_within_a_sample() -> None:
    found = timing.paired({"nothing": lambda: None}, rounds=3)
    assert found["nothing"].calls > 100
    assert found["nothing"].median < 1e-5


def test_limit_in_seconds_leaves_three_rounds() -> None:
    found = timing.paired({"a": lambda: time.sleep(0.003)}, rounds=100, seconds=0)
    assert len(found["a"].samples) == 3


def test_interrupt_keeps_whole_rounds() -> None:
    left = [0]

    def a() -> None:
        time.sleep(timing.SHORTEST_SAMPLE_S)

    def b() -> None:
        left[0] += 1
        if left[0] == 8:
            raise KeyboardInterrupt
        time.sleep(timing.SHORTEST_SAMPLE_S)

    found = timing.paired({"a": a, "b": b}, rounds=50)
    assert found.interrupted
    assert len(found["a"].samples) == len(found["b"].samples) == 2


def test_interrupt_before_the_first_round_is_raised() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timing.paired({"a": stop})


def test_baseline_must_be_a_contender() -> None:
    with pytest.raises(ValueError, match="no contender"):
        timing.paired({"a": lambda: None}, baseline="b")
