# SPDX-License-Identifier: Apache-2.0
"""Explain why a server did not start: Triton's words, what `check` finds, and known causes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from tritonctl.checks.checker import check_repository, path_for_display
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.target import target_from_host
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.project.schema import Project
from tritonctl.repository.contents import CONFIG, REQUIREMENTS
from tritonctl.repository.publish import RenderedRepository
from tritonctl.repository.server_fields import server_version
from tritonctl.repository.target import with_project_facts
from tritonctl.runtimes.server_log import explain_failure, load_failures, loading_models, tail

_MAX_FINDINGS = 5
# Of a description such as "signal 11 (SIGSEGV)", or "a stub process of a Python model was killed".
_CRASH = re.compile(r"\bsignal \d|was killed")
_NO_MODULE = re.compile(r"No module named '([^'.]+)")
_NO_ARCHIVE = re.compile(r"Failed to get the canonical path for (?P<archive>.+?)\.?$", re.MULTILINE)
_NO_BACKEND = re.compile(r"unable to find backend library for backend '([^']+)'")
_DEAD_PROCESS = re.compile(r"Stub process '[^']+' is not healthy|stub process exited unexpectedly")


def startup_error(
    project: Project,
    rendered: RenderedRepository,
    log: Path,
    problem: str,
    late_models: Sequence[str] = (),
) -> ServerError:
    """Build the error for a server that did not start, or whose models are late."""
    crashed = loading_models(log) if _CRASH.search(problem) and not late_models else []
    error = explain_failure(log, problem, rendered.plan.owners, late_models or crashed)
    failures = load_failures(log)
    if crashed and not failures:
        error.problem = f"{problem}\nit crashed while loading: {', '.join(crashed)}"
        error.details = "\n".join(tail(log))
    is_code = any("model.py" in reason for reason in failures.values())
    findings = sorted(
        _findings(project, failures or crashed),
        key=lambda finding: finding.path.endswith(CONFIG) == is_code,
    )
    if findings:
        lines = [f"check: {_line(finding)}" for finding in findings[:_MAX_FINDINGS]]
        if len(findings) > _MAX_FINDINGS:
            lines.append(f"check: {len(findings) - _MAX_FINDINGS} more: `tritonctl check`")
        error.problem = "\n".join([error.problem, *lines])
    handwritten = {model.name for model in rendered.plan.handwritten}
    remedies = dict.fromkeys(
        cause
        for name, reason in failures.items()
        if (cause := _remedy(name, reason, project, is_handwritten=name in handwritten))
    )
    if not remedies and findings:
        remedies = {f"{findings[0].place}: {findings[0].fix}": None}
    error.remedy = "; ".join([*remedies, error.remedy])
    return error


def _line(finding: CheckFinding) -> str:
    return f"{finding.place} {finding.rule} {finding.severity}: {finding.message}"


def _findings(project: Project, models: Collection[str]) -> list[CheckFinding]:
    """Return `check`'s errors about these models, or its warnings if there are no errors."""
    if not models:
        return []
    try:
        target = with_project_facts(target_from_host(CheckTarget(server_version(project))), project)
        report = check_repository(project.repository, target)
    except (OSError, TritonctlError):  # Triton's own words must do
        return []
    folders = tuple(f"{path_for_display(project.repository / name)}/" for name in models)
    for severity in ("error", "warning"):
        findings = [
            finding
            for finding in report.findings
            if finding.severity == severity and finding.path.startswith(folders)
        ]
        if findings:
            return findings
    return []


def _remedy(name: str, reason: str, project: Project, *, is_handwritten: bool) -> str | None:
    """Return the remedy for Triton's reason; None for an unfamiliar one."""
    folder = path_for_display(project.repository / name)
    requirements = (
        f"{folder}/{REQUIREMENTS}" if is_handwritten else f"its python_backends/ {REQUIREMENTS}"
    )
    if module := _NO_MODULE.search(reason):
        return (
            f"write the package that provides `{module[1]}` into {requirements}: `tritonctl up` "
            "installs it; or put the module next to model.py"
        )
    if archive := _NO_ARCHIVE.search(reason):
        return (
            f"{archive['archive']} does not exist: remove EXECUTION_ENV_PATH and write the "
            f"packages into {requirements}: `tritonctl up` installs them, nothing needs packing; "
            "or name an archive that exists, from $$TRITON_MODEL_DIRECTORY/ or the root"
        )
    if backend := _NO_BACKEND.search(reason):
        return f"this server has no backend {backend[1]}: serve {name} with an image that has it"
    if _DEAD_PROCESS.search(reason):
        return (
            f"the process of {name} crashed while it loaded, as a native library may make it, or "
            f"too little memory: `tritonctl logs {name}` shows its last lines"
        )
    return None
