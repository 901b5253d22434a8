# SPDX-License-Identifier: Apache-2.0
"""What a stream's error message means: Triton's gRPC streams carry its text and no status code."""

from __future__ import annotations

import re

from tritonctl.errors import RequestRejectedError, ServerBusyError, StepGoneError, TritonctlError

# The words of Triton's queue (tritonserver 2.51); everything else is about the request itself.
_FULL = "Exceeds maximum queue size"
# The decoder loop's (python_backends/textlib/decoder_loop.py).
_FULL_ENGINE = re.compile(r"the engine's queue is full: .*")
_EXPIRED = "Request timeout expired"
# The Python backend's words for a stub that is gone, and an engine's for its detokenizer's silence:
# who can read that has not gone away.
_GONE = re.compile(r"Stub process '[^']+' is not healthy|its responses arrive nowhere")
# Those of a server that has been asked to end, for the steps of ensembles.
_ENDING = re.compile(r"Server is stopping|has stopped accepting new inference requests")
_ENSEMBLE = re.compile(r"in ensemble '([^']+)'")

_LATER = (
    "send the request again later; raise serving.queue.max_queue_size if longer waiting is better "
    "than refusal, or serve more replicas"
)
_CHANGE = "change the request as the message says; the server goes on"
# What tritonserver 2.51 says of a model's name, and of one that is no ensemble for text.
_NO_TEXT = (
    "name a model that generates text, as `models:` of the project does; others answer to "
    "`tritonctl infer`"
)
_REMEDIES = {
    "Request for unknown model": "`tritonctl status` lists the models of the project's server",
    "unexpected inference output": _NO_TEXT,
    "unexpected inference input": _NO_TEXT,
}


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
    if _ENDING.search(message):
        return StepGoneError(
            f"the server is ending and takes no more requests for {model}",
            remedy="send the request to another server, or again when this one is back",
        )
    if _GONE.search(message):
        return StepGoneError(
            f"the server has lost a process of {model} ({message})",
            remedy="start the server again: `tritonctl down`, then `tritonctl up`; why it died may "
            "stand in `tritonctl logs` or, for a lack of memory, in `dmesg`",
        )
    return rejected(message)


def rejected(message: str) -> RequestRejectedError:
    """The error for a request that Triton, or a model, says is wrong."""
    remedy = next((remedy for words, remedy in _REMEDIES.items() if words in message), _CHANGE)
    return RequestRejectedError(f"Triton refused the request: {message}", remedy=remedy)
