# SPDX-License-Identifier: Apache-2.0
"""TC5xx: batching, queues and sequences: settings that do nothing, or harm.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tritonctl.checks.analysis.streams import steps
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

# These may set max_batch_size themselves when they complete a configuration that leaves it out.
_CHOOSE_THEIR_BATCH = {"onnxruntime", "tensorrt", "tensorflow", "openvino", "pytorch"}
_WITHOUT_PROFILES = {"onnxruntime", "openvino", "python", "pytorch"}
_SECOND = 1_000_000
_OF_THE_QUEUE = (
    "preserve_ordering",
    "priority_levels",
    "default_queue_policy",
    "priority_queue_policy",
)


def _delay(config: ConfigMessage) -> int:
    """The delay for which a request may wait for others, in microseconds; 0 where none can join."""
    batching = config.message.dynamic_batching
    # A single request of a preferred size never waits.
    if config.message.max_batch_size <= 1 or 1 in batching.preferred_batch_size:
        return 0
    return int(batching.max_queue_delay_microseconds)


def _sizes(config: ConfigMessage) -> tuple[int, ...]:
    """The preferred sizes; () where Triton refuses one of them."""
    sizes = tuple(config.message.dynamic_batching.preferred_batch_size)
    valid = all(0 < size <= config.message.max_batch_size for size in sizes)
    return sizes if valid else ()


@warning(
    "TC501 batcher-without-batch",
    summary="a dynamic batcher whose `max_batch_size` is 0 or 1",
    why="Triton never batches two requests: it executes each one alone.",
    answers=("server#7205", "server#4129", "server#4247", "server#3624", "server#3327"),
)
def no_batch(config: ConfigMessage, _batching: Any, model: Model) -> Iterator[Hit]:
    if config.message.max_batch_size > 1:
        return
    # A queue policy works without batches, too.
    if any(("dynamic_batching", name) in config.names for name in _OF_THE_QUEUE):
        return
    size = config.message.max_batch_size
    chosen_in_code = model.code is not None and model.code.called("set_max_batch_size")
    if size == 0 and (model.backend in _CHOOSE_THEIR_BATCH or chosen_in_code):
        return
    yield Hit(
        f"dynamic_batching does nothing while max_batch_size is {size}",
        "raise max_batch_size to what the model can take at once, or remove dynamic_batching",
        config.name_span("dynamic_batching"),
    )


@warning(
    "TC502 batches-capped",
    summary="preferred batch sizes that are all below `max_batch_size`, without a delay",
    why="The batcher stops at the largest preferred size as soon as it can be formed, so that "
    "the rest of max_batch_size stays unused.",
    answers=("server#8094",),
)
def capped(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    sizes, most = _sizes(config), config.message.max_batch_size
    largest = max(sizes, default=most)
    if batching.max_queue_delay_microseconds == 0 and largest < most:
        yield Hit(
            f"no batch of single requests becomes larger than {largest}, though max_batch_size is "
            f"{most}",
            f"remove preferred_batch_size, or add {most} to it",
            config.span("dynamic_batching", "preferred_batch_size"),
        )


@advice(
    "TC503 preferred-without-profiles",
    summary="preferred batch sizes for a backend without optimisation profiles",
    why="Triton's documentation: most models should have none. They help TensorRT engines with "
    "profiles for certain sizes; with other backends they only make requests wait.",
    answers=("onnxruntime_backend#148",),
)
def preferred(config: ConfigMessage, batching: Any, model: Model) -> Iterator[Hit]:
    if model.backend not in _WITHOUT_PROFILES:
        return
    sizes, most = set(_sizes(config)), config.message.max_batch_size
    # Triton itself prefers the largest; other rules report the other two.
    if not sizes or sizes == {most} or 1 in sizes:
        return
    if batching.max_queue_delay_microseconds == 0 and max(sizes) < most:
        return
    yield Hit(
        f"the backend {model.backend} runs no size faster than others",
        "remove preferred_batch_size, unless you have measured that these sizes are faster",
        config.span("dynamic_batching", "preferred_batch_size"),
    )


@warning(
    "TC506 delay-defeated",
    summary="a queue delay next to a preferred batch size of 1",
    why="A batch of a preferred size is executed at once, and every single request is one.",
)
def never_delayed(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    if 1 not in _sizes(config):
        return
    if batching.max_queue_delay_microseconds > 0 and config.message.max_batch_size > 1:
        index = list(batching.preferred_batch_size).index(1)
        yield Hit(
            "max_queue_delay_microseconds does nothing: a single request has a preferred size",
            "remove the 1 from preferred_batch_size, or the delay",
            config.span("dynamic_batching", "preferred_batch_size", index),
        )


@warning(
    "TC504 delay-of-seconds",
    summary="a queue delay of a second or more",
    why="Unless a full batch arrives at once, every request waits that long before it is executed.",
    answers=("onnxruntime_backend#148",),
)
def seconds(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    delay = _delay(config)
    if delay < _SECOND or model.name in repository.target.slo_ms:
        return
    yield Hit(
        f"a request that finds no full batch waits {delay / _SECOND:g} s",
        "the field counts microseconds: 1000 are a millisecond",
        config.span("dynamic_batching", "max_queue_delay_microseconds"),
    )


@warning(
    "TC505 delay-against-slo",
    summary="a queue delay of half the SLO target or more",
    why="Under light load no batch fills up, so every request waits for the whole delay.",
)
def against_slo(repository: Repository) -> Iterator[Hit]:
    for name, slo_ms in repository.target.slo_ms.items():
        model = repository.models.get(name)
        for step in _on_the_way(model, repository) if model else ():
            delay_ms = _delay(step.config) / 1000
            if 2 * delay_ms >= slo_ms:
                yield Hit(
                    f"a request to {name} may wait {delay_ms:g} ms here, and its SLO target is "
                    f"{slo_ms:g} ms",
                    "set the delay to a tenth of that at most",
                    step.config.span("dynamic_batching", "max_queue_delay_microseconds"),
                    model=step,
                )


def _on_the_way(model: Model, repository: Repository) -> Iterable[Model]:
    """The model, and the models of its steps where it is an ensemble."""
    composing = [repository.models.get(step.model) for step in steps(model)]
    return {one.name: one for one in [model, *composing] if one is not None}.values()
