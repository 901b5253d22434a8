# SPDX-License-Identifier: Apache-2.0
"""One installation of the chart in a cluster: its name in Helm, its pods and ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tritonctl.errors import HostError, ServerError, choices
from tritonctl.project.schema import Project
from tritonctl.runtimes.kubernetes.chart import installation_name
from tritonctl.runtimes.kubernetes.forwarding import PortForward, port_forward
from tritonctl.runtimes.kubernetes.kubectl import Kubectl, Object, require_name

_NAME = "app.kubernetes.io/name"
_INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
VERSION = "app.kubernetes.io/version"  # label of pods: the release's name
TRITON, FRONTEND, GATEWAY = "triton", "frontend", "gateway"
GRPC_PORT, METRICS_PORT = 8001, 8002
_EXIT_GRACE_SECONDS = 0.5  # kubectl exits a little later than the connection
RELEASE = "tritonctl/release"  # annotation of pods: NAME@sha256:DIGEST


@dataclass(frozen=True)
class ChartInstallation:
    """A chart installed under `name`. Its methods raise ClusterError."""

    kubectl: Kubectl
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all objects of the installation."""
        return {_NAME: "tritonctl", _INSTANCE: self.name}

    def objects(self, kind: str) -> list[Object]:
        """Return the installation's objects of a kind, sorted by name."""
        items = self.kubectl.get(kind, selector=self.labels)
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def pods(self, part: str | None = None) -> list[Object]:
        """Return its pods, or a part's: `triton` includes a rollout's second slot, `triton-b`."""
        return [pod for pod in self.objects("pods") if part is None or part_of(pod) == part]

    def ready_servers(self) -> list[Object]:
        """Return the ready Triton pods. Raises ServerError without any."""
        ready = [pod for pod in self.pods(TRITON) if is_ready(pod)]
        if not ready:
            raise ServerError(
                f"no Triton pod of {self.name} is ready",
                remedy="`tritonctl status --on kubernetes` shows why",
            )
        return ready

    @contextmanager
    def triton(self) -> Iterator[ForwardedPort]:
        """Forward gRPC of a Triton pod, past the gateway. Raises ServerError without one."""
        with ExitStack() as stack:

            def open_forward() -> PortForward:
                pod = self.ready_servers()[0]["metadata"]["name"]
                return stack.enter_context(port_forward(self.kubectl, f"pod/{pod}", GRPC_PORT))

            yield ForwardedPort(f"{self.name}-{TRITON}", open_forward)

    @contextmanager
    def gateway(self) -> Iterator[ForwardedPort]:
        """Forward the port that clients use. Raises ServerError without one."""
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

            def open_forward() -> PortForward:
                return stack.enter_context(port_forward(self.kubectl, target, port))

            yield ForwardedPort(self.name, open_forward)


class ForwardedPort:
    """A port of an installation's pod on this machine, forwarded by `open_forward`.

    name: the host name that a certificate may be for.
    """

    def __init__(self, name: str, open_forward: Callable[[], PortForward]) -> None:
        self.name, self._open_forward = name, open_forward
        self._forward = open_forward()

    def address(self) -> str:
        """Return HOST:PORT, of another pod if the first is gone. Raises ClusterError."""
        if not self._forward.alive:
            self._forward = self._open_forward()
        return self._forward.address

    def require_alive(self) -> None:
        """Raise ClusterError if the pod is gone or terminating."""
        self._forward.require_alive(_EXIT_GRACE_SECONDS)


def component(thing: Object) -> str:
    """Return the component of an object, such as `triton` or `triton-b`; "" without one."""
    return str((thing["metadata"].get("labels") or {}).get(COMPONENT, ""))


def part_of(thing: Object) -> str:
    """Return the component without the slot."""
    return component(thing).removesuffix("-b")


def release_of(pod: Object) -> str:
    """Return the release that a pod serves, without its digest; "" for other pods."""
    return str((pod["metadata"].get("annotations") or {}).get(RELEASE, "")).partition("@")[0]


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready and not terminating."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    ) and ("deletionTimestamp" not in pod["metadata"])


def find_installation(
    kubectl: Kubectl, project: Project | None, explicit_name: str | None
) -> ChartInstallation:
    """Return the named installation, else the project's, else the only one.

    Raises ClusterError, UsageError for an invalid name, HostError without a match.
    """
    if explicit_name is not None:
        require_name("--release-name", explicit_name)
    existing = _installed_names(kubectl)
    requested = explicit_name or (installation_name(project) if project else None)
    if requested is None and len(existing) == 1:
        requested = existing[0]
    if requested in existing:
        return ChartInstallation(kubectl, requested)
    kubectl.require_namespace()
    namespace = f"the namespace {kubectl.effective_namespace}"
    if requested is None:
        raise HostError(
            f"{namespace} has {len(existing) or 'no'} installations of tritonctl's chart",
            remedy=f"name one, --release-name NAME: {', '.join(existing)}"
            if existing
            else "install it: `tritonctl deploy kubernetes`, then `helm upgrade --install`",
        )
    raise HostError(
        f"{namespace} has no installation `{requested}` of tritonctl's chart",
        remedy=choices(requested, existing, "name one with --release-name:")
        if existing
        else f"install it: `tritonctl deploy kubernetes`, then `helm upgrade --install {requested} "
        "deploy/chart`; or name another namespace: --namespace NAME",
    )


def _installed_names(kubectl: Kubectl) -> list[str]:
    """Return the names of the installations, by Deployments: a quota may prevent their pods."""
    deployments = kubectl.get("deployments", selector={_NAME: "tritonctl"})
    labels = [deployment["metadata"].get("labels") or {} for deployment in deployments]
    return sorted({str(each[_INSTANCE]) for each in labels if _INSTANCE in each})
