# SPDX-License-Identifier: Apache-2.0
"""Errors of models: an exception in a Python model, or an error that a model answers with.

A model may answer with any status, so its words tell whether it or the connection failed.
"""

from __future__ import annotations

import re

import grpc

from tritonctl.errors import ModelFailedError

ENSEMBLE = re.compile(r"in ensemble '([^']+)'")
# Words of gRPC, of our HTTP/2 and of Envoy about a connection or a protocol.
_TRANSPORT = re.compile(
    r"failed to connect|connection (?:was )?(?:refused|reset|closed|timed out|aborted)"
    r"|socket closed|stream removed|RST_STREAM|GOAWAY|recvmsg|sendmsg|broken pipe|endpoint read"
    r"|keepalive|transport|\bDNS\b|name resolution|no route to host|network is unreachable"
    r"|upstream|handshake|\b(?:SSL|TLS)\b|HTTP/?2|\bHTTP status\b|HTTP response"
    r"|cancelled (?:by its client|by application|on the server side)|channel (?:was )?closed"
    r"|method not found|unknown service|not implemented|there is no response"
    r"|the last message is incomplete|a response is compressed|more than the window allows",
    re.IGNORECASE,
)
MODEL_CODES = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
)
# The Python backend's words for an exception in a model's execute(), innermost frame first.
EXCEPTION = re.compile(
    r"Failed to process the request\(s\) for model (?:instance )?'(?P<instance>[^']+)', message: "
    r"(?P<exception>.*?)(?:\n\nAt:\n(?P<frames>.*))?\Z",
    re.DOTALL,
)
_FRAME = re.compile(r"^\s*(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.MULTILINE)
_INSTANCE_NUMBERS = re.compile(r"(?:_\d+){1,2}\Z")
_MAX_EXCEPTION = 400  # characters


def is_of_model(message: str, model: str) -> bool:
    """Whether a model wrote this message: gRPC's and Envoy's are about the connection."""
    if ENSEMBLE.search(message):
        return True
    return bool(model and message and not _TRANSPORT.search(message))


def model_error(message: str, status: str, model: str) -> ModelFailedError:
    """Create the error for a model's own answer, which has no traceback."""
    ensemble = ENSEMBLE.match(message)
    name = ensemble[1] if ensemble else model
    text = message[ensemble.end() :].removeprefix(", ") if ensemble else message
    subject = f"a step of {name}" if ensemble else name
    return ModelFailedError(
        f"{subject} answered with an error: {status}: {text}",
        remedy=f"the message is the model's own; `tritonctl logs {name}` may say more",
    )


def exception_error(match: re.Match[str], message: str, model: str) -> ModelFailedError:
    """Create the error for an exception in a Python model: its name, its words, its line."""
    ensemble = ENSEMBLE.search(message)
    instance = match["instance"]
    # Triton numbers instances in one or two ways, so the requested name is the better source.
    is_requested = bool(model) and not ensemble and instance.startswith(model)
    name = model if is_requested else _INSTANCE_NUMBERS.sub("", instance)
    frames = list(_FRAME.finditer(match["frames"] or ""))
    frame = next((each for each in frames if each["file"].endswith("model.py")), None)
    frame = frame or next(iter(frames), None)
    location = f" ({frame['file']}:{frame['line']}, in {frame['function']})" if frame else ""
    exception = match["exception"].strip()
    if len(exception) > _MAX_EXCEPTION:
        exception = f"{exception[:_MAX_EXCEPTION]} ..."
    step = f", a step of {ensemble[1]}," if ensemble else ""
    return ModelFailedError(
        f"{name}{step} failed on this request: {exception}{location}",
        remedy=f"the server goes on; `tritonctl logs {name}` has its log, and after a change of "
        f"its code `tritonctl reload {name}` loads it",
    )
