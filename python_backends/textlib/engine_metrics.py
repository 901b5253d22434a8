# SPDX-License-Identifier: Apache-2.0
"""What an engine or another step reports to Prometheus through Triton's custom metrics.

The loop counts in plain integers; a separate thread publishes what has changed every
`PUBLISH_SECONDS`. Triton's API takes a round trip to the server for each value and holds the
interpreter lock for as long: while streams live, the thread lets the others have it after each
value, and histograms, which are most of the values, go every `HISTOGRAM_SECONDS`.
They are counters with an `le` label, in Prometheus' own layout: Triton's histogram kind takes one
observation per round trip. `histogram_quantile` and `rate` work on them as usual.

Times are the engine's: from the submission to the first response handed to the server, and from
response to response, divided by the ids in it. A coalescing factor is
`rate(tritonctl_output_tokens_total) / rate(tritonctl_responses_total)`.

Of a request with the parameter `tritonctl_shadow`, a rollout's own question, no time is observed:
what a user has asked before is answered sooner by the server whose prefix cache has it. All else
of it counts.

Triton counts a request that a Python model answers with an error as a success of that model, and
twice as a failure of its ensemble: `tritonctl_errors_total` counts it once, with the reason.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from textlib.errors import TextPathError

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]

SHADOW = "tritonctl_shadow"
PUBLISH_SECONDS = 0.1
HISTOGRAM_SECONDS = 0.5
LET_OTHERS_SECONDS = 0.001
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

# Preferred numbers (ISO 3, R10), 1.25 apart: a rollout sees a first token that takes 1.2 x as long.
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
    _WAITING: "Streams that the engine has accepted and not begun",
    _KV_BLOCKS: "Blocks of the KV cache by state: used or free",
    _RESIDENT: "Resident memory of tritonserver and all its processes; each model tells the same, "
    "so take the largest",
}
COUNTERS = {
    _REQUESTS: "Requests by outcome: stop, length, cancelled or error",
    _ERRORS: "Requests answered with an error: invalid, queue_full, unavailable or failed",
    _STALLED: f"Requests that had no new token for {STALL_SECONDS:g} seconds, each counted once",
    _UPTIME: "Seconds that the model's process lives; stands still when it is gone",
    _QUEUED: "Seconds from submission to a place in the engine, of all streams together",
    _INPUT: "Tokens of the prompts that were accepted",
    _OUTPUT: "Tokens sent in responses",
    _PREFIX_BLOCKS: "Blocks of prompts by what the prefix cache had of them: reused or missed",
    _RESPONSES: "Responses with tokens; output tokens per response is the coalescing factor",
}
for _name, _text in (
    (_TTFT, "Submission to first response"),
    (_ITL, "Time per token after the first response"),
    (_E2E, "Submission to last response of a whole answer"),
):
    COUNTERS[f"{_name}_bucket"] = f"{_text}, at most le seconds"
    COUNTERS[f"{_name}_sum"] = f"{_text}, sum of seconds"
    COUNTERS[f"{_name}_count"] = f"{_text}, number"
_HISTOGRAMS = {f"{name}_{part}" for name in _BOUNDS for part in ("bucket", "sum", "count")}
_OUTCOMES = ("stop", "length", "cancelled", "error")
_WHOLE = ("stop", "length")
_REASONS = ("invalid", "queue_full", "unavailable", "failed")


class Publisher(Protocol):
    """Where values go; one call per changed value."""

    def set(self, key: Key, value: float) -> None:
        """Set a gauge."""

    def add(self, key: Key, value: float) -> None:
        """Add to a counter."""

    def close(self) -> None:
        """Remove all values; nothing follows."""


class Watched(Protocol):
    """A stream, as far as it matters here.

    made: ids at the last look, `moved`: when they were others; `stalled`: it has been counted.
    """

    made: int
    moved: float
    stalled: bool
    sent_ids: int

    @property
    def pending(self) -> list[int]:
        """Ids that wait to be sent."""

    @property
    def outcome(self) -> object:
        """None while it lives."""


class ErrorCounts:
    """Requests answered with an error, by reason. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_REASONS, 0)

    def add(self, error: TextPathError) -> None:
        """Count one, unless the request was cancelled."""
        if error.reason in self._counts:
            with self._lock:
                self._counts[error.reason] += 1

    def totals(self) -> dict[Key, float]:
        """The counters."""
        return {(_ERRORS, (("reason", name),)): n for name, n in self._counts.items()}


class _Histogram:
    """Cumulative only when read: counting is one bisection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bounds = _BOUNDS[name]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def values(self) -> dict[Key, float]:
        total = 0
        # The number is published after all buckets: whoever reads +Inf beyond it reads in between.
        values: dict[Key, float] = {(f"{self._name}_count", ()): sum(self._counts)}
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            values[f"{self._name}_bucket", (("le", bound),)] = total
        values[f"{self._name}_sum", ()] = self._sum
        return values


@dataclass(frozen=True, slots=True)
class KvCache:
    """An engine's KV cache, in blocks; None: unknown.

    used, free: now. reused, missed: blocks of prompts since the start, found there or not.
    """

    used: int | None = None
    free: int | None = None
    reused: int | None = None
    missed: int | None = None

    def totals(self) -> dict[Key, float]:
        """The counters."""
        counts = {"reused": self.reused, "missed": self.missed}
        return {
            (_PREFIX_BLOCKS, (("outcome", name),)): count
            for name, count in counts.items()
            if count is not None
        }


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true now, read when it is published. KV blocks: None if unknown."""

    active: int
    waiting: int
    kv_used: int | None = None
    kv_free: int | None = None

    def with_cache(self, cache: KvCache) -> "Gauges":
        """The same with the blocks of a cache."""
        return replace(self, kv_used=cache.used, kv_free=cache.free)

    def values(self) -> dict[Key, float]:
        """The published form."""
        values: dict[Key, float] = {(_ACTIVE, ()): self.active, (_WAITING, ()): self.waiting}
        if self.kv_used is not None and self.kv_free is not None:
            values[_KV_BLOCKS, (("state", "used"),)] = self.kv_used
            values[_KV_BLOCKS, (("state", "free"),)] = self.kv_free
        return values


class EngineMetrics:
    """What the loop counts, with its lock held."""

    def __init__(self) -> None:
        self._ended = dict.fromkeys(_OUTCOMES, 0)
        self._input_tokens = self._output_tokens = self._responses = 0
        self._queued, self._stalled = 0.0, 0
        self._ttft = _Histogram(_TTFT)
        self._itl = _Histogram(_ITL)
        self._e2e = _Histogram(_E2E)
        self.errors = ErrorCounts()

    def accepted(self, input_tokens: int) -> None:
        """A request has come in."""
        self._input_tokens += input_tokens

    def begun(self, seconds: float) -> None:
        """A stream has a place in the engine, so long after its submission."""
        self._queued += seconds

    def first_response(self, seconds: float, tokens: int, *, timed: bool = True) -> None:
        """The first response of a stream, so long after its submission. timed: for a user."""
        self._count(tokens)
        if timed:
            self._ttft.observe(seconds)

    def next_response(self, seconds: float, tokens: int, *, timed: bool = True) -> None:
        """A later one, so long after the one before."""
        self._count(tokens)
        if tokens and timed:
            self._itl.observe(seconds / tokens, tokens)

    def ended(self, outcome: str, seconds: float, *, timed: bool = True) -> None:
        """A request has had its final response, so long after its submission."""
        self._ended[outcome] += 1
        if outcome in _WHOLE and timed:
            self._e2e.observe(seconds)

    def look(self, streams: Iterable[Watched], now: float) -> None:
        """Count those that stand still: an engine that forgets a stream says nothing of it."""
        for stream in streams:
            made = stream.sent_ids + len(stream.pending)
            if made != stream.made or stream.outcome is not None:
                stream.made, stream.moved = made, now
            elif now - stream.moved > STALL_SECONDS and not stream.stalled:
                stream.stalled = True
                self._stalled += 1

    def totals(self) -> dict[Key, float]:
        """Every counter, all of them from the beginning on."""
        ended = {(_REQUESTS, (("outcome", name),)): n for name, n in self._ended.items()}
        tokens = {(_INPUT, ()): self._input_tokens, (_OUTPUT, ()): self._output_tokens}
        tokens[_RESPONSES, ()] = self._responses
        histograms = self._ttft.values() | self._itl.values() | self._e2e.values()
        histograms[_QUEUED, ()], histograms[_STALLED, ()] = self._queued, self._stalled
        return ended | self.errors.totals() | tokens | histograms

    def _count(self, tokens: int) -> None:
        self._output_tokens += tokens
        self._responses += 1


def _unknown() -> None:
    return None


class MetricsThread:
    """Publishes what changed every `PUBLISH_SECONDS` until it is closed.

    memory: bytes of the whole server, None: unknown; it says itself how often it looks.
    """

    def __init__(
        self,
        publisher: Publisher,
        read: Callable[[], tuple[dict[Key, float], Gauges | None]],
        *,
        memory: Callable[[], int | None] = _unknown,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._read = read
        self._memory = memory
        self._clock = clock
        self._began = clock()
        self._published: dict[Key, float] = {}
        self._histograms_next = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Publish once, then every `PUBLISH_SECONDS`."""
        self.publish()
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the metrics."""
        self._closing.set()
        if self._thread.ident:
            self._thread.join()
        self._publisher.close()

    def _run(self) -> None:
        while not self._closing.wait(PUBLISH_SECONDS):
            try:
                self.publish()
            except Exception:
                _LOG.exception("metrics cannot be published; no more of them")
                return

    def publish(self) -> None:
        """Publish what changed since the last time."""
        totals, gauges = self._read()
        lives = gauges is not None and bool(gauges.active or gauges.waiting)
        present = gauges.values() if gauges else {}
        if (resident := self._memory()) is not None:
            present[_RESIDENT, ()] = resident
        for key, value in present.items():
            if self._published.get(key) != value:
                self._publisher.set(key, value)
                self._go_on(key, value, lives)
        uptime = {(_UPTIME, ()): int(self._clock() - self._began)}  # one value a second
        # The larger buckets first: none ever holds less than a smaller one.
        for key, value in reversed((self._due(totals, lives) | uptime).items()):
            before = self._published.get(key)
            if before != value:
                self._publisher.add(key, value - (before or 0))
                self._go_on(key, value, lives)

    def _due(self, totals: dict[Key, float], lives: bool) -> dict[Key, float]:
        """All of them at rest or once in `HISTOGRAM_SECONDS`, else those of no histogram."""
        now = self._clock()
        if lives and now < self._histograms_next:
            return {key: value for key, value in totals.items() if key[0] not in _HISTOGRAMS}
        self._histograms_next = now + HISTOGRAM_SECONDS
        return totals

    def _go_on(self, key: Key, value: float, lives: bool) -> None:
        self._published[key] = value
        if lives:
            self._closing.wait(LET_OTHERS_SECONDS)
