# SPDX-License-Identifier: Apache-2.0
"""`tritonctl doctor`: what this machine has, and what it can run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import HostError

if TYPE_CHECKING:
    from tritonctl.doctor.findings import Finding, GpuReport

_MARKS = {"ok": "✓", "warning": "!", "missing": "✗"}
_OPTIONAL = {"warning": "!", "missing": "–"}  # nothing is wrong without it


@options.expand_options
def command(
    *,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="write a .tar.gz for a bug report, without secrets"),
    ] = None,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Examine this machine; exit code 4 when something that serving needs is missing."""
    from tritonctl.doctor import examine
    from tritonctl.doctor.profiles import project_here

    console = voice.console()
    profiles, unreadable = project_here(project)
    report = examine(profiles, unreadable)
    lines = [line for finding in report.findings for line in _finding(finding)]
    lines += [line for gpu in report.gpus for line in _gpu(gpu)]
    lines.append(report.summary)
    failure = None
    if missing := report.missing:
        failure = HostError(
            f"missing: {', '.join(finding.name for finding in missing)}",
            remedy=next((each.remedy for each in missing if each.remedy), missing[0].detail),
        )
    console.result(report.as_record(), console.folded("\n".join(lines)), failure)
    if bundle:
        from tritonctl.doctor.bundle import write_bundle

        names = write_bundle(bundle, report, profiles.get(None))
        console.note(f"{bundle}: {len(names)} files; read them before you send it")
    if failure:
        raise failure


def _finding(finding: Finding) -> list[str]:
    marks, word = _MARKS, ""
    if finding.status != "ok" and not finding.required:
        marks, word = _OPTIONAL, " (optional)"
    lines = [f"{marks[finding.status]} {finding.name}{word}: {finding.detail}"]
    if finding.status != "ok" and finding.why:
        lines.append(f"    why: {finding.why}")
    return lines + ([f"    {finding.remedy}"] if finding.remedy else [])


def _gpu(report: GpuReport) -> list[str]:
    gpu, releases = report.gpu, report.releases
    lines = [f"{gpu.name}: {gpu.memory_mib / 1024:.0f} GiB"]
    if not releases:
        return [*lines, "    no release of TensorRT-LLM runs on it with this driver"]
    lines.append(f"    releases: {releases[-1]} to {releases[0]}")
    lines += [f"    engines: {', '.join(report.precisions['engine'])}"]
    lines += [f"    PyTorch runtime: {', '.join(report.precisions['pytorch'])}"]
    return lines + [f"    {warning}" for warning in report.warnings]
