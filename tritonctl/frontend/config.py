# SPDX-License-Identifier: Apache-2.0
"""What the frontend's process reads: one JSON file, written from a project by who starts it.

The process needs neither project file nor checkpoint; what models take, it asks Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.text_models import TextModel, text_models
from tritonctl.project.base import Frozen
from tritonctl.project.expected import reason
from tritonctl.project.frontend import Frontend, Pool
from tritonctl.project.schema import Project
from tritonctl.project.server import Gateway, Tenant
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls

# Names of secrets, where compose puts them; the first two are the gateway's, too.
API_KEY, GATEWAY_SECRET = "gateway_api_key_", "gateway_frontend_secret"
REDIS_PASSWORD, REDIS_CA = "frontend_redis_password", "frontend_redis_ca"


def secret_files(project: Project) -> dict[str, Path]:
    """Every file with a secret that the frontend reads, absolute, by its name there."""
    gateway = project.gateway or Gateway()
    ledger = project.frontend.ledger if project.frontend else None
    files: dict[str, Path | None] = {
        f"{API_KEY}{name}": tenant.api_key_file for name, tenant in gateway.tenants.items()
    }
    files[GATEWAY_SECRET] = gateway.frontend_secret_file
    if ledger is not None:
        files |= {REDIS_PASSWORD: ledger.password_file, REDIS_CA: ledger.ca}
    return {name: project.path(file) for name, file in files.items() if file is not None}


class FrontendConfig(Frozen):
    """`servers`: host:port of each replica's gRPC endpoint. `fallbacks`: those that serve another
    release, asked only while none of `servers` is ready. `models`: the public names.

    `settings`: the `frontend:` section of the project. `tls`: paths of PEM files by their fields in
    ClientTls, for all servers; `api_key`: of a gateway before them. `exit_timeout_seconds`: how
    long streams may take to finish at the end. `tenants`: those of the gateway, with the paths of
    their keys. `metrics_ports`: of servers whose metrics can be read, by server. `pools`: of models
    that have them. `repository`: the model repository, where it can be read. `texts`: of models
    that generate text, what their checkpoints say.
    """

    servers: Annotated[tuple[str, ...], Field(min_length=1)]
    fallbacks: tuple[str, ...] = ()
    models: tuple[str, ...]
    settings: Frontend = Frontend()
    texts: Mapping[str, TextModel] = {}
    tls: Mapping[str, str | None] | None = None
    api_key: ApiKey | None = None
    exit_timeout_seconds: int = 30
    tenants: Mapping[str, Tenant] = {}
    gateway_secret_file: Path | None = None
    metrics_ports: Mapping[str, int] = {}
    pools: Mapping[str, Mapping[str, Pool]] = {}
    repository: Path | None = None

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
        """For a project whose replicas listen at these addresses, unless it names upstreams.

        address, port: where it is to listen, instead of what the project says. folder: where the
        files of `secret_files` lie by their names, in a container; None: as the project says.
        repository: where the model repository is there; checkpoints are not there, then.
        upstreams: false, and those of the project do not count.
        """
        files = secret_files(project)
        paths = {name: folder / name if folder else file for name, file in files.items()}
        settings, gateway = project.frontend or Frontend(), project.gateway or Gateway()
        place = {"address": address, "port": port}
        changed: dict[str, Any] = {name: it for name, it in place.items() if it is not None}
        if settings.ledger is not None:
            placed = {"password_file": paths.get(REDIS_PASSWORD), "ca": paths.get(REDIS_CA)}
            changed["ledger"] = settings.ledger.model_copy(update=placed)
        own = settings.upstreams if upstreams else []
        ports = {each.url: each.metrics_port for each in own if each.metrics_port is not None}
        texts = text_models(project)
        if repository is not None:
            texts = {
                name: text.model_copy(update={"tokenizer": None}) for name, text in texts.items()
            }
        return cls(
            servers=tuple(each.url for each in own) or tuple(servers),
            fallbacks=() if own else tuple(fallbacks),
            models=tuple(project.public),
            settings=settings.model_copy(update=changed),
            texts=texts,
            tls=tls and tls.to_record(),
            api_key=api_key,
            exit_timeout_seconds=project.server.exit_timeout_seconds,
            tenants={
                name: tenant.model_copy(update={"api_key_file": paths[f"{API_KEY}{name}"]})
                for name, tenant in gateway.tenants.items()
            },
            gateway_secret_file=paths.get(GATEWAY_SECRET),
            metrics_ports=ports if own else metrics_ports or {},
            pools={
                name: model.serving.pools
                for name, model in project.models.items()
                if model.serving.pools
            },
            repository=repository or project.repository,
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """From a file that `write` wrote. Raises ConfigurationError."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else reason(error)
            raise ConfigurationError(
                f"{file} is no configuration of the frontend: {why}",
                remedy="start the frontend with `tritonctl frontend`, which writes it",
            ) from error

    @property
    def url(self) -> str:
        """Where it listens, as clients write it."""
        address = self.settings.address
        return f"http://{f'[{address}]' if ':' in address else address}:{self.settings.port}"

    def at(self, address: str, port: int) -> Self:
        """The same, listening elsewhere."""
        changed = self.settings.model_copy(update={"address": address, "port": port})
        return self.model_copy(update={"settings": changed})

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
