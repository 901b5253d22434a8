# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: ids to text with transformers, one decode per token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer


class TritonPythonModel:
    """TOKENS_BATCH and SEQUENCE_LENGTH to OUTPUT."""

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
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)])
