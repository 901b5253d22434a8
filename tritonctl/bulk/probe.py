# SPDX-License-Identifier: Apache-2.0
"""One question that a run asks at its start and again when it goes on: is it the same model?

Another checkpoint under the name has the same tensors; half a file of each would be worthless, and
nobody would see it. What a model answers varies a little with its batches and its machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tritonctl.errors import ItemsRejectedError
from tritonctl.protocol.batches import Batches
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.delivery import Delivery
from tritonctl.protocol.row_calls import ask
from tritonctl.protocol.tasks import (
    IMAGE,
    QUERY,
    TEXT,
    Classification,
    Embedding,
    Relevance,
    Row,
    RowOptions,
    ServedTask,
)

_QUESTION = {
    TEXT: b"A run that was interrupted goes on with the model it began with.",
    QUERY: b"Which model?",
}
_LEAST_COSINE, _MOST_DIFFERENCE = 0.999, 0.02


def probed(
    connection: Connection, served: ServedTask, options: RowOptions, delivery: Delivery
) -> dict[str, float]:
    """The model's answer as numbers: places of a vector, labels, entities; {} where none is had.

    Raises ServerError without an answer.
    """
    if IMAGE in served.task.inputs:
        return {}
    row = Row({name: _QUESTION[name] for name in served.task.inputs})
    try:
        [answer] = ask(connection, Batches(served, options, delivery), [row])
    except ItemsRejectedError:  # of this question alone: what comes of the lines is their affair
        return {}
    match answer:
        case Embedding():
            return {str(place): float(value) for place, value in enumerate(answer.vector)}
        case Classification():
            return dict(zip(answer.labels, answer.scores, strict=True))
        case Relevance():
            return {"score": answer.score}
        case _:
            return {f"{one.label} {one.start} {one.end}": one.score for one in answer.entities}


def same(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether one model may have given both answers."""
    pairs = [(before.get(name, 0.0), now.get(name, 0.0)) for name in {*before, *now}]
    largest = max((abs(one) for one, _ in pairs), default=0.0)
    if all(abs(one - other) <= _MOST_DIFFERENCE * largest for one, other in pairs):
        return True
    lengths = math.hypot(*(one for one, _ in pairs)) * math.hypot(*(other for _, other in pairs))
    cosine = sum(one * other for one, other in pairs) / lengths if lengths else 0.0
    return len(pairs) > 1 and cosine >= _LEAST_COSINE
