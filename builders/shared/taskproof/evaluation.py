# SPDX-License-Identifier: Apache-2.0
"""The user's own set, through the reference and through the engine: recall or accuracy.

Needs numpy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.program import say
from buildlib.request import Request
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Task
from taskproof.cases import Case
from taskproof.own_set import OwnSet, read_set
from taskproof.served import Run, Served

_RECALL_AT = {EMBEDDING: 10, RERANK: 1}
# A reranker reads every query with its own text and with so many others.
_OTHERS = 9
# Names under which sentence-transformers keeps prompts of queries and of what they look for.
_QUERY_PROMPTS = ("query",)
_TEXT_PROMPTS = ("document", "passage", "corpus")

# Of each case its values.
Answers = Callable[[Sequence[Case]], Sequence[Any]]


def evaluate(
    request: Request, task: Task, steps: Served, reference: Answers | float, engine: Run
) -> dict[str, Any] | None:
    """The `evaluation` of the proof; None without a set.

    `reference`: how the reference library answers, or its score where that is known.

    Raises:
        BuildError: the set cannot be read, or the engine is below the minimum.
    """
    asked = request.evaluation
    if asked is None:
        return None
    own = read_set(asked, task)

    def served(cases: Sequence[Case]) -> list[Any]:
        rows = steps.rows(cases)
        if None in rows:
            empty = cases[rows.index(None)]
            raise BuildError(
                f"{asked.prompts}: the tokenizer makes no token of {empty.text!r:.80}",
                remedy="Remove the line.",
            )
        return steps.together([row for row in rows if row is not None], engine)

    at = asked.recall_at or _RECALL_AT.get(task.name, 1)
    metric = "accuracy" if task.name == CLASSIFICATION else f"recall@{at}"
    before = reference if isinstance(reference, float) else _score(task, own, reference, at)
    after = _score(task, own, served, at)
    say(f"{metric} of {len(own.first)}: {after:.4g}, of the checkpoint {before:.4g}")
    if asked.min_score is not None and after < asked.min_score:
        raise BuildError(
            f"the {request.precision} engine has a {metric} of {after:.4g} on {asked.prompts} (the "
            f"checkpoint {before:.4g}), and evaluation.min_score asks for {asked.min_score:.4g}",
            remedy="Set engine.precision to a finer one, or lower evaluation.min_score.",
        )
    return {
        "metric": metric,
        "samples": len(own.first),
        "reference": before,
        "engine": after,
        "least": asked.min_score,
    }


def _score(task: Task, own: OwnSet, answers: Answers, at: int) -> float:
    if task.name == CLASSIFICATION:
        made = answers([Case(text) for text in own.first])
        chosen = [task.labels[int(one.argmax())] for one in made]
        return float(np.mean([have == want for have, want in zip(chosen, own.second, strict=True)]))
    if task.name == RERANK:
        return _rerank_recall(own, answers, at)
    names = task.text.prompts
    query, text = (
        next((name for name in known if name in names), None)
        for known in (_QUERY_PROMPTS, _TEXT_PROMPTS)
    )
    queries, texts = (
        _directions(answers([Case(one, prompt=prompt) for one in side]))
        for side, prompt in ((own.first, query), (own.second, text))
    )
    scores = queries @ texts.T
    # The same text may answer several queries.
    right = np.array([[want == have for have in own.second] for want in own.second])
    best = np.where(right, scores, -np.inf).max(1, keepdims=True)
    above = (scores > best).sum(1)
    return float((above < at).mean())


def _directions(made: Sequence[Any]) -> Any:
    vectors = np.stack(list(made)).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _rerank_recall(own: OwnSet, answers: Answers, at: int) -> float:
    count = len(own.first)
    hits = []
    for index, query in enumerate(own.first):
        right = own.second[index]
        others = [own.second[(index + step) % count] for step in range(1, _OTHERS + 1)]
        texts = [right, *(text for text in dict.fromkeys(others) if text != right)]
        scores = [one.item() for one in answers([Case(query, text) for text in texts])]
        hits.append(sum(score > scores[0] for score in scores[1:]) < at)
    return float(np.mean(hits))
