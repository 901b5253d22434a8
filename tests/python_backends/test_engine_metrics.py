# SPDX-License-Identifier: Apache-2.0
"""What is published, and how little of it."""

import time

import pytest
from textlib.engine_metrics import EngineMetrics, Gauges, Key, KvCache, MetricsThread
from textlib.errors import QueueFullError, RequestCancelledError

from tritonctl.observe import slo
from tritonctl.observe.recording import HISTOGRAMS

REQUESTS = "tritonctl_requests_total"
TTFT = "tritonctl_time_to_first_token_seconds"
ITL = "tritonctl_inter_token_latency_seconds"
E2E = "tritonctl_request_duration_seconds"
ERRORS = "tritonctl_errors_total"
UPTIME = "tritonctl_uptime_seconds_total"


class Recorder:
    """A Publisher that adds up; the uptime, which always changes, is kept apart."""

    def __init__(self) -> None:
        self.values: dict[Key, float] = {}
        self.calls = 0
        self.closed = False
        self.uptime = 0.0

    def set(self, key: Key, value: float) -> None:
        self.calls += 1
        self.values[key] = value

    def add(self, key: Key, value: float) -> None:
        if key == (UPTIME, ()):
            self.uptime += value
            return
        assert value >= 0  # zeros at first: `rate` wants to see a series begin
        self.calls += 1
        self.values[key] = self.values.get(key, 0) + value

    def close(self) -> None:
        self.closed = True


def test_counters_of_one_stream() -> None:
    """Tokens, responses, the outcome; times land in their buckets, which are cumulative."""
    metrics = EngineMetrics()
    metrics.accepted(7)
    metrics.first_response(0.03, 1)
    metrics.next_response(0.04, 4)
    metrics.next_response(0.5, 0)
    metrics.ended("cancelled", 0.6)
    metrics.ended("stop", 0.07)
    metrics.errors.add(QueueFullError("full"))
    metrics.errors.add(RequestCancelledError("gone"))
    totals = metrics.totals()
    assert totals["tritonctl_input_tokens_total", ()] == 7
    assert totals["tritonctl_output_tokens_total", ()] == 5
    assert totals["tritonctl_responses_total", ()] == 3
    assert totals[REQUESTS, (("outcome", "cancelled"),)] == 1
    assert totals[REQUESTS, (("outcome", "stop"),)] == 1
    assert totals[f"{TTFT}_bucket", (("le", "0.025"),)] == 0
    assert totals[f"{TTFT}_bucket", (("le", "0.05"),)] == 1
    assert totals[f"{TTFT}_bucket", (("le", "+Inf"),)] == 1
    assert totals[f"{TTFT}_sum", ()] == pytest.approx(0.03)
    assert totals[f"{ITL}_bucket", (("le", "0.005"),)] == 0
    assert totals[f"{ITL}_bucket", (("le", "0.01"),)] == 4  # on the bound is within it
    assert totals[f"{ITL}_count", ()] == 4
    assert totals[f"{ITL}_sum", ()] == pytest.approx(0.04)
    assert totals[f"{E2E}_bucket", (("le", "0.05"),)] == 0
    assert totals[f"{E2E}_bucket", (("le", "0.1"),)] == 1
    assert totals[f"{E2E}_count", ()] == 1  # whole answers only
    errors = {key: value for key, value in totals.items() if key[0] == ERRORS}
    assert {dict(labels)["reason"]: value for (_, labels), value in errors.items()} == {
        "invalid": 0,
        "queue_full": 1,
        "unavailable": 0,
        "failed": 0,
    }


def test_only_changes_are_published() -> None:
    """At first everything, then nothing as long as nothing happens."""
    metrics, recorder = EngineMetrics(), Recorder()
    gauges = Gauges(active=1, waiting=0, kv_used=3, kv_free=5)
    thread = MetricsThread(recorder, lambda: (metrics.totals(), gauges))
    thread.start()
    assert recorder.values["tritonctl_kv_blocks", (("state", "free"),)] == 5
    calls = recorder.calls
    time.sleep(0.35)
    assert recorder.calls == calls
    metrics.ended("cancelled", 0.1)
    metrics.ended("cancelled", 0.1)
    deadline = time.monotonic() + 5
    while recorder.calls == calls and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.close()
    assert recorder.calls == calls + 1
    assert recorder.values[REQUESTS, (("outcome", "cancelled"),)] == 2
    assert recorder.closed


def test_an_engine_that_cannot_tell_its_blocks_says_nothing_of_them() -> None:
    """No value is better than a wrong one."""
    assert {name for name, _ in Gauges(0, 0).values()} == {
        "tritonctl_active_streams",
        "tritonctl_waiting_streams",
    }


def test_what_the_prefix_cache_found() -> None:
    """Counters where the engine tells; its blocks are gauges."""
    cache = KvCache(used=3, free=5, reused=7, missed=2)
    name = "tritonctl_prefix_cache_blocks_total"
    assert cache.totals() == {
        (name, (("outcome", "reused"),)): 7,
        (name, (("outcome", "missed"),)): 2,
    }
    assert Gauges(1, 0).with_cache(cache) == Gauges(1, 0, kv_used=3, kv_free=5)
    assert KvCache(used=3, free=5).totals() == {}
    assert Gauges(1, 0).with_cache(KvCache()) == Gauges(1, 0)


def test_rules_know_the_bounds_of_the_buckets() -> None:
    """They are written down twice, because neither side may import the other."""
    published = EngineMetrics().totals()
    for name in HISTOGRAMS:
        found = [dict(labels)["le"] for family, labels in published if family == f"{name}_bucket"]
        assert found == [*map(str, slo.BOUNDS[name]), "+Inf"]
