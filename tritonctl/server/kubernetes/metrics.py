# SPDX-License-Identifier: Apache-2.0
"""The metrics of all Triton pods of an installation, as if they were one server's."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics, added, scrape
from tritonctl.server.kubernetes.forwarding import Forward, port_forward
from tritonctl.server.kubernetes.installation import (
    METRICS_PORT,
    TRITON,
    Installation,
    is_ready,
    release_of,
)
from tritonctl.server.kubernetes.lasting import Lost

_LOOK_SECONDS = 15.0


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
        self._lost = Lost(fallen=True)

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
        ready = self._installation.ready_servers()
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
        if self._are_others():
            raise ServerError("the pods are others now", remedy="look again")
        return added(self._each().values())

    def lasting(self) -> Metrics:
        """The same for whom a sum may not fall: what pods had counted that are gone is in it.

        Connects anew where others are there. Raises ClusterError, ServerError.
        """
        try:
            if not self._forwards or self._are_others():
                self.open()
            found = self._each()
        except ServerError:
            self._forwards = {}
            raise
        return added([*found.values(), self._lost.until(found)])

    def _each(self) -> dict[str, Metrics]:
        return {
            name: scrape(f"http://{forward.address}/metrics")
            for name, forward in self._forwards.items()
        }

    def _are_others(self) -> bool:
        """Whether other pods are ready than those that are connected; looked at now and then."""
        if self._clock() - self._looked <= _LOOK_SECONDS:
            return False
        pods = self._installation.pods(TRITON)
        if {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod)} != set(self._forwards):
            return True
        self._looked = self._clock()
        return False
