# SPDX-License-Identifier: Apache-2.0
"""Where requests begin and end for metrics, traces and the access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tritonctl.frontend import metrics as counted
from tritonctl.frontend.access_log import AccessLog
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.metrics import Metrics
from tritonctl.frontend.observed import Observed, outcome_of, reason_of

if TYPE_CHECKING:  # it imports OpenTelemetry's SDK, which only those need who trace
    from tritonctl.frontend.tracing import Tracer

_GONE = 499  # nginx's, for a client that left before its answer began


class Observer:
    """Begins requests, and takes what becomes of them."""

    def __init__(
        self,
        metrics: Metrics,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
        *,
        endpoints: Iterable[str] = (),
        keeps_text: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """endpoints: the paths that there are; others count as `other`.

        keeps_text: the access log has prompts and answers, too.
        """
        self.metrics = metrics
        self._access_log = access_log
        self._tracer = tracer
        self._endpoints = frozenset(endpoints)
        self._clock = clock
        self._now = now
        self._keeps_text = keeps_text

    def begin(self, exchange: Exchange) -> None:
        """A request has come: sets `exchange.observed`."""
        path, method = exchange.scope["path"], exchange.scope["method"]
        endpoint = path if path in self._endpoints else counted.OTHER
        span = None
        if self._tracer:
            headers = {
                key.decode("latin-1"): value.decode("latin-1")
                for key, value in exchange.scope["headers"]
            }
            span = self._tracer.request(method, endpoint, headers)
        exchange.observed = Observed(
            self.metrics, exchange.facts, endpoint, span, keeps_text=self._keeps_text
        )

    def end(self, exchange: Exchange) -> None:
        """Its answer is out, or its client has gone."""
        facts, observed = exchange.facts, exchange.observed
        outcome = outcome_of(facts)
        why = reason_of(facts, outcome)
        seconds = self._clock() - facts.received
        observed.count(outcome, why, seconds)
        if observed.span:
            observed.span.end(facts.status or _GONE, why)
        if self._access_log:
            record = self._line(exchange, outcome, why, seconds)
            self._access_log.write(record, text=facts.text)

    async def close(self) -> None:
        """Send the last spans."""
        if self._tracer:
            await asyncio.to_thread(self._tracer.close)

    def _line(
        self, exchange: Exchange, outcome: str, why: str | None, seconds: float
    ) -> dict[str, Any]:
        facts, client = exchange.facts, exchange.scope.get("client")
        ttft = None if facts.first_token is None else facts.first_token - facts.received
        return {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "request_id": exchange.id,
            "client": client[0] if client else None,
            "tenant": facts.tenant,
            "method": exchange.scope["method"],
            "path": exchange.scope["path"],
            "model": facts.model or None,
            "adapter": facts.adapter,
            "stream": facts.stream,
            "status": facts.status or None,
            "outcome": outcome,
            "reason": why,
            "code": facts.outcome if why else None,
            "prompt_tokens": facts.prompt_tokens,
            "output_tokens": facts.output_tokens,
            "reserved_tokens": facts.reserved_tokens,
            "refunded_tokens": facts.refunded_tokens,
            "replica": facts.replica,
            "model_version": facts.model_version,
            "resumes": facts.resumes or None,
            "ttft_ms": None if ttft is None else _ms(ttft),
            "duration_ms": _ms(seconds),
            "trace_id": exchange.observed.trace_id,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
