# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of Kubernetes' HorizontalPodAutoscaler, second by second, over a recorded load.

pkg/controller/podautoscaler/{horizontal,replica_calculator}.go (v1.31): what a metric asks for,
what stabilisation windows and policies leave of it. Pods that start take requests after a while,
and pods that end go on until they have drained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SYNC_SECONDS = 15
TOLERANCE = 0.1
SCRAPE_SECONDS = 5  # of the chart's PodMonitors
# The metric of this moment, added up over all pods; None where Prometheus has no answer.
Load = Callable[[float], float | None]


@dataclass(frozen=True)
class Rules:
    """Of an HPA: `target` a pod, and how fast it may follow. `fallback`: of KEDA, else None."""

    target: float
    smallest: int
    largest: int
    up_window: int
    down_window: int
    up: Sequence[Mapping[str, Any]]
    down: Sequence[Mapping[str, Any]]
    spare: int = 0
    fallback: int | None = None

    @classmethod
    def of_hpa(cls, manifest: Mapping[str, Any]) -> Rules:
        """Of the manifest, by its metric of streams."""
        spec = manifest["spec"]
        [target] = [
            each["pods"]["target"]["averageValue"]
            for each in spec["metrics"]
            if each["pods"]["metric"]["name"] == "tritonctl_streams"
        ]
        sizes = (spec["minReplicas"], spec["maxReplicas"])
        return cls(float(target), *sizes, **_behaviour(spec["behavior"]))

    @classmethod
    def of_keda(cls, manifest: Mapping[str, Any]) -> Rules:
        """Of the ScaledObject, whose query may add a constant for spares."""
        spec = manifest["spec"]
        [asked] = [each["metadata"] for each in spec["triggers"] if each["name"] == "streams"]
        target = float(asked["threshold"])
        added = asked["query"].rpartition(") + ")[2]
        return cls(
            target,
            spec["minReplicaCount"],
            spec["maxReplicaCount"],
            spare=int(int(added) / target) if added.isdecimal() else 0,
            fallback=spec["fallback"]["replicas"],
            **_behaviour(spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]),
        )


def _behaviour(behaviour: Mapping[str, Any]) -> dict[str, Any]:
    up, down = behaviour["scaleUp"], behaviour["scaleDown"]
    return {
        "up_window": up["stabilizationWindowSeconds"],
        "down_window": down["stabilizationWindowSeconds"],
        "up": up["policies"],
        "down": down["policies"],
    }


@dataclass
class Second:
    """What there was: `wanted` by the Deployment, `ready` of them, `ending` beside them."""

    at: int
    load: float | None
    wanted: int
    ready: int
    ending: int


@dataclass
class Replay:
    """A Deployment under an HPA. start, drain: seconds until a pod is ready, or gone."""

    rules: Rules
    start: int
    drain: int
    wanted: int = 1
    _ready_at: list[float] = field(default_factory=list)
    _gone_at: list[float] = field(default_factory=list)
    _asked: list[tuple[int, int]] = field(default_factory=list)
    _changes: list[tuple[int, int]] = field(default_factory=list)

    def run(self, load: Load, seconds: int) -> list[Second]:
        """Every second of it; the pods of the beginning are ready."""
        self._ready_at = [0.0] * self.wanted
        seen: list[Second] = []
        for now in range(seconds):
            if now % SYNC_SECONDS == 0:
                scraped = now - now % SCRAPE_SECONDS - SCRAPE_SECONDS
                self._decide(now, load(max(0, scraped)))
            ready = sum(at <= now for at in self._ready_at)
            ending = sum(at > now for at in self._gone_at)
            seen.append(Second(now, load(now), self.wanted, ready, ending))
        return seen

    def _decide(self, now: int, metric: float | None) -> None:
        desired = self._recommended(metric)
        self._asked.append((now, desired))
        limited = self._limited(now, self._stabilised(now))
        self._move(now, min(max(limited, self.rules.smallest), self.rules.largest))

    def _recommended(self, metric: float | None) -> int:
        """What the metric asks for; without it as many as there are, or as the fallback says."""
        if metric is None:
            return self.wanted if self.rules.fallback is None else self.rules.fallback
        asked = (metric + self.rules.spare * self.rules.target) / self.rules.target
        if self.wanted and abs(asked / self.wanted - 1) <= TOLERANCE:
            return self.wanted
        return math.ceil(asked)

    def _stabilised(self, now: int) -> int:
        """At least the least, at most the most of what was asked for within the windows."""
        latest = self._asked[-1][1]
        up = [n for at, n in self._asked if at > now - self.rules.up_window]
        down = [n for at, n in self._asked if at > now - self.rules.down_window]
        return min(max(self.wanted, min([*up, latest])), max([*down, latest]))

    def _limited(self, now: int, desired: int) -> int:
        if desired > self.wanted:
            limits = [_policy(each, self._before(now, each), 1) for each in self.rules.up]
            return min(desired, max(self.wanted, *limits))
        limits = [_policy(each, self._before(now, each), -1) for each in self.rules.down]
        return max(desired, min(self.wanted, *limits))

    def _before(self, now: int, policy: Mapping[str, Any]) -> int:
        """How many there were as the policy's period began."""
        recent = [n for at, n in self._changes if at > now - policy["periodSeconds"]]
        return self.wanted - sum(recent)

    def _move(self, now: int, desired: int) -> None:
        change = desired - self.wanted
        if change > 0:
            self._ready_at += [now + self.start] * change
        for _ in range(-change):  # Kubernetes ends those first that are not ready yet
            at = self._ready_at.pop()
            self._gone_at.append(now + (self.drain if at <= now else 0))
        if change:
            self._changes.append((now, change))
            self.wanted = desired


def _policy(policy: Mapping[str, Any], before: int, sign: int) -> int:
    if policy["type"] == "Pods":
        return before + sign * int(policy["value"])
    share = float(policy["value"]) / 100
    return math.ceil(before * (1 + share)) if sign > 0 else math.floor(before * (1 - share))
