# SPDX-License-Identifier: Apache-2.0
"""The distance of two answers to one question: texts by tokens, vectors, labels, scores.

Every distance is a metric from 0 to 1, as `sequential.DivergenceTest` requires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tritonctl.rollout.metrics import Distances

# A cosine of 0.9 or less has distance 1: vectors of unrelated texts are no closer.
_MAX_VECTOR_DISTANCE = math.sqrt(2 * (1 - 0.9))


@dataclass(frozen=True)
class TextAnswer:
    """A generated text."""

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()  # of each token, if requested


@dataclass(frozen=True)
class VectorAnswer:
    """An embedding."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class LabelsAnswer:
    """Labels of a classification, best first, or a text's entities in its order."""

    names: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class ScoresAnswer:
    """Rerank scores, in the order of the documents."""

    scores: tuple[float, ...]


@dataclass(frozen=True)
class RefusedAnswer:
    """No answer: the version refused or timed out; the reason quotes nothing."""

    reason: str


@dataclass(frozen=True)
class RowsAnswer:
    """The answers to the rows of a request."""

    answers: tuple[Answer, ...]


Answer = TextAnswer | VectorAnswer | LabelsAnswer | ScoresAnswer | RefusedAnswer | RowsAnswer


def distance(first: Answer, second: Answer) -> float:
    """Return the distance of two answers, from 0 to 1.

    1 for a different text or best label, a vector at 25 degrees, or answers of two kinds. For
    scores: the share of document pairs in reverse order. For rows: the mean.
    """
    result = 1.0
    match first, second:
        case TextAnswer(), TextAnswer():
            # Equal ids may give different texts if a detokenizer is wrong.
            ids = first.token_ids == second.token_ids or not (first.token_ids and second.token_ids)
            result = float(first.text != second.text or not ids)
        case VectorAnswer(), VectorAnswer():
            result = min(
                1.0, math.sqrt(max(0.0, 2 * (1 - cosine(first, second)))) / _MAX_VECTOR_DISTANCE
            )
        case LabelsAnswer(), LabelsAnswer():
            result = float(first.names[:1] != second.names[:1])
        case ScoresAnswer(), ScoresAnswer():
            result = kendall_distance(first.scores, second.scores)
        case RefusedAnswer(), RefusedAnswer():
            result = 0.0
        case RowsAnswer(), RowsAnswer() if len(first.answers) == len(second.answers):
            pairs = zip(first.answers, second.answers, strict=True)
            result = sum(distance(first_row, second_row) for first_row, second_row in pairs) / len(
                first.answers
            )
    return result


def distances(first: Answer, second: Answer, candidate: Answer) -> Distances:
    """Return the distances of stable's two answers and the candidate's, for the judge."""
    candidate_distances = distance(first, candidate), distance(second, candidate)
    return Distances(distance(first, second), sum(candidate_distances) / 2)


def first_divergence(first: TextAnswer, second: TextAnswer) -> int | None:
    """Return the index of the first token that differs, or None; one text may end before it."""
    pairs = zip(first.token_ids, second.token_ids, strict=False)
    for index, (first_token, second_token) in enumerate(pairs):
        if first_token != second_token:
            return index
    shorter, longer = sorted((len(first.token_ids), len(second.token_ids)))
    return None if shorter == longer else shorter


def log_prob_difference(first: TextAnswer, second: TextAnswer) -> float | None:
    """Return the mean absolute difference over the common leading tokens; None without any."""
    common_tokens = first_divergence(first, second)
    pairs = list(
        zip(first.log_probs[:common_tokens], second.log_probs[:common_tokens], strict=False)
    )
    return (
        sum(abs(first_value - second_value) for first_value, second_value in pairs) / len(pairs)
        if pairs
        else None
    )


def cosine(first: VectorAnswer, second: VectorAnswer) -> float:
    """Return the cosine, -1 to 1; 0 if a vector is zero or the lengths differ."""
    if len(first.values) != len(second.values):
        return 0.0
    lengths = math.hypot(*first.values) * math.hypot(*second.values)
    product = math.fsum(a * b for a, b in zip(first.values, second.values, strict=True))
    return product / lengths if lengths else 0.0


def kendall_distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's distance: the share of pairs in reverse order.

    A tie against an order counts 1/2. It is 1 if the lengths differ. Without ties Kendall's
    tau is 1 - 2 x this.
    """
    if len(first) != len(second):
        return 1.0
    pairs = list(combinations(range(len(first)), 2))
    if not pairs:
        return 0.0
    sign_pairs = ((_sign(first[a] - first[b]), _sign(second[a] - second[b])) for a, b in pairs)
    return sum(abs(first_sign - second_sign) / 2 for first_sign, second_sign in sign_pairs) / len(
        pairs
    )


def neighbours(vectors: Sequence[VectorAnswer], count: int) -> list[set[int]]:
    """Return the indices of each vector's nearest neighbours by cosine."""
    neighbour_sets = []
    for index, vector in enumerate(vectors):
        candidates = [candidate for candidate in range(len(vectors)) if candidate != index]
        candidates.sort(key=lambda candidate: -cosine(vector, vectors[candidate]))
        neighbour_sets.append(set(candidates[:count]))
    return neighbour_sets


def neighbour_recall(
    first: Sequence[VectorAnswer], second: Sequence[VectorAnswer], count: int
) -> float | None:
    """Return the share of each vector's nearest neighbours common to both versions (recall@k).

    None for two vectors or fewer: their order is always the same.
    """
    count = min(count, len(first) - 2)
    if count < 1:
        return None
    pairs = zip(neighbours(first, count), neighbours(second, count), strict=True)
    return sum(len(first_set & second_set) for first_set, second_set in pairs) / (
        count * len(first)
    )


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
