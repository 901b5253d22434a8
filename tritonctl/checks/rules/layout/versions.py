# SPDX-License-Identifier: Apache-2.0
"""TC014, TC015 and TC017: version folders, and which of them version_policy serves.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md#model-versions
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#version-policy
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import LARGEST_VERSION, Model
from tritonctl.checks.rule import error, warning

# As std::stoll reads a number: spaces, a sign, digits, and whatever follows.
_DIGITS = re.compile(r"\s*([+-]?[0-9]+)")


@error(
    "TC014 serves-none",
    summary="a version_policy that selects no version",
    why="Triton refuses the model: at least one version must be available.",
)
def serves_none(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.versions or model.served_versions:
        return
    existing = ", ".join(map(str, model.versions))
    policy = config.message.version_policy
    wanted = ", ".join(map(str, policy.specific.versions)) or "none"
    if policy.HasField("latest"):
        yield Hit(
            "version_policy serves the latest 0 versions",
            "write how many: latest { num_versions: 1 }",
            config.span("version_policy", "latest", "num_versions"),
        )
    else:
        yield Hit(
            f"version_policy serves {wanted}, and the folders are {existing}",
            "name versions that have a folder",
            config.span("version_policy", "specific"),
        )


@warning(
    "TC015 lacks-some",
    summary="a version_policy with a version that does not exist",
    why="Triton serves the others, and says so only in its log.",
)
def lacks_some(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.served_versions:
        return
    for index, version in enumerate(config.message.version_policy.specific.versions):
        if version not in model.versions:
            existing = ", ".join(map(str, model.versions))
            yield Hit(
                f"version_policy serves {version}, and the folders are {existing}",
                f"add the folder {model.shown}/{version}, or do not name it",
                config.span("version_policy", "specific", "versions", index),
            )


@error(
    "TC017 like-a-version",
    summary="a folder that Triton mistakes for a version",
    why="Triton reads the digits at the beginning of a name, 2_old as 2, and loads the folder "
    "of that number: tritonserver 2.51 hangs without it, and crashes over more than "
    "64 bits.",
)
def like_a_version(model: Model) -> Iterator[Hit]:
    taken = {name: number for name in model.folders if (number := _number(name)) is not None}
    for name, number in taken.items() if model.versions else ():
        if number > LARGEST_VERSION:
            yield Hit(
                f"{name} is a number of more than 64 bits",
                "rename it, without a digit first, unless it is a version",
                place=name,
            )
        elif number not in model.versions and number in model.served_of(sorted(taken.values())):
            yield Hit(
                f"Triton takes {name} for version {number}, and looks for the folder {number}",
                f"rename it, so that no digit is first: mv {model.shown}/{name} "
                f"{model.shown}/old_{name}",
                place=name,
            )


def _number(name: str) -> int | None:
    """The version that Triton reads in a folder's name; None where it reads none."""
    if name[0] == "0" and len(name) > 1:
        return None
    digits = _DIGITS.match(name)
    return int(digits[1]) if digits else None
