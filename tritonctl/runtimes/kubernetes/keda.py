# SPDX-License-Identifier: Apache-2.0
"""KEDA with two slots: a ScaledObject for each; an empty slot is paused at zero replicas.

An HPA ignores a Deployment with zero replicas. KEDA scales it up to its minimum, unless an
annotation pauses it.
"""

from __future__ import annotations

import copy

from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason
from tritonctl.runtimes.kubernetes.kubectl import Kubectl, Object

RIGHTS = tuple((verb, "scaledobjects.keda.sh") for verb in ("get", "create", "patch"))
_KIND = "scaledobject"
_PAUSED = "autoscaling.keda.sh/paused-replicas"


def is_keda_scaled(kubectl: Kubectl, name: str) -> bool:
    """Whether KEDA scales a Deployment, by the name of the HPA that KEDA creates."""
    return kubectl.find("horizontalpodautoscaler", f"keda-hpa-{name}") is not None


def scaled_object(kubectl: Kubectl, name: str) -> Object | None:
    """Return the ScaledObject of a Deployment; None without one or without permission."""
    try:
        return kubectl.find(_KIND, name)
    except ClusterError as error:
        if error.reason is not ClusterErrorReason.FORBIDDEN:
            raise
        return None


def pause_at_zero(kubectl: Kubectl, name: str) -> None:
    """Pause scaling of a Deployment at zero pods. Raises ClusterError."""
    if scaled_object(kubectl, name) is not None:
        _annotate_paused(kubectl, name, "0")


def resume_scaling(kubectl: Kubectl, name: str) -> bool:
    """Resume scaling by load; return whether KEDA scales it. Raises ClusterError."""
    if scaled_object(kubectl, name) is None:
        return False
    _annotate_paused(kubectl, name, None)
    return True


def copy_scaled_object(live: Object, name: str, labels: dict[str, str]) -> Object:
    """Return a copy of a ScaledObject for the Deployment `name`, which counts only its pods."""
    live_name = live["metadata"]["name"]
    spec = copy.deepcopy(live["spec"])
    spec["scaleTargetRef"]["name"] = name
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        if "query" in metadata:
            metadata["query"] = metadata["query"].replace(f'"{live_name}-[', f'"{name}-[')
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def _annotate_paused(kubectl: Kubectl, name: str, paused: str | None) -> None:
    kubectl.patch(_KIND, name, {"metadata": {"annotations": {_PAUSED: paused}}})
