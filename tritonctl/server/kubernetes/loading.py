# SPDX-License-Identifier: Apache-2.0
"""Puts a candidate's Deployments into a slot, and waits until its pods are ready."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tritonctl.errors import HostError, ServerError
from tritonctl.host.progress import Progress
from tritonctl.server.kubernetes.candidate import Copying
from tritonctl.server.kubernetes.installation import FRONTEND, TRITON
from tritonctl.server.kubernetes.installed import HELD, Installed
from tritonctl.server.kubernetes.kubectl import Object
from tritonctl.server.slots import Slot

_SCALER = "horizontalpodautoscaler"
_POLL_SECONDS = 1.0
_UNSCHEDULED_SECONDS = 60.0
_MORE_SECONDS = 600.0  # for the image and the release, as the chart's own deadline has them
# A container does not come out of these by itself.
_HOPELESS = {
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CrashLoopBackOff",
}


def load(copying: Copying, progress: Progress) -> None:
    """As many servers as serve now, ready; no user is moved. What was made stays when it fails.

    Raises ServerError for pods that do not get ready, HostError where the cluster has no room,
    ConfigurationError for an image that nobody has named, ClusterError.
    """
    installed, slot = copying.installed, copying.slot
    live = installed.deployment(TRITON, slot.other)
    if live is None:
        raise ServerError(
            f"there is no Deployment {installed.called(TRITON, slot.other)}",
            remedy="install the chart: `helm upgrade --install`",
        )
    made = copying.triton(live)
    objects: list[Object] = [made]
    if copying.wanted.frontend is not None:
        front = installed.deployment(FRONTEND, slot.other)
        objects += copying.frontend(front, slot.other) if front is not None else []
    if slot is not Slot.A and (scaler := installed.kubectl.find(_SCALER, installed.called(TRITON))):
        objects.append(copying.autoscaler(scaler))
    _put(installed, objects)
    probe = made["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    allowed = probe["failureThreshold"] * probe.get("periodSeconds", 1) + _MORE_SECONDS
    with progress.step(f"Loading release {copying.wanted.name} beside the one that serves"):
        for each in objects:
            if each["kind"] == "Deployment":
                _wait(installed, each, time.monotonic() + allowed)


def _put(installed: Installed, objects: Iterable[Object]) -> None:
    """Whole objects: nothing of an older candidate is left in them."""
    reference = installed.reference()
    for each in objects:
        kind, name = each["kind"].lower(), each["metadata"]["name"]
        if installed.kubectl.find(kind, name) is None:
            owned = {**each["metadata"], "ownerReferences": [reference]}
            text = [{**each, "metadata": owned}]
            installed.kubectl.apply(text)
            continue
        content = "data" if kind == "configmap" else "spec"
        installed.kubectl.patch(kind, name, {"metadata": {"annotations": {HELD: "a rollout"}}})
        change = [{"op": "replace", "path": f"/{content}", "value": each[content]}]
        installed.kubectl.patch(kind, name, change, how="json")


def _wait(installed: Installed, made: Object, deadline: float) -> None:
    name, labels = made["metadata"]["name"], made["spec"]["selector"]["matchLabels"]
    release = made["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/version"]
    since = time.monotonic()
    while True:
        found = installed.kubectl.find("deployment", name) or {}
        if is_complete(found):
            return
        pods = [
            pod
            for pod in installed.kubectl.get("pods", selector=labels)
            if pod["metadata"].get("labels", {}).get("app.kubernetes.io/version") == release
        ]
        for pod in pods:
            if trouble := trouble_of(pod):
                raise ServerError(
                    f"release {release} does not start in pod {pod['metadata']['name']}: {trouble}",
                    remedy="correct it and start again; nobody was moved",
                )
            waits = unscheduled(pod)
            if waits and time.monotonic() - since > _UNSCHEDULED_SECONDS:
                raise HostError(
                    f"the cluster has no room for release {release} beside the one that serves: "
                    f"{waits}",
                    remedy="add a node, or scale the stable release down first",
                )
        if time.monotonic() > deadline:
            raise ServerError(
                f"release {release} is not ready in time in Deployment {name}",
                remedy=f"see why: `kubectl describe deployment {name}`",
            )
        time.sleep(_POLL_SECONDS)


def is_complete(deployment: Object) -> bool:
    """Whether every pod of it is new, and ready."""
    status, wanted = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 1)
    generation = deployment.get("metadata", {}).get("generation", 0)
    if status.get("observedGeneration", -1) < generation:
        return False
    counts = [status.get(each, 0) for each in ("replicas", "updatedReplicas", "readyReplicas")]
    return counts == [wanted] * 3


def trouble_of(pod: Object) -> str:
    """Why a pod will not start, in the words of the container that failed; empty if it may."""
    status = pod.get("status", {})
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key, []):
            if said := _trouble(container):
                return f"container {container['name']}: {said}"
    return ""


def unscheduled(pod: Object) -> str:
    """Why no node takes a pod; empty where one does."""
    for each in pod.get("status", {}).get("conditions", []):
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
            return str(each.get("message", ""))
    return ""


def _trouble(container: Mapping[str, Any]) -> str:
    waiting = container.get("state", {}).get("waiting") or {}
    ended = container.get("state", {}).get("terminated") or {}
    last = container.get("lastState", {}).get("terminated") or {}
    failed = next((each for each in (ended, last) if each.get("exitCode")), None)
    if waiting.get("reason") in _HOPELESS or (failed and container["name"] == "weights"):
        said = (failed or {}).get("message") or waiting.get("message") or waiting.get("reason")
        return str(said or f"it ended with {failed and failed['exitCode']}").strip()[-400:]
    return ""
