# SPDX-License-Identifier: Apache-2.0
"""The queue in which requests wait for a place in the engine: who keeps it, and how long it is.

Our engines keep it themselves, first come, first served. Order by priority and timeouts are
kept by Triton's own queue, `dynamic_batching` of the engine step, because the engine cannot see
them; whoever asks for them pays for it (decision 12).
"""

from __future__ import annotations

from typing import Any

from tritonctl.project.schema import LONGEST_QUEUE_MICROSECONDS, Queue

# Waiting requests per sequence in work: what is behind them would wait for four whole answers.
_QUEUED_PER_SEQUENCE = 4


BY_TRITON = -1
_MOST_THREADS = 1024


def triton_decides(queue: Queue) -> bool:
    """Whether Triton's own queue is needed."""
    timed = queue.default_timeout_microseconds or queue.allow_timeout_override
    return bool(queue.priority_levels or timed)


def bound_in_engine(queue: Queue, max_batch_size: int) -> int:
    """The engine's parameter `max_queue_size`: 0 for no bound, BY_TRITON where Triton decides."""
    return BY_TRITON if triton_decides(queue) else _bound(queue, max_batch_size)


def _bound(queue: Queue, max_batch_size: int) -> int:
    given = queue.max_queue_size
    return _QUEUED_PER_SEQUENCE * max_batch_size if given is None else given


def most_under_way(queue: Queue, max_batch_size: int) -> int:
    """Requests of which each waits in a thread: in the engine, in its queue, and to be refused."""
    waiting = _bound(queue, max_batch_size)
    return min(max_batch_size + waiting + 1, _MOST_THREADS) if waiting else _MOST_THREADS


def engine_batching(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """`dynamic_batching` of an engine that works on `max_batch_size` sequences at once."""
    return policy_of(queue, max_batch_size) if triton_decides(queue) else {}


def native_batching(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """`dynamic_batching` of a backend of Triton's, which keeps no queue of its own.

    A bound only if the project asks for one: it costs up to half a second (decision 12).
    """
    asked = queue.max_queue_size is not None or triton_decides(queue)
    return policy_of(queue, max_batch_size) if asked else {}


def policy_of(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """The queue as fields of `dynamic_batching`, where Triton keeps it."""
    policy = {
        "max_queue_size": _bound(queue, max_batch_size),
        "default_timeout_microseconds": _timeout(queue),
        "allow_timeout_override": queue.allow_timeout_override,
    }
    levels = queue.priority_levels
    batching = {
        "priority_levels": levels,
        "default_priority_level": queue.default_priority_level or levels,
        "default_queue_policy": {key: value for key, value in policy.items() if value},
    }
    return {key: value for key, value in batching.items() if value}


def batch_of_places(max_batch_size: int) -> int:
    """Requests that leave the queue together; they are out of its order, its bound and its timeout.

    One by one would cost more: next to an engine that holds the interpreter lock during a step,
    each call of `execute` waits for a pause between two steps.
    """
    return -(-max_batch_size // 2)


def _timeout(queue: Queue) -> int:
    # A request can only shorten Triton's timeout; with none at all its own would count for nothing.
    if queue.allow_timeout_override and not queue.default_timeout_microseconds:
        return LONGEST_QUEUE_MICROSECONDS
    return queue.default_timeout_microseconds
