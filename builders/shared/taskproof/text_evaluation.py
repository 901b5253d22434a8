# SPDX-License-Identifier: Apache-2.0
"""Recall or accuracy of reference and engine on the project's evaluation set. Needs numpy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.request_types import BuilderRequest
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, TextTask
from taskproof.evaluation_set import EvaluationSet, read_evaluation_set
from taskproof.text_cases import TextCase
from taskproof.text_pipeline import TextGraph, TextPipeline

_RECALL_AT = {EMBEDDING: 10, RERANK: 1}
# A reranker reads every query with the right text and so many wrong ones.
_DISTRACTORS = 9
# Names of sentence-transformers' prompts for queries and for texts.
_QUERY_PROMPTS = ("query",)
_TEXT_PROMPTS = ("document", "passage", "corpus")

# Returns the values of each case.
AnswerFunction = Callable[[Sequence[TextCase]], Sequence[Any]]


def evaluate(
    request: BuilderRequest,
    task: TextTask,
    pipeline: TextPipeline,
    reference: AnswerFunction | float,
    engine: TextGraph,
) -> dict[str, Any] | None:
    """Return the `evaluation` of the proof, or None without a set.

    `reference`: answers with the reference library, or its known score.

    Raises:
        BuildError: the set is unreadable, or the engine is below the minimum.
    """
    evaluation = request.evaluation
    if evaluation is None:
        return None
    evaluation_set = read_evaluation_set(evaluation, task)

    def engine_answers(cases: Sequence[TextCase]) -> list[Any]:
        rows = pipeline.encode(cases)
        if None in rows:
            empty = cases[rows.index(None)]
            raise BuildError(
                f"{evaluation.prompts}: the tokenizer returns no tokens for {empty.text!r:.80}",
                remedy="Remove the line.",
            )
        return pipeline.batched_values([row for row in rows if row is not None], engine)

    cutoff = evaluation.recall_at or _RECALL_AT.get(task.name, 1)
    metric = "accuracy" if task.name == CLASSIFICATION else f"recall@{cutoff}"
    reference_score = (
        reference
        if isinstance(reference, float)
        else _score(task, evaluation_set, reference, cutoff)
    )
    engine_score = _score(task, evaluation_set, engine_answers, cutoff)
    print_line(
        f"{metric} of {len(evaluation_set.inputs)}: {engine_score:.4g}, of the checkpoint "
        f"{reference_score:.4g}"
    )
    if evaluation.min_score is not None and engine_score < evaluation.min_score:
        raise BuildError(
            f"the {request.precision} engine has a {metric} of {engine_score:.4g} on "
            f"{evaluation.prompts} (the checkpoint {reference_score:.4g}), and "
            f"evaluation.min_score asks for {evaluation.min_score:.4g}",
            remedy="Set engine.precision to a finer one, or lower evaluation.min_score.",
        )
    return {
        "metric": metric,
        "samples": len(evaluation_set.inputs),
        "reference": reference_score,
        "engine": engine_score,
        "least": evaluation.min_score,
    }


def _score(
    task: TextTask, evaluation_set: EvaluationSet, answers: AnswerFunction, cutoff: int
) -> float:
    if task.name == CLASSIFICATION:
        made = answers([TextCase(text) for text in evaluation_set.inputs])
        chosen = [task.labels[int(item.argmax())] for item in made]
        return float(
            np.mean(
                [have == want for have, want in zip(chosen, evaluation_set.targets, strict=True)]
            )
        )
    if task.name == RERANK:
        return _rerank_recall(evaluation_set, answers, cutoff)
    names = task.text.prompts
    query, text = (
        next((name for name in candidates if name in names), None)
        for candidates in (_QUERY_PROMPTS, _TEXT_PROMPTS)
    )
    queries, texts = (
        _unit_vectors(answers([TextCase(item, prompt=prompt) for item in side]))
        for side, prompt in ((evaluation_set.inputs, query), (evaluation_set.targets, text))
    )
    scores = queries @ texts.T
    # The same text may answer several queries.
    is_match = np.array(
        [[want == have for have in evaluation_set.targets] for want in evaluation_set.targets]
    )
    best = np.where(is_match, scores, -np.inf).max(1, keepdims=True)
    above = (scores > best).sum(1)
    return float((above < cutoff).mean())


def _unit_vectors(values: Sequence[Any]) -> Any:
    vectors = np.stack(list(values)).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _rerank_recall(evaluation_set: EvaluationSet, answers: AnswerFunction, cutoff: int) -> float:
    count = len(evaluation_set.inputs)
    hits = []
    for index, query in enumerate(evaluation_set.inputs):
        right = evaluation_set.targets[index]
        distractors = [
            evaluation_set.targets[(index + step) % count] for step in range(1, _DISTRACTORS + 1)
        ]
        texts = [right, *(text for text in dict.fromkeys(distractors) if text != right)]
        scores = [
            score_array.item() for score_array in answers([TextCase(query, text) for text in texts])
        ]
        hits.append(sum(score > scores[0] for score in scores[1:]) < cutoff)
    return float(np.mean(hits))
