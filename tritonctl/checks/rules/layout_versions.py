# SPDX-License-Identifier: Apache-2.0
"""TC014, TC015 and TC017: version folders, and which of them version_policy serves.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md#model-versions
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#version-policy
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.examples.models import CONFIG, python_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import LARGEST_VERSION, Model, Repository
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules.layout_folders import folders

# As std::stoll reads a number: spaces, a sign, digits, and whatever follows.
_DIGITS = re.compile(r"\s*([+-]?[0-9]+)")


def serves_none(model: Model, _: Repository) -> Iterator[Hit]:
    """A policy that leaves every version out."""
    config = model.config
    if config is None or not model.versions or model.served_versions:
        return
    there = ", ".join(map(str, model.versions))
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
            f"version_policy serves {wanted}, and there is {there}",
            "name versions that have a folder",
            config.span("version_policy", "specific"),
        )


def lacks_some(model: Model, _: Repository) -> Iterator[Hit]:
    """A policy that names a version without a folder, among others."""
    config = model.config
    if config is None or not model.served_versions:
        return
    for index, version in enumerate(config.message.version_policy.specific.versions):
        if version not in model.versions:
            there = ", ".join(map(str, model.versions))
            yield Hit(
                f"version_policy serves {version}, and there is {there}",
                f"add the folder {model.shown}/{version}, or do not name it",
                config.span("version_policy", "specific", "versions", index),
            )


def like_a_version(model: Model, _: Repository) -> Iterator[Hit]:
    """A folder that Triton takes for a version by the digits that it begins with."""
    taken = {name: number for name in folders(model) if (number := _number(name)) is not None}
    for name, number in taken.items() if model.versions else ():
        if number > LARGEST_VERSION:
            yield Hit(
                f"{name} is a number of more than 64 bits",
                "rename it: no digit first, if it is not meant as a version",
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
    """What Triton reads a folder's name as; None where it is no version."""
    if name[0] == "0" and len(name) > 1:
        return None
    found = _DIGITS.match(name)
    return int(found[1]) if found else None


_GOOD = python_model()
_POLICY = "version_policy {{ specific {{ versions: [ {} ] }} }}\n"

RULES = (
    Rule(
        id="TC014",
        name="serves-none",
        severity="error",
        summary="a version_policy that leaves every version out",
        why="Triton refuses the model: at least one version must be available.",
        check=serves_none,
        bad=python_model(CONFIG + _POLICY.format(2)),
        good=python_model(CONFIG + _POLICY.format(1)),
    ),
    Rule(
        id="TC015",
        name="lacks-some",
        severity="warning",
        summary="a version_policy with a version that is not there",
        why="Triton serves the others, and says so only in its log.",
        check=lacks_some,
        bad=python_model(CONFIG + _POLICY.format("1, 2")),
        good=python_model(CONFIG + _POLICY.format(1)),
    ),
    Rule(
        id="TC017",
        name="like-a-version",
        severity="error",
        summary="a folder that Triton takes for a version and does not find",
        why="Triton reads the digits at the beginning of a name, 2_old as 2, and loads the folder "
        "of that number: tritonserver 2.51 waits for it for ever, and ends itself over more than "
        "64 bits.",
        check=like_a_version,
        bad=_GOOD | {"m/2_old/model.py": _GOOD["m/1/model.py"]},
        good=_GOOD | {"m/old_2/model.py": _GOOD["m/1/model.py"]},
    ),
)
