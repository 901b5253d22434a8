# SPDX-License-Identifier: Apache-2.0
"""Makes a word of what the model `sentiment` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks another model in each request."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests, one after the other."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "text")
        asked = pb_utils.InferenceRequest(
            model_name="sentiment",
            requested_output_names=["sentiment"],
            inputs=[pb_utils.Tensor("text", text.as_numpy())],
        )
        answer = asked.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        found = pb_utils.get_output_tensor_by_name(answer, "sentiment").as_numpy()
        word = b"good" if found[0][0] >= found[0][1] else b"bad"
        verdict = pb_utils.Tensor("verdict", np.array([word], dtype=np.object_))
        return pb_utils.InferenceResponse(output_tensors=[verdict])
