# SPDX-License-Identifier: Apache-2.0
"""Text to ids: bytes, for the example's sake."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

DEFAULT_LENGTH = 64


class TritonPythonModel:
    """Every row of a batch is a prompt."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode all prompts of the requests."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        asked = pb_utils.get_input_tensor_by_name(request, "max_tokens")
        rows = [list(row[0]) for row in text]
        longest = max(len(row) for row in rows)
        ids = np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int32)
        lengths = np.array([[len(row)] for row in rows], dtype=np.int32)
        wanted = np.full_like(lengths, DEFAULT_LENGTH) if asked is None else asked.as_numpy()
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("input_ids", ids),
                pb_utils.Tensor("input_lengths", lengths),
                pb_utils.Tensor("request_output_len", wanted),
            ]
        )
