# SPDX-License-Identifier: Apache-2.0
"""An OTLP/HTTP receiver of traces, JSON and protobuf, with or without a length.

Triton posts JSON whose ids are hexadecimal, as the specification says and protobuf's own JSON
parser does not; Envoy posts chunked protobuf.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    """One span; ids in hexadecimal, `parent` empty for a root. Times in nanoseconds."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any] = field(default_factory=dict)


class Receiver:
    """What has come so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.endpoint = ""
        self.kinds: set[str] = set()

    def of_trace(self, trace: str) -> list[Span]:
        """The spans of one trace, by their beginning."""
        return sorted((s for s in self.spans if s.trace == trace), key=lambda s: (s.start, -s.end))

    def take(self, kind: str, body: bytes) -> None:
        """The body of one request."""
        self.kinds.add(kind)
        self.spans.extend(_from_json(body) if kind == "application/json" else _from_protobuf(body))


@contextmanager
def otlp_receiver(address: str = "127.0.0.1") -> Iterator[Receiver]:
    """Listening on a free port while the context lasts."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.take(self.headers["Content-Type"].split(";")[0], self._body())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"]))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    server = ThreadingHTTPServer((address, 0), Handler)
    receiver.endpoint = f"http://{address}:{server.server_port}/v1/traces"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


def _from_json(body: bytes) -> Iterator[Span]:
    for resource in json.loads(body).get("resourceSpans", ()):
        service = _attributes(resource.get("resource", {})).get("service.name", "")
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield Span(
                    service,
                    span["name"],
                    span["traceId"].lower(),
                    span["spanId"].lower(),
                    span.get("parentSpanId", "").lower(),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    _attributes(span),
                )


def _attributes(record: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values()), None) for a in record.get("attributes", ())}


def _from_protobuf(body: bytes) -> Iterator[Span]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        values = {a.key: a.value.string_value for a in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Span(
                values.get("service.name", ""),
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes},
            )
