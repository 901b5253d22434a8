# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: the mock decoder answering every id at once, as NVIDIA's sample does."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from mockdecoder.steps import Pace, token_id

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LENGTH = np.array([[1]], dtype=np.int32)


@dataclass
class _Sequence:
    sender: Any
    first_prompt_id: int
    budget: int
    made: int = 0


class TritonPythonModel:
    """input_ids to one output_ids [1, 1, 1] and sequence_length per token."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the stepping thread."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._vocab_size = int(parameters["vocab_size"]["string_value"])
        self._arrived = threading.Condition()
        self._sequences: list[_Sequence] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Add the requests; they are answered by the stepping thread."""
        added = [self._sequence(request) for request in requests]
        with self._arrived:
            self._sequences += added
            self._arrived.notify()

    def finalize(self) -> None:
        """Stop the stepping thread."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join(10)

    def _sequence(self, request: Any) -> _Sequence:
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        budget = pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy()
        return _Sequence(request.get_response_sender(), int(ids[0, 0]), int(budget[0, 0]))

    def _run(self) -> None:
        pace = Pace()
        while not self._closing:
            with self._arrived:
                self._arrived.wait_for(lambda: self._sequences or self._closing)
                live = list(self._sequences)
            pace.wait()
            for sequence in live:
                self._answer(sequence)
            with self._arrived:
                self._sequences = [s for s in self._sequences if s.made < s.budget]

    def _answer(self, sequence: _Sequence) -> None:
        made = token_id(sequence.first_prompt_id, sequence.made, self._vocab_size)
        sequence.made += 1
        tensors = [
            pb_utils.Tensor("output_ids", np.array([[[made]]], dtype=np.int32)),
            pb_utils.Tensor("sequence_length", _LENGTH),
        ]
        flags = _FINAL if sequence.made >= sequence.budget else 0
        sequence.sender.send(pb_utils.InferenceResponse(tensors), flags=flags)
