# SPDX-License-Identifier: Apache-2.0
"""Turn labels of tokens into entities of the text.

Follows transformers' TokenClassificationPipeline with aggregation_strategy="simple": each token
gets its best label; neighbours with the same tag join, unless the later label starts with `B-`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tasklib.labels import require_finite

OUTSIDE = "O"
SPECIAL = -1  # both offsets of a token without text, such as [CLS]


@dataclass(frozen=True)
class TextEntity:
    """An entity; `start` and `end` are offsets in characters (code points)."""

    label: str
    score: float  # mean over its tokens
    start: int
    end: int
    text: str

    def as_dict(self) -> dict[str, str | float | int]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Token:
    label: str
    score: float
    start: int
    end: int


def find_entities(
    token_scores: NDArray[np.float32],
    offsets: NDArray[np.int32],
    text: str,
    labels: Sequence[str],
) -> list[TextEntity]:
    """Return the entities of one text in order.

    token_scores: FP32[tokens, labels] after softmax. offsets: INT32[tokens, 2] in characters,
    SPECIAL for special tokens. Raises EngineFailedError for scores that are not finite.
    """
    scores = token_scores[: len(offsets)]
    require_finite("token_scores", scores)
    best = scores.argmax(axis=1)
    tokens = (
        _Token(labels[label], float(scores[index, label]), int(start), int(end))
        for index, (label, (start, end)) in enumerate(zip(best, offsets, strict=True))
        if start != SPECIAL
    )
    return [
        entity
        for group in _group_tokens(tokens)
        if (entity := _entity(group, text)).label != OUTSIDE
    ]


def _group_tokens(tokens: Iterable[_Token]) -> Iterator[list[_Token]]:
    group: list[_Token] = []
    for token in tokens:
        starts_entity, tag = _tag(token.label)
        if group and (starts_entity or tag != _tag(group[-1].label)[1]):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _tag(label: str) -> tuple[bool, str]:
    """Return whether the label starts an entity, and its tag."""
    if label.startswith(("B-", "I-")):
        return label[0] == "B", label[2:]
    return False, label


def _entity(group: Sequence[_Token], text: str) -> TextEntity:
    start, end = group[0].start, group[-1].end
    score = float(np.mean([token.score for token in group]))
    return TextEntity(group[0].label.split("-", 1)[-1], score, start, end, text[start:end])
