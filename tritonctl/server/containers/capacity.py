# SPDX-License-Identifier: Apache-2.0
"""What the containers of a running deployment can take, for `tritonctl reload`.

A reload changes models. What is the container's own, its image, its mounts, its memory, stays as it
was started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tritonctl.errors import ServerError
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.project.schema import Project
from tritonctl.repository.plan import Plan
from tritonctl.server.arguments import caches
from tritonctl.server.containers.compose import COMPOSE_FILE, render_compose
from tritonctl.server.containers.compose_command import docker_json
from tritonctl.server.containers.entrypoint import BESIDE
from tritonctl.server.containers.presence import current_servers
from tritonctl.server.containers.readability import require_readable_models
from tritonctl.server.containers.sizes import model_bytes
from tritonctl.server.state import ContainerServer, Deployment

_AGAIN = "run `tritonctl down`, then `tritonctl up`"


def refuse_other_container(project: Project, plan: Plan, state: ContainerServer, name: str) -> None:
    """Raises ServerError when a model's new version needs another container than runs.

    That is another image (other Python packages), a folder that is not mounted, more memory.
    Raises HostError for a file of a hand-written model that the containers' user may not read.
    """
    require_readable_models(project, [m.name for m in plan.handwritten if m.name == name])
    deployment = state.deployment
    files = render_compose(project, plan, Path(deployment.folder)).files
    wanted = yaml.safe_load(files[COMPOSE_FILE])["services"][deployment.service]
    needed = model_bytes(project, plan, name)
    for server in current_servers(state):
        record = docker_json(server.deployment, "inspect", server.deployment.container)
        if record["Config"]["Image"] != wanted["image"]:
            raise ServerError(
                f"{name} needs an image that the running server does not use: {wanted['image']}",
                remedy=_AGAIN,
            )
        if plan.caches_of(name) and not caches(record["Config"]["Cmd"]):
            raise lacks_cache(name)
        _refuse_other_mounts(wanted, record, name)
        _refuse_too_small(server.deployment, record, name, needed)


def lacks_cache(name: str) -> ServerError:
    """The model has a response cache, and the running server was started without one."""
    return ServerError(
        f"{name} has a response cache, and the running server was started without one",
        remedy=_AGAIN,
    )


def _refuse_other_mounts(wanted: dict[str, Any], record: dict[str, Any], name: str) -> None:
    mounts = {mount["Destination"]: mount["Source"] for mount in record["Mounts"]}
    if not Path(mounts.get(BESIDE, "")).is_dir():
        raise ServerError(
            "the running server cannot hold a second version: it was started by an older "
            "tritonctl or by `docker compose` itself",
            remedy=_AGAIN,
        )
    targets = [str(volume["target"]) for volume in wanted["volumes"]]
    if missing := [target for target in targets if target not in mounts]:
        raise ServerError(
            f"{name} reads {', '.join(missing)}, which the running container does not have",
            remedy=_AGAIN,
        )


def _refuse_too_small(
    deployment: Deployment, record: dict[str, Any], name: str, needed: int
) -> None:
    """The kernel would end the server that serves now."""
    limit = int(record["HostConfig"]["Memory"])
    if not limit:
        return
    statistics = docker_json(deployment, "stats", "--no-stream", deployment.container)
    used = parse_bytes(str(statistics["MemUsage"]).split("/")[0].strip())
    if used + needed > limit:
        raise ServerError(
            f"the container is limited to {human_bytes(limit)} and uses {human_bytes(used)}: a "
            f"second version of {name}, about {human_bytes(needed)}, does not fit beside the first",
            remedy=f"raise docker.memory, then {_AGAIN}",
        )
