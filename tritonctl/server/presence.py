# SPDX-License-Identifier: Apache-2.0
"""Whether a recorded server still runs, and where it is now."""

from __future__ import annotations

from tritonctl.host.process import process_started
from tritonctl.server.containers import presence as containers
from tritonctl.server.state import EmbeddedServer, Server, ServerFiles, read_state


def current(server: Server) -> Server | None:
    """The server where it is now, None if it has ended: containers return on other ports.

    Raises HostError when Docker does not answer, ServerError while it starts containers again.
    """
    if isinstance(server, EmbeddedServer):
        return server if process_started(server.pid) == server.process_started else None
    return containers.current(server)


def alive(server: Server) -> bool:
    """Whether its supervisor, or a container, still runs. Raises as `current`."""
    return current(server) is not None


def current_servers(server: Server) -> list[Server]:
    """Every server of a deployment, by number; an embedded one is the only one.

    Raises as `current`.
    """
    if isinstance(server, EmbeddedServer):
        return [server]
    return [*containers.current_servers(server)]


def current_server(files: ServerFiles) -> Server | None:
    """The running server as it is now, or None. Raises as `current`."""
    server = read_state(files)
    return None if server is None else current(server)
