# SPDX-License-Identifier: Apache-2.0
"""One question that was asked of stable twice and of the candidate once, in numbers.

Nothing here quotes a prompt or an answer, so it may be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.rollout.differences import (
    Answer,
    Labels,
    Order,
    Refused,
    Rows,
    Text,
    Vector,
    cosine,
    disorder,
    distance,
    distances,
    first_divergence,
    log_prob_difference,
)

# Of stable with itself, and with the candidate; None: there is nothing to measure.
Pair = tuple[float | None, float | None]
FIRST, LOG_PROBS, COSINE, TAU, SCORE = "first_token", "log_probs", "cosine", "tau", "score"
_SEEN = 0.1  # a distance of vectors that a reader would see: a cosine of 0.999


@dataclass(frozen=True)
class Times:
    """Milliseconds of stable's first answer, its second, the candidate's. None: it has no tokens.

    first: until the first token; whole: until the end.
    """

    first: tuple[float | None, float | None, float | None]
    whole: tuple[float, float, float]


@dataclass(frozen=True)
class Timed:
    """An answer; the milliseconds until its first token came, if it has any, and its end."""

    answer: Answer
    first_ms: float | None
    whole_ms: float


def times_of(first: Timed, second: Timed, candidate: Timed) -> Times:
    """Of stable's two answers and the candidate's."""
    return Times(
        (_rounded(first.first_ms), _rounded(second.first_ms), _rounded(candidate.first_ms)),
        (round(first.whole_ms, 3), round(second.whole_ms, 3), round(candidate.whole_ms, 3)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@dataclass(frozen=True)
class Measured:
    """noise: between stable's two answers; candidate: of both to the candidate's; 0 to 1.

    differs: whether a reader would see it: of stable with itself, and with the candidate. figures:
    by the names above. note: what differs, in a few words.
    """

    noise: float
    candidate: float
    differs: tuple[bool, bool]
    note: str
    figures: Mapping[str, Pair] = field(default_factory=dict)
    times: Times | None = None


def measured(
    first: Answer, second: Answer, candidate: Answer, times: Times | None = None
) -> Measured:
    """Of stable's two answers and the candidate's."""
    apart = distances(first, second, candidate)
    return Measured(
        apart.noise,
        apart.candidate,
        (_differ(first, second), _differ(first, candidate)),
        note(first, candidate),
        {
            name: (_figure(name, first, second), _figure(name, first, candidate))
            for name, kind in _KINDS.items()
            if isinstance(_one(first), kind)
        },
        times,
    )


def note(first: Answer, candidate: Answer) -> str:
    """What differs, in a few words that quote nothing."""
    words = "another kind of answer"
    match first, candidate:
        case Text(), Text():
            place = first_divergence(first, candidate)
            lengths = len(first.token_ids), len(candidate.token_ids)
            where = "the text alone" if place is None else f"token {place + 1}"
            words = f"{where}; {lengths[0]} and {lengths[1]} tokens"
        case Vector(), Vector():
            words = f"cosine {cosine(first, candidate):.4f}"
        case Order(), Order():
            words = f"Kendall's tau {_tau(first, candidate):.3f}"
        case Labels(), Labels():
            words = "another label"
        case Rows(), Rows():
            pairs = zip(first.answers, candidate.answers, strict=False)
            differ = sum(_differ(mine, theirs) for mine, theirs in pairs)
            words = f"{differ} of {len(first.answers)} rows"
        case Refused(), _:
            words = f"stable: {first.why}"
        case _, Refused():
            words = f"candidate: {candidate.why}"
    return words


def _differ(one: Answer, other: Answer) -> bool:
    """Whether a reader would see it: vectors from a cosine of 0.999 on."""
    return distance(one, other) > (_SEEN if isinstance(_one(one), Vector) else 0.0)


def _one(answer: Answer) -> Answer:
    """The first row of several: they are of one kind."""
    return answer.answers[0] if isinstance(answer, Rows) else answer


def _first(one: Text, other: Text) -> float | None:
    return first_divergence(one, other)


def _log_probs(one: Text, other: Text) -> float | None:
    return log_prob_difference(one, other)


def _cosine(one: Vector, other: Vector) -> float:
    return cosine(one, other)


def _tau(one: Order, other: Order) -> float:
    return 1 - 2 * disorder(one.scores, other.scores)


def _score(one: Labels, other: Labels) -> float | None:
    scores = dict(zip(other.names, other.scores, strict=True))
    best = next(iter(one.names), None)
    return None if best is None else abs(one.scores[0] - scores.get(best, 0.0))


_KINDS: Mapping[str, type[Any]] = {
    FIRST: Text,
    LOG_PROBS: Text,
    COSINE: Vector,
    TAU: Order,
    SCORE: Labels,
}
_MEASURES: Mapping[str, Callable[[Any, Any], float | None]] = {
    FIRST: _first,
    LOG_PROBS: _log_probs,
    COSINE: _cosine,
    TAU: _tau,
    SCORE: _score,
}


def _figure(name: str, one: Answer, other: Answer) -> float | None:
    """Of two answers of one kind; the mean over rows."""
    if isinstance(one, Rows) and isinstance(other, Rows):
        pairs = zip(one.answers, other.answers, strict=False)
        found = [_figure(name, mine, theirs) for mine, theirs in pairs]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None
    kind = _KINDS[name]
    if not isinstance(one, kind) or not isinstance(other, kind):
        return None
    return _MEASURES[name](one, other)
