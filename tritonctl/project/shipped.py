# SPDX-License-Identifier: Apache-2.0
"""Example projects that ship with tritonctl, with checkpoints that need no download."""

from __future__ import annotations

import shutil
from pathlib import Path

from tritonctl.errors import UsageError, choices
from tritonctl.host import bundled
from tritonctl.host.files import as_host_error
from tritonctl.project.file import FILE_NAME

_FOLDER = "examples"
# Training code, and files that serving an example leaves behind.
_NOT_COPIED = ("*.py", "requirements.txt", "ruff.toml", ".*", "model_repository", "tritonctl.lock")


def copy_example(name: str, folder: Path) -> None:
    """Copy an example project; its project file comes last and marks the copy as complete.

    Raises UsageError for an unknown name, ConfigurationError if no examples are installed.
    """
    example_names = bundled.names(_FOLDER, "/checkpoint")
    if example_names and name not in example_names:
        raise UsageError(
            f"unknown example `{name}`", remedy=choices(name, example_names, "examples:")
        )
    source = bundled.find(f"{_FOLDER}/{name}")
    ignored = shutil.ignore_patterns(*_NOT_COPIED, FILE_NAME)
    with as_host_error(folder):
        shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)
        shutil.copyfile(source / FILE_NAME, folder / FILE_NAME)
