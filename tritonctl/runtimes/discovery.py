# SPDX-License-Identifier: Apache-2.0
"""Check whether a recorded server still runs, and at which ports."""

from __future__ import annotations

from tritonctl.host.process import process_start_time
from tritonctl.runtimes.docker import discovery as containers
from tritonctl.runtimes.embedded.lost_record import find_server
from tritonctl.runtimes.server_state import EmbeddedServer, Server, ServerFiles, read_state


def refresh_server(server: Server) -> Server | None:
    """Return the server with its current ports; None if it has exited.

    Restarted containers have other ports. Raises HostError if Docker does not answer, ServerError
    while Docker restarts the containers.
    """
    if isinstance(server, EmbeddedServer):
        return server if process_start_time(server.pid) == server.process_started else None
    return containers.refresh_server(server)


def is_running(server: Server) -> bool:
    """Whether the server's supervisor, or a container, still runs. Raises as `refresh_server`."""
    return refresh_server(server) is not None


def current_servers(server: Server) -> list[Server]:
    """Return every server of a deployment, by number; an embedded server is the only one.

    Raises as `refresh_server`.
    """
    if isinstance(server, EmbeddedServer):
        return [server]
    return [*containers.current_servers(server)]


def current_server(files: ServerFiles) -> Server | None:
    """Return the running server with its current ports, or None. Raises as `refresh_server`."""
    server = known_server(files)
    return None if server is None else refresh_server(server)


def known_server(files: ServerFiles) -> Server | None:
    """Return the recorded server, alive or not; without a readable record a running one."""
    return read_state(files) or find_server(files)
