# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: prompts to ids with transformers, request by request.

Ten outputs as in NVIDIA's sample; those that this load has no use for are empty, as there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer

_NO_END = -1
_NO_WORDS = np.array([[[0], [-1]]], dtype=np.int32)


class TritonPythonModel:
    """QUERY and REQUEST_OUTPUT_LEN to what the decoder reads."""

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
            "DECODER_INPUT_ID": np.zeros((1, 1), dtype=np.int32),
            "REQUEST_DECODER_INPUT_LEN": np.zeros((1, 1), dtype=np.int32),
            "BAD_WORDS_IDS": _NO_WORDS,
            "STOP_WORDS_IDS": _NO_WORDS,
            "EMBEDDING_BIAS": np.zeros((1, 0), dtype=np.float32),
            "OUT_OUTPUT_LEN": length.astype(np.int32),
            "OUT_END_ID": np.array([[_NO_END]], dtype=np.int32),
            "OUT_PAD_ID": np.zeros((1, 1), dtype=np.int32),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(k, v) for k, v in tensors.items()])
