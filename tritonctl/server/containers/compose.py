# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy compose`: the files with which Docker Compose runs a project."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.version import __version__
from tritonctl.project.compatibility.exposure import (
    plain_address,
    refuse_known_holes,
    release_of_image,
)
from tritonctl.project.schema import Project
from tritonctl.repository.packages import image_requirements
from tritonctl.repository.plan import Plan, startup_models
from tritonctl.repository.server_environment import SERVER_VERSION, Program
from tritonctl.server.arguments import server_arguments
from tritonctl.server.containers.entrypoint import (
    BESIDE,
    BESIDE_VARIABLE,
    READINESS_PORT,
    READINESS_VARIABLE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
)
from tritonctl.server.containers.frontend import frontend_files
from tritonctl.server.containers.frontend import image_files as frontend_image
from tritonctl.server.containers.frontend import memory as frontend_memory
from tritonctl.server.containers.frontend import port as frontend_port
from tritonctl.server.containers.frontend import secret_files as frontend_secrets
from tritonctl.server.containers.host_paths import host_paths
from tritonctl.server.containers.images import gpu_models, ngc_image
from tritonctl.server.containers.presence import PORTS
from tritonctl.server.containers.sizes import container_sizes
from tritonctl.server.gateway.files import gateway_files
from tritonctl.server.gateway.placement import gateway_of
from tritonctl.server.gateway.placement import secret_files as gateway_secrets
from tritonctl.server.observe.files import observability_files
from tritonctl.server.slots import Slot
from tritonctl.server.supervisor import KILL_MARGIN_SECONDS

COMPOSE_FILE = "compose.yaml"
TEMPLATE = "docker/compose.yaml.j2"
MODELS = "/models"
CPU_BASE_IMAGE = "python:3.12-slim-bookworm"
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.2.0"
_ENVOY_CONFIGURATION = "envoy/envoy.yaml"  # mounted, not part of the image
# What of tritonctl runs in the image: standard library only.
_IN_IMAGE = (
    "__init__.py",
    "host/__init__.py",
    "host/version.py",
    "server/__init__.py",
    "server/becoming.py",
    "server/containers/__init__.py",
    "server/containers/entrypoint.py",
    "server/readiness.py",
    "server/supervisor.py",
)
_PACKAGE = Path(__file__).resolve().parents[2]
# On top of the time in which streams finish and models unload: for Docker.
GRACE_MARGIN_SECONDS = 10
_GPU_TMP_BYTES = 2 << 30
_IMAGE_USER = "1000:1000"


@dataclass(frozen=True)
class Rendering:
    """Relative path to text of every file, and the profile that serves this project."""

    files: Mapping[str, str]
    profile: str


def render_compose(
    project: Project, plan: Plan, output: Path, slot: Slot | None = None
) -> Rendering:
    """All files of the deployment, for the folder `output`; writes nothing.

    slot: of a group behind a gateway that runs beside the containers. Raises RepositoryError when
    the repository has not been rendered, ConfigurationError for settings or requirements that
    cannot go together.
    """
    context = _image_files(project, plan.programs)
    files = {f"triton/{name}": text for name, text in context.items()}
    profile = "gpu" if gpu_models(project) else "cpu"
    refuse_known_holes(project, served_release(project, profile))
    observability = observability_files(project)
    gateway = gateway_files(project) if slot is None else {}
    service = "triton-gpu" if profile == "gpu" else "triton"
    name = deployment_name(project, slot)
    openai = frontend_files(project, name, service, MODELS)
    if slot is None:
        _refuse_lonely_replicas(project)
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


def served_release(project: Project, profile: str) -> str:
    """The release to look up known holes for; the image itself where it names none."""
    docker = project.docker
    if docker.image or profile == "gpu":
        image = docker.image or docker.base_image or ngc_image(project)
        return release_of_image(image) or image
    return SERVER_VERSION


def image_names(project: Project, plan: Plan, profile: str) -> dict[str, str]:
    """What compose builds or pulls, by service: triton, gateway, frontend; "" without one."""
    frontend = _frontend(project, published=False)
    server = _services(project, _digest(_image_files(project, plan.programs)), profile)[profile]
    return {
        "triton": server["image"],
        "gateway": _envoy(project, gateway_files(project))["image"],
        "frontend": frontend["image"] if frontend else "",
    }


def deployment_name(project: Project, slot: Slot | None = None) -> str:
    """The name of the compose project: the folder's, in the letters that compose allows."""
    name = re.sub(r"[^a-z0-9_-]+", "-", project.root.name.lower()).strip("-_") or "tritonctl"
    return f"{name}-{slot}" if slot is Slot.B else name


def _image_files(project: Project, programs: Sequence[Program]) -> dict[str, str]:
    """The context that both Triton images are built in."""
    files = {
        f"{kind}.Dockerfile": bundled.text(f"docker/triton-{kind}.Dockerfile", project.root)
        for kind in ("cpu", "gpu")
    }
    files["lay_out.py"] = bundled.text("docker/lay_out.py", project.root)
    built = project.docker.image is None
    files["requirements.txt"] = image_requirements(programs, built=built)
    for name in _IN_IMAGE:
        files[f"tritonctl/{name}"] = (_PACKAGE / name).read_text(encoding="utf-8")
    return files


def _digest(files: Mapping[str, str]) -> str:
    content = "\0".join(f"{name}\0{files[name]}" for name in sorted(files))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _variables(
    project: Project, plan: Plan, output: Path, digest: str, profile: str
) -> dict[str, Any]:
    server, sizes = project.server, container_sizes(project, plan)
    return {
        "version": __version__,
        "profile": profile,
        "user": container_user(project.repository),
        "repository": _relative(models_folder(project, plan)[0], output),
        "host_paths": [str(path) for path in host_paths(project)],
        "token_variable": TOKEN_VARIABLE,
        "beside": BESIDE,
        "readiness_port": READINESS_PORT,
        "readiness_variable": READINESS_VARIABLE,
        "beside_variable": BESIDE_VARIABLE,
        "plain_address": plain_address(project),
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
        **gpus(project, plan),
        "memory": str(sizes.memory),
        "shm": str(sizes.shm),
        "tmp": sizes.tmp,
        "gpu_tmp": _GPU_TMP_BYTES,
        "nofile": sizes.nofile,
        "reasons": sizes.reasons,
    }


def models_folder(project: Project, plan: Plan) -> tuple[Path, str]:
    """The folder to mount, and what the server in the container knows the repository by.

    Of a release all of them are mounted: the link leads from one to another while it runs.
    """
    linked = plan.release.repository if plan.release else None
    if linked is None:
        return project.repository, MODELS
    link = linked.parent
    return link.parent, f"{MODELS}/{link.name}/{linked.name}"


def server_command(project: Project, plan: Plan, profile: str, repository: str) -> list[str]:
    """The server's command line as it is inside the container, where `repository` is."""
    places = {path: f"/run/secrets/{name}" for name, path in _triton_secrets(project).items()}
    arguments = server_arguments(
        project,
        repository=repository,
        models=startup_models(project, plan),
        address="0.0.0.0",  # noqa: S104 - of the container; published on loopback
        ports=(PORTS["grpc"], PORTS["http"], PORTS["metrics"]),
        token=TOKEN_PLACEHOLDER,
        file=lambda path: places.get(path, str(path)),
        with_cache=plan.caches,
        # The image of CPUs is made of a wheel that has the local cache alone.
        has_redis_cache=profile == "gpu" or project.docker.image is not None,
    )
    if profile == "gpu":  # NVIDIA's images have DCGM
        arguments.remove("--allow-gpu-metrics=false")
    return ["tritonserver", *arguments]


def _triton_secrets(project: Project) -> dict[str, Path]:
    """The server's own certificate files, by secret name."""
    fields = ("certificate", "key", "client_ca") if project.server.tls else ()
    files = {field: getattr(project.server.tls, field) for field in fields}
    return {f"server_tls_{name}": project.path(file) for name, file in files.items() if file}


def secret_files(project: Project, *, gateway: bool) -> dict[str, Path]:
    """Every key and certificate that the containers read, absolute, by secret name."""
    edge = gateway_secrets(project) | frontend_secrets(project) if gateway else {}
    return _triton_secrets(project) | edge


def _services(project: Project, digest: str, profile: str) -> dict[str, Any]:
    """Engines for a CPU run in both images; engines for a GPU in the GPU image only."""
    images = {"gpu": ngc_image(project)} | ({"cpu": CPU_BASE_IMAGE} if profile == "cpu" else {})
    return {"cpu": None, "gpu": None} | {
        kind: _image(project, kind, base, digest, chosen=kind == profile)
        for kind, base in images.items()
    }


def _image(
    project: Project, kind: str, base: str, digest: str, *, chosen: bool
) -> dict[str, str | None]:
    """`docker.image` and `docker.base_image` are those of the profile that the project needs."""
    docker = project.docker
    if chosen and docker.image:
        return {"image": docker.image, "base_image": None}
    base = docker.base_image if chosen and docker.base_image else base
    tag = _digest({"context": digest, "base": base})
    return {"image": f"tritonctl/triton-{kind}:{tag}", "base_image": base}


def gpus(project: Project, plan: Plan) -> dict[str, Any]:
    """`gpu_ids` that models name, and `gpu_count`, how many the largest engine is made for."""
    groups = (g for model in project.models.values() for g in model.serving.instance_group)
    by_hand = (g for model in plan.handwritten for g in model.config.get("instance_group", ()))
    engines = (model.engine for model in project.models.values())
    ids = {gpu for group in groups for gpu in group.gpus}
    return {
        "gpu_ids": sorted(map(str, ids.union(*(group.get("gpus", ()) for group in by_hand)))),
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
    """Behind the gateway, where there is one: TLS, keys and the published port are Envoy's then."""
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


def _refuse_lonely_replicas(project: Project) -> None:
    if project.docker.replicas > 1 and project.gateway is None:
        raise ConfigurationError(
            f"docker.replicas is {project.docker.replicas}, but no gateway distributes the "
            "requests among them",
            remedy="add `gateway: {}` to tritonctl.yaml, or set docker.replicas to 1",
        )


def container_user(repository: Path) -> str:
    """UID:GID. Whoever owns the repository may read it, and the keys; root runs no servers."""
    owner = repository.stat()
    return f"{owner.st_uid}:{owner.st_gid}" if owner.st_uid else _IMAGE_USER


def _relative(path: Path, folder: Path) -> str:
    """As compose wants it: relative to its file, so that the repository can be moved."""
    return Path(os.path.relpath(path, folder)).as_posix()


def _compose_text(project: Project, variables: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML: `value` quotes what is not ours
    )
    environment.filters["value"] = quoted
    address = str(variables["address"])

    def published(variable: str, port: int, inside: int, on: str = address) -> str:
        place = f"[{on}]" if ":" in on else on
        return f'"{place}:${{{variable}:-{port or ""}}}:{inside}"'

    template = environment.from_string(bundled.text(TEMPLATE, project.root))
    return template.render(**variables, published=published)


def quoted(value: object) -> str:
    """A YAML scalar or list in JSON's notation; `$` is doubled, or compose would replace it."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")
