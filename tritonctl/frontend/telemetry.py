# SPDX-License-Identifier: Apache-2.0
"""Metrics, traces and the access log of the frontend's requests.

`Telemetry` starts and ends requests. Code that opens a stream to Triton reports it with
`RequestTelemetry.start_call`. Everything else is read from the `RequestRecord` when the request
ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TextIO

from tritonctl.frontend import metrics as metric_names
from tritonctl.frontend.access_log import AccessLog
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.metrics import FrontendMetrics

if TYPE_CHECKING:
    # It imports OpenTelemetry's SDK, which is loaded only if tracing is configured.
    from tritonctl.frontend.tracing import CallSpan, RequestSpan, Tracer

_NS = 1e9
_CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left before its answer began
_REFUSED, _FAILED = 400, 500
# Reason of a refusal by the error's code, else by its status; values are in `metrics.REASONS`.
_REASON_BY_CODE = {
    "context_length_exceeded": "too_long",
    "model_not_found": "unknown_model",
    "server_overloaded": "overloaded",
    "incomplete_answer": "unavailable",
    "server_unavailable": "unavailable",
}
_REASON_BY_STATUS = {
    401: "unauthorised",
    403: "unauthorised",
    429: "over_budget",
    503: "unavailable",
}
# GenAI's operation names by endpoint; it has none for reranking.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
_ENDPOINTS = (*_OPERATIONS, "/v1/models")


@dataclass
class RequestRecord:
    """Facts about one request, filled in while it is handled. Times: `time.monotonic` seconds."""

    received: float
    endpoint: str = ""
    model: str = ""  # the requested model, aliases resolved
    adapter: str | None = None
    stream: bool = False
    status: int = 0
    outcome: str = ""  # finish reason, error code, or `cancelled` for a client that went away
    first_token: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    resumes: int = 0
    tenant: str | None = None
    reserved_tokens: int | None = None
    refunded_tokens: int | None = None
    expected_tokens: int | None = None  # of all answers and their prompts, before placement
    replica: str | None = None  # host:port of the last one
    model_version: str | None = None  # on that replica: the release's number, if deployed as one
    # Replica and selection reason of each answer.
    placements: list[tuple[str, str]] = field(default_factory=list)
    text: dict[str, Any] = field(default_factory=dict)  # prompts and answers for the access log


@dataclass(eq=False)
class CallTelemetry:
    """One stream or one call to Triton."""

    metrics: FrontendMetrics
    labels: tuple[str, str]
    span: CallSpan | None
    output_tokens: int = 0
    model_version: str | None = None
    _last_token_ns: int | None = None

    @property
    def traceparent(self) -> str | None:
        """The header for Triton; None if the request is not traced."""
        return self.span.traceparent if self.span else None

    def record_tokens(self, total_tokens: int, received_ns: int) -> None:
        """Record the answer's length so far. received_ns: of `time.monotonic_ns`."""
        new = total_tokens - self.output_tokens
        if new <= 0:
            return
        if self._last_token_ns is not None:
            seconds = (received_ns - self._last_token_ns) / _NS / new
            self.metrics.observe(metric_names.ITL, self.labels, seconds, new)
        self._last_token_ns, self.output_tokens = received_ns, total_tokens

    def end_without_text(self, prompt_tokens: int) -> None:
        """End a call whose answer has no output tokens and no finish reason."""
        if self.span:
            self.span.set_model_version(self.model_version)
            self.span.end(prompt_tokens, None, None, None)
            self.span = None

    def end(self, prompt_tokens: int, output_tokens: int, finish_reason: str) -> None:
        """End the call with the server's counts. No finish reason: the stream broke off."""
        if self.span:
            error = None if finish_reason else "incomplete"
            self.span.set_model_version(self.model_version)
            self.span.end(prompt_tokens, output_tokens, finish_reason or None, error)
            self.span = None


@dataclass(eq=False)
class RequestTelemetry:
    """One request between its start and its end."""

    metrics: FrontendMetrics
    record: RequestRecord
    scope: Mapping[str, Any]  # of ASGI
    request_id: str
    endpoint: str
    span: RequestSpan | None = None
    logs_text: bool = False  # the access log includes prompts and answers
    _admitted_labels: tuple[str, str] | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace's id; None if the request is not traced."""
        return self.span.trace_id if self.span else None

    def mark_admitted(self) -> None:
        """Count the request as in flight: its model exists and takes this kind of request."""
        self._admitted_labels = self._current_labels()
        self.metrics.add(metric_names.IN_FLIGHT, self._admitted_labels)

    def start_call(self, request_attributes: Mapping[str, Any]) -> CallTelemetry:
        """Start a call to Triton.

        request_attributes: `gen_ai.request.*` by the last part of the name: max_tokens …
        """
        operation = _OPERATIONS.get(self.endpoint, self.endpoint)
        model, span = self.record.model, None
        if self.span:
            span = self.span.start_call_span(operation, model, request_attributes)
        return CallTelemetry(self.metrics, self._admitted_labels or self._current_labels(), span)

    def count_outcome(self, outcome: str, reason: str | None, seconds: float) -> None:
        """Add the finished request to the metrics."""
        metrics, record, labels = self.metrics, self.record, self._current_labels()
        if self._admitted_labels:
            metrics.add(metric_names.IN_FLIGHT, self._admitted_labels, -1)
            metrics.observe(metric_names.DURATION, labels, seconds)
        metrics.add(metric_names.REQUESTS, (*labels, self.endpoint, outcome))
        if record.model_version:
            version = metrics.version_label(record.model_version)
            metrics.add(metric_names.ANSWERS, (labels[1], version, outcome))
        if reason:
            metrics.add(metric_names.REFUSALS, (*labels, reason))
        if record.first_token is not None:
            metrics.observe(metric_names.TTFT, labels, record.first_token - record.received)
        for name, value in (
            (metric_names.PROMPT_TOKENS, record.prompt_tokens),
            (metric_names.OUTPUT_TOKENS, record.output_tokens),
            (metric_names.RESERVED_TOKENS, record.reserved_tokens),
            (metric_names.REFUNDED_TOKENS, record.refunded_tokens),
            (metric_names.EXPECTED_TOKENS, record.expected_tokens),
        ):
            if value:
                metrics.add(name, labels, value)
        for placement in record.placements:
            metrics.add(metric_names.PLACEMENTS, placement)

    def _current_labels(self) -> tuple[str, str]:
        return self.metrics.labels(self.record.tenant, self.record.model)


class Telemetry:
    """Starts and ends requests, and writes their results to metrics, traces and access log."""

    def __init__(
        self,
        metrics: FrontendMetrics,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
        *,
        endpoints: Iterable[str] = (),
        log_text: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """endpoints: existing paths; all others count as `other`.

        log_text: the access log includes prompts and answers.
        """
        self.metrics = metrics
        self._access_log = access_log
        self._tracer = tracer
        self._endpoints = frozenset(endpoints)
        self._clock = clock
        self._now = now
        self._log_text = log_text

    @classmethod
    def from_config(cls, config: FrontendConfig, log: TextIO | None = None) -> Self:
        """log: of the access log; standard output when None."""
        settings, tracer = config.settings, None
        if settings.tracing is not None:
            # OpenTelemetry's SDK takes 0.2 s and 15 MB: load it only if tracing is configured.
            from tritonctl.frontend.tracing import Tracer

            tracer = Tracer(settings.tracing)
        return cls(
            FrontendMetrics(),
            AccessLog(log or sys.stdout) if settings.access_log else None,
            tracer,
            endpoints=_ENDPOINTS,
            log_text=settings.log_prompts,
        )

    def start_request(
        self, scope: Mapping[str, Any], request_id: str, record: RequestRecord
    ) -> RequestTelemetry:
        """Start a request and its span. scope: of ASGI."""
        path, method = scope["path"], scope["method"]
        endpoint = path if path in self._endpoints else metric_names.OTHER_LABEL
        span = None
        if self._tracer:
            headers = {
                key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
            }
            span = self._tracer.start_request_span(method, endpoint, headers)
        return RequestTelemetry(
            self.metrics, record, scope, request_id, endpoint, span, logs_text=self._log_text
        )

    def record_finished_request(self, request: RequestTelemetry) -> None:
        """Count and log a request after its response is sent or its client disconnects."""
        record = request.record
        outcome = outcome_of(record)
        reason = reason_of(record, outcome)
        seconds = self._clock() - record.received
        request.count_outcome(outcome, reason, seconds)
        if request.span:
            request.span.end(record.status or _CLIENT_CLOSED_REQUEST, reason)
        if self._access_log:
            fields = self._access_log_fields(request, outcome, reason, seconds)
            self._access_log.write(fields, text=record.text)

    async def close(self) -> None:
        """Send the last spans."""
        if self._tracer:
            await asyncio.to_thread(self._tracer.close)

    def _access_log_fields(
        self, request: RequestTelemetry, outcome: str, reason: str | None, seconds: float
    ) -> dict[str, Any]:
        record, client = request.record, request.scope.get("client")
        ttft = None if record.first_token is None else record.first_token - record.received
        return {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "request_id": request.request_id,
            "client": client[0] if client else None,
            "tenant": record.tenant,
            "method": request.scope["method"],
            "path": request.scope["path"],
            "model": record.model or None,
            "adapter": record.adapter,
            "stream": record.stream,
            "status": record.status or None,
            "outcome": outcome,
            "reason": reason,
            "code": record.outcome if reason else None,
            "prompt_tokens": record.prompt_tokens,
            "output_tokens": record.output_tokens,
            "reserved_tokens": record.reserved_tokens,
            "refunded_tokens": record.refunded_tokens,
            "replica": record.replica,
            "model_version": record.model_version,
            "resumes": record.resumes or None,
            "ttft_ms": None if ttft is None else _milliseconds(ttft),
            "duration_ms": _milliseconds(seconds),
            "trace_id": request.trace_id,
        }


def outcome_of(record: RequestRecord) -> str:
    """How a request ended: one of `metrics.OUTCOMES`."""
    if record.outcome in metric_names.OUTCOMES:
        return record.outcome
    if _REFUSED <= record.status < _FAILED:
        return "refused"
    return "error" if record.outcome or not record.status else "ok"


def reason_of(record: RequestRecord, outcome: str) -> str | None:
    """Why a request was refused or failed: one of `metrics.REASONS`; None if it succeeded."""
    if outcome not in {"refused", "error"}:
        return None
    fallback = "invalid" if outcome == "refused" else "failed"
    return _REASON_BY_CODE.get(record.outcome) or _REASON_BY_STATUS.get(record.status, fallback)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)
