# SPDX-License-Identifier: Apache-2.0
"""A copy of some requests goes to the shadower, too: who asks waits for nothing of it.

Envoy sends the copy while it sends the request, and drops what is answered. It goes to a listener
of Envoy's own first, which holds it until it is whole (`envoy.py`). The shadower behind that
listens on a socket of the file system, which only its owner's processes reach, and speaks HTTP/1.1
for gRPC, REST and OpenAI's API alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.project.schema import Project
from tritonctl.server.gateway.clusters import SHADOW, Message
from tritonctl.server.gateway.routes import asks_a_model

_MILLION = 1_000_000
# What says who asks is not for the shadower, which asks by itself.
_SECRET_HEADERS = ("authorization", "x-api-key", "cookie", "x-tritonctl-gateway")

_MOST_PATH_BYTES = 107  # of a socket's name, by the kernel


def shadow_socket(project: Project) -> Path:
    """Where the shadower of a project's rollout takes copies."""
    return project.state / "shadow" / "copies.sock"


def require_short(socket: Path) -> None:
    """Raises HostError for a name that the kernel does not take."""
    if not fits(socket):
        raise HostError(
            f"{socket}: a socket's path has at most {_MOST_PATH_BYTES} bytes",
            remedy="move the project to a shorter path, or set rollout.shadow: 0",
        )


def fits(socket: Path) -> bool:
    """Whether the kernel takes the name."""
    return len(bytes(socket)) <= _MOST_PATH_BYTES


def mirrored(configuration: Message, share: float) -> Message:
    """The routes that ask a model, with a copy of a share of their requests; share: 0 to 1."""
    hosts = [
        host | {"routes": [_with_copy(route, share) for route in host["routes"]]}
        for host in configuration["virtual_hosts"]
    ]
    return configuration | {"virtual_hosts": hosts}


def _with_copy(route: Message, share: float) -> Message:
    if "route" not in route or not asks_a_model(route["match"]):
        return route
    action: dict[str, Any] = route["route"] | {"request_mirror_policies": [_policy(share)]}
    return route | {"route": action}


def _policy(share: float) -> Message:
    fraction = {"numerator": round(share * _MILLION), "denominator": "MILLION"}
    return {
        "cluster": SHADOW,
        "runtime_fraction": {"default_value": fraction},
        "trace_sampled": False,
        "request_headers_mutations": [{"remove": name} for name in _SECRET_HEADERS],
    }
