# SPDX-License-Identifier: Apache-2.0
"""Check that the containers' non-root user may read the mounted files."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.project.schema import Project
from tritonctl.runtimes.docker.compose import container_user, secret_files


def require_readable_models(project: Project, models: Iterable[str]) -> None:
    """Raise HostError if the containers' user may not read a file of these models."""
    uid, gid = map(int, container_user(project.repository).split(":"))
    folders = [project.repository / name for name in models]
    for path in (project.repository, *(path for folder in folders for path in _below(folder))):
        # `check` reports dangling links.
        if path.exists() and not _may_read(path, uid, gid):
            raise HostError(
                f"the container's non-root server may not read {path}",
                remedy=f"chmod -R a+rX {project.repository}",
            )


def require_readable_secrets(project: Project) -> None:
    """Raise HostError if the containers' user may not read a key or certificate."""
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
    """Whether the file mode permits reading; access lists are ignored."""
    status = path.stat()
    read, search = stat.S_IROTH, stat.S_IXOTH
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    required = (read | (search if path.is_dir() else 0)) << shift
    return status.st_mode & required == required
