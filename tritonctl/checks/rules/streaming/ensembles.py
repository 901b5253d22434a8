# SPDX-License-Identifier: Apache-2.0
"""TC401 to TC403: what stands behind a decoupled model in an ensemble, and runs once per response.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md
and https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.streams import instances, per_response
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import error, warning

# A stream whose parts wait longer than this for each other arrives in visible jerks.
_LONGEST_DELAY_US = 10_000


@error(
    "TC401 order-lost",
    summary="several instances of a model that runs once per response of a decoupled one",
    why="Each instance answers when it is done, so the parts of a stream arrive in the wrong "
    "order: measured, 16 of 16 streams were scrambled. Dynamic batching alone does not help, "
    "`preserve_ordering` does.",
    shows="traffic",
    answers=("tensorrtllm_backend#614", "server#4918"),
)
def order_lost(repository: Repository) -> Iterator[Hit]:
    for one in per_response(repository).values():
        if not _scrambles(one.model, repository.target):
            continue
        yield Hit(
            f"{instances(one.model, repository.target)} instances answer the responses of "
            f"{one.source} in {one.ensemble}, in whatever order they finish",
            "keep one instance, or add dynamic_batching { preserve_ordering: true }",
            one.model.config.name_span("instance_group"),
            model=one.model,
        )


def _scrambles(model: Model, target: Target) -> bool:
    if instances(model, target) <= 1:
        return False
    message = model.config.message
    # Which instance takes what is decided otherwise for sequences.
    if message.HasField("sequence_batching"):
        return False
    return not message.dynamic_batching.preserve_ordering and not _completes_batching(model)


def _completes_batching(model: Model) -> bool:
    return model.code is not None and bool(model.code.called("set_dynamic_batching"))


@warning(
    "TC402 responses-alone",
    summary="a model behind a decoupled one without dynamic batching",
    why="Every response of every stream is executed alone: more work for each, and "
    "tritonserver 2.51 has hung under such a load in 3 of 5 runs, its heap corrupted, while it "
    "still reported being live.",
    answers=("server#7517", "tensorrtllm_backend#587"),
)
def alone(repository: Repository) -> Iterator[Hit]:
    target = repository.target
    for one in per_response(repository).values():
        config = one.model.config
        if one.model.backend != "python" or _scrambles(one.model, target):
            continue
        batched = config.message.WhichOneof("scheduling_choice") is not None
        if batched or _completes_batching(one.model):
            continue
        yield Hit(
            f"each response of {one.source} in {one.ensemble} is executed alone",
            "add dynamic_batching { }"
            + ("" if config.message.max_batch_size > 1 else " and a max_batch_size"),
            config.name_span("max_batch_size"),
            model=one.model,
        )


@warning(
    "TC403 delay-per-response",
    summary="a long queue delay in a model that runs once per response of a decoupled one",
    why="The delay is meant for requests, but here every part of every stream waits for it: "
    "text arrives in bursts.",
)
def jerky(repository: Repository) -> Iterator[Hit]:
    for one in per_response(repository).values():
        config = one.model.config
        if config.message.max_batch_size <= 1:
            continue
        delay = config.message.dynamic_batching.max_queue_delay_microseconds
        if delay >= _LONGEST_DELAY_US:
            yield Hit(
                f"every response of {one.source} in {one.ensemble} waits up to "
                f"{delay / 1000:g} ms here",
                "remove the delay, or make it 2000 microseconds at most",
                config.span("dynamic_batching", "max_queue_delay_microseconds"),
                model=one.model,
            )
