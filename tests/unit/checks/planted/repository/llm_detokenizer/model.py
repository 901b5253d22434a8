# SPDX-License-Identifier: Apache-2.0
"""Ids to text."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Keeps nothing between responses."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode all ids of the requests."""
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "output_ids").as_numpy()
            texts = [[bytes(int(one) & 0x7F for one in row)] for row in ids]
            text = pb_utils.Tensor("text_output", np.array(texts, dtype=np.object_))
            responses.append(pb_utils.InferenceResponse(output_tensors=[text]))
        return responses
