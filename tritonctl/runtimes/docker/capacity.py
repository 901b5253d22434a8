# SPDX-License-Identifier: Apache-2.0
"""Check whether a deployment's running containers can reload a model, for `tritonctl reload`.

A reload changes models only. A container's image, mounts and memory stay as they were at its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tritonctl.errors import ServerError
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.project.schema import Project
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.runtimes.docker.compose import COMPOSE_FILE, render_compose
from tritonctl.runtimes.docker.compose_command import docker_json
from tritonctl.runtimes.docker.container_limits import model_bytes
from tritonctl.runtimes.docker.discovery import current_servers
from tritonctl.runtimes.docker.entrypoint import STANDBY_FOLDER
from tritonctl.runtimes.docker.file_permissions import require_readable_models
from tritonctl.runtimes.server_arguments import has_response_cache
from tritonctl.runtimes.server_state import ContainerServer, Deployment

_RESTART_REMEDY = "run `tritonctl down`, then `tritonctl up`"


def refuse_other_container(
    project: Project, plan: RepositoryPlan, state: ContainerServer, name: str
) -> None:
    """Raise ServerError if a model's new version needs a different container.

    That is another image (other Python packages), a folder that is not mounted, or more memory.
    Raises HostError for a handwritten model's file that the containers' user may not read.
    """
    require_readable_models(project, [m.name for m in plan.handwritten if m.name == name])
    deployment = state.deployment
    files = render_compose(project, plan, Path(deployment.folder)).files
    service = yaml.safe_load(files[COMPOSE_FILE])["services"][deployment.service]
    required = model_bytes(project, plan, name)
    for server in current_servers(state):
        record = docker_json(server.deployment, "inspect", server.deployment.container)
        if record["Config"]["Image"] != service["image"]:
            raise ServerError(
                f"{name} needs a different image than the running server: {service['image']}",
                remedy=_RESTART_REMEDY,
            )
        if plan.needs_cache_for(name) and not has_response_cache(record["Config"]["Cmd"]):
            raise missing_cache_error(name)
        _refuse_other_mounts(service, record, name)
        _refuse_low_memory(server.deployment, record, name, required)


def missing_cache_error(name: str) -> ServerError:
    """Return the error for a model with a response cache on a server started without one."""
    return ServerError(
        f"{name} has a response cache, but the running server was started without one",
        remedy=_RESTART_REMEDY,
    )


def _refuse_other_mounts(service: dict[str, Any], record: dict[str, Any], name: str) -> None:
    mounts = {mount["Destination"]: mount["Source"] for mount in record["Mounts"]}
    if not Path(mounts.get(STANDBY_FOLDER, "")).is_dir():
        raise ServerError(
            "the running server cannot hold a second version: an older tritonctl or plain "
            "`docker compose` started it",
            remedy=_RESTART_REMEDY,
        )
    targets = [str(volume["target"]) for volume in service["volumes"]]
    if missing := [target for target in targets if target not in mounts]:
        raise ServerError(
            f"{name} reads {', '.join(missing)}, which the running container lacks",
            remedy=_RESTART_REMEDY,
        )


def _refuse_low_memory(
    deployment: Deployment, record: dict[str, Any], name: str, required: int
) -> None:
    """Refuse a reload that exceeds the memory limit: the kernel would kill the live server."""
    limit = int(record["HostConfig"]["Memory"])
    if not limit:
        return
    statistics = docker_json(deployment, "stats", "--no-stream", deployment.container)
    used = parse_bytes(str(statistics["MemUsage"]).split("/")[0].strip())
    if used + required > limit:
        raise ServerError(
            f"the container is limited to {human_bytes(limit)} and uses {human_bytes(used)}: a "
            f"second version of {name}, about {human_bytes(required)}, does not fit in addition",
            remedy=f"raise docker.memory, then {_RESTART_REMEDY}",
        )
