# SPDX-License-Identifier: Apache-2.0
"""Reads builder.toml, a builder's description of itself, and checks requests against it.

The host reads the same file.
"""

import tomllib
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, did_you_mean
from buildlib.request_types import BuilderRequest, RequestedLimits


def read_description(folder: Path) -> dict[str, Any]:
    """Return the content of builder.toml in `folder`."""
    return tomllib.loads((folder / "builder.toml").read_text(encoding="utf-8"))


def require_precision(request: BuilderRequest, builder: Path) -> None:
    """Raise BuildError if the builder in that folder does not have the request's precision."""
    description = read_description(builder)
    value, precisions = request.precision, description["precisions"]
    if request.task:
        precisions = description.get("task_precisions", precisions)
    if value not in precisions:
        raise BuildError(
            f"the {description['name']} builder has no precision "
            f"{value!r}{did_you_mean(value, precisions)}",
            remedy=f"Set engine.precision to one of: {', '.join(precisions)}.",
        )


def require_limits_of_one(limits: RequestedLimits, builder: Path) -> None:
    """Raise BuildError for a limit above 1 that builder.toml lists under `[single]`."""
    description = read_description(builder)
    for key, reason in description["single"].items():
        value = getattr(limits, key)
        if value != 1:
            raise BuildError(
                f"engine.{key} is {value}, and the {description['name']} builder supports only 1: "
                f"{reason}",
                remedy=f"Remove engine.{key}, or generate text on GPUs with the tensorrt_llm "
                "builder.",
            )
