# SPDX-License-Identifier: Apache-2.0
"""The queue of requests in front of the engine, and its length.

Our engines keep a first-come, first-served queue. Priorities and timeouts need Triton's queue,
`dynamic_batching` of the engine step, because the engine cannot see them; they have a cost
(decision 12).
"""

from __future__ import annotations

from typing import Any

from tritonctl.project.schema import MAX_QUEUE_MICROSECONDS, Queue

# Waiting requests per active sequence; a further one would wait for four complete answers.
_QUEUED_PER_SEQUENCE = 4
# A graph without a batch dimension queues as many requests as with the default max_batch_size.
_UNBATCHED = 32


BY_TRITON = -1
_MAX_THREADS = 1024


def needs_triton_queue(queue: Queue) -> bool:
    """Whether priorities or timeouts require Triton's queue."""
    timed = queue.default_timeout_microseconds or queue.allow_timeout_override
    return bool(queue.priority_levels or timed)


def engine_queue_bound(queue: Queue, max_batch_size: int) -> int:
    """Return the engine's parameter `max_queue_size`: 0: unbounded, BY_TRITON: Triton's queue."""
    return BY_TRITON if needs_triton_queue(queue) else _queue_bound(queue, max_batch_size)


def _queue_bound(queue: Queue, max_batch_size: int) -> int:
    max_queue_size = queue.max_queue_size
    if max_queue_size is not None:
        return max_queue_size
    return _QUEUED_PER_SEQUENCE * (max_batch_size or _UNBATCHED)


def max_in_flight(queue: Queue, max_batch_size: int) -> int:
    """Return the maximum requests with a thread: in the engine, queued, and one to refuse."""
    waiting = _queue_bound(queue, max_batch_size)
    return min(max_batch_size + waiting + 1, _MAX_THREADS) if waiting else _MAX_THREADS


def engine_batching(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """Return `dynamic_batching` of an engine with `max_batch_size` parallel sequences."""
    return queue_policy(queue, max_batch_size) if needs_triton_queue(queue) else {}


def native_batching(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """Return `dynamic_batching` of a native backend, which has no queue.

    The queue is bounded only on request: a bound costs up to half a second (decision 12).
    """
    needs_policy = queue.max_queue_size is not None or needs_triton_queue(queue)
    return queue_policy(queue, max_batch_size) if needs_policy else {}


def queue_policy(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """Return Triton's queue as fields of `dynamic_batching`."""
    policy = {
        "max_queue_size": _queue_bound(queue, max_batch_size),
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


def requests_per_handover(max_batch_size: int) -> int:
    """Return how many requests leave the queue together, and with it its order and timeouts.

    Single requests would cost more: the engine holds the interpreter lock during a step, so each
    call of `execute` waits for a pause between two steps.
    """
    return -(-max_batch_size // 2)


def _timeout(queue: Queue) -> int:
    # A request can only shorten Triton's timeout: without a default its timeout has no effect.
    if queue.allow_timeout_override and not queue.default_timeout_microseconds:
        return MAX_QUEUE_MICROSECONDS
    return queue.default_timeout_microseconds
