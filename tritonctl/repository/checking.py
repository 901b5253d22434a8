# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` says of a repository before it is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tritonctl.checks.checker import check_repository
from tritonctl.checks.findings import Finding
from tritonctl.checks.repository import Target
from tritonctl.checks.target import this_host
from tritonctl.errors import RepositoryError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.repository.server_fields import server_version
from tritonctl.repository.target import of_project


def refuse_mistakes(
    staging: Path, project: Project, progress: Progress, sources: Mapping[str, Path]
) -> int:
    """Check what lies in `staging` as the project's repository; say what is doubtful, return how
    many warnings that were.

    sources: by a place in the repository, the file that people edit. Raises RepositoryError for
    what a server would refuse or answer wrongly.
    """
    target = of_project(this_host(Target(server_version(project))), project)
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


def _line(finding: Finding) -> str:
    return f"{finding.place} {finding.rule} {finding.severity}: {finding.message} ({finding.fix})"
