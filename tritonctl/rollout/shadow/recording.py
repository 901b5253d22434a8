# SPDX-License-Identifier: Apache-2.0
"""Record a request as a line of a prompt file for `tritonctl rollout compare --prompts`.

It has the fields of Triton's `generate`: a value, or a list, for each input tensor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tritonctl.protocol.datatypes import NUMPY_OF
from tritonctl.protocol.tasks import QUERY, TEXT
from tritonctl.protocol.tensors import texts_of
from tritonctl.rollout.shadow.questions import ServedModelFacts

_BYTES = "BYTES"
_MESSAGES = "messages"


def prompt_record(request: Any, facts: ServedModelFacts) -> dict[str, Any]:
    """Return the values by input name, or query and documents of a rerank, and `model`."""
    values_by_input: dict[str, list[Any]] = {
        tensor.name: _values(tensor.datatype, raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    record: dict[str, Any] = {"model": request.model_name}
    if facts.task.task.name == "rerank" and values_by_input.get(QUERY) and TEXT in values_by_input:
        return {**record, QUERY: values_by_input[QUERY][0], "documents": values_by_input[TEXT]}
    for name, values in values_by_input.items():
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
