# SPDX-License-Identifier: Apache-2.0
"""The error map: converts failed calls to Triton to TritonctlErrors with remedies.

A failed call has a gRPC status and a message (`from_rpc_error`). A stream that Triton ends with an
error has only a message (`from_message`). A model that fails has answered, with any status: only a
connection that failed is "no answer".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import grpc

from tritonctl.errors import (
    ModelFailedError,
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    StepGoneError,
    TritonctlError,
    UsageError,
)
from tritonctl.protocol.model_errors import (
    ENSEMBLE,
    EXCEPTION,
    MODEL_CODES,
    exception_error,
    is_of_model,
    model_error,
)
from tritonctl.protocol.restrictions import RESTRICTED


@dataclass(frozen=True)
class Advice:
    """Remedies for calls without an answer; they depend on the command."""

    unreachable: str
    late: str | None = None  # after a timeout; None: same as `unreachable`


PROJECT_SERVER = Advice(
    "check that it runs with `tritonctl status`; start it with `tritonctl up`",
    late="allow more time, or look at `tritonctl logs`",
)
NAMED_SERVER = Advice(
    "give host:port of Triton's gRPC endpoint (8001 unless set otherwise), and check that it runs: "
    "`tritonctl status` knows the project's server"
)

# What gRPC says when TLS kept a connection from being made, and what to do about each.
_OTHER_NAME = (
    "the server's certificate is for another name or address: use that one, say what it is for "
    "(`--server-name`), or make a certificate for both (`tritonctl certs --host NAME`)"
)
_TLS_REMEDIES = {
    "certificate has expired": "the server's certificate has expired: renew it (to develop with: "
    "`tritonctl certs --force`), then `tritonctl down` and `tritonctl up`",
    "Hostname Verification": _OTHER_NAME,
    "certificate is not valid for": _OTHER_NAME,  # OpenSSL's words, those before are BoringSSL's
    "CERTIFICATE_VERIFY_FAILED": "another authority signed the server's certificate: name "
    "it (`--ca`, or `server.tls.ca` of the project)",
    "WRONG_VERSION_NUMBER": "the server does not use TLS: leave out `--ca` and `--certificate`",
    "Socket closed": "the server hangs up: it may use TLS, and may ask for a client certificate "
    "(`--ca`, `--certificate`, `--key`); `tritonctl status` shows the project's server",
}
_REJECTED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# gRPC's words for a connection that broke under a call; Triton itself answers with others.
_BROKEN = {
    grpc.StatusCode.UNKNOWN: "Stream removed",
    grpc.StatusCode.INTERNAL: "RST_STREAM",
}
# Triton's words for a protocol that takes the token of `tritonctl.protocol.restrictions`.
_RESTRICTED = "This protocol is restricted"

# The words of Triton's queue (tritonserver 2.51); everything else is about the request itself.
_FULL = "Exceeds maximum queue size"
# Our engines' (python_backends/textlib/scheduling/admission.py, tensorlib/run_queue.py).
_FULL_ENGINE = re.compile(r"the engine's queue is full: .*")
_EXPIRED = "Request timeout expired"
# The Python backend's words for a stub that has died, and an engine's for a detokenizer that does
# not answer (a client that can read them has not gone away).
_DEAD_PROCESS = re.compile(
    r"Stub process '[^']+' is not healthy"
    r"|nothing receives its responses|its responses arrive nowhere"  # the latter: older engines
)
# A server's that is ending, for the steps of ensembles.
_SERVER_ENDING = re.compile(r"Server is stopping|has stopped accepting new inference requests")
# Of a model that was served, unlike one that "is not found".
_NO_VERSION = re.compile(r"unknown model: '([^']+)' has no available versions")

# Envoy's message for a tenant that exceeds the gateway's rate limit.
_LIMITED = "local_rate_limited"
# gateway/tenants.lua says it of a tenant whose limits only the frontend keeps.
_FRONTEND_ONLY = "has limits that only the OpenAI API keeps"
# Triton's message for ModelInfer (gRPC) on a streaming model; its HTTP message differs.
_DECOUPLED = "models with decoupled transaction policy"

_RETRY_REMEDY = (
    "send the request again later; raise serving.queue.max_queue_size if longer waiting is better "
    "than refusal, or serve more replicas"
)
_REQUEST_REMEDY = "change the request as the message says; the server goes on"
# Messages of tritonserver 2.51 for an unknown model, and for one that does not generate text.
_NO_TEXT = (
    "name a model that generates text, as `models:` of the project does; others answer to "
    "`tritonctl infer`, `embed`, `classify` or `rerank`"
)
_REQUEST_REMEDIES = {
    "Request for unknown model": "`tritonctl status` lists the models of the project's server",
    "request has 0 inputs": "the request is empty: give text_input, a prompt, or messages, a "
    "conversation; of another model its own inputs",
    "unexpected inference output": _NO_TEXT,
    "unexpected inference input": _NO_TEXT,
}


def from_rpc_error(
    error: Any, url: str, advice: Advice = PROJECT_SERVER, model: str = ""
) -> TritonctlError:
    """Convert a `grpc.RpcError` of a call to `url`; `model`: of an inference request."""
    code, message = error.code(), error.details() or ""
    refused = from_message(message, model)
    if isinstance(refused, RequestRejectedError):
        refused.is_argument = code == grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(refused, ServerBusyError | StepGoneError | ModelFailedError) or code in _REJECTED:
        return refused
    if code == grpc.StatusCode.UNAUTHENTICATED or _LIMITED in message or _FRONTEND_ONLY in message:
        return _gateway_error(code, message, url)
    if _DECOUPLED in message:
        return streaming_model_error("MODEL")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"{url} did not answer in time", remedy=advice.late or advice.unreachable
        )
    if is_restricted(error):
        return ServerError(
            f"Triton at {url} refuses this call without its token: the protocols "
            f"{', '.join(RESTRICTED)} are restricted ({code.name}: {message})",
            remedy="run this in the project that started the server, which has the token; "
            "inference, health, metadata and statistics need none",
        )
    return _unanswered(code, message, url, advice, model)


def _unanswered(
    code: grpc.StatusCode, message: str, url: str, advice: Advice, model: str
) -> TritonctlError:
    """Create the error for a failed connection, or for a model whose status looks like one."""
    if code in MODEL_CODES and is_of_model(message, model):
        return model_error(message, code.name, model)
    return ServerError(
        f"no answer from Triton at {url}: {code.name}: {message}",
        remedy=tls_remedy(message) or advice.unreachable,
    )


def _gateway_error(code: grpc.StatusCode, message: str, url: str) -> TritonctlError:
    """Create the error for an API key that is unknown, for `/v1` only, or over its rate limit."""
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return UsageError(
            f"{url} does not accept the API key, or needs one: {message}",
            remedy="name its file: --api-key-file FILE, or TRITONCTL_API_KEY_FILE; from "
            "Python `TritonClient(…, api_key=ApiKey(FILE))`",
        )
    if _FRONTEND_ONLY in message:
        return UsageError(
            f"the gateway at {url} passes no inference by gRPC or /v2 on with this API key: its "
            "tenant has limits that only the OpenAI API keeps",
            remedy="use the OpenAI API, `/v1`; or set `gateway.tenants.NAME.allow_raw: true`",
        )
    return ServerBusyError(
        f"{code.name}: the gateway at {url} takes no more requests with this API key for now",
        remedy="send the request again later; the limit is requests_per_minute and burst of the "
        "tenant, in `gateway.tenants`",
    )


def streaming_model_error(name: str, *, text: bool = True) -> RequestRejectedError:
    """Create the error for a request for a single answer from a streaming model."""
    return RequestRejectedError(
        "the model streams, and Triton takes requests for a single answer (ModelInfer, HTTP "
        "infer) only for models that do not",
        remedy=f"stream it: `tritonctl generate {name} PROMPT`; `serving.unary: true` adds "
        f"{name}_unary, which answers once"
        if text
        else "ask it with a gRPC client that streams (ModelStreamInfer), such as tritonclient's",
    )


def connection_broke(error: Any) -> bool:
    """Whether the connection failed, not the request: another endpoint may continue it."""
    code, message = error.code(), error.details() or ""
    return code == grpc.StatusCode.UNAVAILABLE or (code in _BROKEN and _BROKEN[code] in message)


def is_unanswered(error: Any) -> bool:
    """Whether no answer arrived; otherwise Triton answered with an error."""
    return error.code() in _UNANSWERED


def is_restricted(error: Any) -> bool:
    """Whether Triton requires its token for this call."""
    return _RESTRICTED in (error.details() or "")


def tls_remedy(message: str) -> str | None:
    """Return the remedy for a connection that failed because of TLS; None: another reason."""
    if "failed to connect" not in message:
        return None
    return next((remedy for words, remedy in _TLS_REMEDIES.items() if words in message), None)


def from_message(message: str, requested_model: str = "") -> TritonctlError:
    """Convert a message with which Triton refused a request or ended a stream.

    `requested_model`: its name, which an exception's message has only as that of an instance.
    """
    ensemble = ENSEMBLE.search(message)
    model = ensemble[1] if ensemble else "the model"
    if error := _queue_error(message, model) or _gone_error(message, model):
        return error
    if exception := EXCEPTION.search(message):
        return exception_error(exception, message, requested_model)
    remedy = next(
        (text for words, text in _REQUEST_REMEDIES.items() if words in message), _REQUEST_REMEDY
    )
    return RequestRejectedError(f"Triton refused the request: {message}", remedy=remedy)


def _queue_error(message: str, model: str) -> ServerBusyError | None:
    """Create the error for a full queue or an expired wait in one; None for other messages."""
    if _FULL in message:
        return ServerBusyError(
            f"UNAVAILABLE: {model} has a full queue (Triton: {_FULL})",
            remedy=_RETRY_REMEDY,
        )
    if full := _FULL_ENGINE.search(message):
        return ServerBusyError(f"UNAVAILABLE: {model}: {full[0]}", remedy=_RETRY_REMEDY)
    if _EXPIRED in message:
        return ServerBusyError(
            f"UNAVAILABLE: the request waited for {model} until its queue timeout "
            f"(Triton: {_EXPIRED})",
            remedy="send the request again later or with more time; the server's own limit is "
            "serving.queue.default_timeout_microseconds",
        )
    return None


def _gone_error(message: str, model: str) -> StepGoneError | None:
    """Create the error for a process or a model that is gone; None for other messages."""
    if _SERVER_ENDING.search(message):
        return StepGoneError(
            f"the server is ending and takes no more requests for {model}",
            remedy="send the request to another server, or again when this one is back",
        )
    if unloaded := _NO_VERSION.search(message):
        return StepGoneError(
            f"the server no longer serves {unloaded[1]}: it unloads the model, or is ending",
            remedy="send the request to another server, or again when `tritonctl status` shows the "
            "model as ready",
        )
    if _DEAD_PROCESS.search(message):
        return StepGoneError(
            f"the server has lost a process of {model} ({message})",
            remedy="start the server again: `tritonctl down`, then `tritonctl up`; `tritonctl "
            "logs` may say why it died, `dmesg` if memory ran out",
        )
    return None
