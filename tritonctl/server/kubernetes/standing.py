# SPDX-License-Identifier: Apache-2.0
"""How an installation is: its parts and pods, its scaling, what keeps it from serving."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tritonctl.errors import HostError, ServerError, TritonctlError
from tritonctl.server.kubernetes.installation import (
    TRITON,
    Installation,
    component,
    is_ready,
    release_of,
)
from tritonctl.server.kubernetes.kubectl import Kubectl, Object
from tritonctl.server.kubernetes.refusals import ClusterError, Reason
from tritonctl.server.kubernetes.troubles import End, Trouble, last_end, restarts, troubles

_AUTOSCALERS = ("v2", "v2beta2")  # of autoscaling, the newest first
_MOST_EVENTS = 5
# Of these the pods themselves say more, or the cluster tries again by itself.
_DULL = (
    "BackOff",
    "CalculateExpectedPodCountFailed",
    "Failed",
    "FailedCreate",
    "FailedScheduling",
    "FailedToUpdateEndpoint",
    "FailedToUpdateEndpointSlices",
    "NoControllers",
    "NoPods",
    "Unhealthy",
)


@dataclass(frozen=True)
class Pod:
    """A pod. `state`: ready, or what it waits for."""

    name: str
    part: str
    release: str
    ready: bool
    state: str
    restarts: int
    last_end: End | None
    node: str


@dataclass(frozen=True)
class Part:
    """A Deployment of the chart: how many pods it wants, has of the newest kind, has ready."""

    name: str
    wanted: int
    updated: int
    ready: int


@dataclass(frozen=True)
class Autoscaler:
    """An HPA; `problem`: why it does not scale, "" where it does."""

    name: str
    least: int
    most: int
    now: int
    wanted: int
    problem: str


@dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget: how many pods may be evicted now."""

    name: str
    allowed: int


@dataclass(frozen=True)
class Event:
    """Something that the cluster reports; at: as the cluster writes it."""

    about: str
    reason: str
    message: str
    count: int
    at: str


@dataclass(frozen=True)
class Standing:
    """All of it, at one moment."""

    name: str
    namespace: str
    parts: Sequence[Part]
    pods: Sequence[Pod]
    autoscalers: Sequence[Autoscaler]
    budgets: Sequence[Budget]
    events: Sequence[Event]
    troubles: Sequence[Trouble]

    @property
    def ready(self) -> bool:
        """Whether every part has every pod that it wants, of the newest kind, and a server does."""
        whole = all(min(part.ready, part.updated) >= part.wanted for part in self.parts)
        return whole and any(pod.ready and pod.part.startswith(TRITON) for pod in self.pods)

    @property
    def releases(self) -> list[str]:
        """What ready servers serve; several during a rollout."""
        return sorted({pod.release for pod in self.pods if pod.ready and pod.release})

    @property
    def failure(self) -> TritonctlError | None:
        """Exit code 4 where the cluster lacks something, 7 where a server fails or is not yet."""
        if self.ready:
            return None
        if self.troubles:
            first = self.troubles[0]
            kind = HostError if first.of_cluster else ServerError
            return kind(f"{first.what}: {first.problem}", remedy=first.remedy)
        behind = [part for part in self.parts if min(part.ready, part.updated) < part.wanted]
        counts = ", ".join(f"{part.name} {part.ready} of {part.wanted}" for part in behind)
        return ServerError(
            f"not ready: {counts or 'no server'}",
            remedy="`tritonctl logs --on kubernetes` shows why; look again in a minute",
        )

    def as_record(self) -> dict[str, Any]:
        """As plain data."""
        return {"ready": self.ready, "releases": self.releases, **asdict(self)}


def standing(installation: Installation) -> Standing:
    """Ask the cluster. Raises ClusterError."""
    kubectl = installation.kubectl
    pods, deployments = installation.pods(), installation.objects("deployments")
    events = _events(kubectl, installation.name, {_name(pod) for pod in pods if is_ready(pod)})
    waiting = {f"pod/{_name(pod)}" for pod in pods if not is_ready(pod)}
    return Standing(
        installation.name,
        kubectl.own_namespace,
        [_part(each) for each in deployments],
        [_pod(each) for each in pods],
        [_autoscaler(each) for each in _optional(installation, *_hpas())],
        [_budget(each) for each in _optional(installation, "poddisruptionbudgets")],
        events,
        [
            *troubles(installation, pods, deployments),
            *(_mount(each, kubectl.flags) for each in events if _is_missing(each, waiting)),
        ],
    )


def _is_missing(event: Event, pods: Collection[str]) -> bool:
    """Whether a pod of these waits for a Secret or a ConfigMap: only an event says so."""
    missing = event.reason == "FailedMount" and "not found" in event.message
    return missing and event.about in pods


def _mount(event: Event, flags: str) -> Trouble:
    return Trouble(
        event.about.removeprefix("pod/"),
        f"a volume cannot be made: {event.message}",
        f"`kubectl{flags} get secrets,configmaps` shows what is there; a comment in values.yaml "
        "shows how to make the Secret",
    )


def _hpas() -> list[str]:
    return [f"horizontalpodautoscalers.{version}.autoscaling" for version in _AUTOSCALERS]


def _optional(installation: Installation, *kinds: str) -> list[Object]:
    """Objects of the first kind that the cluster has and shows us; none without."""
    for kind in kinds:
        try:
            return installation.objects(kind)
        except ClusterError as error:
            if error.reason not in (Reason.NO_KIND, Reason.FORBIDDEN):
                raise
    return []


def _part(deployment: Object) -> Part:
    status = deployment.get("status") or {}
    return Part(
        component(deployment) or str(deployment["metadata"]["name"]),
        int((deployment.get("spec") or {}).get("replicas", 1)),
        int(status.get("updatedReplicas", 0)),
        int(status.get("readyReplicas", 0)),
    )


def _pod(pod: Object) -> Pod:
    return Pod(
        str(pod["metadata"]["name"]),
        component(pod),
        release_of(pod),
        is_ready(pod),
        _state(pod),
        restarts(pod),
        last_end(pod),
        str((pod.get("spec") or {}).get("nodeName") or ""),
    )


def _state(pod: Object) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "ending"
    if is_ready(pod):
        return "ready"
    status = pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or []:
            if reason := ((each.get("state") or {}).get("waiting") or {}).get("reason"):
                return str(reason)
    return "not ready" if status.get("phase") == "Running" else str(status.get("phase", "unknown"))


def _autoscaler(hpa: Object) -> Autoscaler:
    spec, status = hpa.get("spec") or {}, hpa.get("status") or {}
    failed = [
        str(one.get("message", ""))
        for one in status.get("conditions") or []
        if one["type"] in ("AbleToScale", "ScalingActive") and one["status"] == "False"
    ]
    return Autoscaler(
        str(hpa["metadata"]["name"]),
        int(spec.get("minReplicas") or 1),
        int(spec.get("maxReplicas") or 0),
        int(status.get("currentReplicas") or 0),
        int(status.get("desiredReplicas") or 0),
        failed[0] if failed else "",
    )


def _budget(budget: Object) -> Budget:
    status = budget.get("status") or {}
    return Budget(str(budget["metadata"]["name"]), int(status.get("disruptionsAllowed") or 0))


def _events(kubectl: Kubectl, name: str, ready: Collection[str]) -> list[Event]:
    """Warnings about the installation that its pods do not tell themselves, the latest last.

    ready: pods whose troubles are over.
    """
    try:
        found = kubectl.get("events")
    except ClusterError as error:
        if error.reason is Reason.FORBIDDEN:
            return []
        raise
    events = [
        _event(each)
        for each in found
        if each.get("type") == "Warning"
        and each.get("reason") not in _DULL
        and _is_of(about := str((each.get("involvedObject") or {}).get("name", "")), name)
        and about not in ready
    ]
    return sorted(events, key=lambda event: event.at)[-_MOST_EVENTS:]


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _is_of(thing: str, name: str) -> bool:
    return thing == name or thing.startswith(f"{name}-")


def _event(event: Object) -> Event:
    about = event.get("involvedObject") or {}
    return Event(
        f"{str(about.get('kind', '')).lower()}/{about.get('name')}",
        str(event.get("reason")),
        " ".join(str(event.get("message", "")).split()),
        int(event.get("count") or 1),
        str(event.get("lastTimestamp") or event.get("eventTime") or ""),
    )
