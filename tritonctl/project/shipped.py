# SPDX-License-Identifier: Apache-2.0
"""The examples that ship with tritonctl: projects with a checkpoint that needs no download."""

from __future__ import annotations

import shutil
from pathlib import Path

from tritonctl.errors import UsageError, choices
from tritonctl.host import bundled
from tritonctl.host.files import explained
from tritonctl.project.file import FILE_NAME

_FOLDER = "examples"
# How it was trained stays behind, and what serving it there has left.
_NOT_COPIED = ("*.py", "requirements.txt", "ruff.toml", ".*", "model_repository", "tritonctl.lock")


def copy_example(name: str, folder: Path) -> None:
    """Copy a shipped project; its project file last, for that one marks it as whole.

    Raises UsageError for an unknown name, ConfigurationError where none were installed.
    """
    known = bundled.names(_FOLDER, "/checkpoint")
    if known and name not in known:
        raise UsageError(f"there is no example `{name}`", remedy=choices(name, known, "there are:"))
    source = bundled.find(f"{_FOLDER}/{name}")
    ignored = shutil.ignore_patterns(*_NOT_COPIED, FILE_NAME)
    with explained(folder):
        shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)
        shutil.copyfile(source / FILE_NAME, folder / FILE_NAME)
