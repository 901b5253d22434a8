# SPDX-License-Identifier: Apache-2.0
"""What an engine's stub and the engine's own process say to each other, a JSON value a frame.

To the process: {"folder", "model", "parameters"} once, then {"add": stream_id, ...} or
{"cancel": stream_id}.

From the process: {"ready": true} or {"refused": why} once, then after each step
{"made": [[stream_id, token_ids, finish, log_probs, error], ...]} or {"failed": why}, with
"kv": {"used", "free"} when that has changed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from textlib.engine_contract import Progress
from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.request_tensors import GenerationRequest, Guide
from textlib.sampling import SamplingParams
from textlib.token_chunk import FinishReason

_ERRORS: dict[str, type[TextPathError]] = {
    error.__name__: error for error in (RequestError, EngineFailedError)
}


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as a frame's content."""
    return json.dumps(message, separators=(",", ":")).encode()


def request_message(stream_id: int, request: GenerationRequest) -> bytes:
    """What an engine reads of a request: the rest of it is the loop's."""
    return packed(
        {
            "add": stream_id,
            "token_ids": request.token_ids.tolist(),
            "resumed": request.resumed,
            "watched": bool(request.stop_words),
            "bad_words": [word.decode("utf-8", "replace") for word in request.bad_words],
            "sampling": asdict(request.sampling),
            "guide": asdict(request.guide) if request.guide else None,
        }
    )


def read_request(message: Mapping[str, Any]) -> GenerationRequest:
    """The request of an `add`."""
    sampling = message["sampling"]
    return GenerationRequest(
        np.array(message["token_ids"], dtype=np.int32),
        SamplingParams(**{**sampling, "end_ids": tuple(sampling["end_ids"])}),
        streaming=True,
        bad_words=tuple(word.encode() for word in message["bad_words"]),
        resumed=message["resumed"],
        guide=Guide(**message["guide"]) if message["guide"] else None,
    )


def progress_rows(progress: Sequence[Progress]) -> list[list[Any]]:
    """The value of `made`."""
    return [
        [item.stream_id, list(item.token_ids), int(item.finish), list(item.log_probs), _error(item)]
        for item in progress
    ]


def _error(item: Progress) -> list[str] | None:
    if item.error is None:
        return None
    known = type(item.error).__name__
    return [known if known in _ERRORS else EngineFailedError.__name__, str(item.error)]


def read_progress(rows: Sequence[Sequence[Any]]) -> list[Progress]:
    """The steps' progress again."""
    return [
        Progress(
            stream_id,
            token_ids,
            FinishReason(finish) if finish else FinishReason.NONE,
            _ERRORS[error[0]](error[1]) if error else None,
            log_probs,
        )
        for stream_id, token_ids, finish, log_probs, error in rows
    ]
