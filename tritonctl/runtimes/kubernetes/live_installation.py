# SPDX-License-Identifier: Apache-2.0
"""A running installation of the chart: the content of its two slots and its live routes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tritonctl.errors import ConfigurationError, ServerError
from tritonctl.gateway.shares import TrafficSplit, new_stamp, parse_split, written_version
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot
from tritonctl.runtimes.kubernetes import keda
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason
from tritonctl.runtimes.kubernetes.installation import (
    COMPONENT,
    FRONTEND,
    GATEWAY,
    RELEASE,
    TRITON,
    ChartInstallation,
)
from tritonctl.runtimes.kubernetes.kubectl import Object, selector_option
from tritonctl.runtimes.kubernetes.slots import (
    ROUTES,
    gateway_placement,
    name_in_slot,
    render_routes,
)

HELD = "tritonctl/held"  # annotation of a Deployment that upgrades must not change
MANAGED = "app.kubernetes.io/managed-by"
# Annotation of the gateway's pods: a change makes kubelets sync at once.
_MOVED = "tritonctl/routes-moved"
_ROLLOUT = "tritonctl/rollout"  # annotation of the routes: the rollout that moves users


@dataclass(frozen=True)
class SlotInstallation(ChartInstallation):
    """An installation with two slots. Its methods raise ClusterError."""

    def object_name(self, part: str, slot: Slot = Slot.A) -> str:
        """Return the name of a part's Deployment and Service in a slot."""
        return name_in_slot(f"{self.name}-{part}", slot)

    def deployment(self, part: str, slot: Slot) -> Object | None:
        """Return a part's Deployment in a slot; None without one."""
        return self.kubectl.find("deployment", self.object_name(part, slot))

    def pods_of(self, part: str, slot: Slot = Slot.A) -> list[Object]:
        """Return the pods of a part in a slot."""
        return self.kubectl.get("pods", selector=self.labels_of(part, slot))

    def labels_of(self, part: str, slot: Slot = Slot.A) -> dict[str, str]:
        """Return the labels that select these pods."""
        return {**self.labels, COMPONENT: name_in_slot(part, slot)}

    def release(self, slot: Slot) -> str:
        """Return NAME@sha256:DIGEST of the slot's release; "" without servers."""
        deployment = self.deployment(TRITON, slot)
        if deployment is None or not deployment["spec"].get("replicas", 1):
            return ""
        annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
        return str(annotations.get(RELEASE, ""))

    def owner_reference(self) -> Object:
        """Return the owner reference to `owner`, for Kubernetes' garbage collector."""
        owner = self.owner()["metadata"]
        kind = {"apiVersion": "v1", "kind": "ConfigMap"}
        return kind | {"name": owner["name"], "uid": owner["uid"]}

    def owner(self) -> Object:
        """Return the chart's ConfigMap that owns rollout objects: `helm uninstall` removes both.

        Raises ConfigurationError if the chart is not installed under this name.
        """
        configmap = self.kubectl.find("configmap", self.object_name(GATEWAY))
        if configmap is None:
            raise ConfigurationError(
                f"namespace {self.kubectl.effective_namespace} has no installation `{self.name}` "
                "of the chart",
                remedy="`helm list --all-namespaces` shows where it is: --namespace NAME, "
                "--release-name NAME",
            )
        return configmap


class LiveRoutes:
    """The routes that rollouts write, in a ConfigMap outside the chart."""

    def __init__(self, installed: SlotInstallation, project: Project) -> None:
        self._installed, self._project = installed, project
        self._name = installed.object_name("routes")

    def traffic_split(self) -> TrafficSplit:
        """Return the traffic split. Raises HostError for routes that tritonctl did not write."""
        configmap = self._installed.kubectl.find("configmap", self._name)
        if configmap is None:
            return TrafficSplit(Slot.A, 0)
        source = f"ConfigMap {self._name}"
        return parse_split(str((configmap.get("data") or {}).get(ROUTES)), source)

    def rollout(self) -> str:
        """Return the rollout that moves users now; "" without one."""
        configmap = self._installed.kubectl.find("configmap", self._name) or {}
        annotations = configmap.get("metadata", {}).get("annotations") or {}
        return str(annotations.get(_ROLLOUT, ""))

    def claim(self, rollout: str | None) -> None:
        """Record the rollout that moves users, None after its end; create the routes if needed."""
        installed = self._installed.kubectl.find("configmap", self._name) is not None
        if installed:  # the routes stay: other ones would have to be confirmed by the gateway
            change = {"metadata": {"annotations": {_ROLLOUT: rollout}}}
            self._installed.kubectl.patch("configmap", self._name, change)
        elif rollout is not None:
            self._change(TrafficSplit(Slot.A, 0), {_ROLLOUT: rollout}, new_stamp())

    def write(self, division: TrafficSplit) -> None:
        """Move users: patch the routes, and annotate the gateway's pods so that kubelets sync."""
        # The stamp is part of the routes' version, by which the gateway confirms the change.
        stamp = new_stamp()
        self._change(division, {}, stamp)
        self._touch_gateway_pods(stamp)

    def version(self) -> str:
        """Return the version of the routes. Raises HostError for routes of someone else."""
        configmap = self._installed.kubectl.find("configmap", self._name)
        if configmap is None:
            return written_version(self._text(TrafficSplit(Slot.A, 0)))
        text = str((configmap.get("data") or {}).get(ROUTES))
        parse_split(text, f"ConfigMap {self._name}")
        return written_version(text)

    def require_as_installed(self) -> None:
        """Raise ConfigurationError if the gateway was installed with other routes."""
        chart = (self._installed.owner().get("data") or {}).get(ROUTES)
        if chart is None:
            raise ConfigurationError(
                f"installation `{self._installed.name}` has one slot: its chart is older than "
                "rollout.user_header in tritonctl.yaml",
                remedy="`tritonctl deploy kubernetes`, then `helm upgrade`",
            )
        if str(chart).strip() != self._text(TrafficSplit(Slot.A, 0)).strip():
            raise ConfigurationError(
                f"the gateway of installation `{self._installed.name}` has routes unlike those of "
                "tritonctl.yaml (rollout, gateway, frontend)",
                remedy="`tritonctl deploy kubernetes`, then `helm upgrade`",
            )

    def _change(
        self,
        division: TrafficSplit,
        annotations: Mapping[str, str | None],
        stamp: str,
    ) -> None:
        kubectl = self._installed.kubectl
        change: Object = {"data": {ROUTES: self._text(division, stamp)}}
        if annotations:
            change["metadata"] = {"annotations": annotations}
        try:
            kubectl.patch("configmap", self._name, change)
        except ClusterError as error:
            if error.reason is not ClusterErrorReason.NOT_FOUND:
                raise
            kubectl.run("create", "--filename=-", stdin=json.dumps(self._new_configmap(change)))

    def _new_configmap(self, change: Object) -> Object:
        annotations = (change.get("metadata") or {}).get("annotations", {})
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._name,
                "labels": self._installed.labels,
                "annotations": {
                    key: value for key, value in annotations.items() if value is not None
                },
                "ownerReferences": [self._installed.owner_reference()],
            },
            "data": change["data"],
        }

    def _touch_gateway_pods(self, stamp: str) -> None:
        """Annotate the pods: kubelets then sync ConfigMaps, which otherwise takes a minute."""
        self._installed.kubectl.run(
            "annotate",
            "pods",
            selector_option(self._installed.labels_of(GATEWAY)),
            "--overwrite",
            f"{_MOVED}={stamp}",
        )

    def _text(self, division: TrafficSplit, stamp: str = "") -> str:
        gateway = gateway_placement(
            self._project,
            self._installed.object_name(TRITON),
            self._installed.object_name(FRONTEND),
            None,
        )
        return render_routes(self._project, gateway, division, stamp=stamp)


def scale_slot(installed: SlotInstallation, part: str, slot: Slot, replicas: int) -> None:
    """Set the pod count of a slot and hold it through upgrades; ignore a missing Deployment."""
    change = {"metadata": {"annotations": {HELD: "a rollout"}}, "spec": {"replicas": replicas}}
    try:
        installed.kubectl.patch("deployment", installed.object_name(part, slot), change)
    except ClusterError as error:
        if error.reason is not ClusterErrorReason.NOT_FOUND:
            raise


def empty_slot(
    installed: SlotInstallation, routes: LiveRoutes, slot: Slot, *, at_once: bool
) -> None:
    """Stop the servers of a slot; streams may finish within the pods' grace period.

    at_once: kill Triton's pods; the slot's frontends finish broken streams on stable. Raises
    ServerError for the stable slot.
    """
    if slot is routes.traffic_split().stable:
        raise ServerError(
            f"slot {slot} is the stable slot: its servers have the users",
            remedy="`helm uninstall` stops all servers",
        )
    keda.pause_at_zero(installed.kubectl, installed.object_name(TRITON, slot))
    for part in (TRITON, FRONTEND):
        scale_slot(installed, part, slot, 0)
    if at_once:
        selector = selector_option(installed.labels_of(TRITON, slot))
        installed.kubectl.run("delete", "pods", selector, "--grace-period=1", "--wait=false")
