# SPDX-License-Identifier: Apache-2.0
"""TC0xx: the folder of a model: its name, versions and model files.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tritonctl.checks.config.backends import DEFAULT_FILES, PLATFORMS
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import CONFIG as CONFIG_NAME
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.layout.folders import is_empty, models_inside, wrong_level


@error(
    "TC001 another-name",
    summary="a model whose configuration has another name than its folder",
    reason="Triton refuses the model: both must be equal.",
)
def another_name(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    name = config.message.name
    if not name or name == model.name:
        return
    yield Hit(
        f"the folder is called {model.name}, the model {name}",
        "give both the same name, or leave `name` out",
        config.span("name"),
    )


@error(
    "TC002 no-version",
    summary="a model without a version folder",
    reason="Triton finds no version to load and refuses the model. Even an ensemble needs one. It "
    "may be empty, but git does not track empty folders: a clone lacks them.",
)
def no_version(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.versions or is_empty(model) or models_inside(model) or wrong_level(repository):
        return
    # An agent may make the version folder, or name another place that has it.
    if model.config.message.model_repository_agents.agents:
        return
    numbered = sorted(name for name in model.entries if any(map(str.isdecimal, name)))
    hint = f"; {numbered[0]} is not a whole number without a leading zero" if numbered else ""
    yield Hit(
        f"{model.name} has no version folder{hint}",
        f"put the model's files into a folder whose name is a number: mkdir {model.display_path}/1"
        + ("; git keeps it with a file in it: 1/.gitkeep" if model.backend == "ensemble" else ""),
    )


@warning(
    "TC003 ignored-version",
    summary="a folder that looks like a version and is ignored",
    reason="Triton silently skips it and keeps serving another version.",
)
def ignored_version(model: Model) -> Iterator[Hit]:
    for name in model.entries if model.versions else ():
        digits = name.lower().removeprefix("v")
        if digits.isdecimal() and (digits != name or (name[0] == "0" and name != "0")):
            yield Hit(
                f"Triton ignores the folder {name}: versions are whole numbers, without a "
                "leading zero",
                "rename it if it should be served",
                relative_path=name,
            )


@error(
    "TC004 no-model-file",
    summary="a version folder without the file that its backend loads",
    reason="The version cannot be loaded; tritonserver 2.51 hangs without the file of a Python "
    "model.",
)
def no_model_file(model: Model) -> Iterator[Hit]:
    required_files = _required_files(model)
    # The Python backend needs a file, not a folder. Neither function raises for any name.
    exists = os.path.isfile if model.backend == "python" else os.path.exists
    for version in model.served_versions if required_files else ():
        folder = model.path / str(version)
        if not any(exists(folder / name.lstrip("/")) for name in required_files):
            names = " or ".join(required_files)
            yield Hit(
                f"version {version} has no {names}, which the backend {model.backend} loads",
                f"put it at {model.display_path}/{version}/{required_files[0]}, or name the "
                "existing file in "
                "`default_model_filename`",
                relative_path=str(version),
                reason=f"The version cannot be loaded without {names}"
                + ("; tritonserver 2.51 hangs." if model.backend == "python" else "."),
            )


def _required_files(model: Model) -> tuple[str, ...]:
    message = model.config.message
    if message.cc_model_filenames or message.runtime:
        return ()
    if message.platform and message.platform not in PLATFORMS.get(
        message.backend, (message.platform,)
    ):
        return ()  # TC152 reports the contradiction
    return model.file_names if model.backend in DEFAULT_FILES else ()


@error(
    "TC029 no-config",
    summary="a model without config.pbtxt for a server without auto-complete",
    reason="A server started with --disable-auto-complete-config refuses the model. A project's "
    "server is started so, and skips the model.",
    shows="elsewhere",
)
def no_config(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.file is None and model.versions and not repository.target.completes:
        yield Hit(
            f"{model.name} has no {CONFIG_NAME}, and the server does not complete it",
            f"write {model.display_path}/{CONFIG_NAME}, with its backend and its tensors",
        )
