# SPDX-License-Identifier: Apache-2.0
"""Whether a second release fits beside the one that serves, on this machine."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.host.resources import available_memory
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.releases.store import Stored
from tritonctl.server.containers.compose_command import docker_json
from tritonctl.server.containers.presence import current_servers
from tritonctl.server.containers.sizes import HOST_COPIES
from tritonctl.server.state import Deployment, EmbeddedServer, Server
from tritonctl.server.supervisor import with_descendants

_PROPORTIONAL = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def refuse_too_large(server: Server, served: Stored, wanted: Stored) -> None:
    """Raise HostError where the servers of `wanted` would not fit beside this one.

    They are taken to need what this one has now, and more where their files are larger.
    """
    free = available_memory()
    if free is None:
        return
    more = max(0, _bytes_of(wanted) - _bytes_of(served))
    needed = memory_of(server) + math.ceil(HOST_COPIES * more)
    if needed > free:
        raise HostError(
            f"release {wanted.name} needs about {human_bytes(needed)} of memory beside the one "
            f"that serves, and {human_bytes(free)} are free",
            remedy="free memory; or let the running server take it, model by model, all users at "
            f"once: `tritonctl up --release {wanted.number}`",
        )


def memory_of(server: Server) -> int:
    """Bytes that a server, its stubs and its frontend take; what several share is counted once.

    Of containers, what Docker counts: without their frontend. Raises HostError.
    """
    if not isinstance(server, EmbeddedServer):
        return sum(_used(each.deployment) for each in current_servers(server))
    pids = [server.pid, *([server.frontend.pid] if server.frontend else [])]
    return sum(_proportional(pid) for pid in with_descendants(pids))


def _used(deployment: Deployment) -> int:
    figures = docker_json(deployment, "stats", "--no-stream", deployment.container)
    return parse_bytes(str(figures["MemUsage"]).split("/")[0].strip())


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:  # it has ended
        return 0
    found = _PROPORTIONAL.search(text)
    return int(found[1]) << 10 if found else 0


def _bytes_of(stored: Stored) -> int:
    return sum(file.size for file in stored.manifest().files)
