# SPDX-License-Identifier: Apache-2.0
"""A request as a line of a file of prompts: what `tritonctl rollout compare --prompts` reads.

The fields are those of Triton's `generate`: a value, or a list, for each input tensor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tritonctl.protocol.datatypes import NUMPY_OF
from tritonctl.protocol.tasks import QUERY, TEXT
from tritonctl.protocol.tensors import texts_of
from tritonctl.rollout.shadow.questions import Facts

_BYTES = "BYTES"
_MESSAGES = "messages"


def recorded(request: Any, facts: Facts) -> dict[str, Any]:
    """By the names of the inputs; of a rerank its query and documents; `model` beside them."""
    given: dict[str, list[Any]] = {
        tensor.name: _values(tensor.datatype, raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    record: dict[str, Any] = {"model": request.model_name}
    if facts.served.task.name == "rerank" and given.get(QUERY) and TEXT in given:
        return {**record, QUERY: given[QUERY][0], "documents": given[TEXT]}
    for name, values in given.items():
        record[name] = values[0] if len(values) == 1 else values
    if isinstance(record.get(_MESSAGES), str):
        record[_MESSAGES] = _json(record[_MESSAGES])
    return record


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == _BYTES:
        return [text.decode("utf-8", "replace") for text in texts_of(raw)]
    kind = NUMPY_OF.get(datatype)
    if kind is None:
        return []
    values: Sequence[Any] = np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).tolist()
    return list(values)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
