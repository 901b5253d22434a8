# SPDX-License-Identifier: Apache-2.0
"""What the frontend's process reads: one JSON file, written from a project by who starts it.

The process needs neither project file nor checkpoint; what models take, it asks Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.project.base import Frozen
from tritonctl.project.expected import reason
from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls


class FrontendConfig(Frozen):
    """`servers`: host:port of each replica's gRPC endpoint. `models`: the public names.

    `settings`: the `frontend:` section of the project. `tls`: paths of PEM files by their fields in
    ClientTls, for all servers; `api_key`: of a gateway before them. `exit_timeout_seconds`: how
    long streams may take to finish at the end.
    """

    servers: Annotated[tuple[str, ...], Field(min_length=1)]
    models: tuple[str, ...]
    settings: Frontend = Frontend()
    tls: Mapping[str, str | None] | None = None
    api_key: ApiKey | None = None
    exit_timeout_seconds: int = 30

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
    ) -> Self:
        """For a project whose replicas listen at these addresses.

        address, port: where it is to listen, instead of what the project says.
        """
        settings = project.frontend or Frontend()
        place = {"address": address, "port": port}
        changed = {name: value for name, value in place.items() if value is not None}
        return cls(
            servers=tuple(servers),
            models=tuple(project.public),
            settings=settings.model_copy(update=changed),
            tls=tls and tls.to_record(),
            api_key=api_key,
            exit_timeout_seconds=project.server.exit_timeout_seconds,
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
