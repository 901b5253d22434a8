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
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TextIO

from tritonctl.frontend import metrics as metric_names
from tritonctl.frontend.access_log import AccessLog
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.metrics import FrontendMetrics
from tritonctl.frontend.request_telemetry import OPERATIONS, RequestRecord, RequestTelemetry

if TYPE_CHECKING:
    # It imports OpenTelemetry's SDK, which is loaded only if tracing is configured.
    from tritonctl.frontend.tracing import Tracer

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
_ENDPOINTS = (*OPERATIONS, "/v1/models")


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

    def start_request(self, request: HttpRequest) -> None:
        """Set `request.telemetry`, and start its span."""
        path, method = request.scope["path"], request.scope["method"]
        endpoint = path if path in self._endpoints else metric_names.OTHER_LABEL
        span = None
        if self._tracer:
            headers = {
                key.decode("latin-1"): value.decode("latin-1")
                for key, value in request.scope["headers"]
            }
            span = self._tracer.start_request_span(method, endpoint, headers)
        request.telemetry = RequestTelemetry(
            self.metrics, request.record, endpoint, span, logs_text=self._log_text
        )

    def record_finished_request(self, request: HttpRequest) -> None:
        """Count and log a request after its response is sent or its client disconnects."""
        record, telemetry = request.record, request.telemetry
        outcome = outcome_of(record)
        reason = reason_of(record, outcome)
        seconds = self._clock() - record.received
        telemetry.count_outcome(outcome, reason, seconds)
        if telemetry.span:
            telemetry.span.end(record.status or _CLIENT_CLOSED_REQUEST, reason)
        if self._access_log:
            fields = self._access_log_fields(request, outcome, reason, seconds)
            self._access_log.write(fields, text=record.text)

    async def close(self) -> None:
        """Send the last spans."""
        if self._tracer:
            await asyncio.to_thread(self._tracer.close)

    def _access_log_fields(
        self, request: HttpRequest, outcome: str, reason: str | None, seconds: float
    ) -> dict[str, Any]:
        record, client = request.record, request.scope.get("client")
        ttft = None if record.first_token is None else record.first_token - record.received
        return {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "request_id": request.id,
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
            "trace_id": request.telemetry.trace_id,
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
