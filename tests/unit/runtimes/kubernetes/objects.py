# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster, as kubectl shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABELS = {"app.kubernetes.io/name": "tritonctl", "app.kubernetes.io/instance": "demo"}
RELEASE = "3-0d5f2a7c91be"


def named(name: str, part: str, **labels: str) -> dict[str, Any]:
    """Metadata of an object of the installation `demo`."""
    component = {"app.kubernetes.io/component": part}
    return {
        "name": name,
        "labels": LABELS | component | labels,
        "annotations": {"tritonctl/release": f"{RELEASE}@sha256:{'0' * 64}"},
    }


def pod(
    name: str,
    part: str = "triton",
    *,
    ready: bool = True,
    container: Mapping[str, Any] | None = None,
    conditions: tuple[Mapping[str, Any], ...] = (),
) -> dict[str, Any]:
    """A pod with a container; `container`: its status."""
    status = {"name": part, "image": f"registry.example/{part}:1", "restartCount": 0}
    return {
        "metadata": named(name, part),
        "spec": {"nodeName": "node1"},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}, *conditions],
            "containerStatuses": [status | dict(container or {})],
        },
    }


def deployment(part: str, *, wanted: int = 1, ready: int = 1, **status: Any) -> dict[str, Any]:
    """A Deployment of the chart."""
    return {
        "metadata": named(f"demo-{part}", part),
        "spec": {"replicas": wanted},
        "status": {"updatedReplicas": wanted, "readyReplicas": ready} | status,
    }
