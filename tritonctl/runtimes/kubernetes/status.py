# SPDX-License-Identifier: Apache-2.0
"""The status of an installation: parts, pods, scaling, and problems."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tritonctl.errors import HostError, ServerError, TritonctlError
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason
from tritonctl.runtimes.kubernetes.diagnostics import (
    ClusterProblem,
    ContainerExit,
    find_problems,
    last_exit,
    restart_count,
)
from tritonctl.runtimes.kubernetes.installation import (
    TRITON,
    ChartInstallation,
    component,
    is_ready,
    release_of,
)
from tritonctl.runtimes.kubernetes.kubectl import Kubectl, Object

_AUTOSCALERS = ("v2", "v2beta2")  # of autoscaling, the newest first
_MAX_EVENTS = 5
# Ignored: the pods' status says more, or the cluster retries by itself.
_IGNORED_REASONS = (
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
class PodStatus:
    """The status of a pod."""

    name: str
    part: str
    release: str
    ready: bool
    state: str  # `ready`, or what the pod waits for
    restarts: int
    last_end: ContainerExit | None
    node: str


@dataclass(frozen=True)
class DeploymentStatus:
    """Pod counts of a Deployment of the chart."""

    name: str
    desired: int
    updated: int  # of the newest revision
    ready: int


@dataclass(frozen=True)
class AutoscalerStatus:
    """The status of an HPA."""

    name: str
    min_replicas: int
    max_replicas: int
    current_replicas: int
    desired_replicas: int
    problem: str  # why it does not scale; "" if it does


@dataclass(frozen=True)
class Budget:
    """The status of a PodDisruptionBudget."""

    name: str
    allowed: int  # pods that may be evicted now


@dataclass(frozen=True)
class ClusterEvent:
    """An event that the cluster reports."""

    object: str  # kind/name, such as pod/demo-triton-0
    reason: str
    message: str
    count: int
    time: str  # in the cluster's format


@dataclass(frozen=True)
class InstallationStatus:
    """The status of an installation at one moment."""

    name: str
    namespace: str
    parts: Sequence[DeploymentStatus]
    pods: Sequence[PodStatus]
    autoscalers: Sequence[AutoscalerStatus]
    budgets: Sequence[Budget]
    events: Sequence[ClusterEvent]
    problems: Sequence[ClusterProblem]

    @property
    def ready(self) -> bool:
        """Whether every part has all its pods updated and ready, among them a server."""
        is_complete = all(min(part.ready, part.updated) >= part.desired for part in self.parts)
        return is_complete and any(pod.ready and pod.part.startswith(TRITON) for pod in self.pods)

    @property
    def releases(self) -> list[str]:
        """Releases of the ready servers; several during a rollout."""
        return sorted({pod.release for pod in self.pods if pod.ready and pod.release})

    @property
    def failure(self) -> TritonctlError | None:
        """The error of an unready status: exit code 4 for cluster problems, 7 for server ones."""
        if self.ready:
            return None
        if self.problems:
            first = self.problems[0]
            kind = HostError if first.missing_in_cluster else ServerError
            return kind(f"{first.object}: {first.problem}", remedy=first.remedy)
        behind = [part for part in self.parts if min(part.ready, part.updated) < part.desired]
        counts = ", ".join(f"{part.name} {part.ready} of {part.desired}" for part in behind)
        return ServerError(
            f"not ready: {counts or 'no server'}",
            remedy="`tritonctl logs --on kubernetes` shows why; check again in a minute",
        )

    def as_record(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"ready": self.ready, "releases": self.releases, **asdict(self)}


def installation_status(installation: ChartInstallation) -> InstallationStatus:
    """Query the status of an installation. Raises ClusterError."""
    kubectl = installation.kubectl
    pods, deployments = installation.pods(), installation.objects("deployments")
    events = _events(kubectl, installation.name, {_name(pod) for pod in pods if is_ready(pod)})
    waiting_pods = {f"pod/{_name(pod)}" for pod in pods if not is_ready(pod)}
    return InstallationStatus(
        installation.name,
        kubectl.effective_namespace,
        [_part(each) for each in deployments],
        [_pod(each) for each in pods],
        [_autoscaler(each) for each in _optional(installation, *_hpas())],
        [_budget(each) for each in _optional(installation, "poddisruptionbudgets")],
        events,
        [
            *find_problems(installation, pods, deployments),
            *(
                _mount_problem(each, kubectl.flags)
                for each in events
                if _blocks_pod(each, waiting_pods)
            ),
        ],
    )


def _blocks_pod(event: ClusterEvent, pods: Collection[str]) -> bool:
    """Whether an event blocks one of these pods: a missing Secret or ConfigMap."""
    is_not_found = event.reason == "FailedMount" and "not found" in event.message
    return is_not_found and event.object in pods


def _mount_problem(event: ClusterEvent, flags: str) -> ClusterProblem:
    return ClusterProblem(
        event.object.removeprefix("pod/"),
        f"a volume cannot be mounted: {event.message}",
        f"`kubectl{flags} get secrets,configmaps` lists the existing ones; a comment in "
        "values.yaml shows how to create the Secret",
    )


def _hpas() -> list[str]:
    return [f"horizontalpodautoscalers.{version}.autoscaling" for version in _AUTOSCALERS]


def _optional(installation: ChartInstallation, *kinds: str) -> list[Object]:
    """Return objects of the first kind that the cluster has and permits to list, else none."""
    for kind in kinds:
        try:
            return installation.objects(kind)
        except ClusterError as error:
            if error.reason not in (ClusterErrorReason.NO_KIND, ClusterErrorReason.FORBIDDEN):
                raise
    return []


def _part(deployment: Object) -> DeploymentStatus:
    status = deployment.get("status") or {}
    return DeploymentStatus(
        component(deployment) or str(deployment["metadata"]["name"]),
        int((deployment.get("spec") or {}).get("replicas", 1)),
        int(status.get("updatedReplicas", 0)),
        int(status.get("readyReplicas", 0)),
    )


def _pod(pod: Object) -> PodStatus:
    return PodStatus(
        str(pod["metadata"]["name"]),
        component(pod),
        release_of(pod),
        is_ready(pod),
        _state(pod),
        restart_count(pod),
        last_exit(pod),
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


def _autoscaler(hpa: Object) -> AutoscalerStatus:
    spec, status = hpa.get("spec") or {}, hpa.get("status") or {}
    failed = [
        str(condition.get("message", ""))
        for condition in status.get("conditions") or []
        if condition["type"] in ("AbleToScale", "ScalingActive") and condition["status"] == "False"
    ]
    return AutoscalerStatus(
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


def _events(kubectl: Kubectl, name: str, ready: Collection[str]) -> list[ClusterEvent]:
    """Return warnings about the installation beyond its pods' status, the latest last.

    ready: pods to ignore, whose problems are over.
    """
    try:
        items = kubectl.get("events")
    except ClusterError as error:
        if error.reason is ClusterErrorReason.FORBIDDEN:
            return []
        raise
    events = [
        _event(each)
        for each in items
        if each.get("type") == "Warning"
        and each.get("reason") not in _IGNORED_REASONS
        and _belongs_to(about := str((each.get("involvedObject") or {}).get("name", "")), name)
        and about not in ready
    ]
    return sorted(events, key=lambda event: event.time)[-_MAX_EVENTS:]


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _belongs_to(thing: str, name: str) -> bool:
    return thing == name or thing.startswith(f"{name}-")


def _event(event: Object) -> ClusterEvent:
    about = event.get("involvedObject") or {}
    return ClusterEvent(
        f"{str(about.get('kind', '')).lower()}/{about.get('name')}",
        str(event.get("reason")),
        " ".join(str(event.get("message", "")).split()),
        int(event.get("count") or 1),
        str(event.get("lastTimestamp") or event.get("eventTime") or ""),
    )
