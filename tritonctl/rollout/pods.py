# SPDX-License-Identifier: Apache-2.0
"""Metrics of pod groups, over connections that the user's kubectl keeps open.

A group's counters are the sums over its pods. If one pod does not answer, the sum is unknown: a sum
without it would look like a restart. A pod belongs to the group once it has been ready. Counts of
pods that an autoscaler or a node drain removed stay in the sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import Metrics, merge_scrapes, scrape
from tritonctl.releases.slots import Slot
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason
from tritonctl.runtimes.kubernetes.counter_carryover import CounterCarryover
from tritonctl.runtimes.kubernetes.diagnostics import restart_count
from tritonctl.runtimes.kubernetes.forwarding import PortForward, port_forward
from tritonctl.runtimes.kubernetes.installation import is_ready
from tritonctl.runtimes.kubernetes.kubectl import Object
from tritonctl.runtimes.kubernetes.live_installation import SlotInstallation
from tritonctl.runtimes.kubernetes.resource_requests import is_finished
from tritonctl.runtimes.kubernetes.slots import name_in_slot

# The connection to the cluster fails; the service itself continues.
UNREACHABLE_REASONS = frozenset(
    {ClusterErrorReason.UNREACHABLE, ClusterErrorReason.TIMEOUT, ClusterErrorReason.UNAUTHORIZED}
)
_LIST_SECONDS = 2.0  # between two listings of the pods


class ClusterConnectivity:
    """Whether the cluster is reachable, and a clock that pauses while it is not.

    The pause keeps a version from counting as silent while only the connection fails.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unreachable_since: float | None = None
        self._paused_seconds = 0.0
        self.problem = ""

    def clock(self) -> float:
        """Return the seconds without unreachable times."""
        return (
            self._clock() if self._unreachable_since is None else self._unreachable_since
        ) - self._paused_seconds

    def mark_unreachable(self, problem: str) -> None:
        """Record that the cluster did not answer."""
        if self._unreachable_since is None:
            self._unreachable_since = self._clock()
        self.problem = problem

    def mark_reached(self) -> None:
        """Record that the cluster answered."""
        if self._unreachable_since is not None:
            self._paused_seconds += self._clock() - self._unreachable_since
        self._unreachable_since, self.problem = None, ""

    @property
    def unreachable_seconds(self) -> float:
        """How long the cluster has been unreachable; 0 if it is reachable."""
        return 0.0 if self._unreachable_since is None else self._clock() - self._unreachable_since


class PodGroup:
    """Pods with the same label, with an open connection to a port of each."""

    def __init__(
        self,
        installed: SlotInstallation,
        part: str,
        slot: Slot,
        port: int,
        reach: ClusterConnectivity,
    ) -> None:
        self._installed, self._reach = installed, reach
        self._part, self._slot, self._port = part, slot, port
        self._removed_counters = CounterCarryover(
            count_resets=False
        )  # a restarted server must be visible
        self._pods: dict[str, Object] = {}  # by uid, once they have been ready
        self._forwards: dict[str, tuple[PortForward, ExitStack]] = {}
        self._listed = float("-inf")

    def metrics(self, path: str, seconds: float) -> dict[str, Metrics]:
        """Scrape each pod, by uid. Raises ServerError if any does not answer."""
        self._refresh_pods()
        if not self._pods:
            raise ServerError(
                f"no pod of {name_in_slot(self._part, self._slot)} is ready",
                remedy=f"`kubectl{self._installed.kubectl.flags} get pods` shows why",
            )
        return {uid: self._scrape_pod(uid, path, seconds) for uid in self._pods}

    def total(self, path: str, seconds: float) -> Metrics:
        """Sum the metrics of all pods, removed ones included. Raises ServerError as `metrics`."""
        metrics_by_pod = self.metrics(path, seconds)
        return merge_scrapes(
            [*metrics_by_pod.values(), self._removed_counters.update(metrics_by_pod)]
        )

    def saved_state(self) -> list[list[Any]]:
        """Return the counts of removed pods, as JSON values."""
        return self._removed_counters.to_record()

    def restore(self, saved: Sequence[Any]) -> None:
        """Restore the `saved_state` of an earlier group."""
        self._removed_counters.restore(saved)

    def restarts(self) -> int:
        """Count container restarts in current pods, as of the last listing."""
        return sum(restart_count(pod) for pod in self._pods.values())

    def close(self) -> None:
        """Close the connections."""
        for uid in list(self._forwards):
            self._disconnect(uid)

    def _refresh_pods(self) -> None:
        if time.monotonic() - self._listed < _LIST_SECONDS and self._reach.unreachable_seconds == 0:
            return
        try:
            pods = self._installed.pods_of(self._part, self._slot)
        except ClusterError as error:
            if error.reason in UNREACHABLE_REASONS:
                self._reach.mark_unreachable(error.problem)
            raise ServerError(error.problem, remedy=error.remedy) from error
        self._reach.mark_reached()
        self._listed = time.monotonic()
        live_pods = {pod["metadata"]["uid"]: pod for pod in pods if not _is_leaving(pod)}
        self._pods = {
            uid: pod for uid, pod in live_pods.items() if uid in self._pods or is_ready(pod)
        }
        for uid in self._forwards.keys() - self._pods.keys():
            self._disconnect(uid)

    def _scrape_pod(self, uid: str, path: str, seconds: float) -> Metrics:
        forward = self._forwards.get(uid)
        if forward is None or not forward[0].alive:
            self._disconnect(uid)
            forward = self._connect(uid)
        try:
            return scrape(f"http://{forward[0].address}{path}", seconds)
        except ServerError:
            self._disconnect(uid)  # the next scrape reconnects
            self._listed = float("-inf")
            raise

    def _connect(self, uid: str) -> tuple[PortForward, ExitStack]:
        pod = self._pods[uid]["metadata"]["name"]
        with ExitStack() as stack:
            try:
                forward = stack.enter_context(
                    port_forward(self._installed.kubectl, f"pod/{pod}", self._port)
                )
            except ClusterError as error:
                self._listed = float("-inf")
                raise ServerError(error.problem, remedy=error.remedy) from error
            self._forwards[uid] = (forward, stack.pop_all())
        return self._forwards[uid]

    def _disconnect(self, uid: str) -> None:
        if (forward_and_stack := self._forwards.pop(uid, None)) is not None:
            forward_and_stack[1].close()


class PodMetrics:
    """`scrape` for URLs whose host names a pod group: the sum over its pods."""

    def __init__(self, components: dict[str, PodGroup]) -> None:
        self._components = components

    def scrape(self, url: str, seconds: float) -> Metrics:
        """Scrape the group. Raises ServerError if any pod does not answer."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return self._components[parts.hostname or ""].total(path, seconds)


def _is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or is_finished(pod)
