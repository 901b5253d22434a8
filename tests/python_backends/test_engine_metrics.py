# SPDX-License-Identifier: Apache-2.0
"""What is published, and how little of it."""

import threading
from dataclasses import dataclass, field

import pytest
from textlib.errors import QueueFullError, RequestCancelledError
from textlib.triton.engine_metrics import EngineMetrics, Gauges, KvCache, MetricKey, MetricsThread

from tritonctl.monitoring import slo

pytestmark = pytest.mark.timed

REQUESTS = "tritonctl_requests_total"
TTFT = "tritonctl_time_to_first_token_seconds"
ITL = "tritonctl_inter_token_latency_seconds"
E2E = "tritonctl_request_duration_seconds"
ERRORS = "tritonctl_errors_total"
UPTIME = "tritonctl_uptime_seconds_total"
PATIENCE = 60.0


class Recorder:
    """A Publisher that adds up; the uptime, which always changes, is kept apart."""

    def __init__(self) -> None:
        self.values: dict[MetricKey, float] = {}
        self.calls = 0
        self.closed = False
        self.uptime = 0.0

    def set(self, key: MetricKey, value: float) -> None:
        self.calls += 1
        self.values[key] = value

    def add(self, key: MetricKey, value: float) -> None:
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
    metrics.count_accepted(7)
    metrics.count_started(0.25)
    metrics.count_started(0.5)
    metrics.count_first_response(0.03, 1)
    metrics.count_next_response(0.04, 4)
    metrics.count_next_response(0.5, 0)
    metrics.count_finished("cancelled", 0.6)
    metrics.count_finished("stop", 0.07)
    metrics.errors.add(QueueFullError("full"))
    metrics.errors.add(RequestCancelledError("gone"))
    totals = metrics.totals()
    assert totals["tritonctl_input_tokens_total", ()] == 7
    assert totals["tritonctl_queue_seconds_total", ()] == 0.75
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


def test_times_of_a_question_that_no_user_asked() -> None:
    """Are in no histogram; all else of it counts."""
    metrics = EngineMetrics()
    before = metrics.totals()
    metrics.count_accepted(7)
    metrics.count_first_response(0.03, 1, timed=False)
    metrics.count_next_response(0.04, 4, timed=False)
    metrics.count_finished("stop", 0.07, timed=False)
    assert {key: value for key, value in metrics.totals().items() if value != before[key]} == {
        ("tritonctl_input_tokens_total", ()): 7,
        ("tritonctl_output_tokens_total", ()): 5,
        ("tritonctl_responses_total", ()): 2,
        (REQUESTS, (("outcome", "stop"),)): 1,
    }


@dataclass
class Streaming:
    """What is looked at of a stream."""

    sent_ids: int = 0
    pending: list[int] = field(default_factory=list)
    outcome: object = None
    seen_ids: int = -1
    last_progress_at: float = 0.0
    stalled: bool = False


def test_streams_that_stand_still() -> None:
    """Each once, however long; not those that make tokens, sent or not, or have ended."""
    metrics = EngineMetrics()
    forgotten, sends, keeps, ended = (Streaming() for _ in range(4))
    for second in range(20):
        sends.sent_ids += 1
        keeps.pending.append(second)  # its answer comes as a whole
        ended.outcome = "stop" if second > 3 else None
        metrics.count_stalled([forgotten, sends, keeps, ended], float(second))
        found = metrics.totals()["tritonctl_stalled_requests_total", ()]
        assert found == (second > 5)


def test_only_changes_are_published() -> None:
    """At first everything, then nothing as long as nothing happens."""
    metrics, recorder = EngineMetrics(), Recorder()
    gauges = Gauges(active=1, waiting=0, kv_used=3, kv_free=5)
    thread = MetricsThread(recorder, lambda: (metrics.totals(), gauges))
    thread.publish()
    assert recorder.values["tritonctl_kv_blocks", (("state", "free"),)] == 5
    calls = recorder.calls
    thread.publish()
    assert recorder.calls == calls
    metrics.count_finished("cancelled", 0.1)
    metrics.count_finished("cancelled", 0.1)
    thread.publish()
    thread.publish()
    assert recorder.calls == calls + 1
    assert recorder.values[REQUESTS, (("outcome", "cancelled"),)] == 2


def test_the_memory_of_the_server() -> None:
    """A gauge, of a step without streams, too; none where it is not known."""
    recorder, resident = Recorder(), ("tritonctl_server_resident_bytes", ())
    told = iter([None, 7, 7, 8])
    thread = MetricsThread(recorder, lambda: ({}, None), memory=lambda: next(told))
    seen = []
    for _ in range(4):
        thread.publish()
        seen.append((recorder.values.get(resident), recorder.calls))
    assert seen == [(None, 0), (7, 1), (7, 1), (8, 2)]


def test_histograms_wait_while_streams_live() -> None:
    """Twice a second, or at rest; the other counters do not wait."""
    metrics, recorder, now = EngineMetrics(), Recorder(), [100.0]
    gauges = [Gauges(active=1, waiting=0)]
    thread = MetricsThread(recorder, lambda: (metrics.totals(), gauges[0]), clock=lambda: now[0])
    thread.publish()

    def told(seconds: float) -> tuple[float, float]:
        metrics.count_first_response(0.03, 1)
        now[0] += seconds
        thread.publish()
        responses = recorder.values["tritonctl_responses_total", ()]
        return responses, recorder.values[f"{TTFT}_bucket", (("le", "0.05"),)]

    assert [told(seconds) for seconds in (0.1, 0.3, 0.2, 0.1)] == [(1, 0), (2, 0), (3, 3), (4, 3)]
    gauges[0] = Gauges(active=0, waiting=0)
    assert told(0.1) == (5, 5)


def test_no_bucket_is_ever_seen_with_less_than_a_smaller_one() -> None:
    """Somebody may read them while they are published."""
    metrics = EngineMetrics()

    class Reader(Recorder):
        def add(self, key: MetricKey, value: float) -> None:
            super().add(key, value)
            buckets = {key: n for key, n in self.values.items() if key[0] == f"{TTFT}_bucket"}
            counts = [buckets[key] for key in metrics.totals() if key in buckets]
            assert counts == sorted(counts)
            # Whoever finds the number equal to +Inf has all buckets of one time.
            whole = self.values.get((f"{TTFT}_count", ())) == max(counts, default=0)
            assert not whole or counts in ([0] * len(counts), published)

    final = EngineMetrics()
    for seconds in (0.03, 3.0):
        final.count_first_response(seconds, 1)
    published = [n for key, n in final.totals().items() if key[0] == f"{TTFT}_bucket"]
    recorder = Reader()
    thread = MetricsThread(recorder, lambda: (metrics.totals(), Gauges(0, 0)))
    thread.publish()
    metrics.count_first_response(0.03, 1)
    metrics.count_first_response(3.0, 1)
    thread.publish()
    assert recorder.values[f"{TTFT}_count", ()] == 2


def test_the_uptime_is_published_once_a_second() -> None:
    """It would change with every look otherwise; in whole seconds since the beginning."""
    metrics, recorder, now = EngineMetrics(), Recorder(), [100.0]
    thread = MetricsThread(recorder, lambda: (metrics.totals(), None), clock=lambda: now[0])
    told = []
    for seconds in (0.0, 0.9, 0.2, 2.5, 0.3):
        now[0] += seconds
        thread.publish()
        told.append(recorder.uptime)
    assert told == [0, 0, 1, 3, 3]


def test_the_thread_publishes_by_itself_until_it_is_closed() -> None:
    """At once, then again and again; what cannot be published ends it and nothing else."""
    metrics, recorder, reads = EngineMetrics(), Recorder(), threading.Semaphore(0)

    def read() -> tuple[dict[MetricKey, float], None]:
        reads.release()
        return metrics.totals(), None

    thread = MetricsThread(recorder, read)
    thread.start()
    for _ in range(3):
        assert reads.acquire(timeout=PATIENCE)
    thread.close()
    assert recorder.closed


def test_metrics_that_cannot_be_published_are_no_more() -> None:
    """The engine goes on without them."""
    metrics, recorder, reads = EngineMetrics(), Recorder(), threading.Semaphore(0)

    def read() -> tuple[dict[MetricKey, float], None]:
        reads.release()
        if recorder.calls:
            raise RuntimeError("the server takes none")
        return metrics.totals(), None

    thread = MetricsThread(recorder, read)
    thread.start()
    for _ in range(2):
        assert reads.acquire(timeout=PATIENCE)
    thread.close()
    assert recorder.closed
    assert not reads.acquire(blocking=False)


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
    for name in slo.BOUNDS:
        found = [dict(labels)["le"] for family, labels in published if family == f"{name}_bucket"]
        assert found == [*map(str, slo.BOUNDS[name]), "+Inf"]
