# SPDX-License-Identifier: Apache-2.0
"""From Triton's metrics to counters that only grow, and looks that never wait long."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics
from tritonctl.releases.slots import Slot
from tritonctl.rollout.counting import CounterTracker
from tritonctl.rollout.metrics import Counters, Distances, interval_between
from tritonctl.rollout.scraping import MetricsScraper, ScrapeTarget, envoy_cluster_names
from tritonctl.top.counters import Reading
from tritonctl.top.figures import ModelLayout

LAYOUT = ModelLayout(steps={"speller": ("speller_tokenizer", "speller_engine")})
TTFT = "tritonctl_time_to_first_token_seconds_bucket"
TTFT_COUNT = "tritonctl_time_to_first_token_seconds_count"


def text(
    success: int = 10,
    failed: int = 0,
    errors: int = 0,
    cancelled: int = 0,
    buckets: Mapping[str, int] | None = None,
    count: int | None = None,
) -> str:
    """What an ensemble's Triton publishes, as far as it matters here."""
    lines = [
        f'nv_inference_request_success{{model="speller"}} {success}',
        f'nv_inference_request_failure{{model="speller",reason="OTHER"}} {failed}',
        f'nv_inference_request_success{{model="speller_engine"}} {success}',
        f'tritonctl_errors_total{{model="speller_engine",reason="failed"}} {errors}',
        f'tritonctl_requests_total{{model="speller_engine",outcome="cancelled"}} {cancelled}',
        *(
            f'{TTFT}{{model="speller_engine",le="{bound}"}} {count}'
            for bound, count in (buckets or {}).items()
        ),
        *([f'{TTFT_COUNT}{{model="speller_engine"}} {count}'] if count is not None else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def counted(counting: CounterTracker, published: str) -> Counters:
    """Of one scrape."""
    return counting.counters(Reading.of(Metrics.parse(published), 1.0, rss_bytes=7))


def test_an_ensemble() -> None:
    """Errors count once, as do users who leave; times are those of the engine, bucket by bucket."""
    buckets = {"0.1": 4, "0.25": 9, "+Inf": 10}
    found = counted(
        CounterTracker(LAYOUT), text(success=10, failed=5, errors=2, cancelled=1, buckets=buckets)
    )
    assert (found.requests, found.failures, found.memory_bytes) == (13, 3, 7)
    assert found.times["ttft"].bounds == (0.1, 0.25)
    assert found.times["ttft"].counts == (4, 5, 1)


def test_time_between_tokens() -> None:
    """Its sum, of which tokens a second come; None where no server has one, and it never falls."""
    counting = CounterTracker(LAYOUT)
    assert counted(counting, text()).token_seconds is None
    series = 'tritonctl_inter_token_latency_seconds_sum{model="speller_engine"} '
    assert counted(counting, f"{text()}{series}3.5\n").token_seconds == 3.5
    assert counted(counting, f"{text()}{series}3.25\n").token_seconds == 3.5


def test_requests_that_stand_still() -> None:
    """As the engine counts them, and None where none does; what was counted stays counted."""
    counting = CounterTracker(LAYOUT)
    assert counted(counting, text()).stalled is None
    series = 'tritonctl_stalled_requests_total{model="speller_engine"} '
    assert counted(counting, f"{text()}{series}3\n").stalled == 3
    assert counted(counting, f"{text()}{series}2\n").stalled == 3


def test_counts_never_fall() -> None:
    """But for a restart, after which they begin anew, as the judge must see."""
    counting = CounterTracker(LAYOUT)
    first = counted(counting, text(failed=4, errors=2, buckets={"0.1": 3, "+Inf": 4}))
    # The engine has counted a third error, the ensemble's two of it are on their way.
    later = counted(counting, text(failed=4, errors=1, buckets={"0.1": 2, "+Inf": 4}))
    assert later.failures >= first.failures
    assert later.times["ttft"].counts >= first.times["ttft"].counts
    again = counted(counting, text(success=1, buckets={"0.1": 1, "+Inf": 1}))
    assert (again.requests, again.failures) == (1, 0)


def test_a_page_from_between_two_buckets() -> None:
    """Only the larger buckets are new: nobody waited that long, so no time is counted."""
    counting = CounterTracker(LAYOUT)
    before = {"0.1": 3, "0.2": 8, "5.0": 10, "+Inf": 10}
    first = counted(counting, text(10, buckets=before, count=10))
    between = counted(
        counting, text(30, buckets=before | {"0.2": 28, "5.0": 30, "+Inf": 30}, count=10)
    )
    assert between.times == first.times
    whole = {"0.1": 10, "0.2": 28, "5.0": 30, "+Inf": 30}
    assert counted(counting, text(30, buckets=whole, count=30)).times["ttft"].counts == (
        10, 18, 2, 0,
    )  # fmt: skip


def test_the_first_page_is_from_between_two_buckets() -> None:
    """Of times that are not known, but for those that were there already."""
    buckets = {"0.1": 3, "0.2": 8, "5.0": 30, "+Inf": 30}
    found = counted(CounterTracker(LAYOUT), text(30, buckets=buckets, count=10))
    assert found.times["ttft"].counts == (3, 5, 2, 0)


def test_seconds_of_tokens_from_between() -> None:
    """They go with their histogram."""
    name = "tritonctl_inter_token_latency_seconds"

    def page(seconds: float, within: int, beyond: int, count: int) -> str:
        series = [("bucket", ',le="0.01"', within), ("bucket", ',le="+Inf"', beyond)]
        return text() + "".join(
            f'{name}_{part}{{model="speller_engine"{more}}} {value}\n'
            for part, more, value in [*series, ("count", "", count), ("sum", "", seconds)]
        )

    counting = CounterTracker(LAYOUT)
    first = counted(counting, page(1.0, 90, 100, 100))
    between = counted(counting, page(9.0, 90, 200, 100))
    assert (between.times, between.token_seconds) == (first.times, 1.0)
    assert counted(counting, page(9.0, 150, 200, 200)).token_seconds == 9.0


def test_a_model_without_steps() -> None:
    """A task without tokens has no times of its own."""
    published = 'nv_inference_request_success{model="encoder"} 3\n'
    found = counted(CounterTracker(ModelLayout()), published)
    assert (found.requests, found.failures, found.times) == (3, 0, {})


class Shadow:
    """Two answers, once."""

    offset = 0

    def new_distances(self) -> list[Distances]:
        """Those since the last call."""
        self.offset += 2
        return [Distances(0, 1)] * 2


TIMES = [
    ("triton_grpc_b", 10, 1),  # of testers
    ("triton_grpc_b", "+Inf", 1),
    ("triton_grpc_b_first", 10, 0),  # of users who were moved
    ("triton_grpc_b_first", "+Inf", 2),
    ("triton_rest_b", 10, 2),
    ("triton_rest_b", "+Inf", 2),
    ("triton_rest_a", 10, 0),
    ("triton_rest_a", "+Inf", 5),
]


def gateway(users: int, others: int, ready: int = 1) -> str:
    """What Envoy publishes."""
    sent = [("triton_grpc_b", 5), ("triton_rest_b", 2), ("triton_grpc_a", 100)]
    return "".join(
        [
            *(
                f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="{n}"}} {c}\n'
                for n, c in sent
            ),
            *(
                f'envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="{n}",le="{le}"}} {c}\n'
                for n, le, c in TIMES
            ),
            f'envoy_vhost_route_upstream_rq_total{{envoy_route="users"}} {users}\n',
            f'envoy_vhost_route_upstream_rq_total{{envoy_route="others"}} {others}\n',
            'envoy_cluster_membership_healthy{envoy_cluster_name="triton_grpc_b"} 1\n',
            f'envoy_cluster_membership_healthy{{envoy_cluster_name="triton_grpc_a"}} {ready}\n',
        ]
    )


def test_a_look() -> None:
    """Both versions, what was sent to the candidate, and who has come."""
    published = {"a": text(90), "b": text(7), "envoy": gateway(users=30, others=70)}
    scraper = MetricsScraper(
        ScrapeTarget(["a"], LAYOUT),
        ScrapeTarget(["b"], LAYOUT),
        lambda: "envoy",
        envoy_cluster_names(Slot.B),
        Shadow(),
        scrape=lambda url, _: Metrics.parse(published[url.partition("?")[0]]),
    )
    seen = scraper.observe(3.0)
    assert seen.scrape.stable is not None
    assert seen.scrape.candidate is not None
    assert (seen.scrape.stable.requests, seen.scrape.candidate.requests) == (90, 7)
    assert (seen.scrape.at, seen.scrape.sent, len(seen.scrape.answers)) == (3.0, 7, 2)
    assert seen.scrape.candidate.times["response"].counts == (3, 2)
    assert seen.scrape.stable.times["response"].counts == (0, 5)
    assert seen.gateway is not None
    assert (seen.gateway.requests, seen.gateway.with_user) == (100, 30)
    assert scraper.saved_state()["shadowed"] == 2
    assert seen.scrape.stable_ready is True
    published["envoy"] = gateway(users=30, others=70, ready=0)
    assert scraper.observe(4.0).scrape.stable_ready is False
    published["envoy"] = ""
    assert scraper.observe(5.0).scrape.stable_ready is None


def test_another_process_goes_on_counting() -> None:
    """What fell by one for a moment, or lay between two buckets, is no restart for it, either."""
    whole = {"0.1": 3, "0.2": 10, "+Inf": 10}
    published = {"a": text(90), "b": text(10, failed=4, errors=2, buckets=whole), "envoy": ""}

    def scraper(kept: Mapping[str, Any]) -> MetricsScraper:
        return MetricsScraper(
            ScrapeTarget(["a"], LAYOUT),
            ScrapeTarget(["b"], LAYOUT),
            lambda: "envoy",
            scrape=lambda url, _: Metrics.parse(published[url.partition("?")[0]]),
            saved=kept,
        )

    first = scraper({})
    before = first.observe(1.0).scrape
    kept = json.loads(json.dumps(first.saved_state()))
    published["b"] = text(10, failed=4, errors=1, buckets=whole | {"0.2": 9})
    for about, fits in ((kept, True), ({}, False), (kept | {"counted": [{}, {}]}, False)):
        found = scraper(about).observe(2.0).scrape
        assert found.candidate is not None
        assert before.candidate is not None
        assert (interval_between(before.candidate, found.candidate) is not None) == fits
    published["b"] = text(9, buckets=whole)
    restarted = scraper(kept).observe(2.0).scrape.candidate
    assert restarted is not None
    assert before.candidate is not None
    assert interval_between(before.candidate, restarted) is None


def test_several_servers_of_a_version() -> None:
    """Their counts added up; one of the candidate's that counts from 0 again is a restart."""
    counts = {"a1": 40, "a2": 50, "b1": 5, "b2": 7, "envoy": 0}
    scraper = MetricsScraper(
        ScrapeTarget(["a1", "a2"], LAYOUT),
        ScrapeTarget(["b1", "b2"], LAYOUT),
        lambda: "envoy",
        scrape=lambda url, _: Metrics.parse(text(counts[url.partition("?")[0]])),
    )
    first = scraper.observe(1.0).scrape
    assert first.stable is not None
    assert first.candidate is not None
    assert (first.stable.requests, first.candidate.requests) == (90, 12)
    counts |= {"b1": 0, "b2": 90}
    later = scraper.observe(2.0).scrape
    assert later.candidate is not None
    assert interval_between(first.candidate, later.candidate) is None


def test_memory_that_servers_tell() -> None:
    """The largest one's, by whichever model has read it last; None where none tells."""
    series = 'tritonctl_server_resident_bytes{{model="{}",process="{}"}} {}\n'
    pages = {
        "a1": text() + series.format("x", 9, 300e6),
        "a2": text() + series.format("x", 9, 200e6) + series.format("y", 10, 302e6),
        "b": text(),
        "envoy": "",
    }
    scraper = MetricsScraper(
        ScrapeTarget(["a1", "a2"], LAYOUT),
        ScrapeTarget(["b"], LAYOUT),
        lambda: "envoy",
        scrape=lambda url, _: Metrics.parse(pages[url.partition("?")[0]]),
    )
    for told, found in (("", None), (series.format("x", 9, 1.5e9), 1_500_000_000)):
        pages["b"] = text() + told
        seen = scraper.observe(1.0).scrape
        assert seen.stable is not None
        assert seen.candidate is not None
        assert (seen.stable.memory_bytes, seen.candidate.memory_bytes) == (302_000_000, found)


def test_what_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that refuses, one that hangs and is not asked again meanwhile, one that is not there."""
    monkeypatch.setattr("tritonctl.rollout.scraping._SCRAPE_SECONDS", 0.05)
    hangs, asked = threading.Event(), []

    def scrape(url: str, _: float) -> Metrics:
        asked.append(url)
        if url == "b":
            hangs.wait(10)
        if url.startswith("envoy"):
            raise ServerError("refused", remedy="start it")
        return Metrics.parse(text(3))

    scraper = MetricsScraper(None, ScrapeTarget(["b"], LAYOUT), lambda: "envoy", scrape=scrape)
    for _ in range(2):
        seen = scraper.observe(0.0)
        assert (seen.scrape.stable, seen.scrape.candidate, seen.gateway) == (None, None, None)
    hangs.set()
    assert asked.count("b") == 1
    for _ in range(100):
        if scraper.observe(1.0).scrape.candidate is not None:
            break
    else:
        raise AssertionError("never heard of again")
