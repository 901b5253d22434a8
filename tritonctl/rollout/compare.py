# SPDX-License-Identifier: Apache-2.0
"""Compare two versions on the same questions, beyond the first version's own noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.rollout.differences import (
    Answer,
    LabelsAnswer,
    RefusedAnswer,
    RowsAnswer,
    ScoresAnswer,
    TextAnswer,
    VectorAnswer,
    neighbour_recall,
)
from tritonctl.rollout.measures import (
    COSINE,
    FIRST,
    LOG_PROBS,
    SCORE,
    TAU,
    AnswerTimes,
    Measurement,
    measure_answers,
)
from tritonctl.rollout.sequential import DivergenceTest

FALSE_ALARM_RATE = 0.01  # maximum probability
_NEIGHBOURS = 10
_EXAMPLES = 20
_MAX_RANKED_VECTORS = 300  # every pair is compared


@dataclass(frozen=True)
class ComparedQuestion:
    """A question with three answers."""

    prompt: str
    first: Answer  # of A
    second: Answer  # of A again
    candidate: Answer  # of B
    times: AnswerTimes | None = None


@dataclass(frozen=True)
class ShareInterval:
    """The share of questions with a different answer, with its 95 % interval."""

    count: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int) -> ShareInterval:
        """Compute the Clopper-Pearson interval."""
        low, high = share_bounds(count, total) if total else (0.0, 1.0)
        return cls(count, count / total if total else 0.0, low, high)


@dataclass(frozen=True)
class ComparisonMeasure:
    """One measure of the differences. None: not measured."""

    name: str
    noise: float | None  # A with itself
    difference: float | None  # A and B


@dataclass(frozen=True)
class MedianDurations:
    """Median times of both versions in milliseconds. None: not measured."""

    name: str
    a_ms: float | None
    b_ms: float | None


@dataclass(frozen=True)
class DifferingExample:
    """A question that B answers differently and A twice alike."""

    number: int
    distance: float
    prompt: str | None
    first: str | None
    candidate: str | None
    note: str


@dataclass(frozen=True)
class ExampleTexts:
    """The texts that an example quotes if prompts may be shown."""

    prompt: str
    first: str
    candidate: str


@dataclass(frozen=True)
class VersionComparison:
    """The comparison of versions A and B."""

    a: str
    b: str
    model: str
    task: str
    questions: int
    noise: ShareInterval  # questions that A answers in two ways
    different: ShareInterval  # questions that A and B answer differently
    evidence: float  # an e-value
    limit: float  # evidence from which B counts as different
    tolerated: float  # share of the questions that may differ
    figures: Sequence[ComparisonMeasure]
    durations: Sequence[MedianDurations]
    examples: Sequence[DifferingExample]
    failed: Sequence[str] = ()

    @property
    def differs(self) -> bool:
        """Whether B differs from A beyond A's noise and the tolerance."""
        return self.evidence >= self.limit

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.differs:
            return "different beyond noise"
        return "no difference beyond noise" if self.questions else "nothing was compared"

    def as_record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        record = asdict(self)
        record["evidence"] = float(f"{self.evidence:.4g}")
        return {**record, "differs": self.differs, "verdict": self.verdict}


def compare_answers(
    questions: Sequence[ComparedQuestion],
    names: tuple[str, str],
    model_and_task: tuple[str, str],
    *,
    tolerated: float = 0.0,
    show_texts: bool = False,
    failed: Sequence[str] = (),
) -> VersionComparison:
    """Compare the answers of A and B, which have these `names`.

    show_texts: quote prompts and answers in examples. tolerated: share of the questions that B may
    answer differently, beyond A's noise.
    """
    measurements = [
        measure_answers(question.first, question.second, question.candidate, question.times)
        for question in questions
    ]
    quoted = {
        number: ExampleTexts(
            question.prompt, answer_text(question.first), answer_text(question.candidate)
        )
        for number, question in enumerate(questions, start=1)
        if show_texts
    }
    return summarize_measurements(
        measurements,
        names,
        model_and_task,
        tolerated=tolerated,
        quoted=quoted,
        failed=failed,
        extra_measures=_recall(questions),
    )


def summarize_measurements(
    measurements: Sequence[Measurement],
    names: tuple[str, str],
    model_and_task: tuple[str, str],
    *,
    tolerated: float = 0.0,
    quoted: Mapping[int, ExampleTexts] | None = None,
    failed: Sequence[str] = (),
    extra_measures: Sequence[ComparisonMeasure] = (),
) -> VersionComparison:
    """Summarize measurements. quoted: prompts and answers of examples, by question number."""
    test = DivergenceTest(tolerated)
    for measurement in measurements:
        test.update(measurement.noise, measurement.candidate)
    return VersionComparison(
        *names,
        *model_and_task,
        len(measurements),
        ShareInterval.of(
            sum(measurement.differs[0] for measurement in measurements), len(measurements)
        ),
        ShareInterval.of(
            sum(measurement.differs[1] for measurement in measurements), len(measurements)
        ),
        test.evidence,
        1 / FALSE_ALARM_RATE,
        tolerated,
        [*_figures(measurements), *extra_measures],
        _durations(measurements),
        _examples(measurements, quoted or {}),
        failed,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# Per measure: its title, and the summary over all questions.
_SUMMARIES: Sequence[tuple[str, str, Callable[[list[float]], float]]] = (
    (FIRST, "first token that differs, median", median),
    (LOG_PROBS, "difference of log probabilities, mean", _mean),
    (COSINE, "cosine, mean", _mean),
    (COSINE, "cosine, least", min),
    (TAU, "Kendall's tau, mean", _mean),
    (SCORE, "difference of the best label's score", _mean),
)


def _figures(measurements: Sequence[Measurement]) -> list[ComparisonMeasure]:
    """The measures that apply to these answers."""
    measures = []
    for name, title, summarize in _SUMMARIES:
        pairs = [
            measurement.figures[name] for measurement in measurements if name in measurement.figures
        ]
        if pairs:
            sides = (
                [value for value in side if value is not None] for side in zip(*pairs, strict=True)
            )
            measures.append(
                ComparisonMeasure(title, *(summarize(side) if side else None for side in sides))
            )
    return measures


def _durations(measurements: Sequence[Measurement]) -> list[MedianDurations]:
    """Medians over both answers of A, and over B's."""
    times = [each.times for each in measurements if each.times is not None]
    durations = []
    for title, all_ms in (
        ("time to the first token, median", [each.first for each in times]),
        ("time to the whole answer, median", [each.complete for each in times]),
    ):
        a = [value for triple_ms in all_ms for value in triple_ms[:2] if value is not None]
        b = [triple_ms[2] for triple_ms in all_ms if triple_ms[2] is not None]
        if a and b:
            durations.append(MedianDurations(title, round(median(a), 3), round(median(b), 3)))
    return durations


def _recall(questions: Sequence[ComparedQuestion]) -> list[ComparisonMeasure]:
    """For embeddings: the share of nearest neighbours that both versions agree on."""
    if not questions or not isinstance(questions[0].first, VectorAnswer):
        return []
    name = f"recall@{_NEIGHBOURS} among the questions"
    first, second, candidate = (
        [answer for answer in side if isinstance(answer, VectorAnswer)]
        for side in zip(
            *((question.first, question.second, question.candidate) for question in questions),
            strict=True,
        )
    )
    if not len(first) == len(second) == len(candidate) <= _MAX_RANKED_VECTORS:
        return [ComparisonMeasure(name, None, None)]
    recalls = (neighbour_recall(first, answers, _NEIGHBOURS) for answers in (second, candidate))
    return [ComparisonMeasure(name, *recalls)]


def _examples(
    measurements: Sequence[Measurement], quoted: Mapping[int, ExampleTexts]
) -> list[DifferingExample]:
    """Questions that only the candidate answers differently, largest distance first."""
    examples = []
    for number, measurement in enumerate(measurements, start=1):
        if not measurement.differs[1] or measurement.candidate <= measurement.noise:
            continue
        texts = quoted.get(number)
        examples.append(
            DifferingExample(
                number,
                measurement.candidate - measurement.noise,
                texts.prompt if texts else None,
                texts.first if texts else None,
                texts.candidate if texts else None,
                measurement.note,
            )
        )
    return sorted(examples, key=lambda example: (-example.distance, example.number))[:_EXAMPLES]


def answer_text(answer: Answer) -> str:
    """Return an answer as text; a vector by its length."""
    match answer:
        case TextAnswer():
            return answer.text
        case LabelsAnswer():
            pairs = zip(answer.names, answer.scores, strict=True)
            return ", ".join(f"{name} {score:.3f}" for name, score in pairs)
        case VectorAnswer():
            return f"{len(answer.values)} numbers"
        case ScoresAnswer():
            return ", ".join(f"{score:.3f}" for score in answer.scores)
        case RefusedAnswer():
            return answer.reason
        case RowsAnswer():
            return "\n".join(map(answer_text, answer.answers))
