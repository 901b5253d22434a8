# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl status --on kubernetes` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.server.kubernetes.installation import Installation
    from tritonctl.server.kubernetes.standing import Pod, Standing

_WIDTH = 9  # of what stands before the values
_HEADINGS = ("  pod", "release", "state", "restarts", "node")


def show(console: Console, installation: Installation) -> None:
    """Print how it is. Raises ServerError or HostError where it does not serve."""
    from tritonctl.server.kubernetes.standing import standing

    now = standing(installation)
    failure = now.failure
    if not console.as_json:
        console.text("".join(f"{line}\n" for line in _lines(now)))
    rows = [
        [f"  {pod.name}", pod.release or "-", pod.state, str(pod.restarts), pod.node or "-"]
        for pod in now.pods
    ]
    console.table(now.as_record(), _HEADINGS, rows, failure)
    if not console.as_json:
        text = console.folded("\n".join(_remarks(now)))
        console.text(f"{text}\n" if text else "")
    if failure:
        raise failure


def _lines(now: Standing) -> Iterator[str]:
    word = "ready" if now.ready else "NOT READY"
    yield f"{now.name} in namespace {now.namespace}: {word}"
    if now.releases:
        yield f"  release    {', '.join(now.releases)}"
    width = max([_WIDTH, *(len(part.name) for part in now.parts)])
    for part in now.parts:
        new = "" if part.updated >= part.wanted else f", {part.updated} of the newest kind"
        yield f"  {part.name:<{width}}  {part.ready} of {part.wanted} ready{new}"
    for hpa in now.autoscalers:
        problem = f"; {hpa.problem}" if hpa.problem else ""
        yield f"  scaling    {hpa.now} of {hpa.least} to {hpa.most}, wants {hpa.wanted}{problem}"
    if now.budgets:
        allowed = ", ".join(
            f"{each.allowed} of {each.name.removeprefix(f'{now.name}-')}" for each in now.budgets
        )
        yield f"  evictions  {allowed} now"


def _remarks(now: Standing) -> Iterator[str]:
    for pod in now.pods:
        if pod.last_end is not None:
            yield _end(pod)
    for trouble in now.troubles:
        yield f"  ✗ {trouble.what}: {trouble.problem}"
        yield f"    {trouble.remedy}"
    for event in now.events:
        times = f" ({event.count}x)" if event.count > 1 else ""
        yield f"  ! {event.at}  {event.about}: {event.reason}{times}: {event.message}"


def _end(pod: Pod) -> str:
    end = pod.last_end
    return f"  ! {pod.name}: {end.container} ended at {end.at}: {end.text}" if end else ""
