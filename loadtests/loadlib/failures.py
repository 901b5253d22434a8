# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures: gRPC's status names, "connection" when the transport broke, "timeout"."""

from __future__ import annotations

from typing import Any, NamedTuple

CONNECTION, TIMEOUT = "connection", "timeout"
_LATE = "DEADLINE_EXCEEDED"
# gRPC's own protection of a server; it sends no other reason than its status.
_BACKLOG = ": dropped by the server's gRPC, as it does when some 1,000 requests wait to be taken up"

# Triton (2.51) sends text without a status on streams: words in it, and the status they mean.
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
# Words of gRPC and sockets for a failed connection, not a failed request.
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
    """Why a request failed."""

    kind: str
    message: str


class WireError(Exception):
    """The server answered a request with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BrokenError(WireError):
    """The connection broke, or nobody was there: another attempt may go on."""


def triton_failure(message: str) -> Failure:
    """Of an error message in a stream; INVALID_ARGUMENT without a known word."""
    kind = next((kind for words, kind in _WORDS if words in message), "INVALID_ARGUMENT")
    return Failure(kind, message)


def grpc_failure(status: str, message: str) -> Failure:
    """Of a gRPC status, by name; UNAVAILABLE may be a broken connection or a busy server."""
    transport = any(words in message for words in _TRANSPORT)
    if transport and status in {"UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED"}:
        return Failure(CONNECTION, message)
    return Failure(status, message)


def rpc_error(error: Any) -> WireError:
    """Of a grpc.RpcError."""
    failure = rpc_failure(error)
    broke = failure.kind in {CONNECTION, "UNAVAILABLE"}
    return BrokenError(failure) if broke else WireError(failure)


def rpc_failure(error: Any) -> Failure:
    """Of a grpc.RpcError."""
    status, message = error.code().name, error.details() or ""
    if status == message == "CANCELLED":
        message += _BACKLOG
    return Failure(TIMEOUT, message) if status == _LATE else grpc_failure(status, message)
