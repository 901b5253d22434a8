# SPDX-License-Identifier: Apache-2.0
"""The search for the highest rate: on servers whose capacity is known, with noise and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.loadtest.analysis.capacity import Capacity, CapacityTrial, find_capacity
from tritonctl.loadtest.analysis.percentiles import new_histogram
from tritonctl.loadtest.analysis.summary import MET, MISSED, UNDECIDED
from tritonctl.loadtest.run.capacity import classify_overload, clear_miss_condition
from tritonctl.loadtest.run.live import LiveFigures, LiveMerger
from tritonctl.project.base import Slo


def _server(capacity: float) -> Callable[[float], CapacityTrial]:
    return lambda rate: CapacityTrial(rate, MET if rate <= capacity else MISSED)


@given(
    capacity=st.floats(1.0, 5000),
    lowest=st.sampled_from([0.5, 1.0]),
    precision=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_finds_it(capacity: float, lowest: float, precision: float) -> None:
    """Within the precision, from both sides, in few trials."""
    found = find_capacity(_server(capacity), lowest=lowest, highest=10_000, precision=precision)
    assert found.end_reason == "found"
    assert found.rate is not None
    assert found.missed_at is not None
    assert found.rate <= capacity < found.missed_at <= found.rate * (1 + precision) + 1e-9
    assert len(found.trials) <= 26
    assert found.best is not None
    assert found.best.rate == found.rate


def test_the_ends_of_the_range() -> None:
    """Not even the lowest; even the highest."""
    assert find_capacity(_server(0.5), lowest=1, highest=8) == Capacity(
        None, 1, "lowest", (CapacityTrial(1, MISSED), CapacityTrial(1, MISSED))
    )
    found = find_capacity(_server(100), lowest=1, highest=7)
    assert (found.rate, found.missed_at, found.end_reason) == (7, None, "highest")
    assert [trial.rate for trial in found.trials] == [1, 2, 4, 7]


def test_budget() -> None:
    """No trial is begun that would not end in time; what was found stays."""
    now = iter(range(0, 10_000, 5))
    found = find_capacity(
        _server(1000), lowest=1, highest=10_000, budget_seconds=40, clock=lambda: next(now)
    )
    assert found.end_reason == "budget"
    assert found.rate == found.trials[-1].rate
    assert 2 <= len(found.trials) <= 8


@pytest.mark.parametrize(
    ("seconds", "budget", "trials"),
    [
        ([10] * 9, 39, 3),  # the fourth would end at 40
        ([10] * 9, 40, 4),
        ([10] * 9, 5, 1),  # one is always made
        ([10, 2, 2, 2, 2], 21, 2),  # the third could take 10 again
        ([2, 10, 2, 2, 2], 25, 4),
    ],
)
def test_no_trial_begins_that_could_end_too_late(
    seconds: list[int], budget: int, trials: int
) -> None:
    """It may take as long as the longest before it."""
    now = [100.0]

    def measure(rate: float) -> CapacityTrial:
        now[0] += seconds[len(made)]
        made.append(rate)
        return CapacityTrial(rate, MET)

    made: list[float] = []
    found = find_capacity(
        measure, lowest=1, highest=10_000, budget_seconds=budget, clock=lambda: now[0]
    )
    assert (found.end_reason, len(made)) == ("budget", trials)


@pytest.mark.parametrize(
    ("verdict", "likely", "holds"),
    [
        (MET, False, True),
        (MET, True, True),
        (UNDECIDED, True, True),
        (UNDECIDED, False, False),
        (MISSED, False, False),
        (MISSED, True, False),
    ],
)
def test_what_holds(verdict: str, likely: bool, holds: bool) -> None:
    """What looks likely counts only where nothing is decided."""
    assert CapacityTrial(1, verdict, likely=likely).holds is holds


def test_the_best_trial_is_the_last_at_that_rate() -> None:
    """A rate that was asked twice: the later figures."""
    trials = (
        CapacityTrial(2, MET, note="first"),
        CapacityTrial(4, MISSED),
        CapacityTrial(2, MET, note="second"),
    )
    best = Capacity(2, 4, "found", trials).best
    assert best is not None
    assert best.note == "second"
    assert Capacity(None, 1, "lowest", trials).best is None


def test_interrupted() -> None:
    """What was found until then is the answer so far."""
    trials: Iterator[CapacityTrial | None] = iter(
        [CapacityTrial(1, MET), CapacityTrial(2, MET), None]
    )
    found = find_capacity(lambda _: next(trials), lowest=1, highest=100)
    assert (found.rate, found.end_reason, len(found.trials)) == (2, "interrupted", 2)


@pytest.mark.parametrize("hiccup", range(14))
def test_a_hiccup_does_not_bound_it(hiccup: int) -> None:
    """One trial of a search misses for no reason of the server's; as good as found without."""
    trials = list[CapacityTrial]()

    def measure(rate: float) -> CapacityTrial:
        trials.append(CapacityTrial(rate, MET if rate <= 100 and len(trials) != hiccup else MISSED))
        return trials[-1]

    found = find_capacity(measure, lowest=1, highest=1000)
    assert found.end_reason == "found"
    assert found.rate is not None
    assert 90 < found.rate <= 100
    assert len(trials) <= 25


def test_no_time_to_ask_twice() -> None:
    """The bracket is narrow enough: that is found, and not a budget too small."""
    now = iter(range(0, 10_000, 5))
    found = find_capacity(
        _server(3), lowest=2, highest=100, precision=1, budget_seconds=29, clock=lambda: next(now)
    )
    assert (found.rate, found.missed_at, found.end_reason, len(found.trials)) == (2, 4, "found", 2)


def test_undecided_goes_by_its_point_estimates() -> None:
    """Short trials decide little; the search must go on somewhere."""
    found = find_capacity(
        lambda rate: CapacityTrial(rate, UNDECIDED, likely=rate < 2),
        lowest=1,
        highest=100,
        precision=1,
    )
    assert (found.rate, found.missed_at) == (1, 2)


def test_noise_does_not_lead_far_astray() -> None:
    """With a tenth of the verdicts near the limit wrong, still within a fifth of the truth."""
    random = Random(7)  # noqa: S311 - a seeded experiment

    def measure(rate: float) -> CapacityTrial:
        near = abs(rate - 100) < 15
        holds = (rate <= 100) != (near and random.random() < 0.1)
        return CapacityTrial(rate, MET if holds else MISSED)

    found = [find_capacity(measure, lowest=1, highest=1000).rate or 0 for _ in range(50)]
    assert all(80 <= rate <= 120 for rate in found)


def _figures(**changes: object) -> LiveFigures:
    histogram = new_histogram()
    for _ in range(850):
        histogram.record_value(100_000)
    for _ in range(150):
        histogram.record_value(900_000)
    merger = LiveMerger(30)
    merger.add({"t": 10.0, "worker": 0, "done": 1000, "failed": 0, "ttft": histogram.encode()})
    figures = merger.figures()
    assert figures is not None
    return LiveFigures(**{**figures.__dict__, **changes})


@pytest.mark.parametrize(
    ("slo", "changes", "told"),
    [
        (Slo(ttft_p99_ms=500), {}, "ttft of 15% was over 500 ms"),
        (Slo(ttft_p99_ms=1000), {}, None),
        (Slo(e2e_p99_ms=1), {}, None),
        (Slo(ttft_p99_ms=500), {"done": 99}, None),
        (Slo(ttft_p99_ms=500), {"seconds": 3.0}, None),
        (Slo(error_rate=0.01), {"failed": 200}, "20% of the requests failed"),
        (Slo(error_rate=0.01), {"failed": 50}, None),
        (Slo(error_rate=0.5), {"failed": 200}, None),
        (Slo(ttft_p99_ms=1000), {"failed": 900}, None),
    ],
)
def test_giving_up(slo: Slo, changes: dict[str, object], told: str | None) -> None:
    """Only when there is no doubt: enough answers, ten times as many over the limit as may be."""
    assert clear_miss_condition(slo)(_figures(**changes)) == told


@pytest.mark.parametrize(
    ("verdict", "goodput", "failed", "behaviour", "words"),
    [
        (MET, 120, 0.0, "keeps", "meets the SLO at 120/s"),
        (MISSED, 98, 0.2, "sheds", "98% of that at 100/s; 20% rejected"),
        (MISSED, 70, 0.0, "degrades", "70% of that"),
        (MISSED, 10, 0.0, "collapses", "no request was rejected: set serving.queue"),
        (MISSED, 10, 0.2, "collapses", "10 requests/s within the SLO"),
    ],
)
def test_overload(verdict: str, goodput: float, failed: float, behaviour: str, words: str) -> None:
    """By how much of the good answers is left."""
    best = CapacityTrial(100, MET, figures={"goodput_rps": 100.0})
    figures = {"goodput_rps": float(goodput), "failed_share": failed}
    found = classify_overload(best, CapacityTrial(120, verdict, figures=figures))
    assert found.behaviour == behaviour
    assert words in found.reason
