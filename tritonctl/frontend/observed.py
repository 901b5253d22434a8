# SPDX-License-Identifier: Apache-2.0
"""What one request adds to the metrics, the traces and the access log.

Whoever opens a stream to Triton says so with `call`, and how it goes on. Everything else is read
from the request's facts when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonctl.frontend import metrics as counted
from tritonctl.frontend.facts import Facts
from tritonctl.frontend.metrics import Metrics

if TYPE_CHECKING:  # it imports OpenTelemetry's SDK, which only those need who trace
    from tritonctl.frontend.tracing import CallSpan, RequestSpan

_REFUSED, _FAILED = 400, 500
_NS = 1e9
# Why one was refused, by its error's code, else by its status: the words of `metrics.REASONS`.
_BY_CODE = {
    "context_length_exceeded": "too_long",
    "model_not_found": "unknown_model",
    "server_overloaded": "overloaded",
    "incomplete_answer": "unavailable",
    "server_unavailable": "unavailable",
}
# GenAI's names for what endpoints do; it has none for reranking.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
_BY_STATUS = {401: "unauthorised", 403: "unauthorised", 429: "over_budget", 503: "unavailable"}


@dataclass(eq=False)
class Call:
    """One stream, or one call, to Triton."""

    metrics: Metrics
    labels: tuple[str, str]
    span: CallSpan | None
    output_tokens: int = 0
    model_version: str | None = None
    _last_ns: int | None = None

    @property
    def traceparent(self) -> str | None:
        """To hand on to Triton; None where the request is not traced."""
        return self.span.traceparent if self.span else None

    def tokens(self, so_far: int, received_ns: int) -> None:
        """The answer has so many tokens now; `received_ns`: of `time.monotonic_ns`."""
        new = so_far - self.output_tokens
        if new <= 0:
            return
        if self._last_ns is not None:
            seconds = (received_ns - self._last_ns) / _NS / new
            self.metrics.observe(counted.ITL, self.labels, seconds, new)
        self._last_ns, self.output_tokens = received_ns, so_far

    def answered(self, prompt_tokens: int) -> None:
        """It has ended with an answer that is no text: it has no tokens, and no finish reason."""
        if self.span:
            self.span.served_by(self.model_version)
            self.span.end(prompt_tokens, None, None, None)
            self.span = None

    def end(self, prompt_tokens: int, output_tokens: int, finish_reason: str) -> None:
        """It has ended with these counts of the server's; without a finish reason, broken off."""
        if self.span:
            error = None if finish_reason else "incomplete"
            self.span.served_by(self.model_version)
            self.span.end(prompt_tokens, output_tokens, finish_reason or None, error)
            self.span = None


@dataclass(eq=False)
class Observed:
    """One request between its beginning and its end. `keeps_text`: the access log has its texts."""

    metrics: Metrics
    facts: Facts
    endpoint: str
    span: RequestSpan | None = None
    keeps_text: bool = False
    _labels: tuple[str, str] | None = None

    @property
    def trace_id(self) -> str | None:
        """Of the request's trace; None where it has none."""
        return self.span.trace_id if self.span else None

    def admitted(self) -> None:
        """It is for a model that there is, and is being answered."""
        self._labels = self._names()
        self.metrics.add(counted.IN_FLIGHT, self._labels)

    def call(self, asked: Mapping[str, Any]) -> Call:
        """A call to Triton begins. asked: `gen_ai.request.*` by their last name: max_tokens …"""
        operation = OPERATIONS.get(self.endpoint, self.endpoint)
        span = self.span.call(operation, self.facts.model, asked) if self.span else None
        return Call(self.metrics, self._labels or self._names(), span)

    def count(self, outcome: str, why: str | None, seconds: float) -> None:
        """It has ended."""
        metrics, facts, labels = self.metrics, self.facts, self._names()
        if self._labels:
            metrics.add(counted.IN_FLIGHT, self._labels, -1)
            metrics.observe(counted.DURATION, labels, seconds)
        metrics.add(counted.REQUESTS, (*labels, self.endpoint, outcome))
        if facts.model_version:
            release = metrics.release(facts.model_version)
            metrics.add(counted.ANSWERS, (labels[1], release, outcome))
        if why:
            metrics.add(counted.REFUSALS, (*labels, why))
        if facts.first_token is not None:
            metrics.observe(counted.TTFT, labels, facts.first_token - facts.received)
        for name, value in (
            (counted.PROMPT_TOKENS, facts.prompt_tokens),
            (counted.OUTPUT_TOKENS, facts.output_tokens),
            (counted.RESERVED_TOKENS, facts.reserved_tokens),
            (counted.REFUNDED_TOKENS, facts.refunded_tokens),
            (counted.EXPECTED_TOKENS, facts.expected_tokens),
        ):
            if value:
                metrics.add(name, labels, value)
        for placement in facts.placements:
            metrics.add(counted.PLACEMENTS, placement)

    def _names(self) -> tuple[str, str]:
        return self.metrics.labels(self.facts.tenant, self.facts.model)


def outcome_of(facts: Facts) -> str:
    """How a request ended: one of `metrics.OUTCOMES`."""
    if facts.outcome in counted.OUTCOMES:
        return facts.outcome
    if _REFUSED <= facts.status < _FAILED:
        return "refused"
    return "error" if facts.outcome or not facts.status else "ok"


def reason_of(facts: Facts, outcome: str) -> str | None:
    """Why a request was refused or failed: one of `metrics.REASONS`; None where it was not."""
    if outcome not in {"refused", "error"}:
        return None
    otherwise = "invalid" if outcome == "refused" else "failed"
    return _BY_CODE.get(facts.outcome) or _BY_STATUS.get(facts.status, otherwise)
