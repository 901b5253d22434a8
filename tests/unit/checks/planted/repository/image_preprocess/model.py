# SPDX-License-Identifier: Apache-2.0
"""Scales pictures as ResNet was trained with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class TritonPythonModel:
    """One picture of any batch is scaled like every other."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Scale all pictures of the requests."""
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            scaled = (image.astype(np.float32) / 255 - MEAN) / DEVIATION
            pixels = pb_utils.Tensor("pixels", scaled.transpose(0, 3, 1, 2))
            responses.append(pb_utils.InferenceResponse(output_tensors=[pixels]))
        return responses
