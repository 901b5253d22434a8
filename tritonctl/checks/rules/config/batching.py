# SPDX-License-Identifier: Apache-2.0
"""TC17x: schedulers and caches that Triton refuses as they are configured.

TC5xx covers settings that work, but not as intended.
Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/response_cache.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import type_name
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error

_BATCH_INPUT_TYPES = ("TYPE_INT32", "TYPE_FP32")


@error("TC170 negative-batch", summary="a max_batch_size below 0", needs_valid_config=True)
def negative_batch(config: ConfigMessage) -> Iterator[Hit]:
    if (size := config.message.max_batch_size) < 0:
        yield Hit(
            f"max_batch_size is {size}",
            "write 0 for a model without a batch dimension",
            config.span("max_batch_size"),
        )


@error(
    "TC171 preferred-size",
    summary="a preferred batch size below 1 or above max_batch_size",
    needs_valid_config=True,
)
def preferred_size(config: ConfigMessage) -> Iterator[Hit]:
    largest = config.message.max_batch_size
    schedulers = {
        ("dynamic_batching",): config.message.dynamic_batching,
        ("sequence_batching", "oldest"): config.message.sequence_batching.oldest,
    }
    for path, scheduler in schedulers.items() if largest >= 0 else ():
        for index, size in enumerate(scheduler.preferred_batch_size):
            if not 1 <= size <= largest:
                yield Hit(
                    f"{path[-1]} prefers a batch of {size}, and max_batch_size is {largest}",
                    f"write sizes from 1 to {largest}, or leave preferred_batch_size out"
                    if largest
                    else "raise max_batch_size, or leave preferred_batch_size out",
                    config.span(*path, "preferred_batch_size", index),
                )


@error(
    "TC172 priority-level",
    summary="a priority level outside of priority_levels",
    reason="Triton refuses the model. Levels count from 1, and the default is required.",
    needs_valid_config=True,
)
def priority_level(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    levels = batching.priority_levels
    if not levels:
        return
    default = batching.default_priority_level
    if not 1 <= default <= levels:
        yield Hit(
            f"default_priority_level is {default}, and priority_levels {levels}",
            f"write one from 1, the most urgent, to {levels}",
            config.span("dynamic_batching", "default_priority_level")
            if default
            else config.span("dynamic_batching", "priority_levels"),
        )
    for key in batching.priority_queue_policy:
        if not 1 <= key <= levels:
            yield Hit(
                f"priority_queue_policy has level {key}, and priority_levels is {levels}",
                f"write one from 1 to {levels}",
                config.name_span("dynamic_batching", "priority_queue_policy", key),
            )


@error(
    "TC173 ordered-priorities",
    summary="preserve_ordering with a queue that reorders",
    reason="Triton refuses the model: several priorities, or requests delayed after their "
    "timeout, leave the order.",
    needs_valid_config=True,
)
def ordered_priorities(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    if not batching.preserve_ordering:
        return
    if batching.priority_levels > 1:
        yield Hit(
            f"preserve_ordering is set, and priority_levels {batching.priority_levels}",
            "remove one of them",
            config.span("dynamic_batching", "priority_levels"),
        )
    for path, policy in _policies(batching):
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            yield Hit(
                f"preserve_ordering is set, and {path[0]} delays what times out",
                "write timeout_action: REJECT, or leave preserve_ordering out",
                config.span("dynamic_batching", *path, "timeout_action"),
            )


def _policies(batching: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    yield ("default_queue_policy",), batching.default_queue_policy
    for key, policy in batching.priority_queue_policy.items():
        yield ("priority_queue_policy", key), policy


@error(
    "TC174 cache-excluded",
    summary="a response cache on a decoupled or stateful model",
    reason="Triton refuses the model: a response that depends on more than the request, or has "
    "several parts, cannot be cached.",
    needs_valid_config=True,
)
def cache_excluded(config: ConfigMessage) -> Iterator[Hit]:
    if not config.message.response_cache.enable:
        return
    span = config.span("response_cache", "enable")
    fix = "remove response_cache"
    if config.message.HasField("sequence_batching"):
        yield Hit("response_cache is enabled, and so is sequence_batching", fix, span)
    elif config.message.model_transaction_policy.decoupled:
        yield Hit("response_cache is enabled, and the model is decoupled", fix, span)


@error(
    "TC175 batch-input",
    summary="a batch_input that Triton cannot create",
    reason="Triton refuses the model: it needs one source_input that is an input of the model, "
    "and makes TYPE_INT32 or TYPE_FP32.",
    needs_valid_config=True,
)
def batch_input(config: ConfigMessage) -> Iterator[Hit]:
    for index, entry in enumerate(config.message.batch_input):
        path = ("batch_input", index)
        label = f"batch_input {', '.join(entry.target_name) or index + 1}"
        yield from _unknown_kind(config, path, label, entry)
        type_ = type_name(entry.data_type)
        if type_ not in _BATCH_INPUT_TYPES:
            yield Hit(
                f"{label} has data_type {type_}",
                f"write {' or '.join(_BATCH_INPUT_TYPES)}",
                config.span(*path, "data_type"),
            )
        yield from _wrong_sources(config, path, label, entry)


@error(
    "TC176 batch-output",
    summary="a batch_output that Triton cannot split",
    reason="Triton refuses the model: it needs one source_input that is an input of the model, "
    "and its targets are outputs of the model. Without a target tritonserver 2.51 crashes.",
    needs_valid_config=True,
)
def batch_output(config: ConfigMessage) -> Iterator[Hit]:
    for index, entry in enumerate(config.message.batch_output):
        path = ("batch_output", index)
        label = f"batch_output {', '.join(entry.target_name) or index + 1}"
        yield from _unknown_kind(config, path, label, entry)
        yield from _wrong_sources(config, path, label, entry)
        if not entry.target_name:
            yield Hit(
                f"{label} has no target_name",
                "name the output to split",
                config.span(*path),
            )
        output_names = {output.name for output in config.message.output}
        for target_index, name in enumerate(entry.target_name):
            if name not in output_names or name in entry.target_name[:target_index]:
                wrong = "is not an output" if name not in output_names else "is named twice"
                yield Hit(
                    f"{label}: {name} {wrong}",
                    "name each output at most once; they are "
                    f"{', '.join(sorted(output_names)) or 'none'}",
                    config.span(*path, "target_name", target_index),
                )


def _unknown_kind(
    config: ConfigMessage, path: tuple[str | int, ...], label: str, entry: Any
) -> Iterator[Hit]:
    """Report an unknown number of a kind; protobuf accepts any number."""
    kinds = type(entry).Kind
    if entry.kind not in kinds.values():
        yield Hit(
            f"{label} has an unknown kind: {entry.kind}",
            f"expected one of {', '.join(kinds.keys())}",
            config.span(*path, "kind"),
        )


def _wrong_sources(
    config: ConfigMessage, path: tuple[str | int, ...], label: str, entry: Any
) -> Iterator[Hit]:
    input_names = {tensor.name for tensor in config.message.input}
    if len(entry.source_input) != 1:
        yield Hit(
            f"{label} has {len(entry.source_input)} entries of source_input",
            "name one input",
            config.span(*path, "source_input"),
        )
        return
    if entry.source_input[0] not in input_names:
        yield Hit(
            f"{label}: its source_input {entry.source_input[0]} is not an input of the model",
            f"name one of {', '.join(sorted(input_names)) or 'its inputs'}",
            config.span(*path, "source_input", 0),
        )
