# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: tokenizer, mock decoder and detokenizer in one process, coalescing."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from mockdecoder.decoder import MockDecoder
from textlib.decoder_loop import DecoderLoop
from textlib.errors import TextPathError
from textlib.prompt_encoder import PromptEncoder
from textlib.request_tensors import GenerationRequest
from textlib.sampling import SamplingParams
from textlib.text_outputs import OUTPUTS, text_outputs
from textlib.token_bytes import TokenBytes, load_token_bytes
from textlib.token_chunk import unpack
from textlib.triton_edge import error_response, loading, version_folder

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_CAPACITY = 512


class _TextSink:
    """Answers with text instead of a token chunk."""

    def __init__(self, sender: Any, table: TokenBytes) -> None:
        self._sender = sender
        self._table = table

    def send(self, token_chunk: NDArray[np.int32], *, final: bool) -> None:
        """Decode and answer."""
        tensors = text_outputs(OUTPUTS, [unpack(token_chunk)], self._table)
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if final else 0)

    def fail(self, error: TextPathError) -> None:
        """Answer with the error."""
        self._sender.send(error_response(error), flags=_FINAL)

    def is_cancelled(self) -> bool:
        """Ask the server."""
        return bool(self._sender.is_cancelled())


class TritonPythonModel:
    """text_input to streamed text_output."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer, start the loop."""
        with loading(args) as parameters:
            file = version_folder(args) / "tokenizer" / "tokenizer.json"
            self._encoder = PromptEncoder(
                file,
                max_input_len=parameters.integer("max_input_len"),
                add_special_tokens=True,
            )
            self._table = load_token_bytes(file, skip_special_tokens=True)
            engine = MockDecoder(parameters.integer("vocab_size"))
        self._loop = DecoderLoop(engine, capacity=_CAPACITY)
        self._loop.start()

    def execute(self, requests: list[Any]) -> None:
        """Encode, then hand the request to the loop."""
        for request in requests:
            sink = _TextSink(request.get_response_sender(), self._table)
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            budget = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy()
            [ids] = self._encoder.encode([bytes(text[0, 0])])
            if isinstance(ids, TextPathError):
                sink.fail(ids)
                continue
            sampling = SamplingParams(max_tokens=int(budget[0, 0]))
            prompt = np.array(ids, dtype=np.int32)
            self._loop.submit(GenerationRequest(prompt, sampling, streaming=True), sink)
        self._loop.await_room()

    def finalize(self) -> None:
        """Stop the loop."""
        self._loop.close()
