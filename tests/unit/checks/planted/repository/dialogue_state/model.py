# SPDX-License-Identifier: Apache-2.0
"""Counts the turns of each dialogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Keeps a number for each sequence."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002
        """Begin without any."""
        self.turns: dict[int, int] = {}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Count one turn for each request."""
        responses = []
        for request in requests:
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
            dialogue = pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy()
            key = int(dialogue.reshape(-1)[0])
            before = 0 if start.reshape(-1)[0] else self.turns.get(key, 0)
            self.turns[key] = before + 1
            turns = pb_utils.Tensor("turns", np.array([[before + 1]], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[turns]))
        return responses
