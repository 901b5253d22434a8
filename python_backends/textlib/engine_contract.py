# SPDX-License-Identifier: Apache-2.0
"""What the decoder loop asks of an engine, and what an engine reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from textlib.errors import EngineFailedError, TextPathError
from textlib.request_tensors import GenerationRequest
from textlib.token_chunk import FinishReason

# Steps that fail one after the other before an engine counts as dead.
MAX_FAILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step made for one stream; `finish` is NONE while it goes on.

    `log_probs`: one per id, if the request asks for them.
    """

    stream_id: int
    token_ids: Sequence[int]
    finish: FinishReason = FinishReason.NONE
    error: TextPathError | None = None
    log_probs: Sequence[float] = ()


class Engine(Protocol):
    """A batch decoder. Every method is called from the stepping thread only.

    But for an engine in a process of its own: `add` and `cancel` from any, one at a time.
    """

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Take a request in; it joins at the next step. Raises RequestError to refuse it."""

    def step(self) -> Sequence[Progress]:
        """Advance every stream; at least one is present. Reports each finished stream once."""

    def cancel(self, stream_id: int) -> None:
        """Forget a stream and free its memory; unknown ids are ignored."""


def no_wait() -> None:
    """Wakes an engine whose step waits for nothing but its own work."""


def request_failure(error: Exception) -> TextPathError:
    """What the client reads when an engine does not take its request."""
    if isinstance(error, TextPathError):
        return error
    return EngineFailedError(f"the engine did not take the request: {error}")
