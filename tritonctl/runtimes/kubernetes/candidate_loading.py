# SPDX-License-Identifier: Apache-2.0
"""Create a candidate's Deployments in a slot, and wait until its pods are ready."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tritonctl.errors import HostError, ServerError
from tritonctl.host.progress import Progress
from tritonctl.releases.slots import Slot
from tritonctl.runtimes.kubernetes import keda
from tritonctl.runtimes.kubernetes.candidate import CandidateObjects
from tritonctl.runtimes.kubernetes.diagnostics import container_problem, scheduling_problem
from tritonctl.runtimes.kubernetes.installation import FRONTEND, TRITON, VERSION
from tritonctl.runtimes.kubernetes.kubectl import Object
from tritonctl.runtimes.kubernetes.live_installation import HELD, SlotInstallation, scale_slot

_SCALER = "horizontalpodautoscaler"
_POLL_SECONDS = 1.0
_UNSCHEDULED_SECONDS = 60.0
_MORE_SECONDS = 600.0  # for pulling the image and copying the release, as in the chart's deadline


def load_candidate(candidate: CandidateObjects, progress: Progress) -> None:
    """Load as many servers as the stable slot has; move no users. A failure keeps the objects.

    Raises ServerError if pods do not get ready, HostError if the cluster lacks resources,
    ConfigurationError if the registry of an image is unknown, ClusterError.
    """
    installed, slot = candidate.installed, candidate.slot
    live = installed.deployment(TRITON, slot.opposite)
    if live is None:
        raise ServerError(
            f"there is no Deployment {installed.object_name(TRITON, slot.opposite)}",
            remedy="install the chart: `helm upgrade --install`",
        )
    deployment = candidate.triton(live)
    objects: list[Object] = [deployment]
    if candidate.candidate.frontend is not None:
        front = installed.deployment(FRONTEND, slot.opposite)
        objects += candidate.frontend(front, slot.opposite) if front is not None else []
    if slot is not Slot.A:
        objects += _candidate_autoscalers(candidate)
    _apply_objects(installed, objects)
    if keda.resume_scaling(installed.kubectl, installed.object_name(TRITON, slot)):
        scale_slot(
            installed, TRITON, slot, deployment["spec"].get("replicas", 1)
        )  # KEDA may have scaled it to zero
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    allowed = probe["failureThreshold"] * probe.get("periodSeconds", 1) + _MORE_SECONDS
    with progress.step(f"Loading release {candidate.candidate.name} next to the stable one"):
        for each in objects:
            if each["kind"] == "Deployment":
                _wait_until_complete(installed, each, time.monotonic() + allowed)


def _candidate_autoscalers(candidate: CandidateObjects) -> list[Object]:
    """Return the HPA or KEDA ScaledObject of slot b, copied from slot a's."""
    installed = candidate.installed
    name, stable_name = installed.object_name(TRITON, candidate.slot), installed.object_name(TRITON)
    autoscalers = []
    if scaler := installed.kubectl.find(_SCALER, stable_name):
        autoscalers.append(candidate.autoscaler(scaler))
    if scaled := keda.scaled_object(installed.kubectl, stable_name):
        autoscalers.append(keda.copy_scaled_object(scaled, name, installed.labels))
    return autoscalers


def _apply_objects(installed: SlotInstallation, objects: Iterable[Object]) -> None:
    """Create or fully replace objects, so that nothing of an older candidate remains."""
    reference = installed.owner_reference()
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
        installed.kubectl.patch(kind, name, change, patch_type="json")


def _wait_until_complete(installed: SlotInstallation, deployment: Object, deadline: float) -> None:
    name, labels = deployment["metadata"]["name"], deployment["spec"]["selector"]["matchLabels"]
    release = deployment["spec"]["template"]["metadata"]["labels"][VERSION]
    since = time.monotonic()
    while not is_complete(installed.kubectl.find("deployment", name) or {}):
        elapsed = time.monotonic() - since
        for pod in installed.kubectl.get("pods", selector={**labels, VERSION: release}):
            _refuse_failed_pod(pod, release, installed.kubectl.flags, elapsed)
        if time.monotonic() > deadline:
            raise ServerError(
                f"release {release} is not ready in time in Deployment {name}",
                remedy=f"see why: `kubectl{installed.kubectl.flags} describe deployment {name}`",
            )
        time.sleep(_POLL_SECONDS)


def _refuse_failed_pod(pod: Object, release: str, flags: str, elapsed: float) -> None:
    """Raise ServerError for a failed pod, HostError if no node takes the pod for a while."""
    retry_remedy = (
        f"then `tritonctl rollout start {release} --on kubernetes{flags}`: no users were moved"
    )
    if problem := container_problem(pod, flags):
        # The pods of a failed rollout are removed, and their logs with them.
        first = problem.remedy if problem.missing_in_cluster else "fix the reported problem"
        raise ServerError(
            f"release {release} does not start in pod {problem.object}: {problem.problem}",
            remedy=f"{first}; {retry_remedy}",
        )
    if elapsed > _UNSCHEDULED_SECONDS and (problem := scheduling_problem(pod, flags)):
        raise HostError(
            f"release {release} does not fit next to the stable release: {problem.problem}",
            remedy=f"{problem.remedy}; add a node, or scale the stable release down; "
            f"{retry_remedy}",
        )


def is_complete(deployment: Object) -> bool:
    """Whether every pod of the Deployment is up to date and ready."""
    status, replicas = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 1)
    generation = deployment.get("metadata", {}).get("generation", 0)
    if status.get("observedGeneration", -1) < generation:
        return False
    counts = [status.get(each, 0) for each in ("replicas", "updatedReplicas", "readyReplicas")]
    return counts == [replicas] * 3
