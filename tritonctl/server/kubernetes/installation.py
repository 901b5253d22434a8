# SPDX-License-Identifier: Apache-2.0
"""One installation of the chart in a cluster: what Helm calls it, its pods, its ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tritonctl.errors import HostError, ServerError, choices
from tritonctl.project.schema import Project
from tritonctl.server.kubernetes.chart import installation_name
from tritonctl.server.kubernetes.forwarding import Forward, port_forward
from tritonctl.server.kubernetes.kubectl import Kubectl, Object, name

_NAME = "app.kubernetes.io/name"
_INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
VERSION = "app.kubernetes.io/version"  # of pods: the release's name
TRITON, FRONTEND, GATEWAY = "triton", "frontend", "gateway"
METRICS_PORT = 8002
_ENDING_SECONDS = 0.5  # kubectl ends a little later than the connection
RELEASE = "tritonctl/release"  # annotation of pods: NAME@sha256:DIGEST


@dataclass(frozen=True)
class Installation:
    """A chart that was installed under `name`. Its methods raise ClusterError."""

    kubectl: Kubectl
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """What all of its objects carry."""
        return {_NAME: "tritonctl", _INSTANCE: self.name}

    def objects(self, kind: str) -> list[Object]:
        """Its objects of a kind, by their names."""
        found = self.kubectl.get(kind, selector=self.labels)
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    def pods(self, part: str | None = None) -> list[Object]:
        """Its pods; those of a part, `triton`, with the second slot of a rollout (`triton-b`)."""
        return [pod for pod in self.objects("pods") if part is None or part_of(pod) == part]

    @contextmanager
    def gateway(self) -> Iterator[Gateway]:
        """The port that clients use, on this machine. Raises ServerError without one."""
        service = self.kubectl.find("service", self.name)
        ports = ((service or {}).get("spec") or {}).get("ports") or []
        if not ports:
            raise ServerError(
                f"the cluster has no Service `{self.name}` with a port",
                remedy=f"`helm status {self.name}` shows what is installed; or name another: "
                "--release-name NAME",
            )
        with ExitStack() as stack:
            yield Gateway(self, int(ports[0]["port"]), stack)


class Gateway:
    """The port of the Service that clients use, forwarded to this machine.

    It leads to one pod of the gateway. name: of the Service, for which a certificate may be.
    """

    def __init__(self, installation: Installation, port: int, stack: ExitStack) -> None:
        self.name = installation.name
        self._kubectl, self._port, self._stack = installation.kubectl, port, stack
        self._forward = self._opened()

    def address(self) -> str:
        """HOST:PORT; of another pod, where that one is gone. Raises ClusterError."""
        if not self._forward.alive:
            self._forward = self._opened()
        return self._forward.address

    def require_alive(self) -> None:
        """Raises ClusterError where the pod is gone, or is just going."""
        self._forward.require_alive(_ENDING_SECONDS)

    def _opened(self) -> Forward:
        return self._stack.enter_context(
            port_forward(self._kubectl, f"service/{self.name}", self._port)
        )


def component(thing: Object) -> str:
    """Which part of an installation an object belongs to: `triton`, `triton-b`; "" of none."""
    return str((thing["metadata"].get("labels") or {}).get(COMPONENT, ""))


def part_of(thing: Object) -> str:
    """Its part without the slot."""
    return component(thing).removesuffix("-b")


def release_of(pod: Object) -> str:
    """The name of the release that a pod serves, without its digest; "" of others."""
    return str((pod["metadata"].get("annotations") or {}).get(RELEASE, "")).partition("@")[0]


def is_ready(pod: Object) -> bool:
    """Whether requests go to a pod."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions) and (
        "deletionTimestamp" not in pod["metadata"]
    )


def find_installation(kubectl: Kubectl, project: Project | None, given: str | None) -> Installation:
    """The one that is named, else the project's, else the only one there.

    Raises ClusterError, UsageError for what is no name, HostError where there is none.
    """
    if given is not None:
        name("--release-name", given)
    there = _names(kubectl)
    wanted = given or (installation_name(project) if project else None)
    if wanted is None and len(there) == 1:
        wanted = there[0]
    if wanted in there:
        return Installation(kubectl, wanted)
    kubectl.require_namespace()
    where = f"the namespace {kubectl.own_namespace}"
    if wanted is None:
        raise HostError(
            f"{where} has {len(there) or 'no'} installations of tritonctl's chart",
            remedy=f"name one, --release-name NAME: {', '.join(there)}"
            if there
            else "install it: `tritonctl deploy kubernetes`, then `helm upgrade --install`",
        )
    raise HostError(
        f"{where} has no installation `{wanted}` of tritonctl's chart",
        remedy=choices(wanted, there, "name one with --release-name:")
        if there
        else f"install it: `tritonctl deploy kubernetes`, then `helm upgrade --install {wanted} "
        "deploy/chart`; or name another namespace: --namespace NAME",
    )


def _names(kubectl: Kubectl) -> list[str]:
    """What has a Deployment of the chart: a quota may keep it from having any pod."""
    found = kubectl.get("deployments", selector={_NAME: "tritonctl"})
    labels = [one["metadata"].get("labels") or {} for one in found]
    return sorted({str(each[_INSTANCE]) for each in labels if _INSTANCE in each})
