# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures: gRPC status names, "connection" for a broken transport, "timeout"."""

from __future__ import annotations

from typing import Any, NamedTuple

CONNECTION, TIMEOUT = "connection", "timeout"
_LATE = "DEADLINE_EXCEEDED"
# gRPC's overload protection sends its status without a reason.
_BACKLOG = ": dropped by the server's gRPC, as it does when some 1,000 requests wait to be accepted"

# Triton (2.51) sends text without a status on streams: phrases, and the status they mean.
_WORDS = (
    ("Exceeds maximum queue size", "UNAVAILABLE"),
    ("engine's queue is full", "UNAVAILABLE"),
    ("Request timeout expired", "UNAVAILABLE"),
    ("unknown model", "NOT_FOUND"),
    ("is not found", "NOT_FOUND"),
    ("is not ready", "UNAVAILABLE"),
    ("Server is stopping", "UNAVAILABLE"),
    ("Failed to process the request", "INTERNAL"),  # an exception in a Python model
    ("cancelled", "CANCELLED"),
)
# Phrases of gRPC and sockets for a failed connection, not a failed request.
_TRANSPORT = (
    "failed to connect",
    "Connection refused",
    "Connection reset",
    "Socket closed",
    "Broken pipe",
    "Stream removed",
    "RST_STREAM",
    "GOAWAY",
    "recvmsg",
    "sendmsg",
    "End of TCP",
    "EOF",
    "Endpoint",
    "DNS resolution",
    "keepalive",
    "Timeout occurred",
)


class Failure(NamedTuple):
    """The reason why a request failed."""

    kind: str
    message: str


class WireError(Exception):
    """The server answered a request with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BrokenError(WireError):
    """The connection broke or failed: a retry may resume."""


def triton_failure(message: str) -> Failure:
    """Classify an error message in a stream; INVALID_ARGUMENT without a known phrase."""
    kind = next((kind for words, kind in _WORDS if words in message), "INVALID_ARGUMENT")
    return Failure(kind, message)


def grpc_failure(status: str, message: str) -> Failure:
    """Classify a gRPC status name; UNAVAILABLE may be a broken connection or a busy server."""
    transport = any(words in message for words in _TRANSPORT)
    if transport and status in {"UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED"}:
        return Failure(CONNECTION, message)
    return Failure(status, message)


def rpc_error(error: Any) -> WireError:
    """Convert a grpc.RpcError to a WireError, or a BrokenError if a retry may resume."""
    failure = rpc_failure(error)
    broke = failure.kind in {CONNECTION, "UNAVAILABLE"}
    return BrokenError(failure) if broke else WireError(failure)


def rpc_failure(error: Any) -> Failure:
    """Classify a grpc.RpcError."""
    status, message = error.code().name, error.details() or ""
    if status == message == "CANCELLED":
        message += _BACKLOG
    return Failure(TIMEOUT, message) if status == _LATE else grpc_failure(status, message)
