# SPDX-License-Identifier: Apache-2.0
"""Labels of tokens to entities of the text.

The rule is that of transformers' TokenClassificationPipeline with aggregation_strategy="simple":
the best label of each token; neighbours of one tag join, unless the later one begins with `B-`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tasklib.labels import require_finite

OUTSIDE = "O"
SPECIAL = -1  # both offsets of a token that stands for no text, such as [CLS]


@dataclass(frozen=True)
class Entity:
    """`start` and `end` are characters (code points) of the text; score: mean over its tokens."""

    label: str
    score: float
    start: int
    end: int
    text: str

    def as_dict(self) -> dict[str, str | float | int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Token:
    label: str
    score: float
    start: int
    end: int


def entities(
    token_scores: NDArray[np.float32],
    offsets: NDArray[np.int32],
    text: str,
    labels: Sequence[str],
) -> list[Entity]:
    """The entities of one text, in its order.

    token_scores: FP32[tokens, labels] after softmax. offsets: INT32[tokens, 2] in characters,
    SPECIAL for special tokens. Raises EngineFailedError for scores that are not numbers.
    """
    scores = token_scores[: len(offsets)]
    require_finite("token_scores", scores)
    best = scores.argmax(axis=1)
    tokens = (
        _Token(labels[label], float(scores[index, label]), int(start), int(end))
        for index, (label, (start, end)) in enumerate(zip(best, offsets, strict=True))
        if start != SPECIAL
    )
    return [one for group in _groups(tokens) if (one := _entity(group, text)).label != OUTSIDE]


def _groups(tokens: Iterable[_Token]) -> Iterator[list[_Token]]:
    group: list[_Token] = []
    for token in tokens:
        begins, tag = _tag(token.label)
        if group and (begins or tag != _tag(group[-1].label)[1]):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _tag(label: str) -> tuple[bool, str]:
    """Whether the label begins an entity, and of which kind."""
    if label.startswith(("B-", "I-")):
        return label[0] == "B", label[2:]
    return False, label


def _entity(group: Sequence[_Token], text: str) -> Entity:
    start, end = group[0].start, group[-1].end
    score = float(np.mean([token.score for token in group]))
    return Entity(group[0].label.split("-", 1)[-1], score, start, end, text[start:end])
