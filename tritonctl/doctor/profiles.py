# SPDX-License-Identifier: Apache-2.0
"""The project of the working directory, under each of its profiles."""

from __future__ import annotations

import os
from pathlib import Path

from tritonctl.doctor.findings import Finding
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.project.file import find_project_file, load_profiles
from tritonctl.project.schema import Project

Profiles = dict[str | None, Project]


def project_here(path: Path | None) -> tuple[Profiles, list[Finding]]:
    """The project without a profile (None) and with each; a finding if it cannot be read.

    Nothing without a project. Raises ConfigurationError or UsageError when `path` cannot be read.
    """
    if path is not None:
        return load_profiles(path), []
    if "TRITONCTL_PROJECT" not in os.environ:
        try:
            find_project_file(Path.cwd())
        except ConfigurationError:
            return {}, []
    try:
        return load_profiles(), []
    except (ConfigurationError, UsageError) as error:
        why = "every other command starts with it"
        return {}, [Finding("project", "missing", error.problem, error.remedy, why=why)]
