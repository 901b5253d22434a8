# SPDX-License-Identifier: Apache-2.0
"""Poll a server's metrics, and wait for a server that went away."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tritonctl.errors import HostError, ServerError, UsageError
from tritonctl.protocol.metrics import Metrics, scrape
from tritonctl.supervision.process_usage import ServerUsage
from tritonctl.top.counters import Reading
from tritonctl.top.figures import ModelLayout, WindowFigures, figures

_TRITON = ("nv_",)


def metrics_address(url: str) -> str:
    """Return the metrics URL for `host:port` or a full URL. Raises UsageError."""
    full_url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full_url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number up to 65535, or half an IPv6 address
        valid = False
    if not valid:
        raise UsageError(
            f"--metrics-url {url!r} is not an address",
            remedy="give host:port of Triton's metrics, for example --metrics-url 127.0.0.1:8002",
        )
    return full_url if parts.path.strip("/") else f"{full_url.rstrip('/')}/metrics"


@dataclass(frozen=True)
class MetricsEndpoint:
    """Where the metrics are, with the model layout."""

    url: str
    layout: ModelLayout
    usage: ServerUsage | None = None  # of the server's processes on this machine
    release: Callable[[], str] = str  # returns the live release, or ""


@dataclass(frozen=True)
class MetricsSnapshot:
    """The result of one poll."""

    url: str
    at: float  # seconds since the epoch
    interval: float
    figures: WindowFigures | None = None  # the last known ones while `problem` is set
    problem: str | None = None
    silent_since: float | None = None  # monotonic time of the first failed poll
    # Monotonic time of this poll.
    read_at: float = field(default_factory=time.monotonic)
    release: str = ""

    def record(self) -> dict[str, Any]:
        """Return the record for `--json`; a failed poll has no figures."""
        head = {
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "url": self.url,
            "release": self.release or None,
            "problem": self.problem,
        }
        if self.figures is None or self.problem is not None:
            return head
        return head | asdict(self.figures)


class MetricsWatcher:
    """Keep the readings of a window; calls `find` for the endpoint again after each failure."""

    def __init__(
        self,
        find: Callable[[], MetricsEndpoint],
        *,
        interval: float,
        window: float | None = None,
        read: Callable[[str], Metrics] = scrape,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._read_metrics = read
        self._clock = clock
        self._interval = interval
        self._window = max(window or 0.0, interval)
        self._endpoint: MetricsEndpoint | None = None
        self._readings: deque[Reading] = deque()
        self._last = MetricsSnapshot("", time.time(), interval, read_at=clock())

    def poll(self) -> MetricsSnapshot:
        """Read the metrics once. A missing server or Docker is a snapshot, not an error."""
        at, now = time.time(), self._clock()
        try:
            url, new_figures = self._read()
        except (ServerError, HostError) as error:
            self._forget()
            self._last = MetricsSnapshot(
                self._last.url,
                at,
                self._interval,
                self._last.figures,
                error.problem,
                self._last.silent_since or now,
                now,
            )
        else:
            release = self._endpoint.release() if self._endpoint else ""
            self._last = MetricsSnapshot(
                url, at, self._interval, new_figures, read_at=now, release=release
            )
        return self._last

    def poll_first(self) -> None:
        """Take the first reading; rates need a second one. Raises ServerError."""
        url, _ = self._read()
        self._last = MetricsSnapshot(url, time.time(), self._interval, read_at=self._clock())

    def _read(self) -> tuple[str, WindowFigures | None]:
        if self._endpoint is None:
            self._endpoint = self._find()
        endpoint = self._endpoint
        metrics = self._read_metrics(endpoint.url)
        cpu, rss = endpoint.usage.read() if endpoint.usage else (None, None)
        reading = Reading.of(metrics, self._clock(), cpu, rss)
        if not any(name.startswith(_TRITON) for name, _ in reading.values):
            raise ServerError(
                f"{endpoint.url} answers without any metric of Triton",
                remedy="give the address of its metrics, for example --metrics-url 127.0.0.1:8002",
            )
        self._readings.append(reading)
        # Polls are a little more than an interval apart: the window's first reading may be older.
        oldest = reading.at - self._window + self._interval / 2
        while len(self._readings) > 2 and self._readings[1].at <= oldest:  # noqa: PLR2004
            self._readings.popleft()
        if len(self._readings) < 2:  # noqa: PLR2004
            return endpoint.url, None
        return endpoint.url, figures(list(self._readings), endpoint.layout)

    def _forget(self) -> None:
        """Drop the readings: a server that comes back may be a new one, with new counters."""
        self._readings.clear()
        self._endpoint = None


def watch(
    watcher: MetricsWatcher,
    interval: float,
    show: Callable[[MetricsSnapshot], None],
    *,
    once: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Show a snapshot each `interval` seconds; forever, unless `once`.

    Raises ServerError if the first reading fails.
    """
    watcher.poll_first()
    due = clock()
    while True:
        due = max(due + interval, clock())
        sleep(max(0.0, due - clock()))
        sight = watcher.poll()
        if sight.figures is None and sight.problem is None:
            continue  # the first reading of a server that came back
        if once and sight.problem is not None:
            raise ServerError(sight.problem, remedy="check that the server runs, then try again")
        show(sight)
        if once:
            return
