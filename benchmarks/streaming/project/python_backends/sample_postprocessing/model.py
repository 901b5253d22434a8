# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: ids to text with transformers, one decode per token.

Five outputs as in NVIDIA's sample; it answers 0.0 where the decoder gives no log probabilities and
no logits, because an ensemble must have every output in every response.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer

_ABSENT = {
    "OUT_CUM_LOG_PROBS": 2,
    "OUT_OUTPUT_LOG_PROBS": 3,
    "OUT_CONTEXT_LOGITS": 3,
    "OUT_GENERATION_LOGITS": 4,
}


class TritonPythonModel:
    """TOKENS_BATCH and SEQUENCE_LENGTH to OUTPUT and four more."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer."""
        folder = Path(args["model_repository"], args["model_version"], "tokenizer")
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode each request on its own."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        ids = tokens[0, 0][: lengths[0, 0]]
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        output = np.array([[text.encode()]], dtype=np.object_)
        tensors = [pb_utils.Tensor("OUTPUT", output)]
        for name, dims in _ABSENT.items():
            tensors.append(pb_utils.Tensor(name, np.zeros([1] * dims, dtype=np.float32)))
        return pb_utils.InferenceResponse(tensors)
