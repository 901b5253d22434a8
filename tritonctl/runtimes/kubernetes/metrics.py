# SPDX-License-Identifier: Apache-2.0
"""The metrics of all Triton pods of an installation, summed as if of one server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics, merge_scrapes, scrape
from tritonctl.runtimes.kubernetes.counter_carryover import CounterCarryover
from tritonctl.runtimes.kubernetes.forwarding import PortForward, port_forward
from tritonctl.runtimes.kubernetes.installation import (
    METRICS_PORT,
    TRITON,
    ChartInstallation,
    is_ready,
    release_of,
)

_SCAN_SECONDS = 15.0


class InstallationMetrics:
    """Forwarded metrics ports of all ready Triton pods; leaving the context closes them."""

    def __init__(
        self, installation: ChartInstallation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._installation, self._clock = installation, clock
        self._stack = ExitStack()
        self._forwards: dict[str, PortForward] = {}
        self._releases: list[str] = []
        self._scan_time = float("-inf")
        self._carryover = CounterCarryover(count_resets=True)

    def __enter__(self) -> Self:
        """Return the object; `open` connects."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._stack.close()

    @property
    def releases(self) -> str:
        """The pods' releases, separated by commas."""
        return ", ".join(self._releases)

    def open(self) -> str:
        """Connect to the pods that are ready now; return a label such as "demo, 2 pods".

        Raises ClusterError, ServerError if none is ready.
        """
        self._stack.close()
        ready = self._installation.ready_servers()
        self._forwards = {}
        for pod in ready:
            name = str(pod["metadata"]["name"])
            forward = port_forward(self._installation.kubectl, f"pod/{name}", METRICS_PORT)
            self._forwards[name] = self._stack.enter_context(forward)
        self._releases = sorted({release_of(pod) for pod in ready})
        self._scan_time = self._clock()
        count = "1 pod" if len(ready) == 1 else f"{len(ready)} pods"
        return f"{self._installation.name}, {count}"

    def read(self, _: str) -> Metrics:
        """Return the pods' metrics, summed by name and labels.

        Raises ServerError if a pod does not answer or the set of pods has changed: open again.
        """
        if self._pods_changed():
            raise ServerError("the set of pods has changed", remedy="try again")
        return merge_scrapes(self._scrape_each().values())

    def read_monotonic(self) -> Metrics:
        """Return the metrics as sums that never fall: they include the counts of removed pods.

        Reconnects if the set of pods has changed. Raises ClusterError, ServerError.
        """
        try:
            if not self._forwards or self._pods_changed():
                self.open()
            pod_metrics = self._scrape_each()
        except ServerError:
            self._forwards = {}
            raise
        return merge_scrapes([*pod_metrics.values(), self._carryover.update(pod_metrics)])

    def _scrape_each(self) -> dict[str, Metrics]:
        return {
            name: scrape(f"http://{forward.address}/metrics")
            for name, forward in self._forwards.items()
        }

    def _pods_changed(self) -> bool:
        """Whether the ready pods differ from the connected ones, checked every few seconds."""
        if self._clock() - self._scan_time <= _SCAN_SECONDS:
            return False
        pods = self._installation.pods(TRITON)
        if {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod)} != set(self._forwards):
            return True
        self._scan_time = self._clock()
        return False
