# SPDX-License-Identifier: Apache-2.0
"""The engine step's `dynamic_batching`: the queue in which requests wait for a place.

The engine batches by itself, step by step. What Triton's batcher adds is its queue: bounded,
ordered by priority, with a timeout, and refusing before any Python runs.
"""

from __future__ import annotations

from typing import Any

from tritonctl.project import LONGEST_QUEUE_MICROSECONDS, Queue

# Waiting requests per sequence in work: what is behind them would wait for four whole answers.
_QUEUED_PER_SEQUENCE = 4


def engine_batching(queue: Queue, max_batch_size: int) -> dict[str, Any]:
    """`dynamic_batching` of an engine that works on `max_batch_size` sequences at once."""
    bound = queue.max_queue_size
    policy = {
        "max_queue_size": _QUEUED_PER_SEQUENCE * max_batch_size if bound is None else bound,
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

    One by one would cost more: beside an engine that holds the interpreter lock during a step,
    each call of `execute` waits for a pause between two steps.
    """
    return -(-max_batch_size // 2)


def _timeout(queue: Queue) -> int:
    # A request can only shorten Triton's timeout; with none at all its own would count for nothing.
    if queue.allow_timeout_override and not queue.default_timeout_microseconds:
        return LONGEST_QUEUE_MICROSECONDS
    return queue.default_timeout_microseconds
