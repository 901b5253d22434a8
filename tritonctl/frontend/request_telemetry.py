# SPDX-License-Identifier: Apache-2.0
"""The record of one request, and its calls to Triton, for metrics and traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tritonctl.frontend import metrics as metric_names
from tritonctl.frontend.metrics import FrontendMetrics

if TYPE_CHECKING:
    # It imports OpenTelemetry's SDK, which is loaded only if tracing is configured.
    from tritonctl.frontend.tracing import CallSpan, RequestSpan

_NS = 1e9
# GenAI's operation names by endpoint; it has none for reranking.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}


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
        operation = OPERATIONS.get(self.endpoint, self.endpoint)
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
