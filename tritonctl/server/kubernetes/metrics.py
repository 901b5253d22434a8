# SPDX-License-Identifier: Apache-2.0
"""The metrics of all Triton pods of an installation, as if they were one server's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Self

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics, Sample, scrape
from tritonctl.server.kubernetes.forwarding import Forward, port_forward
from tritonctl.server.kubernetes.installation import (
    METRICS_PORT,
    TRITON,
    Installation,
    is_ready,
    release_of,
)

_LOOK_SECONDS = 15.0  # between looks for pods that are new
_OF_HOSTS = ("nv_cpu_", "nv_gpu_")  # several pods may see the same


class PodMetrics:
    """Forwarded ports of all ready Triton pods; a context, which ends them."""

    def __init__(
        self, installation: Installation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._installation, self._clock = installation, clock
        self._stack = ExitStack()
        self._forwards: dict[str, Forward] = {}
        self._releases: list[str] = []
        self._looked = float("-inf")

    def __enter__(self) -> Self:
        """Nothing is opened yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connections."""
        self._stack.close()

    @property
    def releases(self) -> str:
        """What the pods serve, as one word."""
        return ", ".join(self._releases)

    def open(self) -> str:
        """Connect to the pods that are ready now; what they are called together.

        Raises ClusterError, ServerError where none is ready.
        """
        self._stack.close()
        ready = [pod for pod in self._installation.pods(TRITON) if is_ready(pod)]
        if not ready:
            raise ServerError(
                f"no Triton pod of {self._installation.name} is ready",
                remedy="`tritonctl status --on kubernetes` shows why",
            )
        self._forwards = {}
        for pod in ready:
            name = str(pod["metadata"]["name"])
            forward = port_forward(self._installation.kubectl, f"pod/{name}", METRICS_PORT)
            self._forwards[name] = self._stack.enter_context(forward)
        self._releases = sorted({release_of(pod) for pod in ready})
        self._looked = self._clock()
        count = "1 pod" if len(ready) == 1 else f"{len(ready)} pods"
        return f"{self._installation.name}, {count}"

    def read(self, _: str) -> Metrics:
        """Their metrics, added up by name and labels.

        Raises ServerError where a pod does not answer, or others are there: open again.
        """
        if self._clock() - self._looked > _LOOK_SECONDS:
            pods = self._installation.pods(TRITON)
            now = {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod)}
            if now != set(self._forwards):
                raise ServerError("the pods are others now", remedy="look again")
            self._looked = self._clock()
        return added(scrape(f"http://{each.address}/metrics") for each in self._forwards.values())


def added(scrapes: Iterable[Metrics]) -> Metrics:
    """One scrape with the sums of the same series of several; of hosts and GPUs, the fullest."""
    sums: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for metrics in scrapes:
        for sample in metrics:
            key = (sample.name, frozenset(sample.labels.items()))
            if sample.name.startswith(_OF_HOSTS):
                sums[key] = max(sums.get(key, 0.0), sample.value)
            else:
                sums[key] = sums.get(key, 0.0) + sample.value
    return Metrics(Sample(name, dict(labels), value) for (name, labels), value in sums.items())
