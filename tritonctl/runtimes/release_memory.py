# SPDX-License-Identifier: Apache-2.0
"""Check whether a second release fits into this machine's memory."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.host.resources import available_memory
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.releases.store import StoredRelease
from tritonctl.runtimes.docker.compose_command import docker_json
from tritonctl.runtimes.docker.container_limits import HOST_COPIES
from tritonctl.runtimes.docker.discovery import current_servers
from tritonctl.runtimes.server_state import Deployment, EmbeddedServer, Server
from tritonctl.supervision.supervisor import with_descendants

_PROPORTIONAL_SIZE = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def refuse_too_large(server: Server, stable: StoredRelease, candidate: StoredRelease) -> None:
    """Raise HostError if the candidate's servers do not fit into memory next to `server`.

    The estimate is this server's memory, plus the difference of the releases' files.
    """
    free = available_memory()
    if free is None:
        return
    extra_bytes = max(0, _release_bytes(candidate) - _release_bytes(stable))
    required = memory_in_use(server) + math.ceil(HOST_COPIES * extra_bytes)
    if required > free:
        raise HostError(
            f"release {candidate.name} needs about {human_bytes(required)} of memory next to the "
            f"stable release, but {human_bytes(free)} are free",
            remedy="free memory; or switch the running server in place, for all users at once: "
            f"`tritonctl up --release {candidate.number}`",
        )


def memory_in_use(server: Server) -> int:
    """Return the bytes that a server, its stubs and its frontend use; shared pages count once.

    For containers this is Docker's count, without their frontend. Raises HostError.
    """
    if not isinstance(server, EmbeddedServer):
        return sum(_container_bytes(each.deployment) for each in current_servers(server))
    pids = [server.pid, *([server.frontend.pid] if server.frontend else [])]
    return sum(_process_bytes(pid) for pid in with_descendants(pids))


def _container_bytes(deployment: Deployment) -> int:
    stats = docker_json(deployment, "stats", "--no-stream", deployment.container)
    return parse_bytes(str(stats["MemUsage"]).split("/")[0].strip())


def _process_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:  # the process has exited
        return 0
    match = _PROPORTIONAL_SIZE.search(text)
    return int(match[1]) << 10 if match else 0


def _release_bytes(stored: StoredRelease) -> int:
    return sum(file.size for file in stored.manifest().files)
