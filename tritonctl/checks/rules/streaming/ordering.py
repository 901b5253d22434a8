# SPDX-License-Identifier: Apache-2.0
"""TC404: streams that preserve_ordering holds back.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/decoupled_models.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import warning


@warning(
    "TC404 streams-in-turn",
    summary="a decoupled model with `preserve_ordering`",
    reason="Triton holds responses back until those of all earlier requests are complete, so "
    "streams arrive one after another, each in one piece.",
)
def streams_in_turn(config: ConfigMessage) -> Iterator[Hit]:
    if not config.message.model_transaction_policy.decoupled:
        return
    if config.message.dynamic_batching.preserve_ordering:
        yield Hit(
            "a stream is held back until all earlier streams are finished",
            "remove preserve_ordering: the responses of one request keep their order without it",
            config.span("dynamic_batching", "preserve_ordering"),
        )
