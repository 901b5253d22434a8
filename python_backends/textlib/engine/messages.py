# SPDX-License-Identifier: Apache-2.0
"""The messages between an engine's stub and the engine's process, one JSON value per frame.

To the process: {"folder", "model", "parameters"} once, then {"add": stream_id, ...} or
{"cancel": stream_id}.

From the process: {"ready": true} or {"refused": reason} once, then after each step
{"made": [[stream_id, token_ids, finish, log_probs, error], ...]} or {"failed": reason}, with
"kv": {"used", "free"} when it has changed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from textlib.engine.contract import StreamProgress
from textlib.errors import EngineFailedError, QueueFullError, RequestError, TextPathError
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.request_tensors import GenerationRequest, GuideSpec
from textlib.triton.sampling import SamplingParams

_ERRORS: dict[str, type[TextPathError]] = {
    error.__name__: error for error in (RequestError, EngineFailedError, QueueFullError)
}


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as the content of a frame."""
    return json.dumps(message, separators=(",", ":")).encode()


def request_message(stream_id: int, request: GenerationRequest) -> bytes:
    """Encode the part of a request that the engine needs."""
    return encode_message(
        {
            "add": stream_id,
            "token_ids": request.token_ids.tolist(),
            "resumed": request.num_resumed_ids,
            "watched": bool(request.stop_words),
            "bad_words": [word.decode("utf-8", "replace") for word in request.bad_words],
            "sampling": asdict(request.sampling),
            "guide": asdict(request.guide) if request.guide else None,
            "tenant": request.tenant,
        }
    )


def read_request(message: Mapping[str, Any]) -> GenerationRequest:
    """Decode the request of an `add` message."""
    sampling = message["sampling"]
    return GenerationRequest(
        np.array(message["token_ids"], dtype=np.int32),
        SamplingParams(**{**sampling, "end_ids": tuple(sampling["end_ids"])}),
        streaming=True,
        bad_words=tuple(word.encode() for word in message["bad_words"]),
        num_resumed_ids=message["resumed"],
        guide=GuideSpec(**message["guide"]) if message["guide"] else None,
        tenant=message["tenant"],
    )


def progress_rows(progress: Sequence[StreamProgress]) -> list[list[Any]]:
    """Return the value of `made`."""
    return [
        [
            item.stream_id,
            list(item.token_ids),
            int(item.finish),
            list(item.log_probs),
            _error_row(item),
        ]
        for item in progress
    ]


def _error_row(item: StreamProgress) -> list[str] | None:
    if item.error is None:
        return None
    error_name = type(item.error).__name__
    return [error_name if error_name in _ERRORS else EngineFailedError.__name__, str(item.error)]


def read_progress(rows: Sequence[Sequence[Any]]) -> list[StreamProgress]:
    """Decode the value of `made`."""
    return [
        StreamProgress(
            stream_id,
            token_ids,
            FinishReason(finish) if finish else FinishReason.NONE,
            _ERRORS[error[0]](error[1]) if error else None,
            log_probs,
        )
        for stream_id, token_ids, finish, log_probs, error in rows
    ]
