# SPDX-License-Identifier: Apache-2.0
"""When requests are due: a whole schedule, made before the first is sent.

Open loop: unit gaps (constant, exponential, gamma) are stretched by the rate of the moment, so a
ramp of Poisson arrivals is a Poisson process of that rate. Closed loop has no schedule: `Closed`.
Equal arrivals and seed, equal schedule, in every worker.
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
from loadlib.distributions import Distribution, parse
from loadlib.schema import refused
from loadlib.trace import TraceEntry, read_trace


class Piece(NamedTuple):
    """A stretch of time over which the rate goes evenly from `first` to `last` (per second)."""

    seconds: float
    first: float
    last: float


@dataclass(frozen=True)
class Closed:
    """Users; each waits for its answer, thinks, and sends the next request."""

    concurrency: int
    think_seconds: Distribution

    def share(self, worker: int, workers: int) -> int:
        """How many users one of the workers plays."""
        return self.concurrency // workers + (worker < self.concurrency % workers)


@dataclass(frozen=True)
class Open:
    """Arrivals of a rate over time. `cv`: of the gaps; 0 is even, 1 is Poisson, more is bursts."""

    pieces: tuple[Piece, ...]
    cv: float


@dataclass(frozen=True)
class Trace:
    """Arrivals as they were recorded; `speed` 2 replays them in half the time."""

    entries: tuple[TraceEntry, ...]
    speed: float


Arrivals = Closed | Open | Trace


def parse_arrivals(fields: dict[str, Any], seconds: float | None) -> Arrivals:
    """The arrivals of a plan of that many seconds (None: it ends by count). Refusal if wrong."""
    process = fields["process"]
    if process == "closed":
        think = parse(fields["think_seconds"], "arrivals.think_seconds")
        return Closed(fields["concurrency"], think)
    if process == "trace":
        return Trace(read_trace(fields["file"], "arrivals.file"), fields["speed"])
    cv = {"constant": 0.0, "gamma": fields.get("cv", 1.0)}.get(process, 1.0)
    pieces = tuple(_pieces(process, fields, seconds))
    if not any(piece.first + piece.last for piece in pieces):
        raise refused("arrivals", "every rate is 0", "let one of them be above 0")
    if seconds is None and process == "ramp":
        raise refused("arrivals", "a ramp goes over the duration", "set duration_seconds")
    return Open(pieces, cv)


def _pieces(process: str, fields: dict[str, Any], seconds: float | None) -> Iterator[Piece]:
    if process == "ramp":
        yield Piece(seconds or math.inf, fields["from"], fields["to"])
    elif process == "steps":
        for step in fields["steps"]:
            yield Piece(step["seconds"], step["rate"], step["rate"])
    else:
        rate = fields["rate"]
        if process == "spike":
            peak = fields["peak"]
            yield Piece(fields["at_seconds"], rate, rate)
            yield Piece(fields["for_seconds"], peak, peak)
        yield Piece(math.inf, rate, rate)


def has_end(arrivals: Arrivals) -> bool:
    """Whether they end on their own."""
    if isinstance(arrivals, Open):
        return arrivals.pieces[-1].seconds < math.inf
    return isinstance(arrivals, Trace)


def schedule(
    arrivals: Open | Trace, seconds: float | None, count: int | None, seed: int
) -> array[int]:
    """Microseconds since the start at which each request is due, ascending.

    Ends before `seconds`, after `count`, or with the last step or line of a trace.
    """
    end = math.inf if seconds is None else seconds * US
    times = takewhile(lambda at: at < end, _times(arrivals, seed))
    return array("q", islice(times, count))


def _times(arrivals: Open | Trace, seed: int) -> Iterator[int]:
    if isinstance(arrivals, Trace):
        return (round(entry.at / arrivals.speed * US) for entry in arrivals.entries)
    return (int(at * US) for at in _stretched(arrivals.pieces, _unit_times(arrivals.cv, seed)))


def _unit_times(cv: float, seed: int) -> Iterator[float]:
    """Times of arrivals at one per second on average."""
    if not cv:
        yield from map(float, numbers())
    random, at = Random(f"{seed}:arrivals"), 0.0
    shape = 1 / cv**2
    while True:
        # Exponential is the gamma distribution of shape 1.
        at += random.expovariate(1) if cv == 1 else random.gammavariate(shape, 1 / shape)
        yield at


def _stretched(pieces: tuple[Piece, ...], unit_times: Iterator[float]) -> Iterator[float]:
    """The time at which as many arrivals are expected as each unit time says."""
    remaining = iter(pieces)
    piece = next(remaining)
    began, expected_before = 0.0, 0.0
    for expected in unit_times:
        while expected - expected_before >= _expected(piece):
            expected_before += _expected(piece)
            began += piece.seconds
            following = next(remaining, None)
            if following is None:
                return
            piece = following
        yield began + _reached(piece, expected - expected_before)


def _expected(piece: Piece) -> float:
    """Arrivals within a piece."""
    return piece.seconds * (piece.first + piece.last) / 2


def _reached(piece: Piece, arrivals: float) -> float:
    """When so many have arrived: solves first·t + slope·t²/2 = arrivals."""
    if piece.first == piece.last:
        return arrivals / piece.first
    slope = (piece.last - piece.first) / piece.seconds
    root = math.sqrt(max(0.0, piece.first**2 + 2 * slope * arrivals))
    return 2 * arrivals / (piece.first + root) if arrivals else 0.0
