# SPDX-License-Identifier: Apache-2.0
"""`serving.queue` in Triton's words: bound, levels, timeouts, and what stands in config.pbtxt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.schema import MAX_QUEUE_MICROSECONDS, Queue
from tritonctl.repository.engine_queue import (
    BY_TRITON,
    engine_batching,
    engine_queue_bound,
    requests_per_handover,
)
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import plan_repository

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox


def _policy(max_batch_size: int = 32, **queue: Any) -> dict[str, Any]:
    batching = engine_batching(Queue(**queue), max_batch_size)
    policy: dict[str, Any] = batching["default_queue_policy"]
    return policy


@pytest.mark.parametrize(("places", "bound"), [(1, 4), (4, 16), (32, 128)])
def test_the_bound_follows_the_engine(places: int, bound: int) -> None:
    """Four waiting requests per sequence, unless the project says otherwise; whoever keeps it."""
    assert engine_queue_bound(Queue(), places) == bound
    assert engine_queue_bound(Queue(max_queue_size=7), places) == 7
    assert _policy(places, priority_levels=2)["max_queue_size"] == bound
    assert _policy(places, priority_levels=2, max_queue_size=7)["max_queue_size"] == 7


@pytest.mark.parametrize(
    "asked",
    [{"priority_levels": 1}, {"default_timeout_microseconds": 5}, {"allow_timeout_override": True}],
)
def test_triton_s_queue_is_used_only_for_what_the_engine_cannot_see(asked: dict[str, Any]) -> None:
    """With any policy at all, Triton 2.51 lets requests wait up to half a second for nothing."""
    assert engine_batching(Queue(max_queue_size=9), 32) == {}
    assert engine_batching(Queue(**asked), 32) != {}
    assert engine_queue_bound(Queue(**asked), 32) == BY_TRITON


def test_no_bound() -> None:
    """0 is Triton's word for it, and Triton's default: left out."""
    assert engine_queue_bound(Queue(max_queue_size=0), 32) == 0
    assert "max_queue_size" not in _policy(max_queue_size=0, allow_timeout_override=True)


def test_a_request_s_own_timeout_counts_without_one_of_the_server() -> None:
    """Triton lets it only shorten the server's, so there is one, a day long."""
    assert _policy(allow_timeout_override=True) == {
        "max_queue_size": 128,
        "default_timeout_microseconds": MAX_QUEUE_MICROSECONDS,
        "allow_timeout_override": True,
    }


def test_timeouts() -> None:
    """As given; and none at all where neither side may have one."""
    given = _policy(default_timeout_microseconds=5, allow_timeout_override=True)
    assert (given["default_timeout_microseconds"], given["allow_timeout_override"]) == (5, True)
    fixed = _policy(default_timeout_microseconds=5)
    assert fixed == {"max_queue_size": 128, "default_timeout_microseconds": 5}


@pytest.mark.parametrize(("default", "level"), [(None, 3), (1, 1), (2, 2)])
def test_priority_levels(default: int | None, level: int) -> None:
    """Requests that choose none are of the lowest level, or of the one that is named."""
    queue = Queue(priority_levels=3, default_priority_level=default)
    batching = engine_batching(queue, 32)
    assert (batching["priority_levels"], batching["default_priority_level"]) == (3, level)
    assert "priority_levels" not in engine_batching(Queue(), 32)


@pytest.mark.parametrize(("places", "batch"), [(1, 1), (2, 1), (3, 2), (32, 16)])
def test_no_more_than_half_of_the_places_leave_the_queue_at_once(places: int, batch: int) -> None:
    """What has left it is past every bound and order."""
    assert requests_per_handover(places) == batch


def test_the_rendered_engine(built: Sandbox) -> None:
    """Only the engine has the queue; the backend's own largest batch still holds."""
    built.engine["max_batch_size"] = 128
    built.serving["queue"] = {"max_queue_size": 9, "priority_levels": 2}
    project = built.load()
    build_engine(project, "speller", Silent())
    models = plan_repository(project).models
    configs = {model.name: parse_pbtxt(model.config) for model in models}
    assert configs["speller_engine"]["max_batch_size"] == 32
    batching = configs["speller_engine"]["dynamic_batching"]
    assert (batching["priority_levels"], batching["default_priority_level"]) == ("2", "2")
    assert batching["default_queue_policy"]["max_queue_size"] == 9
    for step in ("tokenizer", "detokenizer"):
        assert "default_queue_policy" not in configs[f"speller_{step}"]["dynamic_batching"]
