# SPDX-License-Identifier: Apache-2.0
"""TC014, TC015 and TC017: version folders, and the versions that version_policy selects.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md#model-versions
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#version-policy
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import MAX_VERSION, Model
from tritonctl.checks.rule import error, warning

# Matches what std::stoll reads: spaces, a sign and digits; it ignores the rest.
_DIGITS = re.compile(r"\s*([+-]?[0-9]+)")


@error(
    "TC014 serves-none",
    summary="a version_policy that selects no version",
    reason="Triton refuses the model: at least one version must be available.",
    needs_valid_config=True,
)
def serves_none(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.versions or model.served_versions:
        return
    existing = ", ".join(map(str, model.versions))
    policy = config.message.version_policy
    requested = ", ".join(map(str, policy.specific.versions)) or "none"
    if policy.HasField("latest"):
        yield Hit(
            "version_policy serves the latest 0 versions",
            "write how many: latest { num_versions: 1 }",
            config.span("version_policy", "latest", "num_versions"),
        )
    else:
        yield Hit(
            f"version_policy serves {requested}, and the folders are {existing}",
            "name versions that have a folder",
            config.span("version_policy", "specific"),
        )


@warning(
    "TC015 lacks-some",
    summary="a version_policy with a version that does not exist",
    reason="Triton serves the other versions and mentions the missing one only in its log.",
    needs_valid_config=True,
)
def missing_versions(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not model.served_versions:
        return
    for index, version in enumerate(config.message.version_policy.specific.versions):
        if version not in model.versions:
            existing = ", ".join(map(str, model.versions))
            yield Hit(
                f"version_policy serves {version}, and the folders are {existing}",
                f"add the folder {model.display_path}/{version}, or remove the version from the "
                "policy",
                config.span("version_policy", "specific", "versions", index),
            )


@error(
    "TC017 like-a-version",
    summary="a folder that Triton mistakes for a version",
    reason="Triton reads the digits at the start of a name, 2_old as 2, and loads the folder of "
    "that number: tritonserver 2.51 hangs without it, and crashes on numbers of more than 64 bits.",
    needs_valid_config=True,
)
def like_a_version(model: Model) -> Iterator[Hit]:
    number_by_folder = {
        name: number for name in model.folders if (number := _version_read_from(name)) is not None
    }
    for name, number in number_by_folder.items() if model.versions else ():
        if number > MAX_VERSION:
            yield Hit(
                f"{name} is a number of more than 64 bits",
                "rename it, without a digit first, unless it is a version",
                relative_path=name,
            )
        elif number not in model.versions and number in model.select_served(
            sorted(number_by_folder.values())
        ):
            yield Hit(
                f"Triton treats {name} as version {number}, and looks for the folder {number}",
                "rename it, so that it does not start with a digit: mv "
                f"{model.display_path}/{name} "
                f"{model.display_path}/old_{name}",
                relative_path=name,
            )


def _version_read_from(name: str) -> int | None:
    """Return the version that Triton reads from a folder's name; None if it reads none."""
    if name[0] == "0" and len(name) > 1:
        return None
    digits = _DIGITS.match(name)
    return int(digits[1]) if digits else None
