# SPDX-License-Identifier: Apache-2.0
"""Load the project of the working directory with each of its profiles."""

from __future__ import annotations

import os
from pathlib import Path

from tritonctl.doctor.findings import DoctorFinding
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.project.file import find_project_file, load_profiles
from tritonctl.project.schema import Project

Profiles = dict[str | None, Project]


def surrounding_project(path: Path | None) -> tuple[Profiles, list[DoctorFinding]]:
    """Return the project without a profile (None) and with each; a finding if it is unreadable.

    Both are empty without a project. Raises ConfigurationError or UsageError if `path` is
    unreadable.
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
        reason = "every other command reads it"
        return {}, [DoctorFinding("project", "missing", error.problem, error.remedy, reason=reason)]
