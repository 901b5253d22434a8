# SPDX-License-Identifier: Apache-2.0
"""Probe the model at the start of a run and when it resumes, to detect another model.

Another checkpoint of the same name has the same tensors, and a file with answers of both would be
worthless without a visible error. A model's answers vary slightly with batches and machines.
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
    RowOptions,
    ServedTask,
    TaskRow,
)

_PROBE_INPUTS = {
    TEXT: b"An interrupted run continues with the model that started it.",
    QUERY: b"Which model?",
}
_MIN_COSINE, _MAX_DIFFERENCE = 0.999, 0.02


def probe_answer(
    connection: Connection, served_task: ServedTask, options: RowOptions, delivery: Delivery
) -> dict[str, float]:
    """Return the model's answer as numbers by vector position, label or entity; {} without one.

    Raises ServerError if the server does not answer.
    """
    if IMAGE in served_task.task.inputs:
        return {}
    row = TaskRow({name: _PROBE_INPUTS[name] for name in served_task.task.inputs})
    try:
        [answer] = ask(connection, Batches(served_task, options, delivery), [row])
    except ItemsRejectedError:  # only the probe is rejected: lines may still be accepted
        return {}
    match answer:
        case Embedding():
            return {str(position): float(value) for position, value in enumerate(answer.vector)}
        case Classification():
            return dict(zip(answer.labels, answer.scores, strict=True))
        case Relevance():
            return {"score": answer.score}
        case _:
            return {
                f"{entity.label} {entity.start} {entity.end}": entity.score
                for entity in answer.entities
            }


def is_same_model(previous: Mapping[str, float], current: Mapping[str, float]) -> bool:
    """Whether both answers may come from the same model."""
    pairs = [(previous.get(name, 0.0), current.get(name, 0.0)) for name in {*previous, *current}]
    max_value = max((abs(old) for old, _ in pairs), default=0.0)
    if all(abs(old - new) <= _MAX_DIFFERENCE * max_value for old, new in pairs):
        return True
    lengths = math.hypot(*(old for old, _ in pairs)) * math.hypot(*(new for _, new in pairs))
    cosine = sum(old * new for old, new in pairs) / lengths if lengths else 0.0
    return len(pairs) > 1 and cosine >= _MIN_COSINE
