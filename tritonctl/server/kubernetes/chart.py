# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy kubernetes`: the Helm chart of a project and a release of it.

Its templates are the same for every project. What differs is in values.yaml, for people, and in
files/, for programs: there `__TRITON__`, `__FRONTEND__` and `__RELEASE__` stand for what only
Helm knows, the names of this installation and the release that it serves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Any

import jinja2

from tritonctl.checks.analysis.stub_memory import MIB
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.files import explained
from tritonctl.host.progress import Progress
from tritonctl.host.version import __version__
from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes
from tritonctl.project.compatibility.table import table
from tritonctl.project.schema import Project
from tritonctl.project.yaml_text import yaml_text
from tritonctl.releases.manifest import REPOSITORY, Release
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import Stored, find_release, stored_releases
from tritonctl.releases.verification import require_whole
from tritonctl.repository.contents import RELEASE
from tritonctl.repository.plan import Plan
from tritonctl.server.containers.compose import (
    GRACE_MARGIN_SECONDS,
    MODELS,
    deployment_name,
    gpus,
    image_names,
    secret_files,
    served_release,
    server_command,
)
from tritonctl.server.containers.entrypoint import READINESS_PORT
from tritonctl.server.containers.frontend import configuration_text as frontend_text
from tritonctl.server.containers.frontend import memory as frontend_memory
from tritonctl.server.containers.frontend import port as frontend_port
from tritonctl.server.containers.host_paths import host_paths
from tritonctl.server.containers.images import gpu_models
from tritonctl.server.containers.presence import PORTS
from tritonctl.server.containers.sizes import container_sizes
from tritonctl.server.gateway.certificates import certificate_files
from tritonctl.server.gateway.files import configuration_text
from tritonctl.server.gateway.placement import Placement, gateway_of
from tritonctl.server.gateway.shares import Division
from tritonctl.server.kubernetes import scaling
from tritonctl.server.kubernetes import slots as two_slots
from tritonctl.server.kubernetes.monitoring import monitoring_files
from tritonctl.server.slots import Slot
from tritonctl.server.supervisor import KILL_MARGIN_SECONDS

FOLDER = "docker/chart"
VALUES = "values.yaml"
OLDEST = "1.20"  # of Kubernetes
# As they are, for every project.
_COPIED = (
    ".helmignore",
    "files/picker.yaml",
    "files/weights.py",
    "templates/NOTES.txt",
    "templates/_helpers.tpl",
    "templates/access.yaml",
    "templates/disruption.yaml",
    "templates/frontend.yaml",
    "templates/gateway.yaml",
    "templates/monitoring.yaml",
    "templates/pool.yaml",
    "templates/routes.yaml",
    "templates/scaling.yaml",
    "templates/triton.yaml",
    "templates/weights.yaml",
    "values.schema.json",
)
ROUTES_FILE = "files/routes.json"  # of a project that says what a user is
GIB = 1024 * MIB
_TRITON, _FRONTEND, _RELEASE = "__TRITON__", "__FRONTEND__", "__RELEASE__"
_REPOSITORY = f"{MODELS}/{_RELEASE}/{REPOSITORY}"
_ADAPTER = (
    "# For the chart of prometheus-adapter: helm upgrade ... --values prometheus-adapter.yaml\n"
)
_SLOWER = 5  # a pod may be than the machine that published the release
_LONGEST_NAME = 40  # a name of Kubernetes has 63 letters, and ours go on
_CLAIM_RELEASES = 5  # of this size a new claim has room for


def render_chart(project: Project, stored: Stored) -> dict[str, str]:
    """Relative path to text of every file of the chart; writes nothing.

    Raises RepositoryError for a release that cannot be read, ConfigurationError for settings that
    pods cannot have.
    """
    released, rendered = rendered_release(project, stored)
    plan = rendered.plan
    _refuse_host_paths(released)
    profile = "gpu" if gpu_models(released) else "cpu"
    files = {name: bundled.text(f"{FOLDER}/{name}", project.root) for name in _COPIED}
    files["Chart.yaml"] = yaml_text(_chart(project))
    files[VALUES] = _values_text(released, plan, stored, profile)
    command = server_command(released, plan, profile, _REPOSITORY)
    files["files/arguments.json"] = json.dumps(command[1:], indent=1) + "\n"
    placement = _placement(released)
    files["files/envoy.yaml"] = configuration_text(released, placement)
    for name, text in certificate_files(placement).items():
        files[f"files/certificates/{name}"] = text
    if placement.slots is not None:
        files[ROUTES_FILE] = two_slots.routes(released, placement, Division(Slot.A, 0))
    files["files/prometheus-adapter.yaml"] = _ADAPTER + yaml_text(scaling.adapter_values())
    files["files/scaling.json"] = json.dumps(scaling.queries(), indent=1) + "\n"
    files |= monitoring_files(released)
    if project.frontend is not None:
        servers = [f"{_TRITON}:{PORTS['grpc']}"]
        files["files/frontend.json"] = frontend_text(released, servers, _TRITON, _REPOSITORY)
    return dict(sorted(files.items()))


def installation_name(project: Project) -> str:
    """What Helm is to call the project: the name of its Service, and the beginning of others."""
    name = deployment_name(project).replace("_", "-")[:_LONGEST_NAME].strip("-")
    return name if name[:1].isalpha() else f"triton-{name}"[:_LONGEST_NAME]


def known_holes_of(project: Project) -> str | None:
    """What to say where the pods' Triton has known vulnerabilities: the cluster can reach it."""
    version = served_release(project, "gpu" if gpu_models(project) else "cpu")
    holes = known_holes(version, table(project.root))
    if not holes or project.server.accept_known_holes:
        return None
    return (
        f"the pods' Triton {version} has known vulnerabilities: {cves_of(holes)}; "
        f"{fixed_in(holes)} has none of them. Only the chart's NetworkPolicy keeps other pods away"
    )


def released(project: Project, address: str, progress: Progress) -> Stored:
    """The release that pods are to serve, whole as it was published.

    Raises ConfigurationError where the project has none, UsageError for an address that names none,
    RepositoryError for one that is damaged.
    """
    releases = stored_releases(project)
    if not releases:
        raise ConfigurationError(
            "the project has no release, and pods serve nothing else",
            remedy="publish what is built: `tritonctl release`",
        )
    stored = find_release(releases, address)
    require_whole(stored, progress)
    return stored


def _chart(project: Project) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": installation_name(project),
        "description": "Triton, Envoy before it and what watches them, by tritonctl",
        "type": "application",
        "version": __version__,
        "kubeVersion": f">={OLDEST}.0-0",
    }


def _refuse_host_paths(project: Project) -> None:
    """Pods have a release, and nothing of the machine that made it."""
    if paths := host_paths(project):
        raise ConfigurationError(
            f"models name {', '.join(map(str, paths))}, a place on this machine that pods lack",
            remedy="serve them with compose, or keep these files in the checkpoint, so that the "
            "release has them",
        )


def _placement(project: Project) -> Placement:
    """Of an image of the user's own, process 1 has no readiness of its own: Triton's then."""
    return two_slots.placement(project, _TRITON, _FRONTEND, _own_readiness(project))


def _own_readiness(project: Project) -> int | None:
    return None if project.docker.image else READINESS_PORT


def _values_text(project: Project, plan: Plan, stored: Stored, profile: str) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML: `value` quotes what is not ours
    )
    environment.filters["value"] = _quoted
    template = environment.from_string(bundled.text(f"{FOLDER}/{VALUES}.j2", project.root))
    return template.render(**_variables(project, plan, stored, profile))


def _variables(project: Project, plan: Plan, stored: Stored, profile: str) -> dict[str, Any]:
    server, gateway, sizes = project.server, gateway_of(project), container_sizes(project, plan)
    release, slots = stored.manifest(), scaling.slots(project, plan)
    frontend, secrets = project.frontend, sorted(secret_files(project, gateway=True).items())
    return {
        "version": __version__,
        "release": release_address(stored),
        "images": image_names(project, plan, profile),
        "claim_size": _mebibytes(max(GIB, _CLAIM_RELEASES * _release_bytes(release))),
        "replicas": project.docker.replicas,
        "cpu": "1",
        "memory": _mebibytes(sizes.memory),
        "shm": _mebibytes(sizes.shm),
        "reasons": sizes.reasons,
        "gpus": gpus(project, plan)["gpu_count"] if profile == "gpu" else 0,
        "startup": _startup_seconds(server.ready_timeout_seconds, release),
        "ready": release.smoke.ready_seconds,
        "readiness_port": _own_readiness(project) or PORTS["http"],
        "exit_timeout": server.exit_timeout_seconds,
        "margin": KILL_MARGIN_SECONDS + GRACE_MARGIN_SECONDS,
        "gateway": {"port": gateway.port, "admin_port": gateway.admin_port},
        "frontend": {
            "port": frontend_port(frontend) if frontend else PORTS["http"],
            "memory": _mebibytes(frontend_memory(project) if frontend else 512 * MIB),
        },
        "slots": slots,
        "streams": scaling.streams_per_replica(slots),
        "kv_percent": scaling.KV_PERCENT if slots else 0,
        "secrets": {name: os.path.relpath(path, project.root) for name, path in secrets},
        "secret_name": f"{deployment_name(project)}-secrets" if secrets else "",
        "egress": [{"ipBlock": {"cidr": "0.0.0.0/0"}}] if _reaches_out(project) else [],
    }


def release_address(stored: Stored) -> str:
    """The release and the digest of its manifest: `3-0d5f2a7c91be@sha256:...`. Raises HostError."""
    with explained(stored.folder):
        content = (stored.folder / RELEASE).read_bytes()
    return f"{stored.name}@sha256:{hashlib.sha256(content).hexdigest()}"


def _release_bytes(release: Release) -> int:
    return sum(file.size for file in release.files)


def _startup_seconds(timeout: int, release: Release) -> int:
    """What the project allows a server, and several times what the release's own took, once."""
    return max(timeout, math.ceil(_SLOWER * (release.smoke.ready_seconds or 0)))


def _reaches_out(project: Project) -> bool:
    """Whether its servers connect to something: a collector of traces, a Redis."""
    return project.server.tracing is not None or project.server.cache_redis is not None


def _mebibytes(size: int) -> str:
    return f"{math.ceil(size / MIB)}Mi"


def _quoted(value: object) -> str:
    """A YAML scalar or list in JSON's notation."""
    return json.dumps(value, ensure_ascii=False)
