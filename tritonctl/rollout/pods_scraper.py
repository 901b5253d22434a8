# SPDX-License-Identifier: Apache-2.0
"""The scraper of a rollout in a cluster: all pods of both versions and of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tritonctl.rollout.environment import Observation
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.pods import ClusterConnectivity, PodGroup
from tritonctl.rollout.scraping import MetricsScraper
from tritonctl.runtimes.kubernetes.installation import GATEWAY

ADVICE_SECONDS = 60.0  # without the cluster, before the user is advised


class PodsScraper:
    """`controller.Scraper` that reports an unreachable cluster and restarts of pods."""

    def __init__(
        self,
        metrics: MetricsScraper,
        components: Mapping[str, PodGroup],
        candidate: str,
        reach: ClusterConnectivity,
    ) -> None:
        self._metrics, self._components, self._reach = metrics, components, reach
        self._candidate = components[candidate]
        self._restarts: int | None = None

    def observe(self, at: float) -> Observation:
        """Scrape all pods now."""
        observation = self._metrics.observe(at)
        if self._reach.unreachable_seconds:
            return replace(observation, problem=unreachable_message(self._reach))
        restarts = self._candidate.restarts()
        if self._restarts is not None and restarts > self._restarts:
            # The sum may hide a restart: other pods may have counted more than this one lost.
            observation = replace(
                observation, scrape=replace(observation.scrape, candidate=Counters(0, 0))
            )
        self._restarts = restarts
        return observation

    def saved_state(self) -> Mapping[str, Any]:
        """Return the scraper's state with the counters of removed pods."""
        removed_pods = {
            name: each.saved_state() for name, each in self._components.items() if name != GATEWAY
        }
        return {**self._metrics.saved_state(), "gone": removed_pods}


def unreachable_message(reach: ClusterConnectivity) -> str:
    """Describe that the cluster is unreachable; after a minute, advise the user."""
    message = f"{reach.problem}: users stay where they are"
    if reach.unreachable_seconds < ADVICE_SECONDS:
        return message
    return (
        f"{message}, for {reach.unreachable_seconds:.0f} s now. If the candidate is bad, take "
        "users back from a machine that reaches it: `tritonctl rollout abort`"
    )
