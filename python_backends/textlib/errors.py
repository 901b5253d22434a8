# SPDX-License-Identifier: Apache-2.0
"""The errors of the text path.

    TextPathError                    sent to one client as a TritonError with the class's code
    ├── RequestError                 INVALID_ARG   the client can correct its request
    │   └── PromptTooLongError       INVALID_ARG   more tokens than the model accepts
    ├── RequestCancelledError        CANCELLED     the client cancelled or left
    ├── EngineUnavailableError       UNAVAILABLE   the model is closing, or its engine is dead
    │   └── QueueFullError           UNAVAILABLE   the queue is full
    └── EngineFailedError            INTERNAL      the engine failed while it worked on the request
    ModelConfigurationError          the model cannot be loaded; the operator has to act

`code` is the name of a `TritonError` constant, so this module does not need Triton; `reason` is the
label in the metrics.
"""

import re
from collections.abc import Collection
from typing import ClassVar

# Our messages and Triton's: the same request may succeed later, or on another server.
_UNAVAILABLE = re.compile(
    r"the engine's queue is full|the model is being unloaded|Exceeds maximum queue size"
    r"|Request timeout expired|Server is stopping"
)
_ENSEMBLE = re.compile(r"^in ensemble '[^']*', ")


class TextPathError(Exception):
    """An error of one request; its client receives `str(error)`."""

    code: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "failed"


class RequestError(TextPathError):
    """The request is invalid; the message names the public tensor, its value and the limit."""

    code = "INVALID_ARG"
    reason = "invalid"


class PromptTooLongError(RequestError):
    """The prompt has more tokens, or more bytes, than the model accepts."""


class RequestCancelledError(TextPathError):
    """The client no longer waits for the answer."""

    code = "CANCELLED"
    reason = "cancelled"


class EngineUnavailableError(TextPathError):
    """The engine accepts no requests: it is closing or has failed permanently."""

    code = "UNAVAILABLE"
    reason = "unavailable"


class QueueFullError(EngineUnavailableError):
    """The queue is full; the client can retry later."""

    reason = "queue_full"


class EngineFailedError(TextPathError):
    """The engine raised while it worked on this request."""

    code = "INTERNAL"


class ModelConfigurationError(Exception):
    """The model folder or its config.pbtxt cannot be served."""


def ensemble_error_code(message: str, tensors: Collection[str]) -> str:
    """Recover the code of an ensemble's error from its message.

    Triton passes only the text to a model that calls another one. A message about a request begins
    with the name of one of its `tensors`.
    """
    text = _ENSEMBLE.sub("", message)
    first_word = re.match(r"\w+", text)
    if _UNAVAILABLE.search(text):
        return EngineUnavailableError.code
    if (first_word and first_word[0] in tensors) or text.startswith("the prompt "):
        return RequestError.code
    return EngineFailedError.code
