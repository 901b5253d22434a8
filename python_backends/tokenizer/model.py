# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: prompts and conversations to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from textlib.errors import TextPathError
from textlib.tokens.token_chunk import PADDING
from textlib.triton.edge import (
    limit_tokenizer_threads,
    read_arrays,
    reporting_load_errors,
    require_path,
    respond_to_each,
    tensor,
    version_folder,
)
from textlib.triton.prompts import PromptResult, RequestEncoder
from textlib.triton.step_metrics import StepMetrics


class TritonPythonModel:
    """text_input or messages STRING[n, 1], or prompt_ids INT32[n, m], to input_ids
    INT32[n, longest], input_lengths INT32[n, 1] and acknowledged BOOL[n, 1]."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/tokenizer."""
        limit_tokenizer_threads()
        with reporting_load_errors(args) as parameters:
            require_path(version_folder(args) / "tokenizer" / "tokenizer.json")
            self._prompts = RequestEncoder(version_folder(args) / "tokenizer", parameters)
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode the prompts of all requests, one call per kind of prompt."""
        rows = iter(self._prompts.encode([read_arrays(request) for request in requests]))
        return respond_to_each(requests, lambda _: _tensors(next(rows)), self._metrics.count_error)

    def finalize(self) -> None:
        """Stop the template's process and remove the metrics."""
        self._metrics.close()
        self._prompts.close()


def _tensors(rows: Sequence[PromptResult]) -> list[Any]:
    ids = []
    for row in rows:
        if isinstance(row, TextPathError):
            raise row
        ids.append(row)
    padded = np.full((len(ids), max(map(len, ids))), PADDING, dtype=np.int32)
    for target, row in zip(padded, ids, strict=True):
        target[: len(row)] = row
    lengths = np.array([[len(row)] for row in ids], dtype=np.int32)
    # Only an ensemble passes this on; it tells the engine that its responses are acknowledged.
    acknowledged = np.ones((len(ids), 1), dtype=np.bool_)
    return [
        tensor("input_ids", padded),
        tensor("input_lengths", lengths),
        tensor("acknowledged", acknowledged),
    ]
