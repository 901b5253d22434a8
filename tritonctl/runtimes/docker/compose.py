# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy compose`: render the files with which Docker Compose runs a project."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tritonctl.errors import ConfigurationError
from tritonctl.gateway.files import gateway_files
from tritonctl.gateway.placement import gateway_of
from tritonctl.gateway.placement import secret_files as gateway_secrets
from tritonctl.host import bundled
from tritonctl.host.version import __version__
from tritonctl.monitoring.files import observability_files
from tritonctl.project.compatibility.exposure import (
    refuse_known_holes,
    release_of_image,
    unencrypted_address,
)
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot
from tritonctl.repository.packages import image_locks, image_requirements
from tritonctl.repository.plan import RepositoryPlan, startup_models
from tritonctl.repository.server_environment import SERVER_VERSION, StubProgram
from tritonctl.runtimes.docker.container_limits import container_limits
from tritonctl.runtimes.docker.discovery import PORTS
from tritonctl.runtimes.docker.entrypoint import (
    READINESS_VARIABLE,
    STANDBY_FOLDER,
    STANDBY_VARIABLE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
)
from tritonctl.runtimes.docker.frontend import container_port as frontend_port
from tritonctl.runtimes.docker.frontend import frontend_files
from tritonctl.runtimes.docker.frontend import image_files as frontend_image
from tritonctl.runtimes.docker.frontend import memory_limit as frontend_memory
from tritonctl.runtimes.docker.frontend import secret_files as frontend_secrets
from tritonctl.runtimes.docker.host_paths import host_paths
from tritonctl.runtimes.docker.images import gpu_models, ngc_image
from tritonctl.runtimes.server_arguments import server_arguments
from tritonctl.supervision.readiness import CONTAINER_PORT
from tritonctl.supervision.supervisor import KILL_MARGIN_SECONDS

COMPOSE_FILE = "compose.yaml"
TEMPLATE = "docker/compose.yaml.j2"
MODELS = "/models"
CPU_BASE_IMAGE = "python:3.12-slim-bookworm"
# The digests of the tags' indices, as public projects pin them.
PROMETHEUS_IMAGE = (
    "prom/prometheus:v3.5.0@sha256:63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996"
)
GRAFANA_IMAGE = (
    "grafana/grafana:12.2.0@sha256:74144189b38447facf737dfd0f3906e42e0776212bf575dc3334c3609183adf7"
)
_ENVOY_CONFIGURATION = "envoy/envoy.yaml"  # mounted, not part of the image
# Modules of tritonctl that run in the image: standard library only.
_IMAGE_MODULES = (
    "__init__.py",
    "host/__init__.py",
    "host/version.py",
    "runtimes/__init__.py",
    "runtimes/docker/__init__.py",
    "runtimes/docker/entrypoint.py",
    "supervision/__init__.py",
    "supervision/exec_launcher.py",
    "supervision/new_requests.py",
    "supervision/progress.py",
    "supervision/readiness.py",
    "supervision/supervisor.py",
)
_PACKAGE = Path(__file__).resolve().parents[2]
# For Docker, on top of the time in which streams finish and models unload.
GRACE_MARGIN_SECONDS = 10
_GPU_TMP_BYTES = 2 << 30
_IMAGE_USER = "1000:1000"


@dataclass(frozen=True)
class Rendering:
    """A rendered deployment."""

    files: Mapping[str, str]  # relative path to text
    profile: str  # serves this project


def render_compose(
    project: Project, plan: RepositoryPlan, output: Path, slot: Slot | None = None
) -> Rendering:
    """Render all files of the deployment for the folder `output`, without writing them.

    slot: of a server behind a gateway outside the containers. Raises RepositoryError if the model
    repository has not been rendered, ConfigurationError for conflicting settings or requirements.
    """
    context = _image_files(project, plan.programs)
    files = {f"triton/{name}": text for name, text in context.items()}
    profile = "gpu" if gpu_models(project) else "cpu"
    refuse_known_holes(project, image_release(project, profile))
    observability = observability_files(project)
    gateway = gateway_files(project) if slot is None else {}
    service = "triton-gpu" if profile == "gpu" else "triton"
    name = deployment_name(project, slot)
    openai = frontend_files(project, name, service, MODELS)
    if slot is None:
        _refuse_replicas_without_gateway(project)
    variables = _variables(project, plan, output, _digest(context), profile)
    variables["command"] = server_command(project, plan, profile, models_folder(project, plan)[1])
    variables |= {
        "name": name,
        "envoy": _envoy(project, gateway) if slot is None else None,
        "frontend": _frontend(project, published=project.gateway is None or slot is not None),
        "prometheus": PROMETHEUS_IMAGE,
        "grafana": GRAFANA_IMAGE,
        "profiles": [
            *dict.fromkeys((profile, "gpu")),
            "observability",
            *(["gateway"] if slot is None else []),
            *(["frontend"] if openai else []),
        ],
    }
    secrets = sorted(secret_files(project, gateway=True).items())
    variables["secrets"] = {name: _relative(path, output) for name, path in secrets}
    text = _compose_text(project, variables)
    return Rendering({COMPOSE_FILE: text, **files, **observability, **gateway, **openai}, profile)


def unpinned_images(rendering: Rendering) -> list[str]:
    """Return the registries' images of the profile whose tag may name another image tomorrow."""
    services = yaml.safe_load(rendering.files[COMPOSE_FILE])["services"].values()
    selected = [service for service in services if rendering.profile in service["profiles"]]
    bases = (service.get("build", {}).get("args", {}).get("BASE_IMAGE") for service in selected)
    named = (service["image"] for service in selected if "build" not in service)
    return sorted({image for image in (*bases, *named) if image and "@sha256:" not in image})


def image_release(project: Project, profile: str) -> str:
    """Return the release to look up known holes for, or the image if it names no release."""
    docker = project.docker
    if docker.image or profile == "gpu":
        image = docker.image or docker.base_image or ngc_image(project)
        return release_of_image(image) or image
    return SERVER_VERSION


def image_names(project: Project, plan: RepositoryPlan, profile: str) -> dict[str, str]:
    """Return the image of each service, triton, gateway and frontend; "" without the service."""
    frontend = _frontend(project, published=False)
    server = _services(project, _digest(_image_files(project, plan.programs)), profile)[profile]
    return {
        "triton": server["image"],
        "gateway": _envoy(project, gateway_files(project))["image"],
        "frontend": frontend["image"] if frontend else "",
    }


def deployment_name(project: Project, slot: Slot | None = None) -> str:
    """Return the compose project's name: the folder's name in compose's allowed characters."""
    name = re.sub(r"[^a-z0-9_-]+", "-", project.root.name.lower()).strip("-_") or "tritonctl"
    return f"{name}-{slot}" if slot is Slot.B else name


def _image_files(project: Project, programs: Sequence[StubProgram]) -> dict[str, str]:
    """Return the build context of both Triton images."""
    files = {
        f"{kind}.Dockerfile": bundled.text(f"docker/triton-{kind}.Dockerfile", project.root)
        for kind in ("cpu", "gpu")
    }
    files["lay_out.py"] = bundled.text("docker/lay_out.py", project.root)
    built = project.docker.image is None
    files["requirements.txt"] = image_requirements(programs, built=built)
    files |= image_locks(programs)
    for name in _IMAGE_MODULES:
        files[f"tritonctl/{name}"] = (_PACKAGE / name).read_text(encoding="utf-8")
    return files


def _digest(files: Mapping[str, str]) -> str:
    content = "\0".join(f"{name}\0{files[name]}" for name in sorted(files))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _variables(
    project: Project, plan: RepositoryPlan, output: Path, digest: str, profile: str
) -> dict[str, Any]:
    server, sizes = project.server, container_limits(project, plan)
    return {
        "version": __version__,
        "profile": profile,
        "user": container_user(project.repository),
        "repository": _relative(models_folder(project, plan)[0], output),
        "host_paths": [str(path) for path in host_paths(project)],
        "token_variable": TOKEN_VARIABLE,
        "beside": STANDBY_FOLDER,
        "readiness_port": CONTAINER_PORT,
        "readiness_variable": READINESS_VARIABLE,
        "beside_variable": STANDBY_VARIABLE,
        "plain_address": unencrypted_address(project),
        "triton_secrets": sorted(_triton_secrets(project)),
        "ports": {
            "grpc": server.grpc_port,
            "http": server.http_port,
            "metrics": server.metrics_port,
        },
        "address": server.address,
        "restart": "unless-stopped" if server.restart else "no",
        "exit_timeout": server.exit_timeout_seconds,
        "grace": server.exit_timeout_seconds + KILL_MARGIN_SECONDS + GRACE_MARGIN_SECONDS,
        "start_period": server.ready_timeout_seconds,
        "replicas": project.docker.replicas,
        "services": _services(project, digest, profile),
        **gpu_requirements(project, plan),
        "memory": str(sizes.memory),
        "shm": str(sizes.shm),
        "tmp": sizes.tmp,
        "gpu_tmp": _GPU_TMP_BYTES,
        "nofile": sizes.nofile,
        "reasons": sizes.reasons,
    }


def models_folder(project: Project, plan: RepositoryPlan) -> tuple[Path, str]:
    """Return the folder to mount and the repository's path in the container.

    For a release, the mount includes all releases: the link may switch to another one at runtime.
    """
    linked = plan.release.repository if plan.release else None
    if linked is None:
        return project.repository, MODELS
    link = linked.parent
    return link.parent, f"{MODELS}/{link.name}/{linked.name}"


def server_command(
    project: Project, plan: RepositoryPlan, profile: str, repository: str
) -> list[str]:
    """Return the server's command line in the container; `repository`: its path there."""
    secret_paths = {path: f"/run/secrets/{name}" for name, path in _triton_secrets(project).items()}
    arguments = server_arguments(
        project,
        repository=repository,
        models=startup_models(project, plan),
        address="0.0.0.0",  # noqa: S104 - of the container; published on loopback
        ports=(PORTS["grpc"], PORTS["http"], PORTS["metrics"]),
        token=TOKEN_PLACEHOLDER,
        path_on_server=lambda path: secret_paths.get(path, str(path)),
        with_cache=plan.needs_cache,
        # The CPU image contains a wheel that only has the local cache.
        has_redis_cache=profile == "gpu" or project.docker.image is not None,
    )
    if profile == "gpu":  # NVIDIA's images have DCGM
        arguments.remove("--allow-gpu-metrics=false")
    return ["tritonserver", *arguments]


def _triton_secrets(project: Project) -> dict[str, Path]:
    """Return the server's certificate files by secret name."""
    fields = ("certificate", "key", "client_ca") if project.server.tls else ()
    files = {field: getattr(project.server.tls, field) for field in fields}
    return {f"server_tls_{name}": project.path(file) for name, file in files.items() if file}


def secret_files(project: Project, *, gateway: bool) -> dict[str, Path]:
    """Return the keys and certificates of the containers: secret name to absolute path."""
    edge = gateway_secrets(project) if gateway else {}
    return _triton_secrets(project) | frontend_secrets(project) | edge


def _services(project: Project, digest: str, profile: str) -> dict[str, Any]:
    """Return the images by profile: CPU engines run in both, GPU engines in the GPU image only."""
    images = {"gpu": ngc_image(project)} | ({"cpu": CPU_BASE_IMAGE} if profile == "cpu" else {})
    return {"cpu": None, "gpu": None} | {
        kind: _image(project, kind, base, digest, is_selected=kind == profile)
        for kind, base in images.items()
    }


def _image(
    project: Project, kind: str, base: str, digest: str, *, is_selected: bool
) -> dict[str, str | None]:
    """Return the image; `docker.image` and `docker.base_image` apply to the project's profile."""
    docker = project.docker
    if is_selected and docker.image:
        return {"image": docker.image, "base_image": None}
    base = docker.base_image if is_selected and docker.base_image else base
    tag = _digest({"context": digest, "base": base})
    return {"image": f"tritonctl/triton-{kind}:{tag}", "base_image": base}


def gpu_requirements(project: Project, plan: RepositoryPlan) -> dict[str, Any]:
    """Return `gpu_ids` that models name, and `gpu_count`, the GPUs of the largest engine."""
    groups = (g for model in project.models.values() for g in model.serving.instance_group)
    handwritten_groups = (
        g for model in plan.handwritten for g in model.config.get("instance_group", ())
    )
    engines = (model.engine for model in project.models.values())
    ids = {gpu for group in groups for gpu in group.gpus}
    return {
        "gpu_ids": sorted(
            map(str, ids.union(*(group.get("gpus", ()) for group in handwritten_groups)))
        ),
        "gpu_count": max((engine.tp_size * engine.pp_size for engine in engines), default=1),
    }


def _envoy(project: Project, gateway: Mapping[str, str]) -> dict[str, Any]:
    settings = gateway_of(project)
    context = {name: text for name, text in gateway.items() if name != _ENVOY_CONFIGURATION}
    built = f"tritonctl/envoy:{_digest(context)}"
    return {
        "image": settings.image or built,
        "build": settings.image is None,
        "base_image": project.docker.base_image if not gpu_models(project) else None,
        "address": settings.address,
        "port": settings.port,
        "admin_port": settings.admin_port,
        "secrets": sorted(gateway_secrets(project)),
    }


def _frontend(project: Project, *, published: bool) -> dict[str, Any] | None:
    """Return the frontend's variables; behind a gateway, Envoy has TLS, keys and published port."""
    settings = project.frontend
    if settings is None:
        return None
    return {
        "image": f"tritonctl/frontend:{_digest(frontend_image(project))}",
        "base_image": project.docker.base_image if not gpu_models(project) else None,
        "published": published,
        "address": settings.address,
        "port": frontend_port(settings),
        "memory": str(frontend_memory(project)),
        "secrets": sorted(frontend_secrets(project)),
    }


def _refuse_replicas_without_gateway(project: Project) -> None:
    if project.docker.replicas > 1 and project.gateway is None:
        raise ConfigurationError(
            f"docker.replicas is {project.docker.replicas}, but no gateway distributes "
            "requests among them",
            remedy="add `gateway: {}` to tritonctl.yaml, or set docker.replicas to 1",
        )


def container_user(repository: Path) -> str:
    """Return the UID:GID of the repository's owner, or an unprivileged user instead of root."""
    owner = repository.stat()
    return f"{owner.st_uid}:{owner.st_gid}" if owner.st_uid else _IMAGE_USER


def _relative(path: Path, folder: Path) -> str:
    """Return the path relative to compose's file, so that the repository can be moved."""
    return Path(os.path.relpath(path, folder)).as_posix()


def _compose_text(project: Project, variables: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML: the filter `value` quotes foreign values
    )
    environment.filters["value"] = compose_scalar
    address = str(variables["address"])

    def published(
        variable: str, port: int, container_port: int, host_address: str = address
    ) -> str:
        host = f"[{host_address}]" if ":" in host_address else host_address
        return f'"{host}:${{{variable}:-{port or ""}}}:{container_port}"'

    template = environment.from_string(bundled.text(TEMPLATE, project.root))
    return template.render(**variables, published=published)


def compose_scalar(value: object) -> str:
    """Return a YAML scalar or list in JSON notation; `$` is doubled to escape it for compose."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")
