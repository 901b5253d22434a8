# SPDX-License-Identifier: Apache-2.0
"""Two versions on the same questions: what differs by more than the first differs from itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.rollout.differences import Answer, Labels, Order, Refused, Rows, Text, Vector, recall
from tritonctl.rollout.measures import (
    COSINE,
    FIRST,
    LOG_PROBS,
    SCORE,
    TAU,
    Measured,
    Times,
    measured,
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
    times: Times | None = None


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
class Duration:
    """How long both versions take, milliseconds. None: not measured."""

    name: str
    a_ms: float | None
    b_ms: float | None


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
class Shown:
    """What an example quotes, where prompts may be shown."""

    prompt: str
    first: str
    candidate: str


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
    durations: Sequence[Duration]
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
    """Compare answers. names: of A and B; served: model and task. shown: examples quote them.

    tolerated: share of the questions that B may answer in another way, beyond A's noise.
    """
    found = [measured(each.first, each.second, each.candidate, each.times) for each in asked]
    quoted = {
        number: Shown(each.prompt, told(each.first), told(each.candidate))
        for number, each in enumerate(asked, start=1)
        if shown
    }
    return summary(
        found,
        names,
        served,
        tolerated=tolerated,
        quoted=quoted,
        failed=failed,
        more=_recall(asked),
    )


def summary(
    found: Sequence[Measured],
    names: tuple[str, str],
    served: tuple[str, str],
    *,
    tolerated: float = 0.0,
    quoted: Mapping[int, Shown] | None = None,
    failed: Sequence[str] = (),
    more: Sequence[Figure] = (),
) -> Comparison:
    """Compare by what was measured. quoted: prompts and answers of examples, by their numbers."""
    test = Divergence(tolerated)
    for each in found:
        test.update(each.noise, each.candidate)
    return Comparison(
        *names,
        *served,
        len(found),
        Share.of(sum(each.differs[0] for each in found), len(found)),
        Share.of(sum(each.differs[1] for each in found), len(found)),
        test.evidence,
        1 / RATE,
        tolerated,
        [*_figures(found), *more],
        _durations(found),
        _examples(found, quoted or {}),
        failed,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# What a figure is called, and how those of all questions are one.
_SUMMARIES: Sequence[tuple[str, str, Callable[[list[float]], float]]] = (
    (FIRST, "first token that differs, median", median),
    (LOG_PROBS, "difference of log probabilities, mean", _mean),
    (COSINE, "cosine, mean", _mean),
    (COSINE, "cosine, least", min),
    (TAU, "Kendall's tau, mean", _mean),
    (SCORE, "difference of the best label's score", _mean),
)


def _figures(found: Sequence[Measured]) -> list[Figure]:
    """What there is to measure of such answers."""
    figures = []
    for name, title, summarised in _SUMMARIES:
        pairs = [each.figures[name] for each in found if name in each.figures]
        if pairs:
            sides = (
                [value for value in side if value is not None] for side in zip(*pairs, strict=True)
            )
            figures.append(Figure(title, *(summarised(side) if side else None for side in sides)))
    return figures


def _durations(found: Sequence[Measured]) -> list[Duration]:
    """Medians: of both answers of A, and of B's."""
    times = [each.times for each in found if each.times is not None]
    made = []
    for title, all_ms in (
        ("time to the first token, median", [each.first for each in times]),
        ("time to the whole answer, median", [each.whole for each in times]),
    ):
        a = [value for one in all_ms for value in one[:2] if value is not None]
        b = [one[2] for one in all_ms if one[2] is not None]
        if a and b:
            made.append(Duration(title, round(median(a), 3), round(median(b), 3)))
    return made


def _recall(asked: Sequence[Asked]) -> list[Figure]:
    """Of embeddings: whether both versions find the same neighbours."""
    if not asked or not isinstance(asked[0].first, Vector):
        return []
    name = f"recall@{_NEIGHBOURS} among the questions"
    first, second, candidate = (
        [one for one in side if isinstance(one, Vector)]
        for side in zip(*((each.first, each.second, each.candidate) for each in asked), strict=True)
    )
    if not len(first) == len(second) == len(candidate) <= _MOST_RANKED:
        return [Figure(name, None, None)]
    both = (recall(first, other, _NEIGHBOURS) for other in (second, candidate))
    return [Figure(name, *both)]


def _examples(found: Sequence[Measured], quoted: Mapping[int, Shown]) -> list[Example]:
    """Those that the candidate answers otherwise and stable does not, the furthest apart first."""
    examples = []
    for number, each in enumerate(found, start=1):
        if not each.differs[1] or each.candidate <= each.noise:
            continue
        shown = quoted.get(number)
        examples.append(
            Example(
                number,
                each.candidate - each.noise,
                shown.prompt if shown else None,
                shown.first if shown else None,
                shown.candidate if shown else None,
                each.note,
            )
        )
    return sorted(examples, key=lambda one: (-one.distance, one.number))[:_EXAMPLES]


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
        case Refused():
            return answer.why
        case Rows():
            return "\n".join(map(told, answer.answers))
