# SPDX-License-Identifier: Apache-2.0
"""A program for test_engine_process: an engine that counts up from each prompt's first id.

A prompt that begins with REFUSED is refused, with BREAKS it fails the step, with ENDS it ends the
process. The folder's name `unloadable` is a configuration error, `crash` ends the process at once.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from textlib.engine.contract import StreamProgress
from textlib.engine.worker import main
from textlib.errors import ModelConfigurationError, RequestError
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.engine_metrics import KvCache
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest

REFUSED, BREAKS, ENDS = 1, 2, 3
STATUS = 7
BLOCKS = 10


class CountingEngine:
    """One id per stream and step."""

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        if folder.name == "crash":
            os._exit(STATUS)
        if folder.name == "unloadable":
            raise ModelConfigurationError(f"{folder}: not for {parameters.text('name')}")
        self._live: dict[int, tuple[GenerationRequest, int]] = {}

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Take it in, unless it is unlucky."""
        if request.token_ids[0] == REFUSED:
            raise RequestError(f"unlucky: {b' '.join(request.bad_words).decode()}")
        self._live[stream_id] = request, 0

    def step(self) -> Sequence[StreamProgress]:
        """The next id of each."""
        return [self._advanced(stream_id) for stream_id in list(self._live)]

    def _advanced(self, stream_id: int) -> StreamProgress:
        request, made = self._live[stream_id]
        first = int(request.token_ids[0])
        if first == ENDS:
            os._exit(STATUS)
        if first == BREAKS:
            raise RuntimeError("out of luck")
        self._live[stream_id] = request, made + 1
        last = made + 1 == request.sampling.max_tokens
        if last:
            del self._live[stream_id]
        finish = FinishReason.LENGTH if last else FinishReason.NONE
        log_probs = [-0.5] if request.sampling.log_probs else []
        return StreamProgress(stream_id, [first + made], finish, log_probs=log_probs)

    def cancel(self, stream_id: int) -> None:
        """Forget it."""
        self._live.pop(stream_id, None)

    def kv_cache(self) -> KvCache:
        """A block each."""
        return KvCache(len(self._live), BLOCKS - len(self._live))


main(CountingEngine)
