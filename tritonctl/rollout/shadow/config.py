# SPDX-License-Identifier: Apache-2.0
"""The configuration of the shadower's process: a JSON file that its parent writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.project.base import AboveZero, Frozen, Positive
from tritonctl.project.expected import reason
from tritonctl.protocol.channel import Endpoint, client_tls
from tritonctl.runtimes.server_state import Server


class ShadowedServer(Frozen):
    """The server of a release."""

    url: str
    metrics_url: str
    tls: Mapping[str, str | None] | None = None  # paths of PEM files, by field of ClientTls

    @classmethod
    def of(cls, server: Server) -> Self:
        """Describe a running server."""
        return cls(url=server.grpc_url, metrics_url=server.metrics_url, tls=server.tls)

    @property
    def endpoint(self) -> Endpoint:
        """The gRPC endpoint."""
        return Endpoint(self.url, client_tls(self.tls))


class ShadowConfig(Frozen):
    """The settings of a shadower."""

    socket: Path  # receives copies
    folder: Path  # of the rollout, for the results
    stable: ShadowedServer
    candidate: ShadowedServer
    models: tuple[str, ...]  # public models; copies for other models are skipped
    frontend: FrontendConfig | None = None  # if the project has one
    keep_prompts: bool = False  # record prompts and answers, too
    in_flight: Positive = 2  # concurrent questions
    waiting: Positive = 32  # queue length; further copies are dropped
    seconds: AboveZero = 60.0  # timeout of an answer
    patience_seconds: AboveZero = 10.0  # how long a copy may wait for a free server

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file from `write`. Raises ConfigurationError."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            problem = error.strerror if isinstance(error, OSError) else reason(error)
            raise ConfigurationError(
                f"{file} is not a configuration of the shadower: {problem}",
                remedy="`tritonctl rollout start` writes it",
            ) from error

    def write(self, file: Path) -> None:
        """Write the settings as JSON."""
        write_atomically(file, self.model_dump_json(indent=2) + "\n", mode=PRIVATE)
