# SPDX-License-Identifier: Apache-2.0
"""Two versions on the same questions: what differs by more than the first differs from itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.rollout.differences import (
    Answer,
    Labels,
    Order,
    Text,
    Vector,
    cosine,
    disorder,
    distance,
    distances,
    first_divergence,
    log_prob_difference,
    recall,
)
from tritonctl.rollout.sequential import Divergence

RATE = 0.01  # of false alarms
_NEIGHBOURS = 10
_EXAMPLES = 20
_MOST_RANKED = 300  # vectors: each is compared with each


@dataclass(frozen=True)
class Asked:
    """A question with three answers. `prompt`: as it was asked."""

    prompt: str
    first: Answer
    second: Answer
    candidate: Answer


@dataclass(frozen=True)
class Share:
    """Of the questions: answered in another way. With its 95 % interval."""

    count: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, whole: int) -> Share:
        """Clopper and Pearson's interval."""
        low, high = share_bounds(count, whole) if whole else (0.0, 1.0)
        return cls(count, count / whole if whole else 0.0, low, high)


@dataclass(frozen=True)
class Figure:
    """One measure: of the first version with itself, and of both versions. None: not measured."""

    name: str
    noise: float | None
    difference: float | None


@dataclass(frozen=True)
class Example:
    """A question that the versions answer in two ways, and stable in one, the furthest first."""

    number: int
    distance: float
    prompt: str | None
    first: str | None
    candidate: str | None
    note: str


@dataclass(frozen=True)
class Comparison:
    """noise: questions that A answers in two ways. different: A and B. evidence: an e-value."""

    a: str
    b: str
    model: str
    task: str
    questions: int
    noise: Share
    different: Share
    evidence: float
    limit: float
    tolerated: float
    figures: Sequence[Figure]
    examples: Sequence[Example]
    failed: Sequence[str] = ()

    @property
    def differs(self) -> bool:
        """Whether B differs from A beyond A's own noise, and beyond what is tolerated."""
        return self.evidence >= self.limit

    @property
    def verdict(self) -> str:
        """In words."""
        if self.differs:
            return "different beyond noise"
        return "no difference beyond noise" if self.questions else "nothing was compared"

    def as_record(self) -> dict[str, Any]:
        """As JSON holds it."""
        record = asdict(self)
        record["evidence"] = float(f"{self.evidence:.4g}")
        return {**record, "differs": self.differs, "verdict": self.verdict}


def compared(
    asked: Sequence[Asked],
    names: tuple[str, str],
    served: tuple[str, str],
    *,
    tolerated: float = 0.0,
    shown: bool = False,
    failed: Sequence[str] = (),
) -> Comparison:
    """Compare. names: of A and B; served: model and task. shown: examples have prompts and texts.

    tolerated: share of the questions that B may answer in another way, beyond A's noise.
    """
    test = Divergence(tolerated)
    for each in asked:
        found = distances(each.first, each.second, each.candidate)
        test.update(found.noise, found.candidate)
    noisy = sum(_differ(each.first, each.second) for each in asked)
    different = sum(_differ(each.first, each.candidate) for each in asked)
    return Comparison(
        *names,
        *served,
        len(asked),
        Share.of(noisy, len(asked)),
        Share.of(different, len(asked)),
        test.evidence,
        1 / RATE,
        tolerated,
        _figures(asked),
        _examples(asked, shown=shown),
        failed,
    )


def _differ(one: Answer, other: Answer) -> bool:
    """Whether a reader would see it: vectors from a cosine of 0.999 on."""
    least = 0.1 if isinstance(one, Vector) else 0.0
    return distance(one, other) > least


def _figures(asked: Sequence[Asked]) -> list[Figure]:
    """What there is to measure of such answers."""
    if not asked:
        return []
    match asked[0].first:
        case Text():
            return [
                _pairwise("first token that differs, median", asked, _first, median),
                _pairwise("difference of log probabilities, mean", asked, _log_probs, _mean),
            ]
        case Vector():
            return [
                _pairwise("cosine, mean", asked, _cosine, _mean),
                _pairwise("cosine, least", asked, _cosine, min),
                _recall(asked),
            ]
        case Order():
            return [_pairwise("Kendall's tau, mean", asked, _tau, _mean)]
        case Labels():
            return [_pairwise("difference of the best label's score", asked, _score, _mean)]


def _pairwise(
    name: str,
    asked: Sequence[Asked],
    measure: Callable[[Any, Any], float | None],
    summary: Callable[[list[float]], float],
) -> Figure:
    def over(pairs: Sequence[tuple[Answer, Answer]]) -> float | None:
        values = [measure(one, other) for one, other in pairs if type(one) is type(other)]
        known = [value for value in values if value is not None]
        return summary(known) if known else None

    noise = over([(each.first, each.second) for each in asked])
    return Figure(name, noise, over([(each.first, each.candidate) for each in asked]))


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


def _recall(asked: Sequence[Asked]) -> Figure:
    name = f"recall@{_NEIGHBOURS} among the questions"
    first, second, candidate = (
        [one for one in side if isinstance(one, Vector)]
        for side in zip(*((each.first, each.second, each.candidate) for each in asked), strict=True)
    )
    if not len(first) == len(second) == len(candidate) <= _MOST_RANKED:
        return Figure(name, None, None)
    both = (recall(first, other, _NEIGHBOURS) for other in (second, candidate))
    return Figure(name, *both)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _examples(asked: Sequence[Asked], *, shown: bool) -> list[Example]:
    """Those that the candidate answers otherwise and stable does not, the furthest apart first."""
    found = []
    for number, each in enumerate(asked, start=1):
        apart = distances(each.first, each.second, each.candidate)
        if not _differ(each.first, each.candidate) or apart.candidate <= apart.noise:
            continue
        found.append(
            Example(
                number,
                apart.candidate - apart.noise,
                each.prompt if shown else None,
                told(each.first) if shown else None,
                told(each.candidate) if shown else None,
                _note(each),
            )
        )
    return sorted(found, key=lambda one: (-one.distance, one.number))[:_EXAMPLES]


def _note(each: Asked) -> str:
    """What differs, in a few words that quote nothing."""
    match each.first, each.candidate:
        case Text(), Text():
            place = first_divergence(each.first, each.candidate)
            lengths = len(each.first.token_ids), len(each.candidate.token_ids)
            where = "the text alone" if place is None else f"token {place + 1}"
            return f"{where}; {lengths[0]} and {lengths[1]} tokens"
        case Vector(), Vector():
            return f"cosine {cosine(each.first, each.candidate):.4f}"
        case Order(), Order():
            return f"Kendall's tau {_tau(each.first, each.candidate):.3f}"
        case Labels(), Labels():
            return "another label"
        case _:
            return "another kind of answer"


def told(answer: Answer) -> str:
    """An answer as text; a vector by its length."""
    match answer:
        case Text():
            return answer.text
        case Labels():
            pairs = zip(answer.names, answer.scores, strict=True)
            return ", ".join(f"{name} {score:.3f}" for name, score in pairs)
        case Vector():
            return f"{len(answer.values)} numbers"
        case Order():
            return ", ".join(f"{score:.3f}" for score in answer.scores)
