# SPDX-License-Identifier: Apache-2.0
"""The interface between the decoder loop and an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from textlib.errors import EngineFailedError, TextPathError
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.request_tensors import GenerationRequest

# Consecutive failed steps after which an engine counts as dead.
MAX_FAILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The result of one step for one stream."""

    stream_id: int
    token_ids: Sequence[int]
    finish: FinishReason = FinishReason.NONE  # NONE while the stream continues
    error: TextPathError | None = None
    log_probs: Sequence[float] = ()  # one per id, if the request has log_probs


class GenerationEngine(Protocol):
    """A batch decoder. The loop calls every method from the stepping thread only.

    Exception: for an engine in a separate process it calls `add` and `cancel` from any thread, one
    at a time.
    """

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Add a request; it joins at the next step. Raises RequestError to reject it."""

    def step(self) -> Sequence[StreamProgress]:
        """Advance every stream, at least one. Reports each finished stream once."""

    def cancel(self, stream_id: int) -> None:
        """Drop a stream and free its memory; unknown ids are ignored."""


def no_wake() -> None:
    """The `wake` of an engine whose step never waits for requests."""


def as_text_path_error(error: Exception) -> TextPathError:
    """Return the error for the client when an engine rejects its request."""
    if isinstance(error, TextPathError):
        return error
    return EngineFailedError(f"the engine did not take the request: {error}")
