# SPDX-License-Identifier: Apache-2.0
"""What a stream's error message means: Triton's gRPC streams carry its text and no status code."""

from __future__ import annotations

import re

from tritonctl.errors import RequestRejectedError, ServerBusyError, TritonctlError

# The words of Triton's queue (tritonserver 2.51); everything else is about the request itself.
_FULL = "Exceeds maximum queue size"
# The decoder loop's (python_backends/textlib/decoder_loop.py).
_FULL_ENGINE = re.compile(r"the engine's queue is full: .*")
_EXPIRED = "Request timeout expired"
_ENSEMBLE = re.compile(r"in ensemble '([^']+)'")

_LATER = (
    "send the request again later; raise serving.queue.max_queue_size if longer waiting is better "
    "than refusal, or serve more replicas"
)


def refusal(message: str) -> TritonctlError:
    """The error for a message with which Triton ended a stream."""
    found = _ENSEMBLE.search(message)
    model = found[1] if found else "the model"
    if _FULL in message:
        return ServerBusyError(
            f"UNAVAILABLE: {model} has as many requests waiting as its queue holds "
            f"(Triton: {_FULL})",
            remedy=_LATER,
        )
    if full := _FULL_ENGINE.search(message):
        return ServerBusyError(f"UNAVAILABLE: {model}: {full[0]}", remedy=_LATER)
    if _EXPIRED in message:
        return ServerBusyError(
            f"UNAVAILABLE: the request waited for {model} until its queue timeout "
            f"(Triton: {_EXPIRED})",
            remedy="send the request again later or with more time; the server's own limit is "
            "serving.queue.default_timeout_microseconds",
        )
    return RequestRejectedError(
        f"Triton refused the request: {message}",
        remedy="change the request as the message says; the server goes on",
    )
