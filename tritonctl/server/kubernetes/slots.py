# SPDX-License-Identifier: Apache-2.0
"""Two slots for servers on Kubernetes, behind one Envoy: what both are called, and its routes.

Slot `a` is what the chart installs. What is in slot `b` has the same names with `-b` behind them;
its Deployments are made by a rollout, as copies of those that serve. Only the routes say which slot
is stable: the chart's own say `a`, and a ConfigMap that is not the chart's goes before them.
"""

from __future__ import annotations

from dataclasses import replace

from tritonctl.project.schema import Project
from tritonctl.server.gateway.placement import (
    SECRETS,
    Group,
    Placement,
    Renewed,
    TwoGroups,
    Upstream,
    gateway_of,
    in_container,
)
from tritonctl.server.gateway.shares import Division, routes_text
from tritonctl.server.slots import Slot

# As the gateway's pods see it: a folder of links, in which only `..data` is ever moved.
_FOLDER = "/etc/routes"
ROUTES = "routes.json"
_CONFIGURATION = "/etc/envoy"


def in_slot(name: str, slot: Slot) -> str:
    """Of a Deployment, a Service or a component of slot `a`: what it is called in this slot."""
    return name if slot is Slot.A else f"{name}-{slot}"


def wanted(project: Project) -> bool:
    """Whether there are two: whether the project says what a user is."""
    return project.rollout.user_header is not None


def placement(project: Project, triton: str, frontend: str, readiness: int | None) -> Placement:
    """Where Envoy finds servers: by the names of their Services. readiness: port of Triton's."""
    found = in_container(project, [Upstream(triton, readiness_port=readiness)])
    if found.frontend is not None:
        found = replace(found, frontend=(frontend, found.frontend[1]))
    # A Secret's volume is a folder of links, too.
    found = replace(found, renewed=Renewed(_CONFIGURATION, SECRETS))
    if not wanted(project):
        return found
    groups = {slot: _group(found, slot) for slot in Slot}
    every = tuple(upstream for group in groups.values() for upstream in group.upstreams)
    two = TwoGroups(Slot.A, f"{_FOLDER}/{ROUTES}", groups=groups, watched=_FOLDER)
    return replace(found, upstreams=every, slots=two)


def routes(project: Project, where: Placement, division: Division) -> str:
    """What Envoy reads. Raises ConfigurationError where the project does not say what a user is."""
    return routes_text(gateway_of(project), where, project.rollout, division)


def _group(found: Placement, slot: Slot) -> Group:
    upstreams = tuple(replace(each, host=in_slot(each.host, slot)) for each in found.upstreams)
    frontend = found.frontend and (in_slot(found.frontend[0], slot), found.frontend[1])
    return Group(upstreams, frontend)
