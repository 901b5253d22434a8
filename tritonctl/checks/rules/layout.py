# SPDX-License-Identifier: Apache-2.0
"""TC0xx: whether folders and files are where Triton looks for them.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.config.backends import DEFAULT_FILES, PLATFORMS
from tritonctl.checks.examples.models import CONFIG, changed, python_model
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.readable_config import when_read
from tritonctl.checks.repository import CONFIG as CONFIG_NAME
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    layout_files,
    layout_folders,
    layout_variants,
    layout_versions,
)
from tritonctl.checks.rules.layout_folders import is_empty, models_inside


def another_name(model: Model, _: Repository) -> Iterator[Hit]:
    """The configuration says another name than the folder has."""
    config = model.config
    name = config.message.name if config else ""
    if config is None or not name or name == model.name:
        return
    span = config.span("name")
    yield Hit(
        f"the folder is called {model.name}, the model {name}",
        "give both the same name, or leave `name` out",
        span,
        edits=(Edit(span, f'"{model.name}"'),),
    )


def no_version(model: Model, _: Repository) -> Iterator[Hit]:
    """There is no version folder."""
    if model.versions or is_empty(model) or models_inside(model):
        return
    if (model.path.parent / CONFIG_NAME).exists():  # a version of the model that was named
        return
    there = sorted(name for name in model.entries if any(map(str.isdecimal, name)))
    found = f"; {there[0]} is no whole number without a leading zero" if there else ""
    yield Hit(
        f"{model.name} has no version folder{found}",
        f"put the model's files into a folder whose name is a number: mkdir {model.shown}/1",
    )


def ignored_version(model: Model, _: Repository) -> Iterator[Hit]:
    """A folder that looks like a version and is none."""
    for name in model.entries if model.versions else ():
        digits = name.lower().removeprefix("v")
        if digits.isdecimal() and (digits != name or (name[0] == "0" and name != "0")):
            yield Hit(
                f"Triton ignores the folder {name}: versions are whole numbers, without a "
                "leading zero",
                "rename it if it is meant to be served",
                place=name,
            )


def no_model_file(model: Model, _: Repository) -> Iterator[Hit]:
    """A version folder without the file that its backend loads."""
    wanted = _wanted_files(model)
    for version in model.served_versions if wanted else ():
        if not any(_has(model, version, name) for name in wanted):
            names = " or ".join(wanted)
            yield Hit(
                f"version {version} has no {names}, which the backend {model.backend} loads",
                f"put it at {model.shown}/{version}/{wanted[0]}, or name the file that there is in "
                "`default_model_filename`",
                place=str(version),
            )


def _wanted_files(model: Model) -> tuple[str, ...]:
    message = model.config.message if model.config else None
    if message is None or message.cc_model_filenames or message.runtime:
        return ()
    if message.platform and message.platform not in PLATFORMS.get(
        message.backend, (message.platform,)
    ):
        return ()  # which of both is meant has a rule of its own
    return model.file_names if model.backend in DEFAULT_FILES else ()


def _has(model: Model, version: int, name: str) -> bool:
    """Whether it is there, and no folder where the backend needs a file."""
    path = model.path / str(version) / name.lstrip("/")
    try:
        return path.is_file() if model.backend == "python" else path.exists()
    except (OSError, ValueError):
        return False


_GOOD = python_model()

RULES = (
    Rule(
        id="TC001",
        name="another-name",
        severity="error",
        summary="a model whose configuration has another name than its folder",
        why="Triton refuses the model: both must be equal.",
        check=another_name,
        bad=changed('name: "m"', 'name: "n"'),
        good=_GOOD,
    ),
    Rule(
        id="TC002",
        name="no-version",
        severity="error",
        summary="a model without a version folder",
        why="Triton finds no version to load and refuses the model. An ensemble needs one, too, "
        "be it empty.",
        check=no_version,
        bad={"m/config.pbtxt": CONFIG, "m/model.py": ""},
        good=_GOOD,
    ),
    Rule(
        id="TC003",
        name="ignored-version",
        severity="warning",
        summary="a folder that looks like a version and is ignored",
        why="Triton skips it without a word and goes on serving another version.",
        check=ignored_version,
        bad=_GOOD | {"m/02/model.py": _GOOD["m/1/model.py"]},
        good=_GOOD | {"m/2/model.py": _GOOD["m/1/model.py"]},
    ),
    Rule(
        id="TC004",
        name="no-model-file",
        severity="error",
        summary="a version folder without the file that its backend loads",
        why="The version cannot be loaded; tritonserver 2.51 waits for ever for a model.py.",
        check=no_model_file,
        bad={"m/config.pbtxt": CONFIG, "m/1/modle.py": ""},
        good=_GOOD,
    ),
    *layout_folders.RULES,
    *when_read(layout_versions.RULES),
    *when_read(layout_files.RULES),
    *layout_variants.RULES,
)
