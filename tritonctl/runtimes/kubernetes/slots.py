# SPDX-License-Identifier: Apache-2.0
"""Names and routes of the two server slots behind one Envoy on Kubernetes.

The chart installs slot `a`. Objects in slot `b` have the same names with the suffix `-b`; a rollout
creates its Deployments as copies of the live ones. Only the routes tell which slot is stable: the
chart's routes say `a`, and a ConfigMap outside the chart overrides them.
"""

from __future__ import annotations

from dataclasses import replace

from tritonctl.gateway.placement import (
    SECRETS,
    EnvoyUpstream,
    GatewayPlacement,
    RenewedCertificates,
    ServerGroup,
    SlotGroups,
    container_placement,
    gateway_of,
)
from tritonctl.gateway.shares import TrafficSplit, routes_text
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot

# In the gateway's pods: a folder of links, of which only `..data` is ever replaced.
_FOLDER = "/etc/routes"
ROUTES = "routes.json"
_CONFIGURATION = "/etc/envoy"


def name_in_slot(name: str, slot: Slot) -> str:
    """Return the name in `slot` of a Deployment, Service or component of slot `a`."""
    return name if slot is Slot.A else f"{name}-{slot}"


def has_slots(project: Project) -> bool:
    """Whether the project has two slots, that is, defines `rollout.user_header`."""
    return project.rollout.user_header is not None


def gateway_placement(
    project: Project, triton: str, frontend: str, readiness: int | None
) -> GatewayPlacement:
    """Return Envoy's upstreams by the names of their Services; readiness: Triton's port for it."""
    result = container_placement(project, [EnvoyUpstream(triton, readiness_port=readiness)])
    if result.frontend is not None:
        result = replace(result, frontend=(frontend, result.frontend[1]))
    # A Secret's volume is also a folder of links.
    result = replace(result, renewed=RenewedCertificates(_CONFIGURATION, SECRETS))
    if not has_slots(project):
        return result
    groups = {slot: _slot_group(result, slot) for slot in Slot}
    upstreams = tuple(upstream for group in groups.values() for upstream in group.upstreams)
    slot_groups = SlotGroups(Slot.A, f"{_FOLDER}/{ROUTES}", groups=groups, watched=_FOLDER)
    return replace(result, upstreams=upstreams, slots=slot_groups)


def render_routes(
    project: Project, placement: GatewayPlacement, division: TrafficSplit, *, stamp: str = ""
) -> str:
    """Render Envoy's routes. Raises ConfigurationError without `rollout.user_header`.

    stamp: as for `routes_text`; the chart's own routes have none, so that they can be compared.
    """
    return routes_text(gateway_of(project), placement, project.rollout, division, stamp=stamp)


def _slot_group(placement: GatewayPlacement, slot: Slot) -> ServerGroup:
    upstreams = tuple(
        replace(each, host=name_in_slot(each.host, slot)) for each in placement.upstreams
    )
    frontend = placement.frontend and (
        name_in_slot(placement.frontend[0], slot),
        placement.frontend[1],
    )
    return ServerGroup(upstreams, frontend)
