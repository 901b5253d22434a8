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

from loadlib.distributions import Distribution, parse
from loadlib.fields import Fields, refused
from loadlib.trace import TraceEntry, read_trace

US = 1_000_000
PROCESSES = ("closed", "constant", "poisson", "gamma", "ramp", "spike", "steps", "trace")
_FIELDS = {
    "closed": ("concurrency", "think_seconds"),
    "constant": ("rate",),
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "ramp": ("from", "to"),
    "spike": ("rate", "peak", "at_seconds", "for_seconds"),
    "steps": ("steps",),
    "trace": ("file", "speed"),
}


class Piece(NamedTuple):
    """A stretch of time over which the rate goes evenly from `first` to `last` (per second)."""

    seconds: float
    first: float
    last: float


@dataclass(frozen=True)
class Closed:
    """Users that send their next request when the last is answered and they have thought."""

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


def parse_arrivals(content: Any, where: str, seconds: float | None) -> Arrivals:
    """The arrivals of a plan of that many seconds (None: it ends by count). Refusal if wrong."""
    known = ("process", *sorted({name for names in _FIELDS.values() for name in names}))
    process = Fields(content, where, known).text("process", choices=PROCESSES)
    fields = Fields(content, where, ("process", *_FIELDS[process]))
    if process == "closed":
        think = parse(fields.value("think_seconds", 0), fields.at("think_seconds"))
        return Closed(fields.whole("concurrency", least=1), think)
    if process == "trace":
        speed = fields.number("speed", 1.0, above=0)
        return Trace(read_trace(fields.text("file"), fields.at("file")), speed)
    cv = 0.0 if process == "constant" else 1.0
    if process == "gamma":
        cv = fields.number("cv", above=0)
    return Open(tuple(_pieces(process, fields, seconds)), cv)


def _pieces(process: str, fields: Fields, seconds: float | None) -> Iterator[Piece]:
    if process == "ramp":
        yield _ramp(fields, seconds)
    elif process == "steps":
        yield from _steps(fields)
    elif process == "spike":
        rate = fields.number("rate", above=0)
        yield Piece(fields.number("at_seconds"), rate, rate)
        peak = fields.number("peak", above=0)
        yield Piece(fields.number("for_seconds", above=0), peak, peak)
        yield Piece(math.inf, rate, rate)
    else:
        rate = fields.number("rate", above=0)
        yield Piece(math.inf, rate, rate)


def _ramp(fields: Fields, seconds: float | None) -> Piece:
    if seconds is None:
        raise refused(
            fields.where, "a ramp goes over the duration, and there is none", "set duration_seconds"
        )
    first, last = fields.number("from"), fields.number("to")
    if not first + last:
        raise refused(fields.where, "from and to are both 0", "let one of them be above 0")
    return Piece(seconds, first, last)


def _steps(fields: Fields) -> Iterator[Piece]:
    for number, step in enumerate(fields.items("steps")):
        one = Fields(step, f"{fields.at('steps')}[{number}]", ("rate", "seconds"))
        rate = one.number("rate")
        yield Piece(one.number("seconds", above=0), rate, rate)


def has_end(arrivals: Arrivals) -> bool:
    """Whether they end by themselves."""
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
