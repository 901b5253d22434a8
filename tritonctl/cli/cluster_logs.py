# SPDX-License-Identifier: Apache-2.0
"""Print the output of `tritonctl logs --on kubernetes`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tritonctl.errors import ServerError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation

_PREFIX = re.compile(r"\[pod/\S+\] ")
_SEARCHED_LINES = 5000  # lines per container to search for one model's lines
_MIN_LOG_REQUESTS = 16  # kubectl's default of 5 is too low; later pods count, too


def show(
    console: Console,
    installation: ChartInstallation,
    part: str,
    lines: int,
    *,
    follow: bool,
    make_filter: Callable[[], Callable[[str], bool]] | None,
) -> None:
    """Print the logs of a part's pods, each line with its pod and container.

    lines: number of last lines, per container, or with a filter in total. make_filter: creates the
    filter for the lines of one container.

    Raises ServerError if the part has no pod, ClusterError.
    """
    from tritonctl.runtimes.kubernetes.installation import COMPONENT, component
    from tritonctl.runtimes.kubernetes.kubectl import selector_option

    log_lines: Iterable[str]
    pods = installation.pods(part)
    if not pods:
        raise ServerError(
            f"{installation.name} has no {part} pod",
            remedy="`tritonctl status --on kubernetes` lists the pods",
        )
    # The pods of a second slot have a different label.
    components = ",".join(sorted({component(pod) for pod in pods}))
    kubectl_arguments = [
        "logs",
        selector_option(installation.labels, f"{COMPONENT} in ({components})"),
        "--all-containers",
        "--prefix",
        "--ignore-errors",
        f"--tail={max(lines, _SEARCHED_LINES) if make_filter else lines}",
        f"--max-log-requests={max(_MIN_LOG_REQUESTS, 4 * len(pods))}",
        *(["--follow"] if follow else []),
    ]
    log_lines = installation.kubectl.lines(*kubectl_arguments)
    if make_filter is not None:
        log_lines = _filtered(log_lines, make_filter)
        log_lines = log_lines if follow else deque(log_lines, maxlen=lines)
    for line in log_lines:
        console.result({"line": line}, line)
    if follow:
        console.note("these pods have ended; run the command again to follow the new ones")


def _filtered(
    lines: Iterable[str], make_filter: Callable[[], Callable[[str], bool]]
) -> Iterator[str]:
    """Filter each container's lines separately: a line may continue the previous one."""
    filters: dict[str, Callable[[str], bool]] = {}
    for line in lines:
        container = _PREFIX.match(line)
        head = container[0] if container else ""
        if filters.setdefault(head, make_filter())(line.removeprefix(head)):
            yield line
