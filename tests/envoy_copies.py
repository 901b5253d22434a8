# SPDX-License-Identifier: Apache-2.0
"""An Envoy that copies requests, without a rollout: its routes are part of its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.envoy_process import Envoy
from tritonctl.gateway.envoy import envoy_configuration, route_configuration
from tritonctl.gateway.mirror import with_mirroring
from tritonctl.gateway.placement import EnvoyUpstream
from tritonctl.project.yaml_text import yaml_text


def copying_envoy(
    root: Path, upstreams: Sequence[EnvoyUpstream], socket: Path, share: float = 1.0, **more: Any
) -> Envoy:
    """Copies this share of the requests to a socket; more: as Envoy's."""
    envoy = Envoy(root, upstreams, **more)
    placement = replace(envoy.placement, shadow=str(socket))
    configuration = envoy_configuration(envoy.gateway, placement)
    listener = configuration["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"] = with_mirroring(route_configuration(envoy.gateway, placement), share)
    envoy.file.write_text(yaml_text(configuration))
    return envoy
