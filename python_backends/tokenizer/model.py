# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: prompts and conversations to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from textlib.errors import TextPathError
from textlib.prompts import Prompts, Row
from textlib.step_metrics import StepMetrics
from textlib.token_chunk import PADDING
from textlib.triton_edge import (
    answer_each,
    existing,
    limit_tokenizer_threads,
    loading,
    read_arrays,
    tensor,
    version_folder,
)


class TritonPythonModel:
    """text_input or messages STRING[n, 1] to input_ids INT32[n, longest], input_lengths INT32[n, 1]
    and acknowledged BOOL[n, 1]."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/tokenizer."""
        limit_tokenizer_threads()
        with loading(args) as parameters:
            existing(version_folder(args) / "tokenizer" / "tokenizer.json")
            self._prompts = Prompts(version_folder(args) / "tokenizer", parameters)
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode the prompts of all requests in one call for each kind."""
        rows = iter(self._prompts.encode([read_arrays(request) for request in requests]))
        return answer_each(requests, lambda _: _tensors(next(rows)), self._metrics.failed)

    def finalize(self) -> None:
        """End the template's process and the metrics."""
        self._metrics.close()
        self._prompts.close()


def _tensors(rows: Sequence[Row]) -> list[Any]:
    ids = []
    for row in rows:
        if isinstance(row, TextPathError):
            raise row
        ids.append(row)
    padded = np.full((len(ids), max(map(len, ids))), PADDING, dtype=np.int32)
    for target, row in zip(padded, ids, strict=True):
        target[: len(row)] = row
    lengths = np.array([[len(row)] for row in ids], dtype=np.int32)
    # Only an ensemble passes this on: it tells the engine that its answers are acknowledged.
    acknowledged = np.ones((len(ids), 1), dtype=np.bool_)
    return [
        tensor("input_ids", padded),
        tensor("input_lengths", lengths),
        tensor("acknowledged", acknowledged),
    ]
