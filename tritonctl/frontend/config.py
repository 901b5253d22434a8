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
from tritonctl.protocol.channel import ClientTls


class FrontendConfig(Frozen):
    """`servers`: host:port of each replica's gRPC endpoint. `models`: the public names.

    `settings`: the `frontend:` section of the project. `tls`: paths of PEM files by their fields in
    ClientTls, for all servers.
    """

    servers: Annotated[tuple[str, ...], Field(min_length=1)]
    models: tuple[str, ...]
    settings: Frontend = Frontend()
    tls: Mapping[str, str | None] | None = None

    @classmethod
    def of(cls, project: Project, servers: Sequence[str], *, tls: ClientTls | None = None) -> Self:
        """For a project whose replicas listen at these addresses."""
        return cls(
            servers=tuple(servers),
            models=tuple(project.public),
            settings=project.frontend or Frontend(),
            tls=tls and tls.to_record(),
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

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
