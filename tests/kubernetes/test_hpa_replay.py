# SPDX-License-Identifier: Apache-2.0
"""The chart's scaling rules under a load that was recorded, by the arithmetic of Kubernetes' HPA.

load.json: waiting and active streams of one real Triton with the shipped speller, a sample every
five seconds of a load test with a ramp, a plateau, a burst and a drain; its queue grew to 167
streams. It stands for what waits at all servers together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.charts import NEWEST, Chart, of_kind
from tests.kubernetes.hpa import SYNC_SECONDS, Load, Replay, Rules, Second

RECORDED = json.loads(Path(__file__).with_name("load.json").read_text(encoding="utf-8"))
SLOTS = int(RECORDED["slots"])  # of that server's engine
PER_SERVER = 25  # what the chart says for them: four in five
START_SECONDS = 20  # until a pod is ready: 17 to 38 s were seen in the cluster
DRAIN_SECONDS = 55  # the whole grace period: the longest that one takes
QUIET_SECONDS = 1800  # behind the record: everything has gone down again
KEDA = "keda.sh/v1alpha1"


def rules(chart: Chart, by: str, **more: Any) -> Rules:
    """Of the rendered chart."""
    some = {"maxReplicas": 16, "streamsPerReplica": PER_SERVER}
    scaling = {"scaling": {"by": by, **some, **more}}
    manifests = chart.manifests(NEWEST, scaling, api_versions=[KEDA])
    if by == "adapter":
        return Rules.of_hpa(of_kind(manifests, "HorizontalPodAutoscaler"))
    return Rules.of_keda(of_kind(manifests, "ScaledObject"))


def recorded(at: float) -> float:
    """The sample before that second; none behind the last one."""
    place = int(at // RECORDED["interval_seconds"])
    streams: list[float] = RECORDED["streams"]
    return streams[place] if place < len(streams) else 0.0


def lasts() -> int:
    """Seconds of the record."""
    return len(RECORDED["streams"]) * int(RECORDED["interval_seconds"])


def replayed(rule: Rules, load: Load = recorded) -> list[Second]:
    """From one server, until it is quiet again."""
    return Replay(rule, START_SECONDS, DRAIN_SECONDS).run(load, lasts() + QUIET_SECONDS)


def changes(seen: Sequence[Second]) -> list[tuple[int, int]]:
    """Seconds at which the number of servers that are wanted changed, and by how many."""
    return [(b.at, b.wanted - a.wanted) for a, b in pairwise(seen) if a.wanted != b.wanted]


def short(seen: Sequence[Second]) -> int:
    """The longest time in which more streams came than the servers had slots for."""
    longest = now = 0
    for each in seen:
        now = now + 1 if (each.load or 0) > each.ready * SLOTS else 0
        longest = max(longest, now)
    return longest


@pytest.fixture(params=["adapter", "keda"])
def rule(request: pytest.FixtureRequest, chart: Chart) -> Rules:
    """Of both ways to ask Prometheus."""
    return rules(chart, request.param)


def test_the_record_is_worth_replaying() -> None:
    """It rises twice, falls between, and needs several servers at its height."""
    streams = RECORDED["streams"]
    height = max(streams)
    assert height > 5 * SLOTS
    peak = streams.index(height)
    valley = min(streams[peak // 2 : peak])
    assert max(streams[: peak // 2]) > 2 * valley
    assert max(streams[-6:]) <= SLOTS


def test_up_in_time(rule: Rules) -> None:
    """Streams wait at most for a scrape, the HPA's next look, and the start, twice in a burst."""
    seen = replayed(rule)
    assert max(each.wanted for each in seen) * SLOTS >= max(RECORDED["streams"])
    assert 0 < short(seen) <= 2 * (SYNC_SECONDS + START_SECONDS + 5)


def test_no_flapping(rule: Rules) -> None:
    """No server goes within the window after one came; none at all while the load lasts."""
    moves = changes(replayed(rule))
    ups, downs = [at for at, n in moves if n > 0], [at for at, n in moves if n < 0]
    assert ups
    assert downs
    assert min(downs) - max(at for at in ups if at < min(downs)) >= rule.down_window - SYNC_SECONDS
    assert min(downs) > max(ups)


def test_down_one_at_a_time_and_never_below_the_load(rule: Rules) -> None:
    """The next one goes when the one before it has drained; those that stay have the slots."""
    seen = replayed(rule)
    assert {n for _, n in changes(seen) if n < 0} == {-1}
    assert max(each.ending for each in seen) == 1
    for at, n in changes(seen):
        if n < 0:
            assert (seen[at].load or 0) <= seen[at].ready * SLOTS
    assert seen[-1].wanted == rule.smallest


def lost_at_the_height(at: float) -> float | None:
    """Prometheus is gone for four minutes from the record's height on."""
    peak = RECORDED["streams"].index(max(RECORDED["streams"])) * RECORDED["interval_seconds"]
    return None if peak <= at < peak + 240 else recorded(at)


def test_a_lost_prometheus_takes_no_server_away(rule: Rules) -> None:
    """An HPA waits; KEDA starts what its fallback says. Both go on as it comes back."""
    seen = replayed(rule, lost_at_the_height)
    blind = [each for each in seen if each.load is None]
    assert len(blind) == 240
    assert min(each.wanted for each in blind) == blind[0].wanted
    expected = rule.fallback or blind[0].wanted
    assert blind[-1].wanted == expected
    assert seen[-1].wanted == rule.smallest


def test_a_metric_that_is_lost_as_nought_would(chart: Chart) -> None:
    """KEDA's own default, `ignoreNullValues: true`, with a short window: servers go at the peak."""
    careless = replace(rules(chart, "keda"), down_window=60, fallback=None)
    nought: Callable[[float], float] = lambda at: lost_at_the_height(at) or 0.0  # noqa: E731
    seen = Replay(careless, START_SECONDS, DRAIN_SECONDS).run(nought, lasts())
    peak = RECORDED["streams"].index(max(RECORDED["streams"])) * RECORDED["interval_seconds"]
    assert any(at > peak and n < 0 for at, n in changes(seen))


def test_kubernetes_own_defaults_with_a_short_window_would_flap(chart: Chart) -> None:
    """All at once and at once: several drain together, and servers go that come again."""
    careless = replace(
        rules(chart, "adapter"),
        down_window=0,
        down=[{"type": "Percent", "value": 100, "periodSeconds": 15}],
    )
    seen = replayed(careless)
    moves = changes(seen)
    assert min(at for at, n in moves if n < 0) < max(at for at, n in moves if n > 0)
    assert max(each.ending for each in seen) > 1


def test_a_spare_is_there_before_the_burst(chart: Chart) -> None:
    """One more than without; fewer streams wait, and for no longer."""
    without, spared = (replayed(rules(chart, "keda", spare=n)) for n in (0, 1))
    assert rules(chart, "keda", spare=1).spare == 1

    def waiting(seen: Sequence[Second]) -> float:
        return sum(max(0.0, (each.load or 0) - each.ready * SLOTS) for each in seen)

    assert waiting(spared) < 0.7 * waiting(without)
    assert short(spared) <= short(without)
    assert max(each.wanted for each in spared) == max(each.wanted for each in without) + 1
