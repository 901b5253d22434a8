# SPDX-License-Identifier: Apache-2.0
"""Runs `tritonctl check` on a staged repository before it is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tritonctl.checks.checker import check_repository
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.target import target_from_host
from tritonctl.errors import RepositoryError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.repository.server_fields import server_version
from tritonctl.repository.target import with_project_facts


def check_staged_repository(
    staging: Path, project: Project, progress: Progress, sources: Mapping[str, Path]
) -> int:
    """Check the staged repository, note the warnings and return their number.

    `sources` maps paths in the repository to the files that users edit. Raises RepositoryError for
    an error, which a server would refuse or answer wrongly.
    """
    target = with_project_facts(target_from_host(CheckTarget(server_version(project))), project)
    report = check_repository(staging, target, shown_as=project.repository.name)
    findings = [
        replace(finding, path=str(sources.get(finding.path, finding.path)))
        for finding in report.findings
    ]
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise RepositoryError(
            f"{errors[0].place}: {errors[0].message}",
            remedy=f"{errors[0].fix}; `tritonctl check --explain {errors[0].rule}` says more",
            details="\n".join(map(_line, errors)) if len(errors) > 1 else None,
        )
    warnings = [_line(finding) for finding in findings if finding.severity == "warning"]
    for line in warnings:
        progress.note(line)
    return len(warnings)


def _line(finding: CheckFinding) -> str:
    return f"{finding.place} {finding.rule} {finding.severity}: {finding.message} ({finding.fix})"
