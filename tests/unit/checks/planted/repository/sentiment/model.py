# SPDX-License-Identifier: Apache-2.0
"""Counts good and bad words."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD, BAD = {b"good", b"fine"}, {b"bad", b"poor"}


class TritonPythonModel:
    """Two figures for each text."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Judge all texts of the requests."""
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            rows = [[len(GOOD & set(t[0].split())), len(BAD & set(t[0].split()))] for t in text]
            sentiment = pb_utils.Tensor("sentiment", np.array(rows, dtype=np.float32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[sentiment]))
        return responses
