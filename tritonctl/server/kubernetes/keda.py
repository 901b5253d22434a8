# SPDX-License-Identifier: Apache-2.0
"""KEDA with two slots: a ScaledObject for each, and what is to be empty is paused at nothing.

An HPA lets a Deployment of no replicas alone. KEDA fills one up to its smallest number, unless an
annotation says what it is paused at.
"""

from __future__ import annotations

import copy

from tritonctl.server.kubernetes.kubectl import Kubectl, Object
from tritonctl.server.kubernetes.refusals import ClusterError, Reason

RIGHTS = tuple((verb, "scaledobjects.keda.sh") for verb in ("get", "create", "patch"))
_KIND = "scaledobject"
_PAUSED = "autoscaling.keda.sh/paused-replicas"


def scales(kubectl: Kubectl, name: str) -> bool:
    """Whether it says how many pods a Deployment has: it makes an HPA, which has a known name."""
    return kubectl.find("horizontalpodautoscaler", f"keda-hpa-{name}") is not None


def scaled_object(kubectl: Kubectl, name: str) -> Object | None:
    """The one of a Deployment of this name; None without one, or where nobody may look."""
    try:
        return kubectl.find(_KIND, name)
    except ClusterError as error:
        if error.reason is not Reason.FORBIDDEN:
            raise
        return None


def keep_empty(kubectl: Kubectl, name: str) -> None:
    """The Deployment of this name is to have no pod. Raises ClusterError."""
    if scaled_object(kubectl, name) is not None:
        _note(kubectl, name, "0")


def let_scale(kubectl: Kubectl, name: str) -> bool:
    """By the load again; whether KEDA scales it. Raises ClusterError."""
    if scaled_object(kubectl, name) is None:
        return False
    _note(kubectl, name, None)
    return True


def copied(live: Object, name: str, labels: dict[str, str]) -> Object:
    """For the Deployment `name`, as `live` is for its own: it counts that one's pods alone."""
    own = live["metadata"]["name"]
    spec = copy.deepcopy(live["spec"])
    spec["scaleTargetRef"]["name"] = name
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        if "query" in metadata:
            metadata["query"] = metadata["query"].replace(f'"{own}-[', f'"{name}-[')
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def _note(kubectl: Kubectl, name: str, paused: str | None) -> None:
    kubectl.patch(_KIND, name, {"metadata": {"annotations": {_PAUSED: paused}}})
