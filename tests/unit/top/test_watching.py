# SPDX-License-Identifier: Apache-2.0
"""A server that is looked at again and again, over real HTTP: it ends, returns, says nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tritonctl.errors import ServerError, UsageError
from tritonctl.top.figures import Layout
from tritonctl.top.watching import Endpoint, Sight, Watcher, metrics_address, watch

COUNTER = 'nv_inference_request_success{{model="m",version="1"}} {}\n'


class Server:
    """An HTTP server that answers with `text`, on a port that stays the same."""

    def __init__(self) -> None:
        self.text = ""
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = owner.text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on standard error."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None


@pytest.fixture
def server() -> Iterator[Server]:
    """One that has answered three requests."""
    found = Server()
    found.text = COUNTER.format(3)
    yield found
    found.stop()


def watcher_of(server: Server, window: float | None = None) -> Watcher:
    """Looks every millisecond or so."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    return Watcher(lambda: Endpoint(url, Layout()), interval=0.001, window=window)


def test_rates_need_two_looks(server: Server) -> None:
    """The first has no figures, the second has."""
    watcher = watcher_of(server)
    assert watcher.look().figures is None
    server.text = COUNTER.format(10)
    figures = watcher.look().figures
    assert figures is not None
    assert figures.models[0].requests_per_s * figures.seconds == pytest.approx(7)


def test_a_server_that_goes_away_and_comes_back(server: Server) -> None:
    """Said, with the last figures; then figures again, of the new counters only."""
    watcher = watcher_of(server)
    watcher.look()
    before = watcher.look()
    server.stop()
    gone = [watcher.look() for _ in range(3)]
    assert all("no metrics from" in (sight.problem or "") for sight in gone)
    assert {sight.silent_since for sight in gone} == {gone[0].seen}
    assert gone[-1].figures == before.figures
    assert set(gone[-1].record()) == {"time", "url", "problem"}
    server.text = COUNTER.format(1)
    server.start()
    back = watcher.look()
    assert (back.problem, back.silent_since, back.figures) == (None, None, None)
    server.text = COUNTER.format(2)
    again = watcher.look().figures
    assert again is not None
    assert again.models[0].requests_per_s * again.seconds == pytest.approx(1)
    assert not again.models[0].restarted


def test_a_server_started_again_between_two_looks(server: Server) -> None:
    """Its counters fell: marked, and never a negative rate."""
    watcher = watcher_of(server)
    watcher.look()
    server.text = COUNTER.format(1)
    figures = watcher.look().figures
    assert figures is not None
    assert figures.models[0].restarted
    assert figures.models[0].requests_per_s > 0


@pytest.mark.parametrize("text", ["<html>", 'nv_inference_request_success{model="m"} x\n', "\0"])
def test_an_answer_that_is_no_metrics(server: Server, text: str) -> None:
    """Amid a run it is shown as a problem, and passes."""
    watcher = watcher_of(server)
    watcher.look()
    server.text = text
    assert watcher.look().problem
    server.text = COUNTER.format(3)
    assert watcher.look().problem is None


def test_metrics_of_something_else_than_triton(server: Server) -> None:
    """The first look says so, with an address to try."""
    server.text = "go_goroutines 7\n"
    with pytest.raises(ServerError, match="no metric of Triton's") as error:
        watch(watcher_of(server), 0.001, lambda _: None, once=True)
    assert "--url" in error.value.remedy


def test_nobody_there_at_first(server: Server) -> None:
    """A wrong address is an error, not an endless wait."""
    server.stop()
    with pytest.raises(ServerError, match="no metrics from"):
        watch(watcher_of(server), 0.001, lambda _: None, once=False)


def test_once_is_one_interval(server: Server) -> None:
    """One sight with figures; as JSON it can be read back."""
    sights: list[Sight] = []
    watch(watcher_of(server), 0.02, sights.append, once=True)
    (sight,) = sights
    record = json.loads(json.dumps(sight.record()))
    assert record["seconds"] >= 0.02
    assert record["models"][0]["model"] == "m"
    assert record["problem"] is None


def test_the_window_slides(server: Server) -> None:
    """What happened before it is no longer in the rates."""
    watcher = watcher_of(server, window=0.05)
    server.text = COUNTER.format(0)
    watcher.look()
    server.text = COUNTER.format(1_000_000)
    sight = watcher.look()
    assert sight.figures is not None
    assert sight.figures.models[0].requests_per_s > 0
    waiting = threading.Event()
    waiting.wait(0.06)
    watcher.look()
    waiting.wait(0.06)
    sight = watcher.look()
    assert sight.figures is not None
    assert sight.figures.models[0].requests_per_s == 0


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("127.0.0.1:8002", "http://127.0.0.1:8002/metrics"),
        ("http://h:1/", "http://h:1/metrics"),
        ("https://h/triton/metrics", "https://h/triton/metrics"),
        ("[::1]:8002", "http://[::1]:8002/metrics"),
    ],
)
def test_addresses(given: str, address: str) -> None:
    """host:port is enough."""
    assert metrics_address(given) == address


@pytest.mark.parametrize("given", ["", "http://", "h:99999", "h:x", "ftp://h", "h:0"])
def test_no_addresses(given: str) -> None:
    """Exit code 2, with an example."""
    with pytest.raises(UsageError, match="is no address"):
        metrics_address(given)
