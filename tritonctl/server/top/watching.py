# SPDX-License-Identifier: Apache-2.0
"""Reads a server's metrics repeatedly, and waits for one that went away."""

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
from tritonctl.server.top.counters import Reading
from tritonctl.server.top.figures import Figures, Layout, figures
from tritonctl.server.usage import ServerUsage

_TRITON = ("nv_",)


def metrics_address(url: str) -> str:
    """`host:port`, or a whole URL, of a metrics endpoint. Raises UsageError."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or above 65535; half an IPv6 address
        valid = False
    if not valid:
        raise UsageError(
            f"--metrics-url {url!r} is not an address",
            remedy="give host:port of Triton's metrics, for example --metrics-url 127.0.0.1:8002",
        )
    return whole if parts.path.strip("/") else f"{whole.rstrip('/')}/metrics"


@dataclass(frozen=True)
class Endpoint:
    """Where the metrics are, with the layout. usage: of the server's processes on this machine.

    release: says which one is served, "" for none.
    """

    url: str
    layout: Layout
    usage: ServerUsage | None = None
    release: Callable[[], str] = str


@dataclass(frozen=True)
class Sight:
    """What one look showed. `figures` are the last known ones while `problem` is set.

    at: seconds since the epoch; seen: the same moment on the monotonic clock; silent_since: that of
    the first look that failed.
    """

    url: str
    at: float
    interval: float
    figures: Figures | None = None
    problem: str | None = None
    silent_since: float | None = None
    seen: float = field(default_factory=time.monotonic)
    release: str = ""

    def record(self) -> dict[str, Any]:
        """For `--json`; a look that failed has no figures."""
        head = {
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "url": self.url,
            "release": self.release or None,
            "problem": self.problem,
        }
        if self.figures is None or self.problem is not None:
            return head
        return head | asdict(self.figures)


class Watcher:
    """Keeps the readings of a window. `find` names the endpoint, again after each failure."""

    def __init__(
        self,
        find: Callable[[], Endpoint],
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
        self._endpoint: Endpoint | None = None
        self._readings: deque[Reading] = deque()
        self._last = Sight("", time.time(), interval, seen=clock())

    def look(self) -> Sight:
        """Read the metrics once. A server or Docker that is gone is a sight, not an error."""
        at, now = time.time(), self._clock()
        try:
            url, new_figures = self._read()
        except (ServerError, HostError) as error:
            self._forget()
            self._last = Sight(
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
            self._last = Sight(url, at, self._interval, new_figures, seen=now, release=release)
        return self._last

    def first_look(self) -> None:
        """The first reading: rates need a second one. Raises ServerError."""
        url, _ = self._read()
        self._last = Sight(url, time.time(), self._interval, seen=self._clock())

    def _read(self) -> tuple[str, Figures | None]:
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
        # Looks are a little more than an interval apart: the window's first reading may be older.
        oldest = reading.at - self._window + self._interval / 2
        while len(self._readings) > 2 and self._readings[1].at <= oldest:  # noqa: PLR2004
            self._readings.popleft()
        if len(self._readings) < 2:  # noqa: PLR2004
            return endpoint.url, None
        return endpoint.url, figures(list(self._readings), endpoint.layout)

    def _forget(self) -> None:
        """The server that comes back may be another one, with new counters."""
        self._readings.clear()
        self._endpoint = None


def watch(
    watcher: Watcher,
    interval: float,
    show: Callable[[Sight], None],
    *,
    once: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Show a sight each `interval` seconds; forever, unless `once`. Raises ServerError at first."""
    watcher.first_look()
    due = clock()
    while True:
        due = max(due + interval, clock())
        sleep(max(0.0, due - clock()))
        sight = watcher.look()
        if sight.figures is None and sight.problem is None:
            continue  # the first reading of a server that came back
        if once and sight.problem is not None:
            raise ServerError(sight.problem, remedy="check that the server runs, then try again")
        show(sight)
        if once:
            return
