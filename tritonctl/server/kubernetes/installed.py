# SPDX-License-Identifier: Apache-2.0
"""An installation of the chart, as it runs: what is in its two slots, and whose users they have."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tritonctl.errors import ConfigurationError, ServerError
from tritonctl.project.schema import Project
from tritonctl.server.gateway.shares import Division, division_of
from tritonctl.server.kubernetes import keda
from tritonctl.server.kubernetes.installation import (
    COMPONENT,
    FRONTEND,
    GATEWAY,
    RELEASE,
    TRITON,
    Installation,
)
from tritonctl.server.kubernetes.kubectl import Object, selecting
from tritonctl.server.kubernetes.refusals import ClusterError, Reason
from tritonctl.server.kubernetes.slots import ROUTES, in_slot, placement, routes
from tritonctl.server.slots import Slot

HELD = "tritonctl/held"  # of a Deployment that upgrades are to leave as it is
MANAGED = "app.kubernetes.io/managed-by"
_STAMP = "moved"  # in the ConfigMap
_MOVED = "tritonctl/routes-moved"  # of the gateway's pods: kubelets look at once when it changes
_ROLLOUT = "tritonctl/rollout"  # of the routes: whose rollout moves users


@dataclass(frozen=True)
class Installed(Installation):
    """An installation with two slots. Every method raises ClusterError."""

    def called(self, part: str, slot: Slot = Slot.A) -> str:
        """The name of a part's Deployment and Service in a slot."""
        return in_slot(f"{self.name}-{part}", slot)

    def deployment(self, part: str, slot: Slot) -> Object | None:
        """A part's Deployment in a slot; None where there is none."""
        return self.kubectl.find("deployment", self.called(part, slot))

    def pods_of(self, part: str, slot: Slot = Slot.A) -> list[Object]:
        """The pods of a part in a slot."""
        return self.kubectl.get("pods", selector=self.labels_of(part, slot))

    def labels_of(self, part: str, slot: Slot = Slot.A) -> dict[str, str]:
        """The labels by which these pods are found."""
        return {**self.labels, COMPONENT: in_slot(part, slot)}

    def release(self, slot: Slot) -> str:
        """NAME@sha256:DIGEST of the release that a slot serves; empty without servers."""
        found = self.deployment(TRITON, slot)
        if found is None or not found["spec"].get("replicas", 1):
            return ""
        notes = found["spec"]["template"]["metadata"].get("annotations") or {}
        return str(notes.get(RELEASE, ""))

    def reference(self) -> Object:
        """The owner reference to `owner`, which Kubernetes' garbage collector follows."""
        owner = self.owner()["metadata"]
        found = {"apiVersion": "v1", "kind": "ConfigMap"}
        return found | {"name": owner["name"], "uid": owner["uid"]}

    def owner(self) -> Object:
        """The chart's ConfigMap that owns what rollouts make: `helm uninstall` removes both.

        Raises ConfigurationError where the chart is not installed under this name.
        """
        found = self.kubectl.find("configmap", self.called(GATEWAY))
        if found is None:
            raise ConfigurationError(
                f"namespace {self.kubectl.own_namespace} has no installation `{self.name}` of the "
                "chart",
                remedy="`helm list --all-namespaces` shows where it is: --namespace NAME, "
                "--release-name NAME",
            )
        return found


class LiveRoutes:
    """The routes that rollouts write, in a ConfigMap that is not the chart's."""

    def __init__(self, installed: Installed, project: Project) -> None:
        self._installed, self._project = installed, project
        self._name = installed.called("routes")

    def division(self) -> Division:
        """How the users are divided. Raises HostError for routes that tritonctl did not write."""
        found = self._installed.kubectl.find("configmap", self._name)
        if found is None:
            return Division(Slot.A, 0)
        where = f"ConfigMap {self._name}"
        return division_of(str((found.get("data") or {}).get(ROUTES)), where)

    def rollout(self) -> str:
        """Which rollout moves the users now; empty without one."""
        found = self._installed.kubectl.find("configmap", self._name) or {}
        notes = found.get("metadata", {}).get("annotations") or {}
        return str(notes.get(_ROLLOUT, ""))

    def claim(self, whose: str | None) -> None:
        """Record the rollout that moves users, None when it is over; makes the routes if needed."""
        if whose is None and self._installed.kubectl.find("configmap", self._name) is None:
            return
        self._change(self.division(), {_ROLLOUT: whose})

    def write(self, division: Division) -> None:
        """Move users: one patch, and an annotation so that the gateway's kubelets read it now."""
        # It changes even where the routes do not: Envoy reads them again, and the count of its
        # reads confirms it.
        stamp = f"{time.time():.3f}"
        self._change(division, {}, {_STAMP: stamp})
        self._hurry(stamp)

    def require_as_installed(self) -> None:
        """Raises ConfigurationError where the gateway was installed with other routes."""
        chart = (self._installed.owner().get("data") or {}).get(ROUTES)
        if chart is None:
            raise ConfigurationError(
                f"installation `{self._installed.name}` has one group of servers: its chart was "
                "written before tritonctl.yaml had rollout.user_header",
                remedy="`tritonctl deploy kubernetes`, then `helm upgrade`",
            )
        if str(chart).strip() != self._text(Division(Slot.A, 0)).strip():
            raise ConfigurationError(
                f"the gateway of installation `{self._installed.name}` has other routes than "
                "tritonctl.yaml says now (rollout, gateway, frontend)",
                remedy="`tritonctl deploy kubernetes`, then `helm upgrade`",
            )

    def _change(
        self,
        division: Division,
        notes: Mapping[str, str | None],
        more: Mapping[str, str] | None = None,
    ) -> None:
        kubectl = self._installed.kubectl
        change: Object = {"data": {ROUTES: self._text(division), **(more or {})}}
        if notes:
            change["metadata"] = {"annotations": notes}
        try:
            kubectl.patch("configmap", self._name, change)
        except ClusterError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            kubectl.run("create", "--filename=-", stdin=json.dumps(self._new(change)))

    def _new(self, change: Object) -> Object:
        notes = (change.get("metadata") or {}).get("annotations", {})
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._name,
                "labels": self._installed.labels,
                "annotations": {key: value for key, value in notes.items() if value is not None},
                "ownerReferences": [self._installed.reference()],
            },
            "data": change["data"],
        }

    def _hurry(self, stamp: str) -> None:
        """A kubelet reads a ConfigMap every minute or so, and whenever the pod changes."""
        self._installed.kubectl.run(
            "annotate",
            "pods",
            selecting(self._installed.labels_of(GATEWAY)),
            "--overwrite",
            f"{_MOVED}={stamp}",
        )

    def _text(self, division: Division) -> str:
        where = placement(
            self._project, self._installed.called(TRITON), self._installed.called(FRONTEND), None
        )
        return routes(self._project, where, division)


def scale(installed: Installed, part: str, slot: Slot, replicas: int) -> None:
    """Set how many pods a slot has, and hold it through upgrades; an empty slot is no error."""
    change = {"metadata": {"annotations": {HELD: "a rollout"}}, "spec": {"replicas": replicas}}
    try:
        installed.kubectl.patch("deployment", installed.called(part, slot), change)
    except ClusterError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise


def empty(installed: Installed, routes: LiveRoutes, slot: Slot, *, at_once: bool) -> None:
    """End the servers of a slot; their streams may finish within the pods' grace period.

    at_once: Triton's pods are killed; the slot's frontends finish broken streams at stable. Raises
    ServerError for the slot that has the users.
    """
    if slot is routes.division().stable:
        raise ServerError(
            f"slot {slot} is the stable one: its servers have the users",
            remedy="`helm uninstall` ends all servers",
        )
    keda.keep_empty(installed.kubectl, installed.called(TRITON, slot))
    for part in (TRITON, FRONTEND):
        scale(installed, part, slot, 0)
    if at_once:
        which = selecting(installed.labels_of(TRITON, slot))
        installed.kubectl.run("delete", "pods", which, "--grace-period=1", "--wait=false")
