# SPDX-License-Identifier: Apache-2.0
"""The dashboard's row of releases: two versions of a model beside each other during a rollout."""

from __future__ import annotations

from tritonctl.server.observe.panels import Panel, Query
from tritonctl.server.observe.recording import (
    VERSION_ANSWERS,
    VERSION_FAILURES,
    VERSION_TTFT,
    rate,
    selector,
)

_MODEL = selector(public_model="~$model")
_LEGEND = "{{public_model}} {{version}}"


def release_panels() -> tuple[Panel, ...]:
    """By model and version; the version is the number of the release."""
    tokens = rate("tritonctl_output_tokens_total", "public_model, version", public_model="~$model")
    return (
        Panel(
            "Release: answers",
            "The version of a model is the number of its release. A rollout moves users from one "
            "to the other.",
            (Query(f"{VERSION_ANSWERS}{_MODEL}", _LEGEND),),
            "reqps",
            width=6,
            stacked=True,
        ),
        Panel(
            "Release: failing requests",
            "Share of a version's requests; of text, those that its engine failed.",
            (Query(f"{VERSION_FAILURES}{_MODEL}", _LEGEND),),
            "percentunit",
            width=6,
        ),
        Panel(
            "Release: time to first token",
            "Median, seen from the engine.",
            (Query(f"{VERSION_TTFT}{_MODEL}", _LEGEND),),
            "s",
            width=6,
        ),
        Panel(
            "Release: output tokens",
            "Sent to clients.",
            (Query(tokens, _LEGEND),),
            width=6,
        ),
    )
