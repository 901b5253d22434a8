# SPDX-License-Identifier: Apache-2.0
"""What is compared: servers by their address, or releases by their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tritonctl.errors import UsageError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import Stored, find_release, stored_releases
from tritonctl.releases.verification import require_whole
from tritonctl.server import groups
from tritonctl.server.groups import Slot
from tritonctl.server.trial import serving_beside


@contextmanager
def release_served(project: Project, address: str, progress: Progress) -> Iterator[Endpoint]:
    """A server with this release: one of the project's that has it, or one until the block ends.

    Raises UsageError for no release, or one that only containers can serve, RepositoryError for
    one that is not as it was published, and what a server raises that does not load.
    """
    stored = find_release(stored_releases(project), address)
    for slot in Slot:
        server = groups.group(project, slot)
        if server is not None and server.release == stored.name:
            yield server.endpoint
            return
    with _beside(project, stored, progress) as endpoint:
        yield endpoint


@contextmanager
def _beside(project: Project, stored: Stored, progress: Progress) -> Iterator[Endpoint]:
    require_whole(stored, progress)
    released, rendered = rendered_release(project, stored)
    if project.server.mode != "embedded" or rendered.plan.native:
        raise UsageError(
            f"release {stored.name} is served by no server here, and only containers can serve it",
            remedy="serve it elsewhere, and name it as HOST:PORT of its gRPC",
        )
    with serving_beside(released, rendered, progress) as server:
        yield server.endpoint
