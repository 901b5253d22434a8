# SPDX-License-Identifier: Apache-2.0
"""`tritonctl doctor`: what this machine has, and what it can run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.errors import HostError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.doctor.cluster import Chart
    from tritonctl.doctor.findings import Finding, GpuReport, Report
    from tritonctl.server.kubernetes.kubectl import Kubectl

_MARKS = {"ok": "✓", "warning": "!", "missing": "✗"}
_OPTIONAL = {"warning": "!", "missing": "–"}  # nothing is wrong without it


@options.expand_options
def command(
    *,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="write a .tar.gz for a bug report, without secrets"),
    ] = None,
    cluster: ClusterOptions,
    values: Annotated[
        Path | None,
        typer.Option(
            "--values", help="of a cluster: a file of values over the chart's", show_default=False
        ),
    ] = None,
    project: options.ProjectOption = None,
    voice: options.OutputOptions,
) -> None:
    """Examine this machine; exit code 4 when something that serving needs is missing.

    Of a cluster: whether the chart in deploy/chart can be installed in it. Nothing is changed.
    """
    from tritonctl.doctor import examine
    from tritonctl.doctor.profiles import project_here

    console, kubectl = voice.console(), cluster.kubectl()
    if kubectl is not None:
        if bundle is not None:
            raise UsageError("--bundle is of this machine", remedy="leave out --on kubernetes")
        _of_cluster(console, kubectl, cluster.release_name, values, project)
        return
    if values is not None:
        raise UsageError("--values is for a cluster", remedy="add --on kubernetes")
    profiles, unreadable = project_here(project)
    report = examine(profiles, unreadable)
    failure = _show(console, report)
    if bundle:
        from tritonctl.doctor.bundle import write_bundle

        names = write_bundle(bundle, report, profiles.get(None))
        console.note(f"{bundle}: {len(names)} files; read them before you send it")
    if failure:
        raise failure


def _of_cluster(
    console: Console,
    kubectl: Kubectl,
    name: str | None,
    values: Path | None,
    project: Path | None,
) -> None:
    from tritonctl.doctor.cluster import examine_cluster

    if failure := _show(console, examine_cluster(kubectl, _chart(name, values, project))):
        raise failure


def _chart(name: str | None, values: Path | None, place: Path | None) -> Chart | None:
    """The chart of the project here, with a file of values over it; None without one."""
    from tritonctl.doctor.cluster import Chart
    from tritonctl.doctor.profiles import project_here
    from tritonctl.server.kubernetes.chart import VALUES, installation_name
    from tritonctl.server.kubernetes.demand import merged
    from tritonctl.server.kubernetes.manifests import read_values

    project = project_here(place)[0].get(None)
    file = project.root / "deploy" / "chart" / VALUES if project else None
    if project is None or file is None or not file.exists():
        if values is not None:
            raise UsageError(
                "--values goes over a chart, and there is none in deploy/chart",
                remedy="write it: `tritonctl deploy kubernetes`",
            )
        return None
    whole = read_values(file)
    if values is not None:
        whole = merged(whole, read_values(values))
    return Chart(name or installation_name(project), whole)


def _show(console: Console, report: Report) -> HostError | None:
    """Print a report; the failure for what is missing."""
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
    return failure


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
