# SPDX-License-Identifier: Apache-2.0
"""Sends each prompt back, an id at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Decoupled: a response per id, then the final flag alone."""

    def execute(self, requests: list[Any]) -> None:
        """Answer every request; the responses go out through its sender."""
        for request in requests:
            self._stream(request)

    def _stream(self, request: Any) -> None:
        sender = request.get_response_sender()
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        limit = pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy()
        for number, one in enumerate(ids[0][: int(limit[0][0])]):
            if request.is_cancelled():
                break
            output = pb_utils.Tensor("output_ids", np.array([[one]], dtype=np.int32))
            length = pb_utils.Tensor("sequence_length", np.array([[number + 1]], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse(output_tensors=[output, length]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
