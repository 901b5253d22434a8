# SPDX-License-Identifier: Apache-2.0
"""Spans of OpenTelemetry, by its GenAI semantic conventions, sent over OTLP/HTTP.

A request is a SERVER span; each stream that it opens to Triton is a CLIENT span below it, whose
`traceparent` goes along, so that Triton's spans of the ensemble and its steps hang below that. No
span has a text: neither prompt, answer, stop word nor tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tritonctl.host.version import __version__

PROVIDER = "tritonctl"  # gen_ai.provider.name: the conventions have no name for Triton
_SCOPE = "tritonctl.frontend"
_EXPORT_SECONDS = 5.0
_SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
_PROPAGATOR = TraceContextTextMapPropagator()
_HTTP_ERROR = 500


class Settings(Protocol):
    """What `frontend.tracing` says."""

    @property
    def endpoint(self) -> str:
        """URL of the collector, path included."""

    @property
    def rate(self) -> int:
        """One request in so many is traced."""

    @property
    def service_name(self) -> str:
        """The name that the spans carry."""


class Tracer:
    """Makes the spans of one frontend; `close` sends the last of them."""

    def __init__(self, settings: Settings, exporter: SpanExporter | None = None) -> None:
        """exporter: instead of OTLP/HTTP to the settings' endpoint."""
        resource = Resource.create(
            {"service.name": settings.service_name, "service.version": __version__}
        )
        # A client that traces decides for its own requests; Envoy takes strangers' headers off.
        sampler = ParentBased(TraceIdRatioBased(1 / settings.rate))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        sent = exporter or OTLPSpanExporter(settings.endpoint, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(sent, schedule_delay_millis=1000))
        self._tracer = self._provider.get_tracer(_SCOPE, __version__, schema_url=_SCHEMA)

    def request(self, method: str, route: str, headers: Mapping[str, str]) -> RequestSpan:
        """The span of a request, below its client's where `headers` name one."""
        span = self._tracer.start_span(
            f"{method} {route}",
            context=_PROPAGATOR.extract(headers, Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route, "url.path": route},
        )
        return RequestSpan(self._tracer, span)

    def close(self) -> None:
        """Send what waits, for at most a few seconds. It may block."""
        self._provider.shutdown()


class RequestSpan:
    """The span of a request to the frontend."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """In hexadecimal, for the access log; None where it is not recorded."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else None

    def call(self, operation: str, model: str, asked: Mapping[str, Any]) -> CallSpan:
        """The span of a stream or call to Triton. asked: `gen_ai.request.*`, by their last name."""
        named = {f"gen_ai.request.{key}": value for key, value in asked.items()}
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            **{key: value for key, value in named.items() if value is not None},
        }
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=trace.set_span_in_context(self._span, Context()),
            kind=SpanKind.CLIENT,
            attributes=attributes,
        )
        return CallSpan(span)

    def end(self, status: int, error: str | None) -> None:
        """It was answered. error: why not as asked, one of a few words."""
        self._span.set_attribute("http.response.status_code", status)
        _end(self._span, error if error and status >= _HTTP_ERROR else None)


class CallSpan:
    """The span of one stream, or one call, to Triton."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """For Triton; None where it is not recorded: Triton traces whatever has one."""
        if not self._span.get_span_context().trace_flags.sampled:
            return None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier["traceparent"]

    def served_by(self, version: str | None) -> None:
        """The model's version: the number of the release, where one is served."""
        if version:
            self._span.set_attribute("tritonctl.model.version", version)

    def end(
        self,
        prompt_tokens: int,
        output_tokens: int | None,
        finish_reason: str | None,
        error: str | None,
    ) -> None:
        """It has ended, with these counts of the server's. error: one of a few words."""
        self._span.set_attribute("gen_ai.usage.input_tokens", prompt_tokens)
        if output_tokens is not None:
            self._span.set_attribute("gen_ai.usage.output_tokens", output_tokens)
        if finish_reason:
            self._span.set_attribute("gen_ai.response.finish_reasons", [finish_reason])
        _end(self._span, error)


def _end(span: Span, error: str | None = None) -> None:
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
