# SPDX-License-Identifier: Apache-2.0
"""TC4xx: whether streamed responses arrive whole, in order, and can be cancelled.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/decoupled_models.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.examples.streaming import STREAM, STREAM_CONFIG, stream_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    streaming_bls,
    streaming_ensembles,
    streaming_python,
    streaming_running,
)


def in_turn(model: Model, _: Repository) -> Iterator[Hit]:
    """A decoupled model whose streams may not overtake each other."""
    config = model.config
    if config is None or not config.message.model_transaction_policy.decoupled:
        return
    if config.message.dynamic_batching.preserve_ordering:
        yield Hit(
            "a stream is held back until all that began before it have ended",
            "remove preserve_ordering: the responses of one request keep their order without it",
            config.span("dynamic_batching", "preserve_ordering"),
        )


_GOOD = stream_model(STREAM, STREAM_CONFIG + "dynamic_batching { }\n")

RULES = (
    *streaming_ensembles.RULES,
    Rule(
        id="TC404",
        name="streams-in-turn",
        severity="warning",
        summary="a decoupled model with `preserve_ordering`",
        why="Responses are held back until those of all earlier requests are complete, so that "
        "streams come one after another, each in one piece.",
        check=in_turn,
        bad=stream_model(STREAM, STREAM_CONFIG + "dynamic_batching { preserve_ordering: true }\n"),
        good=_GOOD,
    ),
    *streaming_python.RULES,
    *streaming_running.RULES,
    *streaming_bls.RULES,
)
