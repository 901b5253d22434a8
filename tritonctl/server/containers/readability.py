# SPDX-License-Identifier: Apache-2.0
"""Whether the containers' user, who is not root, may read the files mounted for it."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.project.schema import Project
from tritonctl.server.containers.compose import container_user, secret_files


def require_readable_models(project: Project, served: Iterable[str]) -> None:
    """Raise HostError for a file of these models' folders that it may not read."""
    uid, gid = map(int, container_user(project.repository).split(":"))
    folders = [project.repository / name for name in served]
    for path in (project.repository, *(path for each in folders for path in _below(each))):
        # `check` reports dangling links.
        if path.exists() and not _may_read(path, uid, gid):
            raise HostError(
                f"the server in the container, which is not root, may not read {path}",
                remedy=f"chmod -R a+rX {project.repository}",
            )


def require_readable_secrets(project: Project) -> None:
    """Raise HostError for a key or a certificate that it may not read."""
    uid, gid = map(int, container_user(project.repository).split(":"))
    secrets = secret_files(project, gateway=project.gateway is not None)
    for name, path in sorted(secrets.items()):
        if path.exists() and not _may_read(path, uid, gid):
            raise HostError(
                f"the containers run as user {uid}, who may not read {path} ({name})",
                remedy=f"chown {uid} {path}",
            )


def _below(folder: Path) -> list[Path]:
    return [folder, *sorted(folder.rglob("*"))]


def _may_read(path: Path, uid: int, gid: int) -> bool:
    """By the mode alone; access lists are not read."""
    status = path.stat()
    read, search = stat.S_IROTH, stat.S_IXOTH
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    needed = (read | (search if path.is_dir() else 0)) << shift
    return status.st_mode & needed == needed
