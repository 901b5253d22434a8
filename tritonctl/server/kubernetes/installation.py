# SPDX-License-Identifier: Apache-2.0
"""One installation of the chart in a cluster: what Helm calls it, its pods, its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
GRPC_PORT, METRICS_PORT = 8001, 8002
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

    def ready_servers(self) -> list[Object]:
        """Triton's pods that take requests. Raises ServerError without any."""
        ready = [pod for pod in self.pods(TRITON) if is_ready(pod)]
        if not ready:
            raise ServerError(
                f"no Triton pod of {self.name} is ready",
                remedy="`tritonctl status --on kubernetes` shows why",
            )
        return ready

    @contextmanager
    def triton(self) -> Iterator[Way]:
        """gRPC of a Triton pod, past the gateway. Raises ServerError where none is ready."""
        with ExitStack() as stack:

            def opened() -> Forward:
                pod = self.ready_servers()[0]["metadata"]["name"]
                return stack.enter_context(port_forward(self.kubectl, f"pod/{pod}", GRPC_PORT))

            yield Way(f"{self.name}-{TRITON}", opened)

    @contextmanager
    def gateway(self) -> Iterator[Way]:
        """The port that clients use, on this machine. Raises ServerError without one."""
        service = self.kubectl.find("service", self.name)
        ports = ((service or {}).get("spec") or {}).get("ports") or []
        if not ports:
            raise ServerError(
                f"the cluster has no Service `{self.name}` with a port",
                remedy=f"`helm status {self.name}` shows what is installed; or name another: "
                "--release-name NAME",
            )
        target, port = f"service/{self.name}", int(ports[0]["port"])
        with ExitStack() as stack:

            def opened() -> Forward:
                return stack.enter_context(port_forward(self.kubectl, target, port))

            yield Way(self.name, opened)


class Way:
    """A port of one pod of an installation, on this machine; name: for which a certificate may be.

    opened: forwards it.
    """

    def __init__(self, name: str, opened: Callable[[], Forward]) -> None:
        self.name, self._opened = name, opened
        self._forward = opened()

    def address(self) -> str:
        """HOST:PORT; of another pod, where that one is gone. Raises ClusterError."""
        if not self._forward.alive:
            self._forward = self._opened()
        return self._forward.address

    def require_alive(self) -> None:
        """Raises ClusterError where the pod is gone, or is just going."""
        self._forward.require_alive(_ENDING_SECONDS)


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
