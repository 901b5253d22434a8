# SPDX-License-Identifier: Apache-2.0
"""What a request adds to metrics, traces and the access log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from tests.otlp_receiver import otlp_receiver
from tritonctl.frontend import metrics as counted
from tritonctl.frontend.access_log import AccessLog
from tritonctl.frontend.draining import PROBE, Draining
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.metrics import MAX_LABEL_VALUES, FrontendMetrics
from tritonctl.frontend.telemetry import RequestRecord, Telemetry
from tritonctl.frontend.tracing import Tracer

CHAT = "/v1/chat/completions"
LABELS = ("tenant", "model", "version", "endpoint", "outcome", "reason", "le")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
QUESTION = "my private question"


async def _unused(*_: object) -> Any:
    raise AssertionError


class World:
    """An observer with a clock, a log and spans that the test reads."""

    def __init__(self, *, rate: int = 1) -> None:
        self.now = 100.0
        self.metrics = FrontendMetrics()
        self.log = io.StringIO()
        self.spans = InMemorySpanExporter()
        settings = SimpleNamespace(endpoint="", rate=rate, service_name="front")
        self.tracer = Tracer(settings, self.spans)
        self.observer = Telemetry(
            self.metrics,
            AccessLog(self.log),
            self.tracer,
            endpoints=(CHAT,),
            clock=lambda: self.now,
            now=lambda: 1_700_000_000.0,
        )

    def exchange(self, path: str = CHAT, **headers: str) -> HttpRequest:
        """A request that came now."""
        scope = {
            "method": "POST",
            "path": path,
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": ("10.0.0.1", 5),
        }
        return HttpRequest(scope, _unused, _unused, record=RequestRecord(self.now))

    def start(self, exchange: HttpRequest) -> None:
        """As the app does it."""
        exchange.telemetry = self.observer.start_request(
            exchange.scope, exchange.id, exchange.record
        )

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a metric by the values of their labels."""
        families = text_string_to_metric_families(self.metrics.page().decode())
        return {
            tuple(sample.labels[key] for key in LABELS if key in sample.labels): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def lines(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def finished(self) -> dict[str, Any]:
        """Spans by their names."""
        self.tracer.close()
        return {span.name: span for span in self.spans.get_finished_spans()}


@pytest.fixture
def world() -> Iterator[World]:
    """With every request traced."""
    made = World()
    yield made
    made.tracer.close()


def _answered(world: World, exchange: HttpRequest) -> None:
    """An answer of three tokens: the first after 50 ms, then two at once 20 ms later."""
    facts = exchange.record
    world.start(exchange)
    facts.tenant, facts.model, facts.stream = "acme", "speller", True
    exchange.telemetry.mark_admitted()
    call = exchange.telemetry.start_call({"max_tokens": 8, "temperature": None})
    for after, tokens in ((0.05, 1), (0.07, 3)):
        call.record_tokens(tokens, int((100 + after) * 1e9))
    facts.first_token = 100.05
    facts.prompt_tokens, facts.output_tokens = 5, 3
    facts.reserved_tokens, facts.refunded_tokens = 13, 5
    facts.status, facts.outcome = 200, "stop"
    facts.model_version = call.model_version = "7"
    call.end(5, 3, "stop")
    world.now = 100.08
    world.observer.record_finished_request(exchange.telemetry)


def test_a_whole_answer_in_the_metrics(world: World) -> None:
    """Each count once, times in their buckets, nothing left in flight."""
    _answered(world, world.exchange())
    by = ("acme", "speller")
    assert world.values(f"{counted.REQUESTS}_total") == {(*by, CHAT, "stop"): 1}
    assert world.values(f"{counted.PROMPT_TOKENS}_total") == {by: 5}
    assert world.values(f"{counted.OUTPUT_TOKENS}_total") == {by: 3}
    assert world.values(f"{counted.RESERVED_TOKENS}_total") == {by: 13}
    assert world.values(f"{counted.REFUNDED_TOKENS}_total") == {by: 5}
    assert world.values(counted.IN_FLIGHT) == {by: 0}
    assert world.values(f"{counted.REFUSALS}_total") == {}
    assert world.values(f"{counted.ANSWERS}_total") == {("speller", "7", "stop"): 1}
    assert world.values(f"{counted.TTFT}_sum") == {by: pytest.approx(0.05)}
    assert world.values(f"{counted.DURATION}_sum") == {by: pytest.approx(0.08)}
    # Two tokens came in 20 ms: two of 10 ms.
    assert world.values(f"{counted.ITL}_count") == {by: 2}
    buckets = world.values(f"{counted.ITL}_bucket")
    assert (buckets[*by, "0.005"], buckets[*by, "0.02"], buckets[*by, "+Inf"]) == (0, 2, 2)


def test_a_request_is_in_flight_while_it_lasts(world: World) -> None:
    """From its admission to its end, with its client gone, too."""
    exchange = world.exchange()
    world.start(exchange)
    assert world.values(counted.IN_FLIGHT) == {}
    exchange.record.model = "speller"
    exchange.telemetry.mark_admitted()
    assert world.values(counted.IN_FLIGHT) == {("none", "speller"): 1}
    exchange.record.outcome = "cancelled"
    world.observer.record_finished_request(exchange.telemetry)
    assert world.values(counted.IN_FLIGHT) == {("none", "speller"): 0}
    assert world.values(f"{counted.REQUESTS}_total") == {("none", "speller", CHAT, "cancelled"): 1}


@pytest.mark.parametrize(
    ("status", "code", "outcome", "why"),
    [
        (400, "invalid_value", "refused", "invalid"),
        (400, "context_length_exceeded", "refused", "too_long"),
        (401, "invalid_api_key", "refused", "unauthorised"),
        (404, "model_not_found", "refused", "unknown_model"),
        (413, "request_too_large", "refused", "invalid"),
        (429, "rate_limit_exceeded", "refused", "over_budget"),
        (429, "server_overloaded", "refused", "overloaded"),
        (500, "internal_error", "error", "failed"),
        (503, "server_unavailable", "error", "unavailable"),
        (200, "incomplete_answer", "error", "unavailable"),  # after the stream had begun
    ],
)
def test_refusals_by_reason(world: World, status: int, code: str, outcome: str, why: str) -> None:
    """What a client sent is no label: the model that nobody serves is `none`."""
    exchange = world.exchange()
    world.start(exchange)
    exchange.record.status, exchange.record.outcome = status, code
    world.observer.record_finished_request(exchange.telemetry)
    assert world.values(f"{counted.REFUSALS}_total") == {("none", "none", why): 1}
    assert world.values(f"{counted.REQUESTS}_total") == {("none", "none", CHAT, outcome): 1}
    (line,) = world.lines()
    assert (line["outcome"], line["reason"], line["code"]) == (outcome, why, code)
    assert why in counted.REASONS
    assert outcome in counted.OUTCOMES


def test_labels_are_bounded(world: World) -> None:
    """Beyond the most, tenants and models count together; paths that are none do from the start."""
    for number in range(MAX_LABEL_VALUES + 20):
        exchange = world.exchange(path=f"/nothing/{number}")
        world.start(exchange)
        exchange.record.tenant = f"tenant-{number}"
        exchange.record.status = 404
        world.observer.record_finished_request(exchange.telemetry)
    seen = world.values(f"{counted.REQUESTS}_total")
    assert len({labels[0] for labels in seen}) == MAX_LABEL_VALUES - 1  # `none` is no tenant here
    assert {labels[2] for labels in seen} == {"other"}
    assert sum(seen.values()) == MAX_LABEL_VALUES + 20


def test_a_line_of_the_access_log(world: World) -> None:
    """Who, what, how it went, how long; a client's own id goes along."""
    _answered(world, world.exchange(**{"x-request-id": "abc"}))
    (line,) = world.lines()
    assert line.pop("trace_id")
    assert line == {
        "time": "2023-11-14T22:13:20.000+00:00",
        "request_id": "abc",
        "client": "10.0.0.1",
        "tenant": "acme",
        "method": "POST",
        "path": CHAT,
        "model": "speller",
        "stream": True,
        "status": 200,
        "outcome": "stop",
        "prompt_tokens": 5,
        "output_tokens": 3,
        "reserved_tokens": 13,
        "refunded_tokens": 5,
        "model_version": "7",
        "ttft_ms": 50.0,
        "duration_ms": 80.0,
    }


def test_the_access_log_keeps_to_its_lines(world: World) -> None:
    """A client's characters end no line, and its words are cut."""
    exchange = world.exchange(path="/a\u2028b\n" + "x" * 1000)
    world.start(exchange)
    world.observer.record_finished_request(exchange.telemetry)
    text = world.log.getvalue()
    assert len(text.splitlines()) == 1
    assert len(text) < 700


def test_texts_are_logged_when_asked(world: World) -> None:
    """At their full length, by whoever put them into the facts."""
    exchange = world.exchange()
    exchange.record.text["prompt"] = QUESTION * 100
    world.start(exchange)
    world.observer.record_finished_request(exchange.telemetry)
    assert world.lines()[0]["prompt"] == QUESTION * 100


def test_spans(world: World) -> None:
    """The request below its client's span, the call to Triton below the request; GenAI's names."""
    exchange = world.exchange(traceparent=f"00-{TRACE}-{PARENT}-01")
    _answered(world, exchange)
    spans = world.finished()
    request, call = spans[f"POST {CHAT}"], spans["chat speller"]
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert call.parent.span_id == request.context.span_id
    assert (request.kind.name, call.kind.name) == ("SERVER", "CLIENT")
    assert request.attributes["http.response.status_code"] == 200
    assert dict(call.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tritonctl",
        "gen_ai.request.model": "speller",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "tritonctl.model.version": "7",
    }
    assert request.resource.attributes["service.name"] == "front"
    assert world.lines()[0]["trace_id"] == TRACE


def test_a_call_hands_its_trace_on(world: World) -> None:
    """Triton's spans hang below the call."""
    exchange = world.exchange(traceparent=f"00-{TRACE}-{PARENT}-01")
    world.start(exchange)
    call = exchange.telemetry.start_call({})
    given = call.traceparent or ""
    call.end(0, 0, "stop")
    world.observer.record_finished_request(exchange.telemetry)
    (span,) = (span for name, span in world.finished().items() if name.startswith("chat"))
    assert given == f"00-{TRACE}-{span.context.span_id:016x}-01"


def test_what_is_not_sampled_hands_nothing_on() -> None:
    """Triton would trace whatever has a traceparent, whatever its flags say."""
    world = World(rate=10**12)
    exchange = world.exchange(traceparent=f"00-{TRACE}-{PARENT}-00")
    world.start(exchange)
    assert exchange.telemetry.start_call({}).traceparent is None
    assert world.finished() == {}


def test_failures_in_spans(world: World) -> None:
    """Of the server's, not of a client's mistakes."""
    for status, code in ((503, "server_unavailable"), (400, "invalid_value")):
        exchange = world.exchange(path=CHAT if status == 503 else "/else")
        world.start(exchange)
        exchange.record.status, exchange.record.outcome = status, code
        world.observer.record_finished_request(exchange.telemetry)
    spans = world.finished()
    assert spans[f"POST {CHAT}"].attributes["error.type"] == "unavailable"
    assert not spans[f"POST {CHAT}"].status.is_ok
    assert "error.type" not in spans["POST other"].attributes


def test_spans_leave_by_http() -> None:
    """OTLP, protobuf; the last ones at the end."""
    with otlp_receiver() as receiver:
        settings = SimpleNamespace(endpoint=receiver.endpoint, rate=1, service_name="front")
        tracer = Tracer(settings)
        tracer.start_request_span("POST", CHAT, {}).end(200, None)
        tracer.close()
    assert receiver.kinds == {"application/x-protobuf"}
    assert [(span.service, span.name) for span in receiver.spans] == [("front", f"POST {CHAT}")]


def test_readiness_goes_before_the_end() -> None:
    """A gateway that asks every second has seen it within 3 s; a probe does not count."""
    now = 0.0
    draining = Draining(lambda: now)
    draining.record_probe(PROBE)
    assert not draining.is_noticed
    draining.start()
    assert draining.has_started
    assert draining.is_noticed  # nobody watches
    now = 100.0
    draining = Draining(lambda: now)
    draining.record_probe("Envoy/HC")
    draining.start()
    assert not draining.is_noticed
    now = 103.0
    assert draining.is_noticed
