# SPDX-License-Identifier: Apache-2.0
"""TC511 to TC519: priorities and queue policies.

Source: https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
(ModelQueuePolicy, ModelDynamicBatching)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import advice, error, warning

Path = tuple[str | int, ...]
# Triton's ModelQueuePolicy.TimeoutAction.
_REJECT, _DELAY = 0, 1


class _QueuePolicy(NamedTuple):
    """A queue policy that the configuration contains."""

    config: ConfigMessage
    message: Any
    path: Path

    def has_field(self, name: str) -> bool:
        """Whether the policy sets a field."""
        return (*self.path, name) in self.config.name_spans

    @property
    def is_complete(self) -> bool:
        """Whether the policy sets a timeout if it sets a timeout action."""
        timed = self.message.allow_timeout_override or self.has_field("timeout_action")
        return not timed or self.message.default_timeout_microseconds > 0


def _policies(config: ConfigMessage) -> Iterator[_QueuePolicy]:
    if not config.message.HasField("dynamic_batching"):
        return
    batching = config.message.dynamic_batching
    if batching.HasField("default_queue_policy"):
        path: Path = ("dynamic_batching", "default_queue_policy")
        yield _QueuePolicy(config, batching.default_queue_policy, path)
    for level in sorted(batching.priority_queue_policy) if batching.priority_levels else ():
        path = ("dynamic_batching", "priority_queue_policy", level)
        yield _QueuePolicy(config, batching.priority_queue_policy[level], path)


@advice(
    "TC511 priorities-starve",
    summary="priority levels of which the lowest has no timeout",
    reason="Triton runs a request of a lower level only while no request of a higher level waits. "
    "Under load it never runs, and its client hangs.",
)
def starving_priorities(config: ConfigMessage) -> Iterator[Hit]:
    levels = config.message.dynamic_batching.priority_levels
    if levels <= 1:
        return
    batching = config.message.dynamic_batching
    has_own_policy = levels in batching.priority_queue_policy
    policy = (
        batching.priority_queue_policy[levels] if has_own_policy else batching.default_queue_policy
    )
    # TC513 reports a policy about timeouts that sets none.
    if policy.default_timeout_microseconds or not all(
        queue_policy.is_complete for queue_policy in _policies(config)
    ):
        return
    yield Hit(
        f"requests of priority {levels} wait as long as requests of higher priority arrive",
        "set default_timeout_microseconds in default_queue_policy, or in priority_queue_policy for "
        "the lower levels",
        config.span("dynamic_batching", "priority_levels"),
    )


@warning(
    "TC512 priorities-unused",
    summary="settings of priorities without `priority_levels`",
    reason="Without priority_levels Triton has one queue and ignores them.",
)
def unused_priorities(config: ConfigMessage) -> Iterator[Hit]:
    if config.message.dynamic_batching.priority_levels:
        return
    for name in ("default_priority_level", "priority_queue_policy"):
        if getattr(config.message.dynamic_batching, name):
            yield Hit(
                f"{name} does nothing without priority_levels: there is one queue",
                "set priority_levels, or remove it",
                config.name_span("dynamic_batching", name),
            )
            return


@warning(
    "TC513 timeout-never",
    summary="a queue policy about timeouts without a default timeout",
    reason="A request can only shorten the default timeout, and a default of 0 means no timeout: "
    "requests wait indefinitely.",
    answers=("server#5783", "server#7512"),
)
def no_timeout(config: ConfigMessage) -> Iterator[Hit]:
    for policy in _policies(config):
        if policy.is_complete:
            continue
        name = "timeout_action"
        if policy.message.allow_timeout_override:
            name = "allow_timeout_override"
        yield Hit(
            f"{name} does nothing while default_timeout_microseconds is 0: a request can only "
            "shorten the timeout",
            "set default_timeout_microseconds to the longest that a request may wait",
            policy.config.name_span(*policy.path, name),
        )


@advice(
    "TC514 late-requests-last",
    summary="a queue policy that delays requests whose time is up",
    reason="Under load another request always waits, so a late request is neither served nor "
    "refused.",
)
def delayed_late_requests(config: ConfigMessage) -> Iterator[Hit]:
    for policy in _policies(config):
        timed = policy.message.default_timeout_microseconds > 0
        # Triton refuses both together; TC173 reports that.
        ordered = policy.config.message.dynamic_batching.preserve_ordering
        if timed and not ordered and policy.message.timeout_action == _DELAY:
            yield Hit(
                "a request that has waited too long runs only when no other request waits, "
                "possibly never",
                "use timeout_action: REJECT, so that its client can retry elsewhere",
                policy.config.span(*policy.path, "timeout_action"),
            )


@advice(
    "TC515 queue-without-bound",
    summary="a queue policy with `max_queue_size: 0`",
    reason="Under overload such a queue grows until memory is full, and every response is late.",
    answers=("server#4753", "server#980"),
)
def unbounded_queue(config: ConfigMessage) -> Iterator[Hit]:
    for policy in _policies(config):
        if policy.has_field("max_queue_size") and policy.message.max_queue_size == 0:
            yield Hit(
                "max_queue_size: 0 means that the queue has no bound",
                "set it to the number of requests that can be answered in time; Triton then "
                "rejects "
                "further ones at once",
                policy.config.span(*policy.path, "max_queue_size"),
            )


@error(
    "TC516 rejected-while-waiting",
    summary="a timeout that is no longer than the queue delay",
    reason="A request outside a full batch is rejected before its delay is over, even on an idle "
    "server.",
    shows="traffic",
)
def rejected_waiting(config: ConfigMessage) -> Iterator[Hit]:
    if config.message.max_batch_size <= 1:
        return
    batching = config.message.dynamic_batching
    delay = batching.max_queue_delay_microseconds
    for policy in _policies(config) if 1 not in batching.preferred_batch_size else ():
        timeout = policy.message.default_timeout_microseconds
        if policy.message.timeout_action == _REJECT and 0 < timeout <= delay:
            yield Hit(
                f"a request is rejected after {timeout} microseconds, but waits {delay} for others "
                "to make up a batch",
                "make the timeout longer than max_queue_delay_microseconds by the time that one "
                "execution takes, or more",
                policy.config.span(*policy.path, "default_timeout_microseconds"),
            )
