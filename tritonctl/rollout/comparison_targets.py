# SPDX-License-Identifier: Apache-2.0
"""Resolve the targets of a comparison: servers by address, or releases by number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tritonctl.errors import UsageError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import StoredRelease, find_release, stored_releases
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.slot_servers import Slot
from tritonctl.runtimes.staging_server import running_staging_server
from tritonctl.store.entries import require_unchanged


@contextmanager
def release_endpoint(project: Project, address: str, progress: Progress) -> Iterator[Endpoint]:
    """Yield a server with this release: a running one of the project, or a temporary one.

    Raises UsageError if there is no such release or only containers can serve it, RepositoryError
    if it changed since it was published, and the errors of a server that does not load.
    """
    stored = find_release(stored_releases(project), address)
    for slot in Slot:
        server = slot_servers.server_in_slot(project, slot)
        if server is not None and server.release == stored.name:
            yield server.endpoint
            return
    with _staging_server(project, stored, progress) as endpoint:
        yield endpoint


@contextmanager
def _staging_server(
    project: Project, stored: StoredRelease, progress: Progress
) -> Iterator[Endpoint]:
    require_unchanged(stored, progress)
    released, rendered = rendered_release(project, stored)
    if project.server.mode != "embedded" or rendered.plan.native:
        raise UsageError(
            f"no server here has release {stored.name}, and only containers can serve it",
            remedy="serve it elsewhere, and name the HOST:PORT of its gRPC",
        )
    with running_staging_server(released, rendered, progress) as server:
        yield server.endpoint
