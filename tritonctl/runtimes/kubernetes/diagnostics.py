# SPDX-License-Identifier: Apache-2.0
"""Explain why pods do not serve: the cluster's message, the likely cause and a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.runtimes.kubernetes.api_errors import QUOTA_REMEDY
from tritonctl.runtimes.kubernetes.installation import ChartInstallation, part_of
from tritonctl.runtimes.kubernetes.kubectl import Object

_MAX_MESSAGE_LENGTH = 300  # characters of the cluster's message
_PULL_ERRORS = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName")
_CONFIGURATION_ERRORS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_WEIGHTS = "weights"
_NO_REASON = "no reason given"
_SUCCESS_REASONS = ("Completed",)


@dataclass(frozen=True)
class ClusterProblem:
    """A problem that keeps a part from serving."""

    object: str  # the object's name
    problem: str
    remedy: str
    missing_in_cluster: bool = True  # False: a server fails


@dataclass(frozen=True)
class ContainerExit:
    """The last exit of a container."""

    container: str
    reason: str
    exit_code: int
    time: str  # in the cluster's format
    last_line: str  # the last line that it printed

    @property
    def text(self) -> str:
        """Short description."""
        status = f", status {self.exit_code}" if self.exit_code else ""
        return f"{self.reason}{status}{f': {self.last_line}' if self.last_line else ''}"


def restart_count(pod: Object) -> int:
    """Count the restarts of a pod's containers."""
    return sum(int(each.get("restartCount", 0)) for each in _containers(pod))


def last_exit(pod: Object) -> ContainerExit | None:
    """Return the latest unsuccessful exit of a pod's containers."""
    exits = []
    for each in _containers(pod):
        for state in (each.get("lastState"), each.get("state")):
            terminated = (state or {}).get("terminated")
            if terminated and terminated.get("reason") not in _SUCCESS_REASONS:
                exits.append(_container_exit(each["name"], terminated))
    return max(exits, key=lambda end: end.time, default=None)


def _container_exit(container: str, terminated: dict[str, Any]) -> ContainerExit:
    message_lines = [
        line for line in str(terminated.get("message") or "").splitlines() if line.strip()
    ]
    return ContainerExit(
        container,
        str(terminated.get("reason") or "ended"),
        int(terminated.get("exitCode", 0)),
        str(terminated.get("finishedAt") or ""),
        message_lines[-1][:_MAX_MESSAGE_LENGTH] if message_lines else "",
    )


def _containers(pod: Object) -> list[dict[str, Any]]:
    status = pod.get("status") or {}
    return [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]


def container_problem(pod: Object, flags: str) -> ClusterProblem | None:
    """Return why a container cannot run without help; flags: of kubectl, for the remedy."""
    name = str(pod["metadata"]["name"])
    for each in _containers(pod):
        waiting_state = (each.get("state") or {}).get("waiting") or {}
        reason, message = (
            str(waiting_state.get("reason") or ""),
            _shorten(waiting_state.get("message")),
        )
        if reason in _PULL_ERRORS:
            return ClusterProblem(
                name,
                f"the image {each.get('image')} cannot be pulled ({reason}): {message}",
                "is it pushed under that name, and may the cluster pull it? `images` and "
                "`images.pullSecrets` in your file of values, then `helm upgrade`",
            )
        if reason in _CONFIGURATION_ERRORS:
            return ClusterProblem(
                name,
                f"the container {each['name']} cannot be created ({reason}): {message}",
                f"`kubectl{flags} get secrets,configmaps` lists the existing ones; a comment "
                "in values.yaml shows how to create the Secret",
            )
        if reason == "CrashLoopBackOff" or (each["name"] == _WEIGHTS and _has_failed(each)):
            return _crash_problem(pod, str(each["name"]), flags)
    return None


def _has_failed(container: dict[str, Any]) -> bool:
    """Whether the container's last exit was an error."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    return bool((state.get("terminated") or last.get("terminated") or {}).get("exitCode"))


def _crash_problem(pod: Object, container: str, flags: str) -> ClusterProblem:
    name, last = str(pod["metadata"]["name"]), last_exit(pod)
    exit_text = last.text if last else _NO_REASON
    if container == _WEIGHTS:
        return ClusterProblem(
            name,
            f"the release is missing or incomplete: {exit_text}",
            "copy its folder of releases/ into the claim; pods check every file against the "
            "release's digest",
        )
    remedy = f"`kubectl{flags} logs {name} --container {container} --previous` shows its last lines"
    if last and last.reason == "OOMKilled":
        remedy = f"raise `{part_of(pod)}.memory` in your file of values, then `helm upgrade`"
    return ClusterProblem(
        name, f"{container} keeps exiting: {exit_text}", remedy, missing_in_cluster=False
    )


def scheduling_problem(pod: Object, flags: str) -> ClusterProblem | None:
    """Return why no node takes a pod; None if one does or still may; flags: of kubectl."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] != "PodScheduled" or condition["status"] == "True":
            continue
        message = _shorten(condition.get("message"))
        remedy = f"`kubectl{flags} describe nodes` shows the free resources"
        part = part_of(pod)
        if "PersistentVolumeClaim" in message or "persistentvolumeclaim" in message:
            remedy = f"`kubectl{flags} get pvc` and `kubectl{flags} describe pvc` show the claim"
        elif "nvidia.com/" in message:
            remedy += "; `triton.gpu` in your file of values sets the request"
        elif "taint" in message:
            remedy += f" and their taints; `{part}.tolerations` in your file of values"
        elif "selector" in message or "affinity" in message:
            remedy = f"`kubectl{flags} get nodes --show-labels`; `{part}.nodeSelector` in values"
        elif "Insufficient" in message:
            remedy += f"; `{part}.cpu` and `{part}.memory` in your file of values"
        return ClusterProblem(str(pod["metadata"]["name"]), f"no node takes it: {message}", remedy)
    return None


def deployment_problem(deployment: Object, flags: str) -> ClusterProblem | None:
    """Return why a Deployment cannot create pods, such as a quota or a policy."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = _shorten(condition.get("message"))
            remedy = f"`kubectl{flags} describe namespace` shows its policies and limits"
            if "quota" in message:
                remedy = QUOTA_REMEDY.replace("{flags}", flags)
            return ClusterProblem(
                str(deployment["metadata"]["name"]), f"no pod was created: {message}", remedy
            )
    return None


def claim_problems(installation: ChartInstallation) -> Iterator[ClusterProblem]:
    """Yield a problem for each claim without a volume."""
    flags = installation.kubectl.flags
    for claim in installation.objects("persistentvolumeclaims"):
        phase = str((claim.get("status") or {}).get("phase"))
        if phase == "Bound":
            continue
        spec, name = claim.get("spec") or {}, str(claim["metadata"]["name"])
        storage_class = spec.get("storageClassName") or "the default storage class"
        modes = ", ".join(spec.get("accessModes") or [])
        yield ClusterProblem(
            name,
            f"the claim has no volume ({phase}): it requests {modes} from {storage_class}",
            f"`kubectl{flags} get storageclass` lists the classes; set "
            f"`weights.claim.storageClass` to one with {modes}; `kubectl{flags} describe pvc "
            f"{name}` shows the attempts",
        )


def find_problems(
    installation: ChartInstallation, pods: Sequence[Object], deployments: Sequence[Object]
) -> list[ClusterProblem]:
    """Return everything that keeps an installation from serving, causes first."""
    flags = installation.kubectl.flags
    problems = [*claim_problems(installation)]
    problems += [problem for each in deployments if (problem := deployment_problem(each, flags))]
    for pod in pods:
        problems += (
            [problem]
            if (problem := container_problem(pod, flags) or scheduling_problem(pod, flags))
            else []
        )
    return problems


def _shorten(message: object) -> str:
    return " ".join(str(message or _NO_REASON).split())[:_MAX_MESSAGE_LENGTH]
