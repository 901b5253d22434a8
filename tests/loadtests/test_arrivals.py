# SPDX-License-Identifier: Apache-2.0
"""Schedules: the rate that was asked for, the same from the same seed, ascending."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loadlib.arrivals import Arrivals, OpenLoop, TraceReplay, draw_schedule, parse_arrivals
from loadlib.clock import US
from loadlib.refusal import RunRefusedError
from loadlib.schema import SCHEMA, validate_object

RATE, SECONDS = 50.0, 200.0


def parsed(content: dict[str, Any], seconds: float | None) -> Arrivals:
    """Some arrivals, checked and with their defaults."""
    plan = {"schema": SCHEMA, "endpoint": {"url": "localhost:1"}, "model": "m", "classes": [{}]}
    fields = validate_object("LoadPlan", plan | {"arrivals": content}, "plan")
    return parse_arrivals(fields["arrivals"], seconds)


def made(content: dict[str, Any], seconds: float | None = SECONDS, seed: int = 1) -> list[int]:
    """The schedule of some arrivals."""
    arrivals = parsed(content, seconds)
    assert isinstance(arrivals, OpenLoop | TraceReplay)
    return list(draw_schedule(arrivals, seconds, None, seed))


def gaps(due: list[int]) -> list[int]:
    """Between neighbours."""
    return [later - earlier for earlier, later in pairwise(due)]


PROCESSES: list[tuple[dict[str, Any], float]] = [
    ({"process": "constant", "rate": RATE}, RATE * SECONDS),
    ({"process": "poisson", "rate": RATE}, RATE * SECONDS),
    ({"process": "gamma", "rate": RATE, "cv": 2.0}, RATE * SECONDS),
    ({"process": "ramp", "from": 0, "to": 100}, 50 * SECONDS),
    ({"process": "ramp", "from": 80, "to": 20}, 50 * SECONDS),
    (
        {"process": "spike", "rate": 20, "peak": 400, "at_seconds": 60, "for_seconds": 10},
        20 * 190 + 400 * 10,
    ),
    (
        {"process": "steps", "steps": [{"rate": 10, "seconds": 50}, {"rate": 90, "seconds": 100}]},
        9500,
    ),
]
each_process = pytest.mark.parametrize(
    ("content", "expected"), PROCESSES, ids=[one["process"] for one, _ in PROCESSES]
)


@each_process
def test_rate(content: dict[str, Any], expected: float) -> None:
    """As many arrivals as the rate says, within five standard deviations of that process."""
    due = made(content)
    cv = {"constant": 0.01, "gamma": 2.0}.get(content["process"], 1.0)
    assert abs(len(due) - expected) <= 1 + 5 * cv * math.sqrt(expected)


@each_process
def test_ascending_within_the_duration(content: dict[str, Any], expected: float) -> None:
    """Never backwards, never past the end."""
    due = made(content)
    assert due == sorted(due)
    assert due[0] >= 0
    assert due[-1] < SECONDS * US


@each_process
def test_seeded(content: dict[str, Any], expected: float) -> None:
    """The same seed gives the same schedule; another one another, unless nothing is drawn."""
    assert made(content) == made(content)
    assert (made(content) == made(content, seed=2)) == (content["process"] == "constant")


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 2.5)])
def test_burstiness(process: str, cv: float) -> None:
    """Standard deviation over mean of the gaps."""
    content = {"process": process, "rate": RATE} | ({"cv": cv} if process == "gamma" else {})
    found = gaps(made(content, seconds=2000.0))
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(cv, rel=0.05)


def test_constant_is_even() -> None:
    """The first at once, then one every 20 ms, to the microsecond."""
    due = made({"process": "constant", "rate": 50}, seconds=1.0)
    assert due == [20_000 * number for number in range(50)]


def test_a_ramp_rises() -> None:
    """Rate t at time t: a quarter of the arrivals in the first half."""
    due = made({"process": "ramp", "from": 0, "to": 200})
    early = sum(at < SECONDS / 2 * US for at in due)
    assert early / len(due) == pytest.approx(0.25, abs=0.02)


def test_a_step_of_rate_0_is_a_pause() -> None:
    """Nothing in it, everything after it; the last step ends the schedule."""
    steps = [{"rate": r, "seconds": 1} for r in (100, 0, 100)]
    due = made({"process": "steps", "steps": steps})
    assert [at for at in due if US <= at < 2 * US] == []
    assert due[-1] >= 2 * US
    assert due[-1] < 3 * US


@given(
    rate=st.floats(0.5, 500),
    count=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    cv=st.floats(0.1, 4),
)
def test_as_many_as_counted(rate: float, count: int, seed: int, cv: float) -> None:
    """`count` is exact, whatever is drawn."""
    arrivals = parsed({"process": "gamma", "rate": rate, "cv": cv}, None)
    assert isinstance(arrivals, OpenLoop)
    due = list(draw_schedule(arrivals, None, count, seed))
    assert len(due) == count
    assert due == sorted(due)


def test_a_trace_at_another_speed(tmp_path: Path) -> None:
    """Twice the speed, half the time."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0.5}\n\n{"at": 0.5}\n{"at": 4}\n', encoding="utf-8")
    content = {"process": "trace", "file": str(path)}
    assert made(content, seconds=None) == [500_000, 500_000, 4_000_000]
    assert made(content | {"speed": 2.0}, seconds=None) == [250_000, 250_000, 2_000_000]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('{"at": 1}\n{"at": 0.5}\n', ":2: a negative gap: at 0.5 after 1"),
        ('{"at": -1}\n', ":1.at: -1 is out of range"),
        ('{"when": 1}\n', ":1.when: unknown field"),
        ("at 1\n", ":1: not JSON"),
        ("\n", ":1: no arrivals"),
    ],
)
def test_bad_traces(lines: str, told: str, tmp_path: Path) -> None:
    """File and line."""
    path = tmp_path / "trace.jsonl"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(RunRefusedError) as caught:
        made({"process": "trace", "file": str(path)}, seconds=None)
    assert f"{path}{told}" in caught.value.problem
