# SPDX-License-Identifier: Apache-2.0
"""The errors of the text path.

    TextPathError                    answered to one client as a TritonError with the class's code
    ├── RequestError                 INVALID_ARG   the client can repair its request
    │   └── PromptTooLongError       INVALID_ARG   more tokens than the model takes
    ├── RequestCancelledError        CANCELLED     the client asked us to stop, or went away
    ├── EngineUnavailableError       UNAVAILABLE   the model is closing, or its engine is dead
    │   └── QueueFullError           UNAVAILABLE   as many requests wait as may
    └── EngineFailedError            INTERNAL      the engine broke while it worked on the request
    ConfigurationError               the model cannot be loaded; the operator has to act

`code` is the name of a `TritonError` constant, so this module needs no Triton; `reason` is what the
metrics call it.
"""

import re
from collections.abc import Collection
from typing import ClassVar

# Ours and Triton's: the same request may succeed later, or on another server.
_UNAVAILABLE = re.compile(
    r"the engine's queue is full|the model is being unloaded|Exceeds maximum queue size"
    r"|Request timeout expired|Server is stopping"
)
_ENSEMBLE = re.compile(r"^in ensemble '[^']*', ")


class TextPathError(Exception):
    """One request cannot be answered; `str(error)` is the text that its client reads."""

    code: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "failed"


class RequestError(TextPathError):
    """The request is wrong: the message names the public tensor, its value and the limit."""

    code = "INVALID_ARG"
    reason = "invalid"


class PromptTooLongError(RequestError):
    """The prompt has more tokens, or more bytes, than the model takes."""


class RequestCancelledError(TextPathError):
    """Nobody waits for the answer any more."""

    code = "CANCELLED"
    reason = "cancelled"


class EngineUnavailableError(TextPathError):
    """The engine takes no requests: it is closing down or has failed for good."""

    code = "UNAVAILABLE"
    reason = "unavailable"


class QueueFullError(EngineUnavailableError):
    """As many requests wait as may: the client can come back later."""

    reason = "queue_full"


class EngineFailedError(TextPathError):
    """The engine raised while it worked on this request."""

    code = "INTERNAL"


class ConfigurationError(Exception):
    """The model folder or its config.pbtxt cannot be served as it is."""


def code_of(message: str, tensors: Collection[str]) -> str:
    """The code of an ensemble's error whose code is lost: Triton passes on only the text to a model
    that asked for the answer. A message about a request begins with one of its tensors.
    """
    text = _ENSEMBLE.sub("", message)
    begin = re.match(r"\w+", text)
    if _UNAVAILABLE.search(text):
        return EngineUnavailableError.code
    if (begin and begin[0] in tensors) or text.startswith("the prompt "):
        return RequestError.code
    return EngineFailedError.code
