# SPDX-License-Identifier: Apache-2.0
"""The frontend's configuration: one JSON file, which the command that starts it writes.

The process needs neither project file nor checkpoint; it asks Triton for the models' inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.embedding_models import matryoshka_models
from tritonctl.frontend.text_models import TextModel, text_models
from tritonctl.project.base import Frozen
from tritonctl.project.expected import reason
from tritonctl.project.frontend import Frontend, Pool
from tritonctl.project.schema import Project
from tritonctl.project.server import Gateway, Tenant
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls

# Names of Compose secrets; the gateway uses the first two as well.
API_KEY, GATEWAY_SECRET = "gateway_api_key_", "gateway_frontend_secret"
REDIS_PASSWORD, REDIS_CA = "frontend_redis_password", "frontend_redis_ca"
METRICS_KEY = "frontend_metrics_key"


def secret_files(project: Project) -> dict[str, Path]:
    """Absolute paths of the secret files that the frontend reads, by secret name."""
    gateway = project.gateway or Gateway()
    ledger = project.frontend.ledger if project.frontend else None
    files: dict[str, Path | None] = {
        f"{API_KEY}{name}": tenant.api_key_file for name, tenant in gateway.tenants.items()
    }
    files[GATEWAY_SECRET] = gateway.frontend_secret_file
    files[METRICS_KEY] = project.frontend.metrics_key_file if project.frontend else None
    if ledger is not None:
        files |= {REDIS_PASSWORD: ledger.password_file, REDIS_CA: ledger.ca}
    return {name: project.path(file) for name, file in files.items() if file is not None}


class FrontendConfig(Frozen):
    """The configuration of one frontend process."""

    servers: Annotated[tuple[str, ...], Field(min_length=1)]  # host:port of the gRPC endpoints
    fallbacks: tuple[str, ...] = ()  # of another release, used while none of `servers` is ready
    models: tuple[str, ...]  # public names
    settings: Frontend = Frontend()  # the project's `frontend:` section
    texts: Mapping[str, TextModel] = {}  # checkpoint properties of text generation models
    matryoshka: Mapping[str, bool] = {}  # whether an embedding model suits `dimensions`
    tls: Mapping[str, str | None] | None = None  # PEM paths by field of ClientTls, for all servers
    api_key: ApiKey | None = None  # for a gateway in front of the servers
    exit_timeout_seconds: int = 30  # for streams to finish at the end
    tenants: Mapping[str, Tenant] = {}  # the gateway's, with the paths of their keys
    gateway_secret_file: Path | None = None
    metrics_ports: Mapping[str, int] = {}  # by server, if its metrics can be read
    pools: Mapping[str, Mapping[str, Pool]] = {}  # by model
    repository: Path | None = None  # the model repository, if it can be read

    @classmethod
    def of(
        cls,
        project: Project,
        servers: Sequence[str],
        *,
        tls: ClientTls | None = None,
        api_key: ApiKey | None = None,
        address: str | None = None,
        port: int | None = None,
        folder: Path | None = None,
        repository: Path | None = None,
        metrics_ports: Mapping[str, int] | None = None,
        fallbacks: Sequence[str] = (),
        upstreams: bool = True,
    ) -> Self:
        """The configuration for a project.

        servers: addresses of the replicas, used unless the project names upstreams. address, port:
        override the project's. folder: contains the files of `secret_files` by name, in a
        container; None: use the project's paths. repository: the model repository's path in a
        container, which has no checkpoints. upstreams: False ignores the project's upstreams.
        """
        files = secret_files(project)
        paths = {name: folder / name if folder else file for name, file in files.items()}
        settings, gateway = project.frontend or Frontend(), project.gateway or Gateway()
        overrides = {"address": address, "port": port}
        changed: dict[str, Any] = {name: it for name, it in overrides.items() if it is not None}
        changed["metrics_key_file"] = paths.get(METRICS_KEY)
        if settings.ledger is not None:
            placed = {"password_file": paths.get(REDIS_PASSWORD), "ca": paths.get(REDIS_CA)}
            changed["ledger"] = settings.ledger.model_copy(update=placed)
        upstreams_in_use = settings.upstreams if upstreams else []
        ports = {
            each.url: each.metrics_port
            for each in upstreams_in_use
            if each.metrics_port is not None
        }
        return cls(
            servers=tuple(each.url for each in upstreams_in_use) or tuple(servers),
            fallbacks=() if upstreams_in_use else tuple(fallbacks),
            models=tuple(project.public),
            settings=settings.model_copy(update=changed),
            texts=_text_models(project, in_container=repository is not None),
            matryoshka=matryoshka_models(project),
            tls=tls and tls.to_record(),
            api_key=api_key,
            exit_timeout_seconds=project.server.exit_timeout_seconds,
            tenants={
                name: tenant.model_copy(update={"api_key_file": paths[f"{API_KEY}{name}"]})
                for name, tenant in gateway.tenants.items()
            },
            gateway_secret_file=paths.get(GATEWAY_SECRET),
            metrics_ports=ports if upstreams_in_use else metrics_ports or {},
            pools={
                name: model.serving.pools
                for name, model in project.models.items()
                if model.serving.pools
            },
            repository=repository or project.repository,
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file that `write` wrote. Raises ConfigurationError."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            detail = error.strerror if isinstance(error, OSError) else reason(error)
            raise ConfigurationError(
                f"{file} is not a frontend configuration: {detail}",
                remedy="start the frontend with `tritonctl frontend`, which writes it",
            ) from error

    @property
    def url(self) -> str:
        """The frontend's URL for clients on this host."""
        address = self.settings.address
        return f"http://{f'[{address}]' if ':' in address else address}:{self.settings.port}"

    def with_address(self, address: str, port: int) -> Self:
        """A copy that listens on another address."""
        changed = self.settings.model_copy(update={"address": address, "port": port})
        return self.model_copy(update={"settings": changed})

    def write(self, file: Path) -> None:
        """Write the configuration as JSON."""
        file.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _text_models(project: Project, *, in_container: bool) -> dict[str, TextModel]:
    """Return the project's text models; a container has no checkpoints, so no tokenizers."""
    texts = text_models(project)
    if not in_container:
        return texts
    return {name: text.model_copy(update={"tokenizer": None}) for name, text in texts.items()}
