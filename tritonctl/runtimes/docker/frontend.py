# SPDX-License-Identifier: Apache-2.0
"""The frontend's container: its image's files, configuration and secrets."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.config import secret_files as own_secrets
from tritonctl.gateway.files import COMPOSE_SERVICE
from tritonctl.gateway.placement import SECRETS, triton_secrets
from tritonctl.host import bundled
from tritonctl.host.requirements import lock_of
from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.sampling_table import SAMPLING_FILE
from tritonctl.runtimes.docker.discovery import PORTS

FOLDER = "frontend"
CONFIGURATION = f"{FOLDER}/frontend.json"  # mounted, not part of the image
# Its imports are for type checkers only: it loads the public API by name.
_ROOT = "tritonctl/__init__.py"
_PACKAGE = Path(__file__).resolve().parents[2]
_STEPS_FOLDER = "python_backends"
_COUNTER_LIBRARY = "countlib"
# Memory of the frontend; then, for each text model, of the processes that count its prompts, plus a
# multiple of its tokenizer's size: 1.5 times the figures of benchmarks/results/docker.md.
_FRONTEND_BYTES = 512 << 20
_COUNTER_BYTES = 128 << 20
_TOKENIZER_FACTOR = 24


def frontend_files(project: Project, name: str, service: str, models: str) -> dict[str, str]:
    """Return the image's files and the configuration: relative path to text; {} without frontend.

    name: of the deployment. service: compose's name of the servers. models: path of the model
    repository in the container.
    """
    if project.frontend is None:
        return {}
    servers = _servers(project, name, service)
    text = configuration_text(project, servers, COMPOSE_SERVICE, models)
    return {CONFIGURATION: text, **image_files(project)}


def configuration_text(
    project: Project, servers: Sequence[str], server_name: str, models: str
) -> str:
    """Return the configuration for a container; server_name: host in the servers' certificates."""
    config = FrontendConfig.of(
        project,
        servers,
        tls=_tls(project, server_name),
        address="0.0.0.0",  # noqa: S104 - of the container
        port=container_port(project.frontend or Frontend()),
        folder=Path(SECRETS),
        repository=Path(models),
        metrics_ports=dict.fromkeys(servers, PORTS["metrics"]),
    )
    return config.model_dump_json(indent=2) + "\n"


def image_files(project: Project) -> dict[str, str]:
    """Return the build context of the image."""
    requirements = bundled.find("docker/frontend_requirements.txt", project.root)
    files = {
        f"{FOLDER}/frontend.Dockerfile": bundled.text("docker/frontend.Dockerfile", project.root),
        f"{FOLDER}/requirements.txt": (lock_of(requirements) or requirements).read_text(
            encoding="utf-8"
        ),
    }
    sources = {
        **_frontend_sources(),
        **_counter_sources(project.root),
        SAMPLING_FILE: bundled.text(SAMPLING_FILE),
    }
    return files | {f"{FOLDER}/{name}": text for name, text in sources.items()}


def memory_limit(project: Project) -> int:
    """Return the container's memory limit in bytes: frontend and prompt counters."""
    files = project.repository.glob("*/*/tokenizer/tokenizer.json")
    folders = {file.parents[2]: file.stat().st_size for file in files}
    counters = sum(_COUNTER_BYTES + _TOKENIZER_FACTOR * size for size in folders.values())
    return _FRONTEND_BYTES + counters


def _frontend_sources() -> dict[str, str]:
    """Return the frontend's modules and their imports from tritonctl: path to text."""
    own_files = (_PACKAGE / "frontend").rglob("*")
    pending = sorted(path for path in own_files if path.suffix in {".py", ".lua"})
    sources: dict[str, str] = {}
    while pending:
        path = pending.pop()
        name = path.relative_to(_PACKAGE.parent).as_posix()
        if name in sources or not path.is_file():
            continue
        sources[name] = path.read_text(encoding="utf-8")
        pending.append(path.parent / "__init__.py")
        if path.parent != _PACKAGE:
            pending.append(path.parent.parent / "__init__.py")
        if path.suffix == ".py" and name != _ROOT:
            pending += _imported_files(sources[name])
    return dict(sorted(sources.items()))


def _counter_sources(project_root: Path) -> dict[str, str]:
    """Return the prompt counter's code: the shared code of the tokenizer steps."""
    pending, sources = [_COUNTER_LIBRARY], dict[str, str]()
    seen = set(pending)
    while pending:
        folder = bundled.find(f"{_STEPS_FOLDER}/{pending.pop()}", project_root)
        for file in sorted(folder.rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            path = file.relative_to(folder.parent).as_posix()
            sources[f"{_STEPS_FOLDER}/{path}"] = source
            for name in {each.partition(".")[0] for each in _imported_names(source)} - seen:
                if (folder.parent / name).is_dir():
                    seen.add(name)
                    pending.append(name)
    return dict(sorted(sources.items()))


def _imported_files(source: str) -> Iterator[Path]:
    """Yield the possible files of the tritonctl modules that a source imports."""
    for name in _imported_names(source):
        if name.partition(".")[0] == "tritonctl":
            base = _PACKAGE.parent.joinpath(*name.split("."))
            yield from (base.with_suffix(".py"), base / "__init__.py")


@cache  # several deployments of one command have the same sources
def _imported_names(source: str) -> tuple[str, ...]:
    """Return the names that a source imports: modules, or names in modules."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return tuple(names)


def container_port(settings: Frontend) -> int:
    """Return the port in the container, also on the host if it is published."""
    return settings.port or Frontend().port


def secret_files(project: Project) -> dict[str, Path]:
    """Return the frontend's secret files: secret name to absolute path."""
    if project.frontend is None:
        return {}
    return own_secrets(project) | triton_secrets(project)


def _servers(project: Project, name: str, service: str) -> list[str]:
    """Return each replica's address by container name, so that the frontend tells them apart."""
    replicas = project.docker.replicas
    if replicas == 1:
        return [f"{COMPOSE_SERVICE}:{PORTS['grpc']}"]
    return [f"{name}-{service}-{number}:{PORTS['grpc']}" for number in range(1, replicas + 1)]


def _tls(project: Project, server_name: str) -> ClientTls | None:
    """Like the gateway, check that a server's certificate is for the service's name."""
    if project.server.tls is None:
        return None
    paths = {key: f"{SECRETS}/{key}" for key in triton_secrets(project)}
    prefix = "triton_tls_"
    return ClientTls(
        ca=paths.get(f"{prefix}ca"),
        certificate=paths.get(f"{prefix}client_certificate"),
        key=paths.get(f"{prefix}client_key"),
        server_name=server_name,
    )
