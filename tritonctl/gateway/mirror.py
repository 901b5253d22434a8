# SPDX-License-Identifier: Apache-2.0
"""Mirror a share of the requests to the shadower; clients do not wait for it.

Envoy sends the copy together with the request and drops the answer. The copy first goes to an
internal listener of Envoy, which buffers it until it is complete (`envoy.py`). The shadower behind
it listens on a Unix socket, which only its owner's processes reach, and speaks HTTP/1.1 for gRPC,
REST and the OpenAI API alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.gateway.clusters import SHADOW, Message
from tritonctl.gateway.routes import is_inference_route
from tritonctl.project.schema import Project

_MILLION = 1_000_000
# The shadower sends its own requests: it does not get the client's credentials.
_SECRET_HEADERS = ("authorization", "x-api-key", "cookie", "x-tritonctl-gateway")

_MAX_PATH_BYTES = 107  # the kernel's limit for a socket path


def shadow_socket(project: Project) -> Path:
    """Return the socket where the shadower of a project's rollout accepts copies."""
    return project.state / "shadow" / "copies.sock"


def require_short_path(socket: Path) -> None:
    """Raise HostError if the kernel rejects the path as too long."""
    if not is_short_enough(socket):
        raise HostError(
            f"{socket}: a socket path has at most {_MAX_PATH_BYTES} bytes",
            remedy="move the project to a shorter path, or set rollout.shadow: 0",
        )


def is_short_enough(socket: Path) -> bool:
    """Whether the kernel accepts the path."""
    return len(bytes(socket)) <= _MAX_PATH_BYTES


def with_mirroring(configuration: Message, share: float) -> Message:
    """Return the routes with mirroring of inference requests; `share` is 0 to 1."""
    hosts = [
        host | {"routes": [_with_copy(route, share) for route in host["routes"]]}
        for host in configuration["virtual_hosts"]
    ]
    return configuration | {"virtual_hosts": hosts}


def _with_copy(route: Message, share: float) -> Message:
    if "route" not in route or not is_inference_route(route["match"]):
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
