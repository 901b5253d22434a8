# SPDX-License-Identifier: Apache-2.0
"""Measure one question that stable answered twice and the candidate once.

A measurement quotes no prompt and no answer, so it may be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.rollout.differences import (
    Answer,
    LabelsAnswer,
    RefusedAnswer,
    RowsAnswer,
    ScoresAnswer,
    TextAnswer,
    VectorAnswer,
    cosine,
    distance,
    distances,
    first_divergence,
    kendall_distance,
    log_prob_difference,
)

# A figure for stable with itself, and with the candidate; None: not measurable.
Pair = tuple[float | None, float | None]
FIRST, LOG_PROBS, COSINE, TAU, SCORE = "first_token", "log_probs", "cosine", "tau", "score"
_VISIBLE_DISTANCE = 0.1  # of vectors: a cosine of 0.999


@dataclass(frozen=True)
class AnswerTimes:
    """Milliseconds of stable's first answer, its second, and the candidate's."""

    first: tuple[float | None, float | None, float | None]  # until the first token, if any
    complete: tuple[float, float, float]  # until the end


@dataclass(frozen=True)
class TimedAnswer:
    """An answer with the milliseconds until its first token, if it has tokens, and its end."""

    answer: Answer
    first_ms: float | None
    whole_ms: float


def answer_times(first: TimedAnswer, second: TimedAnswer, candidate: TimedAnswer) -> AnswerTimes:
    """Collect the times of stable's two answers and the candidate's."""
    return AnswerTimes(
        (_rounded(first.first_ms), _rounded(second.first_ms), _rounded(candidate.first_ms)),
        (round(first.whole_ms, 3), round(second.whole_ms, 3), round(candidate.whole_ms, 3)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@dataclass(frozen=True)
class Measurement:
    """The distances and figures of one question."""

    noise: float  # distance of stable's two answers, 0 to 1
    candidate: float  # mean distance of both to the candidate's answer, 0 to 1
    differs: tuple[bool, bool]  # visibly: stable from itself, and from the candidate
    note: str  # the difference in a few words
    figures: Mapping[str, Pair] = field(default_factory=dict)  # by the names above
    times: AnswerTimes | None = None


def measure_answers(
    first: Answer, second: Answer, candidate: Answer, times: AnswerTimes | None = None
) -> Measurement:
    """Measure stable's two answers and the candidate's."""
    answer_distances = distances(first, second, candidate)
    return Measurement(
        answer_distances.noise,
        answer_distances.candidate,
        (_differ(first, second), _differ(first, candidate)),
        difference_note(first, candidate),
        {
            name: (_figure(name, first, second), _figure(name, first, candidate))
            for name, kind in _KINDS.items()
            if isinstance(_first_row(first), kind)
        },
        times,
    )


def difference_note(first: Answer, candidate: Answer) -> str:
    """Describe the difference in a few words that quote nothing."""
    words = "another kind of answer"
    match first, candidate:
        case TextAnswer(), TextAnswer():
            index = first_divergence(first, candidate)
            lengths = len(first.token_ids), len(candidate.token_ids)
            position = "the text alone" if index is None else f"token {index + 1}"
            words = f"{position}; {lengths[0]} and {lengths[1]} tokens"
        case VectorAnswer(), VectorAnswer():
            words = f"cosine {cosine(first, candidate):.4f}"
        case ScoresAnswer(), ScoresAnswer():
            words = f"Kendall's tau {_tau(first, candidate):.3f}"
        case LabelsAnswer(), LabelsAnswer():
            words = "another label"
        case RowsAnswer(), RowsAnswer():
            pairs = zip(first.answers, candidate.answers, strict=False)
            differ = sum(_differ(first_row, candidate_row) for first_row, candidate_row in pairs)
            words = f"{differ} of {len(first.answers)} rows"
        case RefusedAnswer(), _:
            words = f"stable: {first.reason}"
        case _, RefusedAnswer():
            words = f"candidate: {candidate.reason}"
    return words


def _differ(first: Answer, second: Answer) -> bool:
    """Whether a reader would notice the difference; for vectors, a cosine below 0.999."""
    return distance(first, second) > (
        _VISIBLE_DISTANCE if isinstance(_first_row(first), VectorAnswer) else 0.0
    )


def _first_row(answer: Answer) -> Answer:
    """The first row, or the answer itself: all rows have one kind."""
    return answer.answers[0] if isinstance(answer, RowsAnswer) else answer


def _token_divergence(first: TextAnswer, second: TextAnswer) -> float | None:
    return first_divergence(first, second)


def _log_probs(first: TextAnswer, second: TextAnswer) -> float | None:
    return log_prob_difference(first, second)


def _cosine(first: VectorAnswer, second: VectorAnswer) -> float:
    return cosine(first, second)


def _tau(first: ScoresAnswer, second: ScoresAnswer) -> float:
    return 1 - 2 * kendall_distance(first.scores, second.scores)


def _score(first: LabelsAnswer, second: LabelsAnswer) -> float | None:
    scores = dict(zip(second.names, second.scores, strict=True))
    best = next(iter(first.names), None)
    return None if best is None else abs(first.scores[0] - scores.get(best, 0.0))


_KINDS: Mapping[str, type[Any]] = {
    FIRST: TextAnswer,
    LOG_PROBS: TextAnswer,
    COSINE: VectorAnswer,
    TAU: ScoresAnswer,
    SCORE: LabelsAnswer,
}
_MEASURES: Mapping[str, Callable[[Any, Any], float | None]] = {
    FIRST: _token_divergence,
    LOG_PROBS: _log_probs,
    COSINE: _cosine,
    TAU: _tau,
    SCORE: _score,
}


def _figure(name: str, first: Answer, second: Answer) -> float | None:
    """Compute a figure for two answers of one kind; the mean over rows."""
    if isinstance(first, RowsAnswer) and isinstance(second, RowsAnswer):
        pairs = zip(first.answers, second.answers, strict=False)
        row_figures = [_figure(name, first_row, second_row) for first_row, second_row in pairs]
        figures = [value for value in row_figures if value is not None]
        return sum(figures) / len(figures) if figures else None
    kind = _KINDS[name]
    if not isinstance(first, kind) or not isinstance(second, kind):
        return None
    return _MEASURES[name](first, second)
