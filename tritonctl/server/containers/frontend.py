# SPDX-License-Identifier: Apache-2.0
"""The frontend's container: its image's files, what it reads, the secrets it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.config import secret_files as own_secrets
from tritonctl.host import bundled
from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.server.containers.presence import PORTS
from tritonctl.server.gateway.files import COMPOSE_SERVICE
from tritonctl.server.gateway.placement import SECRETS, triton_secrets

FOLDER = "frontend"
CONFIGURATION = f"{FOLDER}/frontend.json"  # mounted, not part of the image
# Its own imports are for type checkers: the public API is loaded by name.
_ROOT = "tritonctl/__init__.py"
_PACKAGE = Path(__file__).resolve().parents[2]
_STEPS = "python_backends"
_COUNTING = "countlib"
# The frontend itself; for each model that reads texts the processes that count its prompts, and so
# many times the size of its tokenizer: half as much again as benchmarks/results/docker.md has.
_OWN_BYTES = 512 << 20
_COUNTER_BYTES = 128 << 20
_TOKENIZER_TIMES = 24


def frontend_files(project: Project, name: str, service: str, models: str) -> dict[str, str]:
    """Relative path to text: what the image is built of, and what it reads; {} without a frontend.

    name: the deployment's; service: compose's for the servers; models: where the container has the
    model repository.
    """
    if project.frontend is None:
        return {}
    servers = _servers(project, name, service)
    text = configuration_text(project, servers, COMPOSE_SERVICE, models)
    return {CONFIGURATION: text, **image_files(project)}


def configuration_text(
    project: Project, servers: Sequence[str], server_name: str, models: str
) -> str:
    """What it reads in a container; server_name: whom the servers' certificates are for."""
    config = FrontendConfig.of(
        project,
        servers,
        tls=_tls(project, server_name),
        address="0.0.0.0",  # noqa: S104 - of the container
        port=port(project.frontend or Frontend()),
        folder=Path(SECRETS),
        repository=Path(models),
        metrics_ports=dict.fromkeys(servers, PORTS["metrics"]),
    )
    return config.model_dump_json(indent=2) + "\n"


def image_files(project: Project) -> dict[str, str]:
    """The context that the image is built in."""
    files = {
        f"{FOLDER}/frontend.Dockerfile": bundled.text("docker/frontend.Dockerfile", project.root),
        f"{FOLDER}/requirements.txt": bundled.text(
            "docker/frontend_requirements.txt", project.root
        ),
    }
    sources = {**_sources(), **_counting(project.root)}
    return files | {f"{FOLDER}/{place}": text for place, text in sources.items()}


def memory(project: Project) -> int:
    """The container's limit, bytes: for the frontend, and for what counts the models' prompts."""
    files = project.repository.glob("*/*/tokenizer/tokenizer.json")
    folders = {file.parents[2]: file.stat().st_size for file in files}
    counters = sum(_COUNTER_BYTES + _TOKENIZER_TIMES * size for size in folders.values())
    return _OWN_BYTES + counters


def _sources() -> dict[str, str]:
    """The frontend's modules, and those of tritonctl that they import: path to text."""
    own = (_PACKAGE / "frontend").rglob("*")
    waiting = sorted(path for path in own if path.suffix in {".py", ".lua"})
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        place = path.relative_to(_PACKAGE.parent).as_posix()
        if place in found or not path.is_file():
            continue
        found[place] = path.read_text(encoding="utf-8")
        waiting.append(path.parent / "__init__.py")
        if path.parent != _PACKAGE:
            waiting.append(path.parent.parent / "__init__.py")
        if path.suffix == ".py" and place != _ROOT:
            waiting += _imported(found[place])
    return dict(sorted(found.items()))


def _counting(project_root: Path) -> dict[str, str]:
    """What counts prompts: the tokenizer steps' own code, as far as it is shared."""
    waiting, found = [_COUNTING], dict[str, str]()
    seen = set(waiting)
    while waiting:
        folder = bundled.find(f"{_STEPS}/{waiting.pop()}", project_root)
        for file in sorted(folder.glob("*.py")):
            source = file.read_text(encoding="utf-8")
            found[f"{_STEPS}/{folder.name}/{file.name}"] = source
            for name in {each.partition(".")[0] for each in _names(source)} - seen:
                if (folder.parent / name).is_dir():
                    seen.add(name)
                    waiting.append(name)
    return dict(sorted(found.items()))


def _imported(source: str) -> Iterator[Path]:
    """Where modules of ours that a source imports may be."""
    for name in _names(source):
        if name.partition(".")[0] == "tritonctl":
            base = _PACKAGE.parent.joinpath(*name.split("."))
            yield from (base.with_suffix(".py"), base / "__init__.py")


@cache  # several deployments of one command have the same sources
def _names(source: str) -> tuple[str, ...]:
    """What a source imports: a name may be a module's, or of something in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return tuple(names)


def port(settings: Frontend) -> int:
    """Inside the container, and of the host where it is published."""
    return settings.port or Frontend().port


def secret_files(project: Project) -> dict[str, Path]:
    """Every file with a secret that the frontend reads, absolute, by the secret's name."""
    if project.frontend is None:
        return {}
    return own_secrets(project) | triton_secrets(project)


def _servers(project: Project, name: str, service: str) -> list[str]:
    """Each replica by its container's name: one name for all would hide which is which."""
    replicas = project.docker.replicas
    if replicas == 1:
        return [f"{COMPOSE_SERVICE}:{PORTS['grpc']}"]
    return [f"{name}-{service}-{number}:{PORTS['grpc']}" for number in range(1, replicas + 1)]


def _tls(project: Project, server_name: str) -> ClientTls | None:
    """As the gateway, it checks that a server's certificate is for the service's name."""
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
