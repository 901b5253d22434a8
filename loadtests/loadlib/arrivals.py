# SPDX-License-Identifier: Apache-2.0
"""Arrival times: a complete schedule, drawn before the first request is sent.

Open loop: the current rate stretches unit gaps (constant, exponential, gamma), so a ramp of Poisson
arrivals is a Poisson process of that rate. A closed loop (`ClosedLoop`) has no schedule. Equal
arrivals and seed give every worker the same schedule.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice, takewhile
from random import Random
from typing import Any, NamedTuple

from loadlib.clock import US
from loadlib.distributions import PlanDistribution, parse_distribution
from loadlib.plan_types import TraceArrival
from loadlib.schema import field_error
from loadlib.trace import read_trace


class RatePiece(NamedTuple):
    """A period in which the rate (per second) changes linearly from `first` to `last`."""

    seconds: float
    first: float
    last: float


@dataclass(frozen=True)
class ClosedLoop:
    """Users; each waits for its response, thinks, and sends the next request."""

    concurrency: int
    think_seconds: PlanDistribution

    def worker_users(self, worker: int, workers: int) -> int:
        """Return the number of users that this worker simulates."""
        return self.concurrency // workers + (worker < self.concurrency % workers)


@dataclass(frozen=True)
class OpenLoop:
    """Arrivals at a rate that may change over time."""

    pieces: tuple[RatePiece, ...]
    cv: float  # coefficient of variation of the gaps: 0 even, 1 Poisson, above 1 bursts


@dataclass(frozen=True)
class TraceReplay:
    """Recorded arrivals."""

    entries: tuple[TraceArrival, ...]
    speed: float  # 2 replays them in half the time


Arrivals = ClosedLoop | OpenLoop | TraceReplay


def parse_arrivals(fields: dict[str, Any], seconds: float | None) -> Arrivals:
    """Parse the arrivals of a plan; `seconds` is None if it ends by count.

    Raises RunRefusedError for invalid arrivals.
    """
    process = fields["process"]
    if process == "closed":
        think = parse_distribution(fields["think_seconds"], "arrivals.think_seconds")
        return ClosedLoop(fields["concurrency"], think)
    if process == "trace":
        return TraceReplay(read_trace(fields["file"], "arrivals.file"), fields["speed"])
    cv = {"constant": 0.0, "gamma": fields.get("cv", 1.0)}.get(process, 1.0)
    pieces = tuple(_pieces(process, fields, seconds))
    if not any(piece.first + piece.last for piece in pieces):
        raise field_error("arrivals", "every rate is 0", "set a rate above 0")
    if seconds is None and process == "ramp":
        raise field_error("arrivals", "a ramp needs a duration", "set duration_seconds")
    return OpenLoop(pieces, cv)


def _pieces(process: str, fields: dict[str, Any], seconds: float | None) -> Iterator[RatePiece]:
    if process == "ramp":
        yield RatePiece(seconds or math.inf, fields["from"], fields["to"])
    elif process == "steps":
        for step in fields["steps"]:
            yield RatePiece(step["seconds"], step["rate"], step["rate"])
    else:
        rate = fields["rate"]
        if process == "spike":
            peak = fields["peak"]
            yield RatePiece(fields["at_seconds"], rate, rate)
            yield RatePiece(fields["for_seconds"], peak, peak)
        yield RatePiece(math.inf, rate, rate)


def has_end(arrivals: Arrivals) -> bool:
    """Whether the arrivals end without a duration or count."""
    if isinstance(arrivals, OpenLoop):
        return arrivals.pieces[-1].seconds < math.inf
    return isinstance(arrivals, TraceReplay)


def draw_schedule(
    arrivals: OpenLoop | TraceReplay, seconds: float | None, count: int | None, seed: int
) -> array[int]:
    """Draw the microseconds since the start at which each request is due, ascending.

    Ends before `seconds`, after `count`, or with the last step or line of a trace.
    """
    end = math.inf if seconds is None else seconds * US
    times = takewhile(lambda at: at < end, _arrival_times(arrivals, seed))
    return array("q", islice(times, count))


def _arrival_times(arrivals: OpenLoop | TraceReplay, seed: int) -> Iterator[int]:
    if isinstance(arrivals, TraceReplay):
        return (round(entry.at / arrivals.speed * US) for entry in arrivals.entries)
    return (int(at * US) for at in _stretch_times(arrivals.pieces, _unit_times(arrivals.cv, seed)))


def _unit_times(cv: float, seed: int) -> Iterator[float]:
    """Yield arrival times at a mean rate of one per second."""
    if not cv:
        yield from map(float, numbers())
    random, at = Random(f"{seed}:arrivals"), 0.0
    shape = 1 / cv**2
    while True:
        # Exponential is the gamma distribution of shape 1.
        at += random.expovariate(1) if cv == 1 else random.gammavariate(shape, 1 / shape)
        yield at


def _stretch_times(pieces: tuple[RatePiece, ...], unit_times: Iterator[float]) -> Iterator[float]:
    """Map each unit time to the time with that expected number of arrivals."""
    remaining = iter(pieces)
    piece = next(remaining)
    piece_start, expected_before = 0.0, 0.0
    for expected in unit_times:
        while expected - expected_before >= _expected_arrivals(piece):
            expected_before += _expected_arrivals(piece)
            piece_start += piece.seconds
            following = next(remaining, None)
            if following is None:
                return
            piece = following
        yield piece_start + _time_of_arrival(piece, expected - expected_before)


def _expected_arrivals(piece: RatePiece) -> float:
    """Return the expected arrivals within a piece."""
    return piece.seconds * (piece.first + piece.last) / 2


def _time_of_arrival(piece: RatePiece, arrivals: float) -> float:
    """Return the time of an arrival: solve first·t + slope·t²/2 = arrivals."""
    if piece.first == piece.last:
        return arrivals / piece.first
    slope = (piece.last - piece.first) / piece.seconds
    root = math.sqrt(max(0.0, piece.first**2 + 2 * slope * arrivals))
    return 2 * arrivals / (piece.first + root) if arrivals else 0.0
