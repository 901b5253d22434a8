# SPDX-License-Identifier: Apache-2.0
"""`server.tracing` in the project file and on the command line; the receiver of the tests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.otlp_receiver import otlp_receiver
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.restrictions import new_token
from tritonctl.runtimes.server_arguments import server_arguments

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def project(folder: Path, tracing: dict[str, Any] | None) -> Project:
    """A project without models."""
    server = {} if tracing is None else {"tracing": tracing}
    file = folder / "tritonctl.yaml"
    model = {"checkpoint": "c", "engine": {"builder": "openvino", "precision": "int8"}}
    record = {"schema": "tritonctl/v1", "models": {"m": model}, "server": server}
    file.write_text(json.dumps(record))
    return load_project(file)


def arguments(found: Project) -> list[str]:
    """Of tritonserver, as far as they are about traces."""
    every = server_arguments(
        found, repository="/r", address="127.0.0.1", ports=(1, 2, 3), token=new_token()
    )
    return [argument for argument in every if argument.startswith("--trace")]


def test_off_unless_asked(tmp_path: Path) -> None:
    """No flag at all."""
    assert arguments(project(tmp_path, None)) == []


def test_one_setting_is_enough(tmp_path: Path) -> None:
    """The endpoint; the rest has defaults."""
    assert arguments(project(tmp_path, {"endpoint": "http://h:4318/v1/traces"})) == [
        "--trace-config=mode=opentelemetry",
        "--trace-config=opentelemetry,url=http://h:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=triton",
        "--trace-config=opentelemetry,bsp_schedule_delay=1000",
        "--trace-config=rate=1000",
        "--trace-config=level=TIMESTAMPS",
    ]


@pytest.mark.parametrize(
    "tracing",
    [
        {},
        {"endpoint": "h:4318"},
        {"endpoint": "http://h/v1/traces,mode=triton"},
        {"endpoint": "http://h", "rate": 0},
        {"endpoint": "http://h", "service_name": "a,b"},
    ],
)
def test_what_triton_would_misread_is_refused(tmp_path: Path, tracing: dict[str, Any]) -> None:
    """A comma would begin another setting."""
    with pytest.raises(ConfigurationError, match=r"server\.tracing"):
        project(tmp_path, tracing)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_a_traceparent_that_is_none(header: str) -> None:
    """Refused before anything is sent."""
    with TritonClient("127.0.0.1:9") as client, pytest.raises(UsageError, match="traceparent"):
        client.generate("m", "7", traceparent=header)


def exported() -> ExportTraceServiceRequest:
    """One span as protobuf."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "envoy"
    span = resource.scope_spans.add().spans.add()
    span.name, span.start_time_unix_nano, span.end_time_unix_nano = "ingress", 1, 5
    span.trace_id, span.span_id = bytes.fromhex(TRACE), bytes.fromhex(SPAN)
    span.parent_span_id = bytes.fromhex(PARENT)
    span.attributes.add(key="tries").value.int_value = 3
    return request


AS_JSON = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [{"key": "service.name", "value": {"stringValue": "envoy"}}]
            },
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "name": "ingress",
                            "traceId": TRACE.upper(),
                            "spanId": SPAN,
                            "parentSpanId": PARENT,
                            "startTimeUnixNano": "1",
                            "endTimeUnixNano": "5",
                            "attributes": [{"key": "tries", "value": {"intValue": 3}}],
                        }
                    ]
                }
            ],
        }
    ]
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf"])
def test_the_receiver_takes_what_exporters_send(kind: str, chunked: bool) -> None:
    """Triton sends JSON with a length, Envoy protobuf in chunks."""
    body = json.dumps(AS_JSON).encode() if "json" in kind else exported().SerializeToString()

    def pieces() -> Iterator[bytes]:
        yield from (body[:7], body[7:])

    with otlp_receiver() as receiver:
        url = urlsplit(receiver.endpoint)
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
        connection.request(
            "POST",
            url.path,
            pieces() if chunked else body,
            {"Content-Type": kind},
            encode_chunked=chunked,
        )
        assert connection.getresponse().status == 200
        connection.close()
        (span,) = receiver.of_trace(TRACE)
    assert (span.service, span.name, span.id, span.parent) == ("envoy", "ingress", SPAN, PARENT)
    assert (span.start, span.end, span.attributes) == (1, 5, {"tries": 3})
