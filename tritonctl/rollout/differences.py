# SPDX-License-Identifier: Apache-2.0
"""How far two answers to one question are apart: texts by tokens, vectors, labels, orders.

Every distance is a metric from 0 to 1, so that `sequential.Divergence` may bet on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tritonctl.rollout.metrics import Distances

# A cosine of 0.9 or less is as far as can be: vectors of other texts are no nearer.
_FAR = math.sqrt(2 * (1 - 0.9))


@dataclass(frozen=True)
class Text:
    """A generated text. log_probs: of each token, if they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Vector:
    """An embedding."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Labels:
    """Of a classification, best first; of a text's entities, in its order."""

    names: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Order:
    """Scores of a query's documents, in the documents' order."""

    scores: tuple[float, ...]


@dataclass(frozen=True)
class Refused:
    """No answer: the version says no, or nothing in time. why: in words that quote nothing."""

    why: str


@dataclass(frozen=True)
class Rows:
    """The answers to the rows of one request."""

    answers: tuple[Answer, ...]


Answer = Text | Vector | Labels | Order | Refused | Rows


def distance(one: Answer, other: Answer) -> float:
    """0: no difference that counts. 1: another text, another label, a vector at 25 degrees.

    Of orders: the share of pairs of documents that are the other way round. Of rows: the mean.
    Answers of two kinds are 1 apart, such as one and none.
    """
    apart = 1.0
    match one, other:
        case Text(), Text():
            # Equal ids may be another text: that of a wrong detokenizer.
            ids = one.token_ids == other.token_ids or not (one.token_ids and other.token_ids)
            apart = float(one.text != other.text or not ids)
        case Vector(), Vector():
            apart = min(1.0, math.sqrt(max(0.0, 2 * (1 - cosine(one, other)))) / _FAR)
        case Labels(), Labels():
            apart = float(one.names[:1] != other.names[:1])
        case Order(), Order():
            apart = disorder(one.scores, other.scores)
        case Refused(), Refused():
            apart = 0.0
        case Rows(), Rows() if len(one.answers) == len(other.answers):
            pairs = zip(one.answers, other.answers, strict=True)
            apart = sum(distance(mine, theirs) for mine, theirs in pairs) / len(one.answers)
    return apart


def distances(first: Answer, second: Answer, candidate: Answer) -> Distances:
    """Of stable's two answers to a question, and the candidate's one: what the judge takes."""
    both = distance(first, candidate), distance(second, candidate)
    return Distances(distance(first, second), sum(both) / 2)


def first_divergence(one: Text, other: Text) -> int | None:
    """The first token that differs, from 0; None where none does. One text may end before it."""
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    for place, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            return place
    shorter, longer = sorted((len(one.token_ids), len(other.token_ids)))
    return None if shorter == longer else shorter


def log_prob_difference(one: Text, other: Text) -> float | None:
    """The mean absolute difference over the tokens that both begin with; None without any."""
    ends = first_divergence(one, other)
    pairs = list(zip(one.log_probs[:ends], other.log_probs[:ends], strict=False))
    return sum(abs(mine - theirs) for mine, theirs in pairs) / len(pairs) if pairs else None


def cosine(one: Vector, other: Vector) -> float:
    """-1 to 1; 0 of vectors that cannot be compared, such as one of zeros or of another length."""
    if len(one.values) != len(other.values):
        return 0.0
    lengths = math.hypot(*one.values) * math.hypot(*other.values)
    product = math.fsum(a * b for a, b in zip(one.values, other.values, strict=True))
    return product / lengths if lengths else 0.0


def disorder(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's distance: the share of pairs in another order, a tie against an order half of one.

    1 where their numbers differ. Kendall's tau is 1 - 2 x this where there are no ties.
    """
    if len(one) != len(other):
        return 1.0
    pairs = list(combinations(range(len(one)), 2))
    if not pairs:
        return 0.0
    ways = ((_sign(one[a] - one[b]), _sign(other[a] - other[b])) for a, b in pairs)
    return sum(abs(mine - theirs) / 2 for mine, theirs in ways) / len(pairs)


def neighbours(vectors: Sequence[Vector], most: int) -> list[set[int]]:
    """Of each vector, the other ones that are nearest to it by cosine."""
    found = []
    for place, vector in enumerate(vectors):
        others = [other for other in range(len(vectors)) if other != place]
        others.sort(key=lambda other: -cosine(vector, vectors[other]))
        found.append(set(others[:most]))
    return found


def recall(one: Sequence[Vector], other: Sequence[Vector], most: int) -> float | None:
    """The share of each vector's nearest ones that the other version finds, too (recall@k).

    None for two vectors or fewer, of which any order is the same.
    """
    most = min(most, len(one) - 2)
    if most < 1:
        return None
    pairs = zip(neighbours(one, most), neighbours(other, most), strict=True)
    return sum(len(mine & theirs) for mine, theirs in pairs) / (most * len(one))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
