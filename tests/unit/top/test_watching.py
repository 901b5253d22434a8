# SPDX-License-Identifier: Apache-2.0
"""A server that is looked at again and again, over real HTTP: it ends, returns, says nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tritonctl.errors import ServerError, UsageError
from tritonctl.protocol.metrics import Metrics
from tritonctl.top.figures import ModelLayout
from tritonctl.top.watching import (
    MetricsEndpoint,
    MetricsSnapshot,
    MetricsWatcher,
    metrics_address,
    watch,
)

pytestmark = pytest.mark.timed

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


def watcher_of(server: Server) -> MetricsWatcher:
    """Over HTTP."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    return MetricsWatcher(lambda: MetricsEndpoint(url, ModelLayout()), interval=0.001)


class Scripted:
    """A server of which a test says what it counts, and a clock that the test sets."""

    def __init__(self, interval: float = 2.0, window: float | None = None) -> None:
        self.count: int | None = 3
        self.now = 100.0
        self.slow = 0.0
        self.naps: list[float] = []
        self.watcher = MetricsWatcher(
            lambda: MetricsEndpoint("http://h/metrics", ModelLayout()),
            interval=interval,
            window=window,
            read=self.read,
            clock=lambda: self.now,
        )

    def read(self, url: str) -> Metrics:
        """As `scrape`; `slow` seconds later."""
        assert url == "http://h/metrics"
        self.now += self.slow
        if self.count is None:
            raise ServerError("no metrics from h", remedy="none")
        return Metrics.parse(COUNTER.format(self.count))

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.naps.append(seconds)
        self.now += seconds

    def look(self, count: int | None, *, after: float = 2.0) -> MetricsSnapshot:
        """What is seen so much later."""
        self.now += after
        self.count = count
        return self.watcher.poll()


def rate(sight: MetricsSnapshot) -> float:
    """Requests a second of the only model."""
    assert sight.figures is not None
    [model] = sight.figures.models
    return model.requests_per_s


def test_rates_need_two_looks(server: Server) -> None:
    """The first has no figures, the second has."""
    watcher = watcher_of(server)
    assert watcher.poll().figures is None
    server.text = COUNTER.format(10)
    figures = watcher.poll().figures
    assert figures is not None
    assert figures.models[0].requests_per_s * figures.interval_seconds == pytest.approx(7)


def test_a_server_that_goes_away_and_comes_back() -> None:
    """Said, with the last figures; then figures again, of the new counters only."""
    server = Scripted()
    server.look(3)
    before = server.look(7)
    assert (rate(before), before.read_at) == (2.0, 104.0)
    gone = [server.look(None) for _ in range(3)]
    assert [sight.problem for sight in gone] == ["no metrics from h"] * 3
    assert [(sight.silent_since, sight.read_at) for sight in gone] == [
        (106.0, 106.0),
        (106.0, 108.0),
        (106.0, 110.0),
    ]
    assert gone[-1].figures == before.figures
    assert set(gone[-1].record()) == {"time", "url", "release", "problem"}
    back = server.look(1)
    assert (back.problem, back.silent_since, back.figures) == (None, None, None)
    again = server.look(2)
    assert rate(again) == 0.5
    assert again.figures is not None
    assert not again.figures.models[0].restarted


def test_a_server_started_again_between_two_looks() -> None:
    """Its counters fell: marked, and never a negative rate."""
    server = Scripted()
    server.look(3)
    sight = server.look(1)
    assert sight.figures is not None
    assert sight.figures.models[0].restarted
    assert rate(sight) == 0.5


def test_the_endpoint_is_looked_for_again_after_a_failure() -> None:
    """A server that comes back may be elsewhere."""
    found: list[str] = []

    def find() -> MetricsEndpoint:
        found.append("http://h/metrics")
        return MetricsEndpoint(found[-1], ModelLayout())

    server = Scripted()
    watcher = MetricsWatcher(find, interval=2, read=server.read, clock=lambda: server.now)
    for count in (1, 2, None, None, 1):
        server.now += 2
        server.count = count
        watcher.poll()
    assert len(found) == 3


@pytest.mark.parametrize("text", ["<html>", 'nv_inference_request_success{model="m"} x\n', "\0"])
def test_an_answer_that_is_no_metrics(server: Server, text: str) -> None:
    """Amid a run it is shown as a problem, and passes."""
    watcher = watcher_of(server)
    watcher.poll()
    server.text = text
    assert watcher.poll().problem
    server.text = COUNTER.format(3)
    assert watcher.poll().problem is None


def test_metrics_of_something_else_than_triton(server: Server) -> None:
    """The first look says so, with an address to try."""
    server.text = "go_goroutines 7\n"
    with pytest.raises(ServerError, match="without any metric of Triton") as error:
        watch(watcher_of(server), 0.001, lambda _: None, once=True)
    assert "--metrics-url" in error.value.remedy


def test_nobody_there_at_first(server: Server) -> None:
    """A wrong address is an error, not an endless wait."""
    server.stop()
    with pytest.raises(ServerError, match="no metrics from"):
        watch(watcher_of(server), 0.001, lambda _: None, once=False)


def test_once_is_one_interval() -> None:
    """One sight with figures; as JSON it can be read back."""
    server, sights = Scripted(), list[MetricsSnapshot]()
    watch(
        *(server.watcher, 2.0, sights.append),
        once=True,
        clock=lambda: server.now,
        sleep=server.sleep,
    )
    (sight,) = sights
    record = json.loads(json.dumps(sight.record()))
    assert (record["interval_seconds"], record["problem"]) == (2.0, None)
    assert record["models"][0]["model"] == "m"
    assert server.naps == [2.0]


def test_once_says_what_is_wrong() -> None:
    """No endless wait for a server that has just gone."""
    server = Scripted()

    def sleep(seconds: float) -> None:
        server.sleep(seconds)
        server.count = None

    with pytest.raises(ServerError, match="no metrics from h"):
        watch(server.watcher, 2.0, lambda _: None, once=True, clock=lambda: server.now, sleep=sleep)


def test_looks_are_an_interval_apart_however_long_each_takes() -> None:
    """One that takes longer than the interval delays those behind it, and no two are at once."""
    server, sights = Scripted(), list[MetricsSnapshot]()

    def show(sight: MetricsSnapshot) -> None:
        sights.append(sight)
        server.slow = (0.5, 3.0, 0.0, 0.0)[len(sights) - 1]
        if len(sights) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(server.watcher, 2.0, show, once=False, clock=lambda: server.now, sleep=server.sleep)
    assert server.naps == [2.0, 2.0, 1.5, 0.0]
    assert [sight.read_at for sight in sights] == [102.0, 104.0, 106.0, 109.0]


def test_the_window_slides() -> None:
    """What happened before it is no longer in the rates; never less than two readings."""
    server = Scripted(window=6.0)
    server.look(0)
    assert rate(server.look(600)) == 300
    assert rate(server.look(600)) == 150
    assert rate(server.look(600)) == 100
    assert rate(server.look(600)) == 0
    assert rate(server.look(610, after=60.0)) == pytest.approx(10 / 60)


def test_a_window_is_an_interval_at_least() -> None:
    """Without one, or with a shorter one, each sight is of the last two looks."""
    for window in (None, 0.5):
        server = Scripted(window=window)
        server.look(0)
        assert [rate(server.look(count)) for count in (2, 2, 6)] == [1, 0, 2]


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


@pytest.mark.parametrize("given", ["", "http://", "http://[", "h:99999", "h:x", "ftp://h", "h:0"])
def test_no_addresses(given: str) -> None:
    """Exit code 2, with an example."""
    with pytest.raises(UsageError, match="is not an address"):
        metrics_address(given)
