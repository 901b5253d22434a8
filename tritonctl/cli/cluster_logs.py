# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl logs --on kubernetes` prints."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tritonctl.errors import ServerError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.server.kubernetes.installation import Installation

_PREFIX = re.compile(r"\[pod/\S+\] ")
_SEARCHED = 5000  # lines of a container among which those of one model are sought
_LEAST_REQUESTS = 16  # kubectl's own limit of 5 is too few; pods that come later count, too


def show(
    console: Console,
    installation: Installation,
    part: str,
    lines: int,
    *,
    follow: bool,
    chooser: Callable[[], Callable[[str], bool]] | None,
) -> None:
    """Print the logs of a part's pods, each line with its pod and container.

    lines: from the end, of each container; with a chooser, of what it chooses from all of them.
    chooser: makes one for the lines of one container.

    Raises ServerError where it has no pod, ClusterError.
    """
    from tritonctl.server.kubernetes.installation import COMPONENT, component
    from tritonctl.server.kubernetes.kubectl import selecting

    found: Iterable[str]
    pods = installation.pods(part)
    if not pods:
        raise ServerError(
            f"{installation.name} has no {part} pod",
            remedy="`tritonctl status --on kubernetes` shows what is there",
        )
    # A second slot's pods have a label of their own.
    among = ",".join(sorted({component(pod) for pod in pods}))
    asked = [
        "logs",
        selecting(installation.labels, f"{COMPONENT} in ({among})"),
        "--all-containers",
        "--prefix",
        "--ignore-errors",
        f"--tail={max(lines, _SEARCHED) if chooser else lines}",
        f"--max-log-requests={max(_LEAST_REQUESTS, 4 * len(pods))}",
        *(["--follow"] if follow else []),
    ]
    found = installation.kubectl.lines(*asked)
    if chooser is not None:
        found = _chosen(found, chooser)
        found = found if follow else deque(found, maxlen=lines)
    for line in found:
        console.result({"line": line}, line)
    if follow:
        console.note("these pods have ended; the same command follows those that came after them")


def _chosen(lines: Iterable[str], chooser: Callable[[], Callable[[str], bool]]) -> Iterator[str]:
    """A line may belong to the one before it: of the same container."""
    choosers: dict[str, Callable[[str], bool]] = {}
    for line in lines:
        container = _PREFIX.match(line)
        head = container[0] if container else ""
        if choosers.setdefault(head, chooser())(line.removeprefix(head)):
            yield line
