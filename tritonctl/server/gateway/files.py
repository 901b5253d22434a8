# SPDX-License-Identifier: Apache-2.0
"""The gateway's files for a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from tritonctl.host import bundled
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.project.yaml_text import yaml_text
from tritonctl.server.containers.entrypoint import READINESS_PORT
from tritonctl.server.gateway.envoy import envoy_configuration
from tritonctl.server.gateway.placement import Placement, Upstream, gateway_of, in_container

CONFIGURATION = "envoy/envoy.yaml"
_OF_THE_IMAGE = ("envoy.Dockerfile", "drain_gateway.py")
COMPOSE_SERVICE = "triton"  # its DNS name has the address of every replica
_HEADER = f"""# SPDX-License-Identifier: Apache-2.0
# Made by tritonctl {__version__} from tritonctl.yaml (`gateway:`); checked with
#   envoy --mode validate -c envoy.yaml
# Keys and certificates are read from the files that are named here.
"""


def gateway_files(project: Project, upstreams: Sequence[Upstream] | None = None) -> dict[str, str]:
    """Relative path to text, for Envoy in a container; its secrets are `secret_files`.

    With a Dockerfile and what it copies, unless the project names an image of Envoy.
    """
    if upstreams is None:
        # An image of the user's own may have no first process of ours to ask.
        readiness = None if project.docker.image else READINESS_PORT
        upstreams = (Upstream(COMPOSE_SERVICE, readiness_port=readiness),)
    files = {CONFIGURATION: configuration_text(project, in_container(project, upstreams))}
    if gateway_of(project).image is None:
        files |= {
            f"envoy/{name}": bundled.text(f"docker/{name}", project.root) for name in _OF_THE_IMAGE
        }
    return files


def configuration_text(project: Project, placement: Placement) -> str:
    """envoy.yaml for any placement."""
    data = envoy_configuration(gateway_of(project), placement)
    return _HEADER + yaml_text(data)
