# SPDX-License-Identifier: Apache-2.0
"""Metrics of pods, through connections that the user's kubectl keeps: a component's as one.

A component's counters are the sums of its pods'. One that does not answer makes the whole unknown:
a sum without it would look like a restart. A pod belongs to it once it has been ready; what one had
counted that was taken away, by an autoscaler or a node's drain, stays counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics, added, scrape
from tritonctl.server.kubernetes.demand import has_ended
from tritonctl.server.kubernetes.forwarding import Forward, port_forward
from tritonctl.server.kubernetes.installation import is_ready
from tritonctl.server.kubernetes.installed import Installed
from tritonctl.server.kubernetes.kubectl import Object
from tritonctl.server.kubernetes.lasting import Lost
from tritonctl.server.kubernetes.refusals import ClusterError, Reason
from tritonctl.server.kubernetes.slots import in_slot
from tritonctl.server.kubernetes.troubles import restarts
from tritonctl.server.slots import Slot

# The way to the cluster fails, not the service, which goes on.
AWAY = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.UNAUTHORIZED})
_LIST_SECONDS = 2.0  # between two looks at which pods there are


class Reach:
    """Whether the cluster is reached, and a clock that stands still while it is not.

    Nothing can be moved then, and nothing is known: no version is silent for that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost: float | None = None
        self._away = 0.0
        self.problem = ""

    def clock(self) -> float:
        """Seconds, without those when it was not reached."""
        return (self._clock() if self._lost is None else self._lost) - self._away

    def lost(self, problem: str) -> None:
        """It was asked, and has not answered."""
        if self._lost is None:
            self._lost = self._clock()
        self.problem = problem

    def found(self) -> None:
        """It has answered."""
        if self._lost is not None:
            self._away += self._clock() - self._lost
        self._lost, self.problem = None, ""

    @property
    def seconds(self) -> float:
        """Since when it is not reached; 0 if it is."""
        return 0.0 if self._lost is None else self._clock() - self._lost


class Component:
    """Pods with the same label, and a port of each that is kept connected."""

    def __init__(
        self, installed: Installed, part: str, slot: Slot, port: int, reach: Reach
    ) -> None:
        self._installed, self._reach = installed, reach
        self._part, self._slot, self._port = part, slot, port
        self._gone = Lost(fallen=False)  # a server that starts again is to be seen
        self._pods: dict[str, Object] = {}  # by uid, once they have been ready
        self._forwards: dict[str, tuple[Forward, ExitStack]] = {}
        self._listed = float("-inf")

    def metrics(self, path: str, seconds: float) -> dict[str, Metrics]:
        """Of each pod, by its uid. Raises ServerError where not all are known."""
        self._look()
        if not self._pods:
            raise ServerError(
                f"no pod of {in_slot(self._part, self._slot)} is ready",
                remedy=f"`kubectl{self._installed.kubectl.flags} get pods` shows why",
            )
        return {uid: self._scraped(uid, path, seconds) for uid in self._pods}

    def total(self, path: str, seconds: float) -> Metrics:
        """Of all, also of those that are gone. Raises ServerError where not all are known."""
        found = self.metrics(path, seconds)
        return added([*found.values(), self._gone.until(found)])

    def kept(self) -> list[list[Any]]:
        """What those had counted that are gone, as JSON holds it."""
        return self._gone.kept()

    def restore(self, kept: Sequence[Any]) -> None:
        """What an earlier one has kept."""
        self._gone.restore(kept)

    def restarts(self) -> int:
        """Of containers in pods that are there, as of the last look."""
        return sum(restarts(pod) for pod in self._pods.values())

    def close(self) -> None:
        """End the connections."""
        for uid in list(self._forwards):
            self._cut(uid)

    def _look(self) -> None:
        if time.monotonic() - self._listed < _LIST_SECONDS and self._reach.seconds == 0:
            return
        try:
            pods = self._installed.pods_of(self._part, self._slot)
        except ClusterError as error:
            if error.reason in AWAY:
                self._reach.lost(error.problem)
            raise ServerError(error.problem, remedy=error.remedy) from error
        self._reach.found()
        self._listed = time.monotonic()
        there = {pod["metadata"]["uid"]: pod for pod in pods if not _is_leaving(pod)}
        self._pods = {uid: pod for uid, pod in there.items() if uid in self._pods or is_ready(pod)}
        for uid in self._forwards.keys() - self._pods.keys():
            self._cut(uid)

    def _scraped(self, uid: str, path: str, seconds: float) -> Metrics:
        forward = self._forwards.get(uid)
        if forward is None or not forward[0].alive:
            self._cut(uid)
            forward = self._connected(uid)
        try:
            return scrape(f"http://{forward[0].address}{path}", seconds)
        except ServerError:
            self._cut(uid)  # the next look connects anew
            self._listed = float("-inf")
            raise

    def _connected(self, uid: str) -> tuple[Forward, ExitStack]:
        pod = self._pods[uid]["metadata"]["name"]
        with ExitStack() as stack:
            try:
                made = stack.enter_context(
                    port_forward(self._installed.kubectl, f"pod/{pod}", self._port)
                )
            except ClusterError as error:
                self._listed = float("-inf")
                raise ServerError(error.problem, remedy=error.remedy) from error
            self._forwards[uid] = (made, stack.pop_all())
        return self._forwards[uid]

    def _cut(self, uid: str) -> None:
        if (found := self._forwards.pop(uid, None)) is not None:
            found[1].close()


class Pods:
    """`scrape` for URLs whose host is a component: what all its pods say, added up."""

    def __init__(self, components: dict[str, Component]) -> None:
        self._components = components

    def scrape(self, url: str, seconds: float) -> Metrics:
        """Raises ServerError where not all is known."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return self._components[parts.hostname or ""].total(path, seconds)


def _is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or has_ended(pod)
