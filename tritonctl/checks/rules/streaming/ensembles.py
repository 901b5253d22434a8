# SPDX-License-Identifier: Apache-2.0
"""TC401 to TC403: models after a decoupled one in an ensemble, which run once per response.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md
and https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.streams import min_instances, models_per_response
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import CheckTarget, Model, Repository
from tritonctl.checks.rule import error, warning

# With a longer delay between its parts, a stream visibly stutters.
_MAX_DELAY_US = 10_000


@error(
    "TC401 order-lost",
    summary="several instances of a model that runs once per response of a decoupled one",
    reason="Each instance responds when it is done, so the parts of a stream arrive in the wrong "
    "order. In a measurement, 16 of 16 streams were scrambled. Dynamic batching alone does not "
    "help, `preserve_ordering` does.",
    shows="traffic",
    answers=("tensorrtllm_backend#614", "server#4918"),
)
def order_lost(repository: Repository) -> Iterator[Hit]:
    for run in models_per_response(repository).values():
        if not _reorders_responses(run.model, repository.target):
            continue
        yield Hit(
            f"{min_instances(run.model, repository.target)} instances process the responses of "
            f"{run.source} in {run.ensemble} and finish in any order",
            "keep one instance, or add dynamic_batching { preserve_ordering: true }",
            run.model.config.name_span("instance_group"),
            model=run.model,
        )


def _reorders_responses(model: Model, target: CheckTarget) -> bool:
    if min_instances(model, target) <= 1:
        return False
    message = model.config.message
    # The sequence batcher assigns requests to instances in another way.
    if message.HasField("sequence_batching"):
        return False
    return not message.dynamic_batching.preserve_ordering and not _completes_batching(model)


def _completes_batching(model: Model) -> bool:
    return model.code is not None and bool(model.code.calls_named("set_dynamic_batching"))


@warning(
    "TC402 responses-alone",
    summary="a model behind a decoupled one without dynamic batching",
    reason="Every response of every stream is executed alone, which costs more. Under such a load "
    "tritonserver 2.51 hung in 3 of 5 runs with a corrupted heap, while it still reported being "
    "live.",
    answers=("server#7517", "tensorrtllm_backend#587"),
)
def unbatched_responses(repository: Repository) -> Iterator[Hit]:
    target = repository.target
    for run in models_per_response(repository).values():
        config = run.model.config
        if run.model.backend != "python" or _reorders_responses(run.model, target):
            continue
        batched = config.message.WhichOneof("scheduling_choice") is not None
        if batched or _completes_batching(run.model):
            continue
        yield Hit(
            f"each response of {run.source} in {run.ensemble} is executed alone",
            "add dynamic_batching { }"
            + ("" if config.message.max_batch_size > 1 else " and a max_batch_size"),
            config.name_span("max_batch_size"),
            model=run.model,
        )


@warning(
    "TC403 delay-per-response",
    summary="a long queue delay in a model that runs once per response of a decoupled one",
    reason="The delay is meant for requests, but here every part of every stream waits for it: "
    "text arrives in bursts.",
)
def delay_per_response(repository: Repository) -> Iterator[Hit]:
    for run in models_per_response(repository).values():
        config = run.model.config
        if config.message.max_batch_size <= 1:
            continue
        delay = config.message.dynamic_batching.max_queue_delay_microseconds
        if delay >= _MAX_DELAY_US:
            yield Hit(
                f"every response of {run.source} in {run.ensemble} waits up to "
                f"{delay / 1000:g} ms here",
                "remove the delay, or set it to at most 2000 microseconds",
                config.span("dynamic_batching", "max_queue_delay_microseconds"),
                model=run.model,
            )
