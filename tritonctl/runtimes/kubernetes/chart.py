# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy kubernetes`: render the Helm chart of a project's release.

Its templates are the same for every project. The differences are in values.yaml, for people, and in
files/, for programs: there `__TRITON__`, `__FRONTEND__` and `__RELEASE__` are placeholders for
names of the installation and its release, which only Helm knows.
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
from tritonctl.gateway.certificates import certificate_files
from tritonctl.gateway.files import configuration_text
from tritonctl.gateway.placement import GatewayPlacement, gateway_of
from tritonctl.gateway.shares import TrafficSplit
from tritonctl.host import bundled
from tritonctl.host.files import as_host_error
from tritonctl.host.progress import Progress
from tritonctl.host.version import __version__
from tritonctl.project.compatibility.exposure import cves_of, fixed_in, known_holes
from tritonctl.project.compatibility.table import table
from tritonctl.project.schema import Project
from tritonctl.project.yaml_text import yaml_text
from tritonctl.releases.manifest import REPOSITORY, ReleaseManifest
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import StoredRelease, find_release, stored_releases
from tritonctl.repository.contents import RELEASE
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.runtimes.docker.compose import (
    GRACE_MARGIN_SECONDS,
    MODELS,
    deployment_name,
    gpu_requirements,
    image_names,
    image_release,
    secret_files,
    server_command,
)
from tritonctl.runtimes.docker.container_limits import container_limits
from tritonctl.runtimes.docker.discovery import PORTS
from tritonctl.runtimes.docker.frontend import configuration_text as frontend_text
from tritonctl.runtimes.docker.frontend import container_port as frontend_port
from tritonctl.runtimes.docker.frontend import memory_limit as frontend_memory
from tritonctl.runtimes.docker.host_paths import host_paths
from tritonctl.runtimes.docker.images import gpu_models
from tritonctl.runtimes.kubernetes import scaling
from tritonctl.runtimes.kubernetes import slots as two_slots
from tritonctl.runtimes.kubernetes.monitoring import monitoring_files
from tritonctl.store.entries import require_unchanged
from tritonctl.supervision.readiness import CONTAINER_PORT
from tritonctl.supervision.supervisor import KILL_MARGIN_SECONDS

FOLDER = "docker/chart"
VALUES = "values.yaml"
OLDEST_KUBERNETES = "1.20"  # Kubernetes version
# Copied unchanged for every project.
_STATIC_FILES = (
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
ROUTES_FILE = "files/routes.json"  # only with `rollout.user_header`
GIB = 1024 * MIB
_TRITON, _FRONTEND, _RELEASE = "__TRITON__", "__FRONTEND__", "__RELEASE__"
_REPOSITORY = f"{MODELS}/{_RELEASE}/{REPOSITORY}"
_ADAPTER = (
    "# For the chart of prometheus-adapter: helm upgrade ... --values prometheus-adapter.yaml\n"
)
_MAX_SLOWDOWN = 5  # of a pod compared to the machine that published the release
_MAX_NAME_LENGTH = 40  # Kubernetes allows 63 characters, and objects append suffixes
_CLAIM_RELEASES = 5  # releases of this size that fit into a new claim


def render_chart(project: Project, stored: StoredRelease) -> dict[str, str]:
    """Render every file of the chart, relative path to text, without writing it.

    Raises RepositoryError for an unreadable release, ConfigurationError for settings that pods do
    not support.
    """
    release_project, rendered = rendered_release(project, stored)
    plan = rendered.plan
    _refuse_host_paths(release_project)
    profile = "gpu" if gpu_models(release_project) else "cpu"
    files = {name: bundled.text(f"{FOLDER}/{name}", project.root) for name in _STATIC_FILES}
    files["Chart.yaml"] = yaml_text(_chart(project))
    files[VALUES] = _values_text(release_project, plan, stored, profile)
    command = server_command(release_project, plan, profile, _REPOSITORY)
    files["files/arguments.json"] = json.dumps(command[1:], indent=1) + "\n"
    placement = _placement(release_project)
    files["files/envoy.yaml"] = configuration_text(release_project, placement)
    for name, text in certificate_files(placement).items():
        files[f"files/certificates/{name}"] = text
    if placement.slots is not None:
        files[ROUTES_FILE] = two_slots.render_routes(
            release_project, placement, TrafficSplit(Slot.A, 0)
        )
    files["files/prometheus-adapter.yaml"] = _ADAPTER + yaml_text(scaling.adapter_values())
    files["files/scaling.json"] = json.dumps(scaling.queries(), indent=1) + "\n"
    files |= monitoring_files(release_project)
    if project.frontend is not None:
        servers = [f"{_TRITON}:{PORTS['grpc']}"]
        files["files/frontend.json"] = frontend_text(release_project, servers, _TRITON, _REPOSITORY)
    return dict(sorted(files.items()))


def installation_name(project: Project) -> str:
    """Return the project's name in Helm, also its Service's name and a prefix of other names."""
    name = deployment_name(project).replace("_", "-")[:_MAX_NAME_LENGTH].strip("-")
    return name if name[:1].isalpha() else f"triton-{name}"[:_MAX_NAME_LENGTH]


def vulnerability_warning(project: Project) -> str | None:
    """Return a warning if the pods' Triton has known vulnerabilities: the cluster reaches it."""
    version = image_release(project, "gpu" if gpu_models(project) else "cpu")
    holes = known_holes(version, table(project.root))
    if not holes or project.server.accept_known_holes:
        return None
    return (
        f"the pods' Triton {version} has known vulnerabilities: {cves_of(holes)}; "
        f"{fixed_in(holes)} fixes them. Only the chart's NetworkPolicy keeps other pods away"
    )


def require_release(project: Project, address: str, progress: Progress) -> StoredRelease:
    """Return the verified release for the pods.

    Raises ConfigurationError if the project has no release, UsageError for an unknown address,
    RepositoryError for a damaged release.
    """
    releases = stored_releases(project)
    if not releases:
        raise ConfigurationError(
            "the project has no release, and pods serve only releases",
            remedy="publish the build: `tritonctl releases publish`",
        )
    stored = find_release(releases, address)
    require_unchanged(stored, progress)
    return stored


def _chart(project: Project) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": installation_name(project),
        "description": "Triton behind Envoy, with monitoring, by tritonctl",
        "type": "application",
        "version": __version__,
        "kubeVersion": f">={OLDEST_KUBERNETES}.0-0",
    }


def _refuse_host_paths(project: Project) -> None:
    """Raise ConfigurationError if models name host paths: pods only have the release."""
    if paths := host_paths(project):
        raise ConfigurationError(
            f"models name {', '.join(map(str, paths))}, paths on this machine that pods lack",
            remedy="serve them with compose, or move these files into the checkpoint, so that the "
            "release includes them",
        )


def _placement(project: Project) -> GatewayPlacement:
    """Return Envoy's placement; a custom image has no readiness port, so Triton's is used."""
    return two_slots.gateway_placement(project, _TRITON, _FRONTEND, _readiness_port(project))


def _readiness_port(project: Project) -> int | None:
    return None if project.docker.image else CONTAINER_PORT


def _values_text(
    project: Project, plan: RepositoryPlan, stored: StoredRelease, profile: str
) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML: the filter `value` quotes foreign values
    )
    environment.filters["value"] = _yaml_scalar
    template = environment.from_string(bundled.text(f"{FOLDER}/{VALUES}.j2", project.root))
    return template.render(**_variables(project, plan, stored, profile))


def _variables(
    project: Project, plan: RepositoryPlan, stored: StoredRelease, profile: str
) -> dict[str, Any]:
    server, gateway, sizes = project.server, gateway_of(project), container_limits(project, plan)
    release, slots = stored.manifest(), scaling.stream_slots(project, plan)
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
        "gpus": gpu_requirements(project, plan)["gpu_count"] if profile == "gpu" else 0,
        "startup": _startup_seconds(server.ready_timeout_seconds, release),
        "ready": release.smoke.ready_seconds,
        "readiness_port": _readiness_port(project) or PORTS["http"],
        "exit_timeout": server.exit_timeout_seconds,
        "margin": KILL_MARGIN_SECONDS + GRACE_MARGIN_SECONDS,
        "gateway": {"port": gateway.port, "admin_port": gateway.admin_port},
        "frontend": {
            "port": frontend_port(frontend) if frontend else PORTS["http"],
            "memory": _mebibytes(frontend_memory(project) if frontend else 512 * MIB),
            "metrics_key": frontend is not None and frontend.metrics_key_file is not None,
        },
        "slots": slots,
        "streams": scaling.streams_per_replica(slots),
        "kv_percent": scaling.KV_PERCENT if slots else 0,
        "secrets": {name: os.path.relpath(path, project.root) for name, path in secrets},
        "secret_name": f"{deployment_name(project)}-secrets" if secrets else "",
        "egress": [{"ipBlock": {"cidr": "0.0.0.0/0"}}] if _needs_egress(project) else [],
    }


def release_address(stored: StoredRelease) -> str:
    """Return release and manifest digest: `3-0d5f2a7c91be@sha256:...`. Raises HostError."""
    with as_host_error(stored.folder):
        content = (stored.folder / RELEASE).read_bytes()
    return f"{stored.name}@sha256:{hashlib.sha256(content).hexdigest()}"


def _release_bytes(release: ReleaseManifest) -> int:
    return sum(file.size for file in release.files)


def _startup_seconds(timeout: int, release: ReleaseManifest) -> int:
    """Return the startup limit: the project's, at least a multiple of the measured time."""
    return max(timeout, math.ceil(_MAX_SLOWDOWN * (release.smoke.ready_seconds or 0)))


def _needs_egress(project: Project) -> bool:
    """Whether the servers open connections, to a trace collector or Redis."""
    return project.server.tracing is not None or project.server.cache_redis is not None


def _mebibytes(size: int) -> str:
    return f"{math.ceil(size / MIB)}Mi"


def _yaml_scalar(value: object) -> str:
    """Return a YAML scalar or list in JSON notation."""
    return json.dumps(value, ensure_ascii=False)
