# SPDX-License-Identifier: Apache-2.0
"""Puts a candidate's Deployments into a slot, and waits until its pods are ready."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tritonctl.errors import HostError, ServerError
from tritonctl.host.progress import Progress
from tritonctl.server.kubernetes import keda
from tritonctl.server.kubernetes.candidate import Copying
from tritonctl.server.kubernetes.installation import FRONTEND, TRITON, VERSION
from tritonctl.server.kubernetes.installed import HELD, Installed, scale
from tritonctl.server.kubernetes.kubectl import Object
from tritonctl.server.kubernetes.troubles import container_trouble, unscheduled
from tritonctl.server.slots import Slot

_SCALER = "horizontalpodautoscaler"
_POLL_SECONDS = 1.0
_UNSCHEDULED_SECONDS = 60.0
_MORE_SECONDS = 600.0  # for the image and the release, as the chart's own deadline has them


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
    if slot is not Slot.A:
        objects += _scalers(copying)
    _put(installed, objects)
    if keda.let_scale(installed.kubectl, installed.called(TRITON, slot)):
        scale(installed, TRITON, slot, made["spec"].get("replicas", 1))  # it may have emptied it
    probe = made["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    allowed = probe["failureThreshold"] * probe.get("periodSeconds", 1) + _MORE_SECONDS
    with progress.step(f"Loading release {copying.wanted.name} beside the one that serves"):
        for each in objects:
            if each["kind"] == "Deployment":
                _wait(installed, each, time.monotonic() + allowed)


def _scalers(copying: Copying) -> list[Object]:
    """For slot b, as the chart has for slot a: an HPA, or KEDA's."""
    installed = copying.installed
    name, own = installed.called(TRITON, copying.slot), installed.called(TRITON)
    made = []
    if scaler := installed.kubectl.find(_SCALER, own):
        made.append(copying.autoscaler(scaler))
    if scaled := keda.scaled_object(installed.kubectl, own):
        made.append(keda.copied(scaled, name, installed.labels))
    return made


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
    release = made["spec"]["template"]["metadata"]["labels"][VERSION]
    since = time.monotonic()
    while not is_complete(installed.kubectl.find("deployment", name) or {}):
        waited = time.monotonic() - since
        for pod in installed.kubectl.get("pods", selector={**labels, VERSION: release}):
            _refuse_hopeless(pod, release, installed.kubectl.flags, waited)
        if time.monotonic() > deadline:
            raise ServerError(
                f"release {release} is not ready in time in Deployment {name}",
                remedy=f"see why: `kubectl{installed.kubectl.flags} describe deployment {name}`",
            )
        time.sleep(_POLL_SECONDS)


def _refuse_hopeless(pod: Object, release: str, flags: str, waited: float) -> None:
    """Raises ServerError for a pod that fails, HostError where no node takes it for long."""
    again = f"then `tritonctl rollout start {release} --on kubernetes{flags}`: nobody was moved"
    if trouble := container_trouble(pod, flags):
        # The pods of a rollout that fails are removed: no log is left to look at.
        first = trouble.remedy if trouble.of_cluster else "mend what the message names"
        raise ServerError(
            f"release {release} does not start in pod {trouble.what}: {trouble.problem}",
            remedy=f"{first}; {again}",
        )
    if waited > _UNSCHEDULED_SECONDS and (trouble := unscheduled(pod, flags)):
        raise HostError(
            f"release {release} has no room beside the one that serves: {trouble.problem}",
            remedy=f"{trouble.remedy}; add a node, or scale the stable release down; {again}",
        )


def is_complete(deployment: Object) -> bool:
    """Whether every pod of it is new, and ready."""
    status, wanted = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 1)
    generation = deployment.get("metadata", {}).get("generation", 0)
    if status.get("observedGeneration", -1) < generation:
        return False
    counts = [status.get(each, 0) for each in ("replicas", "updatedReplicas", "readyReplicas")]
    return counts == [wanted] * 3
