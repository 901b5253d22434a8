# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: prompts to ids with transformers, request by request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer


class TritonPythonModel:
    """QUERY to INPUT_ID and REQUEST_INPUT_LEN."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer."""
        folder = Path(args["model_repository"], args["model_version"], "tokenizer")
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode each request on its own."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        query = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy()
        length = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        ids = np.array([self._tokenizer.encode(query[0, 0].decode())], dtype=np.int32)
        tensors = {
            "INPUT_ID": ids,
            "REQUEST_INPUT_LEN": np.array([[ids.shape[1]]], dtype=np.int32),
            "OUT_OUTPUT_LEN": length.astype(np.int32),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(k, v) for k, v in tensors.items()])
