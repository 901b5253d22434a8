# SPDX-License-Identifier: Apache-2.0
"""Reading Prometheus metrics."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import RESIDENT, Metrics, merge_scrapes, scrape

pytestmark = pytest.mark.timed

TEXT = """# HELP tritonctl_requests_total Requests by outcome
# TYPE tritonctl_requests_total counter
tritonctl_requests_total{model="a_engine",outcome="stop"} 3
tritonctl_requests_total{model="b_engine",outcome="stop"} 4
tritonctl_requests_total{model="a_engine",outcome="error"} 1
# TYPE x_seconds_bucket counter
x_seconds_bucket{le="0.1"} 2
x_seconds_bucket{le="+Inf"} 5
"""


def test_series_are_found_by_name_and_labels() -> None:
    """Labels that are not named may be anything."""
    metrics = Metrics.parse(TEXT)
    assert metrics.total("tritonctl_requests_total") == 8
    assert metrics.total("tritonctl_requests_total", outcome="stop") == 7
    assert metrics.total("tritonctl_requests_total", model="a_engine", outcome="error") == 1
    assert metrics.total("x_seconds_bucket", le="+Inf") == 5
    assert metrics.samples("nothing") == []
    assert metrics.samples("x_seconds_bucket", le="0.1")[0].value == 2


def test_several_servers_are_added() -> None:
    """Their counters; of what a host, or a server as a whole, has, the fullest one's counts."""
    pages = [
        Metrics.parse(f'n_total 2\nnv_cpu_utilization 0.5\n{RESIDENT}{{process="9"}} {size}\n')
        for size in (30, 20)
    ]
    found = merge_scrapes(pages)
    assert [found.total(name) for name in ("n", "nv_cpu_utilization", RESIDENT)] == [4, 0.5, 30]


def test_an_endpoint_that_is_not_there() -> None:
    """A clear error with the command that helps."""
    with pytest.raises(ServerError, match="no metrics from") as error:
        scrape("http://127.0.0.1:9/metrics")
    assert "tritonctl status" in error.value.remedy


def test_the_port_of_requests_has_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers in HTTP, and not with metrics; no proxy is asked for a port of this machine."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Triton) as server:
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        with pytest.raises(
            ServerError, match="it answers 404 Not Found, as Triton's HTTP"
        ) as error:
            scrape(f"http://127.0.0.1:{server.server_port}/metrics")
        asked.join()
    assert "8002" in error.value.remedy


def test_a_grpc_port_is_no_endpoint_of_metrics() -> None:
    """What answers there in HTTP/2 is told apart from what does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x40, 0]))

        asked = threading.Thread(target=answer)
        asked.start()
        with pytest.raises(ServerError, match="as Triton's gRPC port does not") as error:
            scrape(f"http://127.0.0.1:{server.getsockname()[1]}/metrics")
        asked.join()
    assert "8002" in error.value.remedy
