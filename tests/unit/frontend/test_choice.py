# SPDX-License-Identifier: Apache-2.0
"""The choice of a replica: never a dead one while one lives, never far from balance."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.frontend.routing.choice import (
    ChoiceReason,
    ReplicaChoice,
    ReplicaView,
    RoutingRequest,
    choose,
)
from tritonctl.frontend.routing.pools import ReplicaPool, pool_of
from tritonctl.frontend.routing.prefixes import BLOCK_BYTES, PrefixMemory, block_hashes
from tritonctl.frontend.routing.replicas import Replica, slots_of
from tritonctl.frontend.routing.reports import ReplicaReport, read_report

NAMES = "abcdef"
ANY = RoutingRequest()


def first(views: list[ReplicaView], ask: RoutingRequest = ANY) -> ReplicaChoice:
    """Ties go to whoever comes first."""
    return choose(views, ask, lambda: 0.0)


@st.composite
def fleets(draw: st.DrawFn) -> list[ReplicaView]:
    """One to six replicas in any state."""
    return [
        ReplicaView(
            name,
            healthy=draw(st.booleans()),
            load=draw(st.integers(0, 50)),
            slots=draw(st.none() | st.integers(1, 32)),
            pace=draw(st.none() | st.floats(1e-4, 10)),
            full=draw(st.booleans()),
        )
        for name in NAMES[: draw(st.integers(1, len(NAMES)))]
    ]


def asks() -> st.SearchStrategy[RoutingRequest]:
    """Any request."""
    some = st.frozensets(st.sampled_from(NAMES))
    return st.builds(RoutingRequest, st.none() | some, st.none() | st.sampled_from(NAMES), some)


@given(fleets(), st.sets(st.sampled_from(NAMES)), asks(), st.randoms(use_true_random=False))
def test_another_release_is_chosen_only_when_ones_own_is_gone(
    views: list[ReplicaView], others: set[str], ask: RoutingRequest, random_: random.Random
) -> None:
    """And then a healthy one of it, whatever the pool, the cache, and what was tried say."""
    views = [replace(view, fallback=view.name in others) for view in views]
    own = [view for view in views if not view.fallback]
    choice = choose(views, ask, random_.random)
    chosen = next(view for view in views if view.name == choice.name)
    if own and any(view.healthy for view in own):
        assert not chosen.fallback
        assert chosen.healthy
    elif own and any(view.healthy for view in views):
        assert (chosen.fallback, chosen.healthy) == (True, True)
        assert choice.reason is ChoiceReason.FALLBACK
    elif own:
        assert not chosen.fallback


@given(fleets(), asks(), st.randoms(use_true_random=False))
def test_an_unhealthy_replica_is_never_chosen_while_a_healthy_one_exists(
    views: list[ReplicaView], ask: RoutingRequest, random_: random.Random
) -> None:
    """Whatever the pool, the cache, and what was tried say; of the healthy ones an untried one."""
    by_name = {view.name: view for view in views}
    choice = choose(views, ask, random_.random)
    chosen = by_name[choice.name]
    healthy = {view.name for view in views if view.healthy}
    if healthy:
        assert chosen.healthy
    if healthy - set(ask.tried):
        assert chosen.name not in ask.tried
    wanted = healthy - set(ask.tried)
    if ask.pool is not None and len(views) > 1 and wanted & set(ask.pool):
        assert chosen.name in ask.pool
    assert (choice.reason == ChoiceReason.UNHEALTHY) == (len(views) > 1 and not healthy)


@given(
    st.integers(2, 6),
    st.integers(1, 8),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=150),
    st.randoms(use_true_random=False),
)
def test_equal_replicas_stay_in_balance(
    replicas: int, slots: int, events: list[tuple[bool, int]], random_: random.Random
) -> None:
    """Each request goes to one of the least loaded; affinity may go a bit beyond their mean.

    Requests that end are taken from anywhere: the next ones fill that gap first.
    """
    loads = dict.fromkeys(NAMES[:replicas], 0)
    for comes, beginning in events:
        if comes:
            cached = NAMES[beginning] if beginning < replicas else None
            views = [ReplicaView(n, load=load, slots=slots, pace=1.0) for n, load in loads.items()]
            choice = choose(views, RoutingRequest(cached=cached), random_.random)
            others = [load for name, load in loads.items() if name != choice.name]
            if choice.reason == ChoiceReason.AFFINITY:
                assert loads[choice.name] <= 1.25 * sum(others) / len(others) + 1
                assert loads[choice.name] < slots
            else:
                assert loads[choice.name] <= min(others)
            loads[choice.name] += 1
        elif any(loads.values()):
            loads[random_.choice([name for name, load in loads.items() if load])] -= 1


def test_a_free_slot_comes_before_a_short_queue_and_speed_weighs_queues() -> None:
    """Counted in slots: a small replica is full with few requests."""
    small, large = (
        ReplicaView("a", load=4, slots=4, pace=1.0),
        ReplicaView("b", load=9, slots=16, pace=1.0),
    )
    assert first([small, large]).name == "b"
    slow = ReplicaView("a", load=8, slots=8, pace=8.0)
    fast = ReplicaView("b", load=12, slots=8, pace=1.0)
    assert first([slow, fast]).name == "b"
    idle_slow, idle_fast = (
        ReplicaView("a", slots=8, pace=2.0),
        ReplicaView("b", load=0, slots=8, pace=1.0),
    )
    assert first([idle_slow, idle_fast]).name == "b"


def test_without_slots_it_is_least_requests() -> None:
    """As soon as those of one replica are not known."""
    views = [ReplicaView("a", load=4, slots=64), ReplicaView("b", load=3)]
    assert first(views).name == "b"


def test_what_was_learned_of_a_replica_is_bounded() -> None:
    """An absurd pace does not keep it from work for ever."""
    views = [
        ReplicaView("a", load=0, slots=1, pace=1e9),
        ReplicaView("b", load=40, slots=1, pace=1.0),
    ]
    assert first(views).name == "a"


def test_a_full_cache_makes_a_queue_look_longer() -> None:
    """Requests there wait for blocks, not for slots."""
    views = [
        ReplicaView("a", load=3, slots=8, pace=1.0, full=True),
        ReplicaView("b", load=6, slots=8, pace=1.0),
    ]
    assert first(views).name == "b"
    assert first([replace(views[0], full=False), views[1]]).name == "a"


def test_the_cache_wins_below_the_load_threshold_only() -> None:
    """A hot prefix does not pile up on one replica."""
    others = [ReplicaView("b", load=2, slots=8), ReplicaView("c", load=2, slots=8)]
    assert (
        first([ReplicaView("a", load=3, slots=8), *others], RoutingRequest(cached="a")).reason
        == ChoiceReason.AFFINITY
    )
    assert (
        first([ReplicaView("a", load=4, slots=8), *others], RoutingRequest(cached="a")).name != "a"
    )
    assert (
        first([ReplicaView("a", load=2, slots=2), *others], RoutingRequest(cached="a")).name != "a"
    )
    paced = [ReplicaView(name, slots=8, pace=1.0) for name in "bc"]
    assert (
        first([ReplicaView("a", slots=8, pace=1.4), *paced], RoutingRequest(cached="a")).name == "a"
    )
    assert (
        first([ReplicaView("a", slots=8, pace=1.6), *paced], RoutingRequest(cached="a")).name != "a"
    )


def test_a_pool_without_a_healthy_replica_spills_over() -> None:
    """Late is better than never."""
    views = [ReplicaView("a", healthy=False), ReplicaView("b"), ReplicaView("c", load=1)]
    assert first(views, RoutingRequest(pool={"a"})) == ReplicaChoice("b", ChoiceReason.SPILLED)


def test_pools_by_length() -> None:
    """The tightest that takes the request; the widest for what no pool takes."""
    short, middle = (
        ReplicaPool("short", frozenset("a"), 100),
        ReplicaPool("middle", frozenset("b"), 1000),
    )
    rest = ReplicaPool("long", frozenset("c"))
    assert pool_of((), 5) is None
    assert pool_of((rest, middle, short), 100) == short
    assert pool_of((rest, middle, short), 101) == middle
    assert pool_of((rest, middle, short), 5000) == rest
    assert pool_of((short, middle), 5000) == middle


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_equal_hashes_mean_equal_beginnings(one: bytes, other: bytes) -> None:
    """And only of the same model."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    ours, theirs = block_hashes(one, "m"), block_hashes(other, "m")
    shared = sum(a == b for a, b in zip(ours, theirs, strict=False))
    assert shared == min(common // BLOCK_BYTES, len(ours), len(theirs))
    assert not set(ours) & set(block_hashes(one, "other"))


def test_prefix_memory_is_bounded_and_forgets_the_oldest() -> None:
    """A replica that has gone takes its blocks with it."""
    memory = PrefixMemory(max_blocks=8)
    prompts = [bytes([n]) * BLOCK_BYTES * 4 for n in range(3)]
    hashes = [block_hashes(prompt, "m") for prompt in prompts]
    for one, replica in zip(hashes, "abc", strict=True):
        memory.read(one, replica)
        assert len(memory) <= 8
    assert [memory.best_match(one) for one in hashes] == [None, "b", "c"]
    assert memory.best_match(block_hashes(prompts[1][: BLOCK_BYTES * 2] + b"x" * 600, "m")) == "b"
    memory.forget("b")
    assert memory.best_match(hashes[1]) is None
    assert memory.best_match(()) is None
    assert len(block_hashes(b"x" * 10_000_000, "m")) == 64


PAGE = """\
# TYPE tritonctl_active_streams gauge
tritonctl_active_streams{model="m_engine",model_instance="m_engine_0_0",version="1"} 3
tritonctl_active_streams{model="m_engine",model_instance="m_engine_0_1",version="1"} 2
tritonctl_waiting_streams{model="m_engine",version="1"} 4
nv_inference_pending_request_count{model="m_engine",version="1"} 1
tritonctl_kv_blocks{model="m_engine",state="used"} 30
tritonctl_kv_blocks{model="m_engine",state="free"} 10
tritonctl_kv_blocks{model="n",state="used"} 1
tritonctl_kv_blocks{model="n",state="free"} 9
nv_gpu_utilization{gpu_uuid="x"} 0.5
tritonctl_active_streams{model="m_engine"} broken
"""


def test_a_report_adds_up_instances_and_queues() -> None:
    """Of the fullest KV cache; a page without such lines says that nothing is there."""
    assert read_report(PAGE, 7.0) == ReplicaReport(5, 5, 0.75, 7.0)
    assert read_report("", 7.0) == ReplicaReport(0, 0, 0, 7.0)


def test_slots_are_those_of_all_instances_of_the_engine() -> None:
    """Where a configuration says them."""
    engine = {
        "parameters": {"max_num_seqs": {"string_value": "8"}},
        "instance_group": [{"count": 2}],
    }
    assert slots_of([{"platform": "ensemble"}, engine]) == 16
    assert slots_of([{}, {"parameters": {}}]) is None


def test_others_requests_count_when_two_reports_have_them_and_not_when_they_are_stale() -> None:
    """Our own count is newer than any report."""
    replica = Replica("a")
    for _ in range(3):
        replica.enter("m", 10)
    replica.update_report(ReplicaReport(5, 0, 0, at=0.0))
    assert replica.view("m", 0.1, 1.0).load == 3
    replica.update_report(ReplicaReport(4, 2, 0, at=0.25))
    assert replica.view("m", 0.3, 1.0).load == 5
    assert replica.view("m", 1.5, 1.0).load == 3
    assert replica.view("other", 0.3, 1.0).load == 2
    for _ in range(3):
        replica.leave("m", 10)
    assert (replica.in_flight, replica.work) == (0, 0.0)


@pytest.mark.parametrize(
    ("kv", "waiting", "full"), [(0.99, 1, True), (0.99, 0, False), (0.5, 9, False)]
)
def test_a_replica_is_full_when_its_cache_is_and_requests_wait(
    kv: float, waiting: float, full: bool
) -> None:
    """A full cache alone is a good cache."""
    replica = Replica("a")
    replica.update_report(ReplicaReport(1, waiting, kv, at=0.0))
    assert replica.view("m", 0.5, 1.0).full is full
    assert not replica.view("m", 5.0, 1.0).full


def test_a_broken_replica_stays_out_longer_each_time_and_comes_back() -> None:
    """Not before it says that it is ready, and not at once if it says so at once."""
    replica = Replica("a")
    replica.mark_broken(now=0.0)
    assert not replica.view("m", 0.0, 1.0).healthy
    replica.set_ready(True, now=0.4)
    assert not replica.ready
    replica.set_ready(True, now=0.6)
    assert replica.ready
    for _ in range(20):
        replica.mark_broken(now=10.0)
    replica.set_ready(True, now=19.9)
    assert not replica.ready
    replica.set_ready(True, now=20.1)
    assert replica.ready
    replica.record_pace(0.01, now=21.0)
    assert replica.failures == 0


def test_a_pace_is_forgotten_when_nothing_comes_back() -> None:
    """A replica that was slow once is asked again."""
    replica = Replica("a")
    replica.record_pace(1.0, now=0.0)
    replica.record_pace(2.0, now=1.0)
    assert replica.view("m", 2.0, 1.0).pace == pytest.approx(1.1)
    assert replica.view("m", 40.0, 1.0).pace is None
    replica.record_pace(0.5, now=60.0)
    assert replica.view("m", 60.0, 1.0).pace == 0.5
