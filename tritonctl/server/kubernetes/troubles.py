# SPDX-License-Identifier: Apache-2.0
"""Why pods do not serve: what the cluster says of them, its likely cause, what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.server.kubernetes.installation import Installation, part_of
from tritonctl.server.kubernetes.kubectl import Object
from tritonctl.server.kubernetes.refusals import QUOTA_REMEDY

_MOST = 300  # letters of what the cluster says
_NOT_PULLED = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName")
_NOT_CONFIGURED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_WEIGHTS = "weights"
_NO_REASON = "no reason given"
_HEALTHY_ENDS = ("Completed",)


@dataclass(frozen=True)
class Trouble:
    """Something that keeps a part from serving.

    of_cluster: the cluster lacks something, rather than that a server fails.
    """

    what: str
    problem: str
    remedy: str
    of_cluster: bool = True


@dataclass(frozen=True)
class End:
    """How a container ended the last time, and the last line that it printed."""

    container: str
    reason: str
    exit_code: int
    at: str
    said: str

    @property
    def text(self) -> str:
        """In a few words."""
        status = f", status {self.exit_code}" if self.exit_code else ""
        return f"{self.reason}{status}{f': {self.said}' if self.said else ''}"


def restarts(pod: Object) -> int:
    """How often its containers were started again."""
    return sum(int(each.get("restartCount", 0)) for each in _containers(pod))


def last_end(pod: Object) -> End | None:
    """The latest end of one of its containers that was no success."""
    ends = []
    for each in _containers(pod):
        for state in (each.get("lastState"), each.get("state")):
            ended = (state or {}).get("terminated")
            if ended and ended.get("reason") not in _HEALTHY_ENDS:
                ends.append(_end(each["name"], ended))
    return max(ends, key=lambda end: end.at, default=None)


def _end(container: str, ended: dict[str, Any]) -> End:
    said = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    return End(
        container,
        str(ended.get("reason") or "ended"),
        int(ended.get("exitCode", 0)),
        str(ended.get("finishedAt") or ""),
        said[-1][:_MOST] if said else "",
    )


def _containers(pod: Object) -> list[dict[str, Any]]:
    status = pod.get("status") or {}
    return [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]


def container_trouble(pod: Object, flags: str) -> Trouble | None:
    """Why a container does not run, and will not by itself; flags: for kubectl."""
    name = str(pod["metadata"]["name"])
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), _short(waiting.get("message"))
        if reason in _NOT_PULLED:
            return Trouble(
                name,
                f"the image {each.get('image')} is not pulled ({reason}): {message}",
                "is it pushed under that name, and may the cluster pull it? `images` and "
                "`images.pullSecrets` in your file of values, then `helm upgrade`",
            )
        if reason in _NOT_CONFIGURED:
            return Trouble(
                name,
                f"the container {each['name']} cannot be created ({reason}): {message}",
                f"`kubectl{flags} get secrets,configmaps` shows what is there; a comment in "
                "values.yaml shows how to make the Secret",
            )
        if reason == "CrashLoopBackOff" or (each["name"] == _WEIGHTS and _has_failed(each)):
            return _ends_again(pod, str(each["name"]), flags)
    return None


def _has_failed(container: dict[str, Any]) -> bool:
    """Whether it ended with an error, and has not ended without one since."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    return bool((state.get("terminated") or last.get("terminated") or {}).get("exitCode"))


def _ends_again(pod: Object, container: str, flags: str) -> Trouble:
    name, end = str(pod["metadata"]["name"]), last_end(pod)
    how = end.text if end else _NO_REASON
    if container == _WEIGHTS:
        return Trouble(
            name,
            f"the release is missing or incomplete: {how}",
            "copy its folder of releases/ into the claim; pods check every file against the "
            "release's digest",
        )
    remedy = f"`kubectl{flags} logs {name} --container {container} --previous` shows its end"
    if end and end.reason == "OOMKilled":
        remedy = f"raise `{part_of(pod)}.memory` in your file of values, then `helm upgrade`"
    return Trouble(name, f"{container} keeps exiting: {how}", remedy, of_cluster=False)


def unscheduled(pod: Object, flags: str) -> Trouble | None:
    """Why no node takes a pod; None where one does, or may still; flags: for kubectl."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] != "PodScheduled" or condition["status"] == "True":
            continue
        message = _short(condition.get("message"))
        remedy = f"`kubectl{flags} describe nodes` shows what is free"
        part = part_of(pod)
        if "PersistentVolumeClaim" in message or "persistentvolumeclaim" in message:
            remedy = f"`kubectl{flags} get pvc` and `kubectl{flags} describe pvc` show the claim"
        elif "nvidia.com/" in message:
            remedy += "; `triton.gpu` in your file of values says what is asked"
        elif "taint" in message:
            remedy += f" and their taints; `{part}.tolerations` in your file of values"
        elif "selector" in message or "affinity" in message:
            remedy = f"`kubectl{flags} get nodes --show-labels`; `{part}.nodeSelector` in values"
        elif "Insufficient" in message:
            remedy += f"; `{part}.cpu` and `{part}.memory` in your file of values"
        return Trouble(str(pod["metadata"]["name"]), f"no node takes it: {message}", remedy)
    return None


def deployment_trouble(deployment: Object, flags: str) -> Trouble | None:
    """What keeps a Deployment from making pods: a quota, a policy."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = _short(condition.get("message"))
            remedy = f"`kubectl{flags} describe namespace` shows its policies and limits"
            if "quota" in message:
                remedy = QUOTA_REMEDY.replace("{flags}", flags)
            return Trouble(
                str(deployment["metadata"]["name"]), f"no pod was created: {message}", remedy
            )
    return None


def claim_troubles(installation: Installation) -> Iterator[Trouble]:
    """Claims that have no volume."""
    flags = installation.kubectl.flags
    for claim in installation.objects("persistentvolumeclaims"):
        phase = str((claim.get("status") or {}).get("phase"))
        if phase == "Bound":
            continue
        spec, name = claim.get("spec") or {}, str(claim["metadata"]["name"])
        wanted = spec.get("storageClassName") or "the default storage class"
        modes = ", ".join(spec.get("accessModes") or [])
        yield Trouble(
            name,
            f"the claim has no volume ({phase}): it asks {wanted} for {modes}",
            f"`kubectl{flags} get storageclass` lists the classes; name one that gives {modes} as "
            f"`weights.claim.storageClass`; `kubectl{flags} describe pvc {name}` shows what was "
            "tried",
        )


def troubles(
    installation: Installation, pods: Sequence[Object], deployments: Sequence[Object]
) -> list[Trouble]:
    """Everything that keeps an installation from serving, causes first."""
    flags = installation.kubectl.flags
    found = [*claim_troubles(installation)]
    found += [one for each in deployments if (one := deployment_trouble(each, flags))]
    for pod in pods:
        found += [one] if (one := container_trouble(pod, flags) or unscheduled(pod, flags)) else []
    return found


def _short(message: object) -> str:
    return " ".join(str(message or _NO_REASON).split())[:_MOST]
