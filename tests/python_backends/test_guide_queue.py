# SPDX-License-Identifier: Apache-2.0
"""Fair shares of the time in which guides are tested, without a process."""

import random

import pytest
from textlib.engine.guide_queue import GuideQueue
from textlib.errors import QueueFullError
from textlib.triton.request_tensors import GuideSpec


def regex(text: str) -> GuideSpec:
    """A guide."""
    return GuideSpec("regex", text)


def test_time_decides_not_the_number_of_guides() -> None:
    """After one slow test of a tenant, three quick ones of another come first."""
    queue = GuideQueue()
    for number in range(5):
        queue.add(regex(f"slow {number}"), "slow")
        queue.add(regex(f"quick {number}"), "quick")
    order = []
    while queue:
        _, tenant = queue.take()
        queue.charge(tenant, 3.0 if tenant == "slow" else 0.9)
        order.append(tenant)
    assert order[:5] == ["slow", "quick", "quick", "quick", "quick"]


def test_whoever_joins_has_saved_nothing() -> None:
    """A tenant that was away takes turns with those that wait; it does not catch up."""
    queue = GuideQueue()
    for number in range(10):
        queue.add(regex(f"a {number}"), "a")
    for _ in range(5):
        queue.charge(queue.take()[1], 1.0)
    for number in range(3):
        queue.add(regex(f"b {number}"), "b")
    served = []
    for _ in range(6):
        _, tenant = queue.take()
        queue.charge(tenant, 1.0)
        served.append(tenant)
    assert served.count("b") == 3


def test_a_full_queue_has_room_for_a_tenant_with_less_than_its_share() -> None:
    """The last guide of the tenant that has most makes room; that tenant itself gets no more."""
    queue = GuideQueue(max_waiting=4)
    for number in range(4):
        queue.add(regex(f"a {number}"), "a")
    with pytest.raises(QueueFullError, match="4 guides wait"):
        queue.add(regex("a 4"), "a")
    assert queue.add(regex("b 0"), "b") == regex("a 3")
    assert queue.add(regex("c 0"), "c") == regex("a 2")
    with pytest.raises(QueueFullError):
        queue.add(regex("b 1"), "b")
    assert len(queue) == 4
    assert queue.add(regex("b 0"), "b") is None  # it waits already


def test_nothing_is_lost_or_given_twice() -> None:
    """Random guides of random tenants, some withdrawn: each other one is taken once."""
    dice = random.Random(7)  # noqa: S311 - a test's dice
    queue = GuideQueue(max_waiting=1000)
    waiting: set[GuideSpec] = set()
    taken: list[GuideSpec] = []
    for _ in range(3000):
        action = dice.random()
        guide = regex(str(dice.randrange(300)))
        if action < 0.5 and guide not in taken:
            queue.add(guide, dice.choice("abc"))
            waiting.add(guide)
        elif action < 0.6:
            queue.remove(guide)
            waiting.discard(guide)
        elif queue:
            guide, tenant = queue.take()
            queue.charge(tenant, dice.random())
            taken.append(guide)
            waiting.remove(guide)
        assert {each for each in map(regex, map(str, range(300))) if each in queue} == waiting
    assert len(taken) == len(set(taken))
    assert set(queue.clear()) == waiting
    assert not queue
