# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: tokenizer, mock decoder and detokenizer in one process, coalescing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mockdecoder.decoder import MockDecoder
from textlib.errors import TextPathError
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.tokens.prompt_encoder import PromptEncoder
from textlib.tokens.token_bytes import load_token_bytes
from textlib.triton.edge import read_arrays, reporting_load_errors, version_folder
from textlib.triton.engine_responses import EngineResponses
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams

_CAPACITY = 512


class TritonPythonModel:
    """text_input to streamed text_output."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer, start the loop."""
        with reporting_load_errors(args) as parameters:
            file = version_folder(args) / "tokenizer" / "tokenizer.json"
            self._encoder = PromptEncoder(
                file, max_input_len=parameters.integer("max_input_len"), add_special_tokens=True
            )
            self._answers = EngineResponses(load_token_bytes(file, skip_special_tokens=True))
            engine = MockDecoder(parameters.integer("vocab_size"))
        self._loop = DecoderLoop(engine, capacity=_CAPACITY)
        self._loop.start()

    def execute(self, requests: list[Any]) -> None:
        """Encode, then hand the request to the loop."""
        for request in requests:
            sink, tensors = self._answers.response_sink(request), read_arrays(request)
            [ids] = self._encoder.encode([bytes(tensors["text_input"][0, 0])])
            if isinstance(ids, TextPathError):
                sink.fail(ids)
                continue
            sampling = SamplingParams(max_tokens=int(tensors["max_tokens"][0, 0]))
            prompt = np.array(ids, dtype=np.int32)
            self._loop.submit(GenerationRequest(prompt, sampling, streaming=True), sink)
        self._loop.wait_for_capacity()

    def finalize(self) -> None:
        """Stop the loop."""
        self._loop.close()
