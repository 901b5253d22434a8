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
    """One with two slots. Every method raises ClusterError."""

    def called(self, part: str, slot: Slot = Slot.A) -> str:
        """A Deployment, or a Service."""
        return in_slot(f"{self.name}-{part}", slot)

    def deployment(self, part: str, slot: Slot) -> Object | None:
        """Of a slot; None without one."""
        return self.kubectl.find("deployment", self.called(part, slot))

    def pods_of(self, part: str, slot: Slot = Slot.A) -> list[Object]:
        """Of a part in a slot."""
        return self.kubectl.get("pods", selector=self.labels_of(part, slot))

    def labels_of(self, part: str, slot: Slot = Slot.A) -> dict[str, str]:
        """Of these pods."""
        return {**self.labels, COMPONENT: in_slot(part, slot)}

    def release(self, slot: Slot) -> str:
        """NAME@sha256:DIGEST of what a slot's servers serve; empty where there are none."""
        found = self.deployment(TRITON, slot)
        if found is None or not found["spec"].get("replicas", 1):
            return ""
        notes = found["spec"]["template"]["metadata"].get("annotations") or {}
        return str(notes.get(RELEASE, ""))

    def reference(self) -> Object:
        """To `owner`, as Kubernetes' garbage collector reads it."""
        owner = self.owner()["metadata"]
        found = {"apiVersion": "v1", "kind": "ConfigMap"}
        return found | {"name": owner["name"], "uid": owner["uid"]}

    def owner(self) -> Object:
        """What is the chart's, so that who uninstalls it takes along what rollouts have made.

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
        """Who has the users. Raises HostError for routes of somebody else."""
        found = self._installed.kubectl.find("configmap", self._name)
        if found is None:
            return Division(Slot.A, 0)
        where = f"ConfigMap {self._name}"
        return division_of(str((found.get("data") or {}).get(ROUTES)), where)

    def rollout(self) -> str:
        """Whose rollout it is that moves users; empty without one."""
        found = self._installed.kubectl.find("configmap", self._name) or {}
        notes = found.get("metadata", {}).get("annotations") or {}
        return str(notes.get(_ROLLOUT, ""))

    def claim(self, whose: str | None) -> None:
        """Say whose rollout it is, None: nobody's any more. The routes are made if need be."""
        if whose is None and self._installed.kubectl.find("configmap", self._name) is None:
            return
        self._change(self.division(), {_ROLLOUT: whose})

    def write(self, division: Division) -> None:
        """Move users: one patch, and a note for each kubelet of the gateway to look at once."""
        # Changed in any case: so it is read again, and whoever waits for that knows.
        stamp = f"{time.time():.3f}"
        self._change(division, {}, {_STAMP: stamp})
        self._hurry(stamp)

    def require_as_installed(self) -> None:
        """Raises ConfigurationError where the gateway was made for other routes than ours."""
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
        """A kubelet reads ConfigMaps anew every minute or so, and whenever its pod changes."""
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
    """How many pods a slot has; an upgrade of the chart leaves it so. Nothing where it is empty."""
    change = {"metadata": {"annotations": {HELD: "a rollout"}}, "spec": {"replicas": replicas}}
    try:
        installed.kubectl.patch("deployment", installed.called(part, slot), change)
    except ClusterError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise


def empty(installed: Installed, routes: LiveRoutes, slot: Slot, *, at_once: bool) -> None:
    """End the servers of a slot; their streams may finish in the pods' own time.

    at_once: Triton's pods are killed, and what they stream breaks; their frontends finish it
    elsewhere. Raises ServerError for the slot that has the users.
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
