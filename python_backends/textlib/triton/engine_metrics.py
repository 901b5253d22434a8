# SPDX-License-Identifier: Apache-2.0
"""Metrics of an engine or another step for Prometheus, through Triton's custom metrics.

The loop counts in plain integers; a separate thread publishes changed values every
`PUBLISH_SECONDS`. Triton's API takes a round trip to the server per value and holds the interpreter
lock meanwhile. While streams are live, the thread yields after each value, and publishes the
histograms, which are most of the values, every `HISTOGRAM_SECONDS`. Histograms are counters with an
`le` label in Prometheus' layout, because Triton's histogram kind takes one observation per round
trip; `histogram_quantile` and `rate` work as usual.

The engine measures times: from submission to the first response handed to the server, and from
response to response, divided by the ids in it. The coalescing factor is
`rate(tritonctl_output_tokens_total) / rate(tritonctl_responses_total)`.

Requests with the parameter `tritonctl_shadow` are a rollout's copies of users' requests. Their
times are not observed, because the prefix cache of the server that answered the user first makes
them faster. Everything else of them counts.

Triton counts an error response of a Python model as a success of that model, and as two failures of
its ensemble: `tritonctl_errors_total` counts it once, with the reason.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from textlib.errors import TextPathError

MetricLabels = tuple[tuple[str, str], ...]
MetricKey = tuple[str, MetricLabels]

SHADOW_PARAMETER = "tritonctl_shadow"
PUBLISH_SECONDS = 0.1
HISTOGRAM_SECONDS = 0.5
YIELD_SECONDS = 0.001
STALL_SECONDS = 5.0
_LOG = logging.getLogger(__name__)

_ACTIVE = "tritonctl_active_streams"
_WAITING = "tritonctl_waiting_streams"
_KV_BLOCKS = "tritonctl_kv_blocks"
_RESIDENT = "tritonctl_server_resident_bytes"
_PREFIX_BLOCKS = "tritonctl_prefix_cache_blocks_total"
_REQUESTS = "tritonctl_requests_total"
_INPUT = "tritonctl_input_tokens_total"
_OUTPUT = "tritonctl_output_tokens_total"
_RESPONSES = "tritonctl_responses_total"
_ERRORS = "tritonctl_errors_total"
_STALLED = "tritonctl_stalled_requests_total"
_UPTIME = "tritonctl_uptime_seconds_total"
_TTFT = "tritonctl_time_to_first_token_seconds"
_ITL = "tritonctl_inter_token_latency_seconds"
_E2E = "tritonctl_request_duration_seconds"
_QUEUED = "tritonctl_queue_seconds_total"

# Preferred numbers (ISO 3, R10), 1.25 apart: a rollout detects a first token that is 1.2 x slower.
_FINE = (
    0.001, 0.00125, 0.0016, 0.002, 0.0025, 0.00315, 0.004, 0.005, 0.0063, 0.008,
    0.01, 0.0125, 0.016, 0.02, 0.025, 0.0315, 0.04, 0.05, 0.063, 0.08,
    0.1, 0.125, 0.16, 0.2, 0.25, 0.315, 0.4, 0.5, 0.63, 0.8,
    1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8, 10, 12.5, 16, 20, 25, 31.5, 40, 50, 60,
)  # fmt: skip
_BOUNDS = {
    _TTFT: _FINE,
    _ITL: (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5),
    _E2E: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
}
GAUGES = {
    _ACTIVE: "Streams that the engine advances",
    _WAITING: "Streams that the engine has accepted and not started",
    _KV_BLOCKS: "Blocks of the KV cache by state: used or free",
    _RESIDENT: "Resident memory of tritonserver and all its processes; every model reports it, "
    "so take the largest value",
}
COUNTERS = {
    _REQUESTS: "Requests by outcome: stop, length, cancelled or error",
    _ERRORS: "Requests answered with an error: invalid, queue_full, unavailable or failed",
    _STALLED: f"Requests that had no new token for {STALL_SECONDS:g} seconds, each counted once",
    _UPTIME: "Seconds that the model's process has run; stands still while the process or its "
    "engine is gone, frozen or stuck",
    _QUEUED: "Seconds from submission to a place in the engine, summed over all streams",
    _INPUT: "Tokens of the accepted prompts",
    _OUTPUT: "Tokens sent in responses",
    _PREFIX_BLOCKS: "Blocks of prompts by outcome in the prefix cache: reused or missed",
    _RESPONSES: "Responses with tokens; output tokens per response is the coalescing factor",
}
for _name, _text in (
    (_TTFT, "Submission to first response"),
    (_ITL, "Time per token after the first response"),
    (_E2E, "Submission to last response of a complete answer"),
):
    COUNTERS[f"{_name}_bucket"] = f"{_text}, at most le seconds"
    COUNTERS[f"{_name}_sum"] = f"{_text}, sum of seconds"
    COUNTERS[f"{_name}_count"] = f"{_text}, number"
_HISTOGRAMS = {f"{name}_{part}" for name in _BOUNDS for part in ("bucket", "sum", "count")}
_OUTCOMES = ("stop", "length", "cancelled", "error")
_COMPLETED = ("stop", "length")
_REASONS = ("invalid", "queue_full", "unavailable", "failed")


class Publisher(Protocol):
    """Receives the values; one call per changed value."""

    def set(self, key: MetricKey, value: float) -> None:
        """Set a gauge."""

    def add(self, key: MetricKey, value: float) -> None:
        """Add to a counter."""

    def close(self) -> None:
        """Remove all values; the last call."""


class WatchedStream(Protocol):
    """The part of a stream that `count_stalled` reads and updates."""

    seen_ids: int
    last_progress_at: float
    stalled: bool
    sent_ids: int

    @property
    def pending(self) -> list[int]:
        """Ids that are not sent yet."""

    @property
    def outcome(self) -> object:
        """None while the stream is live."""


class ErrorCounts:
    """Requests answered with an error, by reason. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_REASONS, 0)

    def add(self, error: TextPathError) -> None:
        """Count an error, except a cancellation."""
        if error.reason in self._counts:
            with self._lock:
                self._counts[error.reason] += 1

    def totals(self) -> dict[MetricKey, float]:
        """Return the counters."""
        return {(_ERRORS, (("reason", name),)): n for name, n in self._counts.items()}


class _Histogram:
    """A histogram that accumulates only when read; counting is one bisection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bounds = _BOUNDS[name]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def values(self) -> dict[MetricKey, float]:
        total = 0
        # The count is published after all buckets: a reader that sees +Inf above it reads midway.
        values: dict[MetricKey, float] = {(f"{self._name}_count", ()): sum(self._counts)}
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            values[f"{self._name}_bucket", (("le", bound),)] = total
        values[f"{self._name}_sum", ()] = self._sum
        return values


@dataclass(frozen=True, slots=True)
class KvCache:
    """An engine's KV cache, in blocks; None: unknown.

    used, free: current state. reused, missed: blocks of prompts since the start.
    """

    used: int | None = None
    free: int | None = None
    reused: int | None = None
    missed: int | None = None

    def totals(self) -> dict[MetricKey, float]:
        """Return the counters."""
        counts = {"reused": self.reused, "missed": self.missed}
        return {
            (_PREFIX_BLOCKS, (("outcome", name),)): count
            for name, count in counts.items()
            if count is not None
        }


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values, read when they are published. KV blocks: None if unknown.

    progress_at: time at which a stream last got tokens, on the clock of the loop.
    """

    active: int
    waiting: int
    progress_at: float = float("-inf")
    kv_used: int | None = None
    kv_free: int | None = None

    def with_cache(self, cache: KvCache) -> "Gauges":
        """Return a copy with the blocks of a cache."""
        return replace(self, kv_used=cache.used, kv_free=cache.free)

    def values(self) -> dict[MetricKey, float]:
        """Return the values by metric."""
        values: dict[MetricKey, float] = {(_ACTIVE, ()): self.active, (_WAITING, ()): self.waiting}
        if self.kv_used is not None and self.kv_free is not None:
            values[_KV_BLOCKS, (("state", "used"),)] = self.kv_used
            values[_KV_BLOCKS, (("state", "free"),)] = self.kv_free
        return values


class EngineMetrics:
    """Counters of the decoder loop; call every method with the loop's lock held."""

    def __init__(self) -> None:
        self._outcome_counts = dict.fromkeys(_OUTCOMES, 0)
        self._input_tokens = self._output_tokens = self._responses = 0
        self._queue_seconds, self._stalled = 0.0, 0
        self.progress_at = float("-inf")  # when `count_stalled` last saw new ids
        self._ttft = _Histogram(_TTFT)
        self._itl = _Histogram(_ITL)
        self._e2e = _Histogram(_E2E)
        self.errors = ErrorCounts()

    def count_accepted(self, input_tokens: int) -> None:
        """Count an accepted request."""
        self._input_tokens += input_tokens

    def count_started(self, seconds: float) -> None:
        """Count a stream that gets its place in the engine `seconds` after its submission."""
        self._queue_seconds += seconds

    def count_first_response(self, seconds: float, tokens: int, *, timed: bool = True) -> None:
        """Count a stream's first response, `seconds` after its submission.

        timed: observe the time.
        """
        self._count_tokens(tokens)
        if timed:
            self._ttft.observe(seconds)

    def count_next_response(self, seconds: float, tokens: int, *, timed: bool = True) -> None:
        """Count a later response, `seconds` after the previous one."""
        self._count_tokens(tokens)
        if tokens and timed:
            self._itl.observe(seconds / tokens, tokens)

    def count_finished(self, outcome: str, seconds: float, *, timed: bool = True) -> None:
        """Count a request with its final response, `seconds` after its submission."""
        self._outcome_counts[outcome] += 1
        if outcome in _COMPLETED and timed:
            self._e2e.observe(seconds)

    def count_stalled(self, streams: Iterable[WatchedStream], now: float) -> None:
        """Count streams without new ids: an engine does not report a stream that it lost."""
        for stream in streams:
            seen_ids = stream.sent_ids + len(stream.pending)
            if seen_ids != stream.seen_ids or stream.outcome is not None:
                if 0 <= stream.seen_ids < seen_ids:
                    self.progress_at = now
                stream.seen_ids, stream.last_progress_at = seen_ids, now
            elif now - stream.last_progress_at > STALL_SECONDS and not stream.stalled:
                stream.stalled = True
                self._stalled += 1

    def totals(self) -> dict[MetricKey, float]:
        """Return every counter, cumulative since the start."""
        outcomes = {
            (_REQUESTS, (("outcome", name),)): n for name, n in self._outcome_counts.items()
        }
        tokens = {(_INPUT, ()): self._input_tokens, (_OUTPUT, ()): self._output_tokens}
        tokens[_RESPONSES, ()] = self._responses
        histograms = self._ttft.values() | self._itl.values() | self._e2e.values()
        histograms[_QUEUED, ()], histograms[_STALLED, ()] = self._queue_seconds, self._stalled
        return outcomes | self.errors.totals() | tokens | histograms

    def _count_tokens(self, tokens: int) -> None:
        self._output_tokens += tokens
        self._responses += 1


def _no_memory_reading() -> None:
    return None


def _always_running(_: Gauges | None) -> bool:
    return True


class MetricsThread:
    """Publishes changed values every `PUBLISH_SECONDS` until it is closed.

    memory: returns the server's resident bytes, None if unknown; it limits its reads itself.
    is_running: whether the uptime grows.
    """

    def __init__(
        self,
        publisher: Publisher,
        read: Callable[[], tuple[dict[MetricKey, float], Gauges | None]],
        *,
        memory: Callable[[], int | None] = _no_memory_reading,
        is_running: Callable[[Gauges | None], bool] = _always_running,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._read = read
        self._memory = memory
        self._clock = clock
        self._is_running = is_running
        self._uptime, self._measured_at = 0.0, clock()
        self._published: dict[MetricKey, float] = {}
        self._next_histograms = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Publish now, then every `PUBLISH_SECONDS`."""
        self.publish()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and remove the metrics."""
        self._closing.set()
        if self._thread.ident:
            self._thread.join()
        self._publisher.close()

    def _run(self) -> None:
        while not self._closing.wait(PUBLISH_SECONDS):
            try:
                self.publish()
            except Exception:
                _LOG.exception("metrics cannot be published; publishing stops")
                return

    def publish(self) -> None:
        """Publish the values that changed since the last call."""
        totals, gauges = self._read()
        has_streams = gauges is not None and bool(gauges.active or gauges.waiting)
        current = gauges.values() if gauges else {}
        if (resident := self._memory()) is not None:
            current[_RESIDENT, ()] = resident
        for key, value in current.items():
            if self._published.get(key) != value:
                self._publisher.set(key, value)
                self._mark_published(key, value, has_streams)
        uptime = {(_UPTIME, ()): self._measure_uptime(gauges)}
        # The larger buckets first: a bucket never holds less than a smaller one.
        for key, value in reversed((self._due_totals(totals, has_streams) | uptime).items()):
            previous = self._published.get(key)
            if previous != value:
                self._publisher.add(key, value - (previous or 0))
                self._mark_published(key, value, has_streams)

    def _measure_uptime(self, gauges: Gauges | None) -> int:
        """Return whole seconds: one new value a second."""
        now = self._clock()
        if self._is_running(gauges):
            self._uptime += now - self._measured_at
        self._measured_at = now
        return int(self._uptime)

    def _due_totals(
        self, totals: dict[MetricKey, float], has_streams: bool
    ) -> dict[MetricKey, float]:
        """Return the totals; histograms only if idle or every `HISTOGRAM_SECONDS`."""
        now = self._clock()
        if has_streams and now < self._next_histograms:
            return {key: value for key, value in totals.items() if key[0] not in _HISTOGRAMS}
        self._next_histograms = now + HISTOGRAM_SECONDS
        return totals

    def _mark_published(self, key: MetricKey, value: float, has_streams: bool) -> None:
        self._published[key] = value
        if has_streams:
            self._closing.wait(YIELD_SECONDS)
