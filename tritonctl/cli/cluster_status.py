# SPDX-License-Identifier: Apache-2.0
"""Print the output of `tritonctl status --on kubernetes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation
    from tritonctl.runtimes.kubernetes.status import InstallationStatus, PodStatus

_WIDTH = 9  # of the labels before the values
_HEADINGS = ("  pod", "release", "state", "restarts", "node")


def show(console: Console, installation: ChartInstallation) -> None:
    """Print the installation's status. Raises ServerError or HostError if it does not serve."""
    from tritonctl.runtimes.kubernetes.status import installation_status

    status = installation_status(installation)
    failure = status.failure
    if not console.as_json:
        console.text("".join(f"{line}\n" for line in _lines(status)))
    rows = [
        [f"  {pod.name}", pod.release or "-", pod.state, str(pod.restarts), pod.node or "-"]
        for pod in status.pods
    ]
    console.table(status.as_record(), _HEADINGS, rows, failure)
    if not console.as_json:
        text = console.fold("\n".join(_remarks(status)))
        console.text(f"{text}\n" if text else "")
    if failure:
        raise failure


def _lines(now: InstallationStatus) -> Iterator[str]:
    word = "ready" if now.ready else "NOT READY"
    yield f"{now.name} in namespace {now.namespace}: {word}"
    if now.releases:
        yield f"  release    {', '.join(now.releases)}"
    width = max([_WIDTH, *(len(part.name) for part in now.parts)])
    for part in now.parts:
        new = "" if part.updated >= part.desired else f", {part.updated} of the newest kind"
        yield f"  {part.name:<{width}}  {part.ready} of {part.desired} ready{new}"
    for hpa in now.autoscalers:
        problem = f"; {hpa.problem}" if hpa.problem else ""
        scale = f"{hpa.current_replicas} of {hpa.min_replicas} to {hpa.max_replicas}"
        yield f"  scaling    {scale}, wants {hpa.desired_replicas}{problem}"
    if now.budgets:
        allowed = ", ".join(
            f"{each.allowed} of {each.name.removeprefix(f'{now.name}-')}" for each in now.budgets
        )
        yield f"  evictions  {allowed} now"


def _remarks(now: InstallationStatus) -> Iterator[str]:
    for pod in now.pods:
        if pod.last_end is not None:
            yield _end(pod)
    for diagnostic in now.problems:
        yield f"  ✗ {diagnostic.object}: {diagnostic.problem}"
        yield f"    {diagnostic.remedy}"
    for event in now.events:
        times = f" ({event.count}x)" if event.count > 1 else ""
        yield f"  ! {event.time}  {event.object}: {event.reason}{times}: {event.message}"


def _end(pod: PodStatus) -> str:
    end = pod.last_end
    return f"  ! {pod.name}: {end.container} ended at {end.time}: {end.text}" if end else ""
