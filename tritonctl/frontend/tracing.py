# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans by the GenAI semantic conventions, sent over OTLP/HTTP.

A request is a SERVER span. Each stream to Triton is a CLIENT span below it and passes its
`traceparent` on, so Triton's spans of the ensemble and its steps become children of that span.
Spans contain no text: no prompt, answer, stop word or tool.
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


class TracingSettings(Protocol):
    """The settings of `frontend.tracing`."""

    @property
    def endpoint(self) -> str:
        """URL of the collector, path included."""

    @property
    def rate(self) -> int:
        """Trace one of this many requests."""

    @property
    def service_name(self) -> str:
        """The spans' `service.name`."""


class Tracer:
    """Creates the spans of one frontend; `close` sends the last of them."""

    def __init__(self, settings: TracingSettings, exporter: SpanExporter | None = None) -> None:
        """exporter: replaces OTLP/HTTP to the settings' endpoint."""
        resource = Resource.create(
            {"service.name": settings.service_name, "service.version": __version__}
        )
        # A client's trace decides for its requests; Envoy removes headers of unknown clients.
        sampler = ParentBased(TraceIdRatioBased(1 / settings.rate))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        span_exporter = exporter or OTLPSpanExporter(settings.endpoint, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(
            BatchSpanProcessor(span_exporter, schedule_delay_millis=1000)
        )
        self._tracer = self._provider.get_tracer(_SCOPE, __version__, schema_url=_SCHEMA)

    def start_request_span(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> RequestSpan:
        """Start a request's span, below the client's span if `headers` name one."""
        span = self._tracer.start_span(
            f"{method} {route}",
            context=_PROPAGATOR.extract(headers, Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route, "url.path": route},
        )
        return RequestSpan(self._tracer, span)

    def close(self) -> None:
        """Send the queued spans. Blocks for a few seconds at most."""
        self._provider.shutdown()


class RequestSpan:
    """The span of a request to the frontend."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """The id in hexadecimal, for the access log; None if the span is not recorded."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else None

    def start_call_span(
        self, operation: str, model: str, request_attributes: Mapping[str, Any]
    ) -> CallSpan:
        """Start the span of a stream or call to Triton.

        request_attributes: `gen_ai.request.*` by the last part of the name.
        """
        prefixed = {f"gen_ai.request.{key}": value for key, value in request_attributes.items()}
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            **{key: value for key, value in prefixed.items() if value is not None},
        }
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=trace.set_span_in_context(self._span, Context()),
            kind=SpanKind.CLIENT,
            attributes=attributes,
        )
        return CallSpan(span)

    def end(self, status: int, error: str | None) -> None:
        """End the span. error: the reason of a failure, one of `metrics.REASONS`."""
        self._span.set_attribute("http.response.status_code", status)
        _end(self._span, error if error and status >= _HTTP_ERROR else None)


class CallSpan:
    """The span of one stream or one call to Triton."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The header for Triton; None if not recorded: Triton traces every call that has one."""
        if not self._span.get_span_context().trace_flags.sampled:
            return None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier["traceparent"]

    def set_model_version(self, version: str | None) -> None:
        """Set the model's version: the release's number, if deployed as one."""
        if version:
            self._span.set_attribute("tritonctl.model.version", version)

    def end(
        self,
        prompt_tokens: int,
        output_tokens: int | None,
        finish_reason: str | None,
        error: str | None,
    ) -> None:
        """End the span with the server's counts. error: None or `incomplete`."""
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
