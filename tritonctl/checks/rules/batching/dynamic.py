# SPDX-License-Identifier: Apache-2.0
"""TC5xx: batching, queues and sequences: settings that do nothing, or harm.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tritonctl.checks.analysis.streams import step_tensors
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

# These may set max_batch_size when they complete a configuration without it.
_CHOOSE_BATCH_SIZE = {"onnxruntime", "tensorrt", "tensorflow", "openvino", "pytorch"}
_WITHOUT_PROFILES = {"onnxruntime", "openvino", "python", "pytorch"}
_SECOND = 1_000_000
_QUEUE_FIELDS = (
    "preserve_ordering",
    "priority_levels",
    "default_queue_policy",
    "priority_queue_policy",
)


def _queue_delay_us(config: ConfigMessage) -> int:
    """Return the effective queue delay in microseconds; 0 if no request can join another."""
    batching = config.message.dynamic_batching
    # A single request of a preferred size never waits.
    if config.message.max_batch_size <= 1 or 1 in batching.preferred_batch_size:
        return 0
    return int(batching.max_queue_delay_microseconds)


def _valid_preferred_sizes(config: ConfigMessage) -> tuple[int, ...]:
    """Return the preferred batch sizes; () if Triton refuses one of them."""
    sizes = tuple(config.message.dynamic_batching.preferred_batch_size)
    valid = all(0 < size <= config.message.max_batch_size for size in sizes)
    return sizes if valid else ()


@warning(
    "TC501 batcher-without-batch",
    summary="a dynamic batcher whose `max_batch_size` is 0 or 1",
    reason="Triton never batches two requests: it executes each one alone.",
    answers=("server#7205", "server#4129", "server#4247", "server#3624", "server#3327"),
)
def no_batch(config: ConfigMessage, _batching: Any, model: Model) -> Iterator[Hit]:
    if config.message.max_batch_size > 1:
        return
    # A queue policy works without batches, too.
    if any(("dynamic_batching", name) in config.name_spans for name in _QUEUE_FIELDS):
        return
    size = config.message.max_batch_size
    chosen_in_code = model.code is not None and model.code.calls_named("set_max_batch_size")
    if size == 0 and (model.backend in _CHOOSE_BATCH_SIZE or chosen_in_code):
        return
    yield Hit(
        f"dynamic_batching makes no batches while max_batch_size is {size}",
        "raise max_batch_size to what the model can take at once; keep dynamic_batching for its "
        "queue alone, which drops cancelled requests that wait, or remove it",
        config.name_span("dynamic_batching"),
    )


@warning(
    "TC502 batches-capped",
    summary="preferred batch sizes that are all below `max_batch_size`, without a delay",
    reason="The batcher sends a batch as soon as it has the largest preferred size. It never uses "
    "the rest of max_batch_size.",
    answers=("server#8094",),
)
def capped_batches(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    sizes, max_batch_size = _valid_preferred_sizes(config), config.message.max_batch_size
    largest = max(sizes, default=max_batch_size)
    if batching.max_queue_delay_microseconds == 0 and largest < max_batch_size:
        yield Hit(
            f"no batch of single requests becomes larger than {largest}, though max_batch_size is "
            f"{max_batch_size}",
            f"remove preferred_batch_size, or add {max_batch_size} to it",
            config.span("dynamic_batching", "preferred_batch_size"),
        )


@advice(
    "TC503 preferred-without-profiles",
    summary="preferred batch sizes for a backend without optimisation profiles",
    reason="Triton's documentation advises against them for most models. They help TensorRT "
    "engines with profiles for certain sizes; with other backends they only delay requests.",
    answers=("onnxruntime_backend#148",),
)
def preferred_sizes(config: ConfigMessage, batching: Any, model: Model) -> Iterator[Hit]:
    if model.backend not in _WITHOUT_PROFILES:
        return
    sizes, max_batch_size = set(_valid_preferred_sizes(config)), config.message.max_batch_size
    # Triton itself prefers the largest; other rules report the other two.
    if not sizes or sizes == {max_batch_size} or 1 in sizes:
        return
    if batching.max_queue_delay_microseconds == 0 and max(sizes) < max_batch_size:
        return
    yield Hit(
        f"the backend {model.backend} runs no size faster than others",
        "remove preferred_batch_size, unless you have measured that these sizes are faster",
        config.span("dynamic_batching", "preferred_batch_size"),
    )


@warning(
    "TC506 delay-defeated",
    summary="a queue delay next to a preferred batch size of 1",
    reason="Triton executes a batch of a preferred size at once, and every single request has "
    "size 1.",
)
def defeated_delay(config: ConfigMessage, batching: Any) -> Iterator[Hit]:
    if 1 not in _valid_preferred_sizes(config):
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
    reason="Unless a full batch arrives at once, every request waits that long before it is "
    "executed.",
    answers=("onnxruntime_backend#148",),
)
def delay_of_seconds(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    delay = _queue_delay_us(config)
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
    reason="Under light load no batch fills up, so every request waits for the whole delay.",
)
def delay_against_slo(repository: Repository) -> Iterator[Hit]:
    for name, slo_ms in repository.target.slo_ms.items():
        model = repository.models.get(name)
        for step in _model_and_steps(model, repository) if model else ():
            delay_ms = _queue_delay_us(step.config) / 1000
            if 2 * delay_ms >= slo_ms:
                yield Hit(
                    f"a request to {name} may wait {delay_ms:g} ms here, and its SLO target is "
                    f"{slo_ms:g} ms",
                    "set the delay to at most a tenth of the target",
                    step.config.span("dynamic_batching", "max_queue_delay_microseconds"),
                    model=step,
                )


def _model_and_steps(model: Model, repository: Repository) -> Iterable[Model]:
    """Return the model and, for an ensemble, the models of its steps."""
    step_models = [repository.models.get(step.model) for step in step_tensors(model)]
    return {
        candidate.name: candidate for candidate in [model, *step_models] if candidate is not None
    }.values()
