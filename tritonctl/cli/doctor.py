# SPDX-License-Identifier: Apache-2.0
"""`tritonctl doctor`: examine what this machine can run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.cli.vocabulary import CLUSTER
from tritonctl.errors import HostError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.doctor.cluster import Chart
    from tritonctl.doctor.findings import DoctorFinding, DoctorReport, GpuReport
    from tritonctl.runtimes.kubernetes.kubectl import Kubectl

_MARKS = {"ok": "✓", "warning": "!", "missing": "✗"}
_OPTIONAL = {"warning": "!", "missing": "–"}  # serving works without it


@options.expand_options
def command(
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="write a .tar.gz for a bug report, without secrets"
        ),
    ] = None,
    cluster: ClusterOptions,
    values: Annotated[
        Path | None,
        typer.Option(
            "--values",
            metavar="FILE",
            help="values that override the chart's",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Examine this machine; exit code 4 if it lacks something for serving.

    With --on kubernetes: check whether the cluster can install the chart in deploy/chart. Changes
    nothing.
    """
    from tritonctl.doctor import examine
    from tritonctl.doctor.profiles import surrounding_project

    console, kubectl = output_options.console(), cluster.kubectl()
    if kubectl is not None:
        if bundle is not None:
            raise UsageError("--bundle is for this machine", remedy="drop --on kubernetes")
        _examine_cluster(console, kubectl, cluster.release_name, values, project)
        return
    if values is not None:
        raise UsageError("--values is for a cluster", remedy="add --on kubernetes")
    profiles, unreadable = surrounding_project(project)
    report = examine(profiles, unreadable)
    failure = _show(console, report)
    if bundle:
        from tritonctl.doctor.bundle import write_bundle

        names = write_bundle(bundle, report, profiles.get(None))
        console.note(f"{bundle}: {len(names)} files; read them before you send it")
    if failure:
        raise failure


def _examine_cluster(
    console: Console,
    kubectl: Kubectl,
    name: str | None,
    values: Path | None,
    project: Path | None,
) -> None:
    from tritonctl.doctor.cluster import examine_cluster

    if failure := _show(console, examine_cluster(kubectl, _chart(name, values, project))):
        raise failure


def _chart(name: str | None, values: Path | None, project_path: Path | None) -> Chart | None:
    """Return the project's chart with the overrides of a values file; None without a chart."""
    from tritonctl.doctor.cluster import Chart
    from tritonctl.doctor.profiles import surrounding_project
    from tritonctl.runtimes.kubernetes.chart import VALUES, installation_name
    from tritonctl.runtimes.kubernetes.manifests import read_values
    from tritonctl.runtimes.kubernetes.resource_requests import merge_values

    project = surrounding_project(project_path)[0].get(None)
    file = project.root / "deploy" / "chart" / VALUES if project else None
    if project is None or file is None or not file.exists():
        if values is not None:
            raise UsageError(
                "--values overrides a chart's values, but deploy/chart has no chart",
                remedy="write it: `tritonctl deploy kubernetes`",
            )
        return None
    chart_values = read_values(file)
    if values is not None:
        chart_values = merge_values(chart_values, read_values(values))
    return Chart(name or installation_name(project), chart_values)


def _show(console: Console, report: DoctorReport) -> HostError | None:
    """Print a report; return the failure if a requirement is missing."""
    lines = [line for finding in report.findings for line in _finding(finding)]
    lines += [line for gpu in report.gpus for line in _gpu(gpu)]
    lines.append(report.summary)
    failure = None
    if missing := report.missing:
        failure = HostError(
            f"missing: {', '.join(finding.name for finding in missing)}",
            remedy=next((each.remedy for each in missing if each.remedy), missing[0].detail),
        )
    console.result(report.as_record(), console.fold("\n".join(lines)), failure)
    return failure


def _finding(finding: DoctorFinding) -> list[str]:
    marks, word = _MARKS, ""
    if finding.status != "ok" and not finding.required:
        marks, word = _OPTIONAL, " (optional)"
    lines = [f"{marks[finding.status]} {finding.name}{word}: {finding.detail}"]
    if finding.status != "ok" and finding.reason:
        lines.append(f"    why: {finding.reason}")
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
