# SPDX-License-Identifier: Apache-2.0
"""Texts with a time to keep: who can still be answered within it, and what a run may hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorlib.objective import Objective

RUN = 10.0


@dataclass(eq=False)
class Text:
    """One that waits."""

    length: int
    arrived: float = 0.0


def objective(seconds: float = 1.0) -> Objective:
    """A token takes a millisecond, a run ten more."""
    made = Objective(seconds, RUN)
    made.took(100, 0.110)
    made.took(20, 0.030)
    return made


def test_what_runs_take_is_learnt() -> None:
    """In proportion to work; the last ones say most; before the first one nothing is known."""
    made = objective()
    assert made.takes(490) == pytest.approx(0.5)
    for _ in range(200):
        made.took(100, 0.220)
    assert made.takes(490) == pytest.approx(1.0, rel=0.01)
    assert Objective(1.0, RUN).takes(490) == 0.0


def test_who_cannot_be_in_time_waits_for_others() -> None:
    """A tenth of the time is for what is not the engine."""
    now = 0.85
    late, short, young = Text(100, 0.0), Text(20, 0.0), Text(400, 0.5)
    assert objective().in_time([late, short, young], now) == [short, young]


def test_if_all_are_late_all_count() -> None:
    """Order and runs are then as without an objective."""
    texts = [Text(100, 0.0), Text(500, 0.0)]
    assert objective().in_time(texts, 0.95) == texts
    assert objective().bounded(texts, texts[1], 0.95) == [texts[1], texts[0]]


def test_nobody_waits_for_ever() -> None:
    """After four times the time it is the late one's turn, whoever is in time."""
    late, young = Text(100, 0.0), Text(20, 3.95)
    assert objective().in_time([late, young], 3.99) == [young]
    assert objective().in_time([late, young], 4.01) == [late]


def test_a_run_makes_nobody_late() -> None:
    """The youngest wait for the next one: the three would take 0.61 seconds, two 0.41."""
    old, middle, young = Text(200, 0.0), Text(200, 0.1), Text(200, 0.2)
    run = [young, old, middle]
    assert objective().bounded(run, old, 0.2) == [old, middle, young]
    assert objective().bounded(run, old, 0.4) == [old, middle]
    assert objective().bounded(run, old, 0.6) == [old]
    assert objective().bounded(run, young, 0.6) == [young]


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 2)), min_size=1, max_size=12),
    st.data(),
    st.floats(2, 3),
)
def test_a_bounded_run(rows: list[tuple[int, float]], data: st.DataObject, now: float) -> None:
    """It has its first row, only rows that it had, and makes none late that alone would not be."""
    made, run = objective(), [Text(*row) for row in rows]
    first = data.draw(st.sampled_from(run))
    kept = made.bounded(run, first, now)
    assert kept[0] is first
    assert set(kept) <= set(run)
    takes = made.takes(len(kept) * max(row.length for row in kept))
    for row in kept if len(kept) > 1 else []:
        alone = now + made.takes(row.length) - row.arrived
        assert alone > 0.9 or now + takes - row.arrived <= 0.9
