# SPDX-License-Identifier: Apache-2.0
"""What the shadower's process reads: one JSON file, written by who starts it."""

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
from tritonctl.server.state import Server


class Side(Frozen):
    """A release's server. tls: paths of PEM files by their fields in ClientTls."""

    url: str
    metrics_url: str
    tls: Mapping[str, str | None] | None = None

    @classmethod
    def of(cls, server: Server) -> Self:
        """A running one."""
        return cls(url=server.grpc_url, metrics_url=server.metrics_url, tls=server.tls)

    @property
    def endpoint(self) -> Endpoint:
        """Its gRPC."""
        return Endpoint(self.url, client_tls(self.tls))


class ShadowConfig(Frozen):
    """socket: where copies come; folder: of the rollout, where what is found is written.

    models: the public ones; nobody else's are asked. frontend: where the project has one.
    keep_prompts: prompts and answers are written down, too. in_flight: questions at once; waiting:
    at most, further ones are dropped; seconds: for an answer; patience_seconds: that a copy may
    wait for a free server.
    """

    socket: Path
    folder: Path
    stable: Side
    candidate: Side
    models: tuple[str, ...]
    frontend: FrontendConfig | None = None
    keep_prompts: bool = False
    in_flight: Positive = 2
    waiting: Positive = 32
    seconds: AboveZero = 60.0
    patience_seconds: AboveZero = 10.0

    @classmethod
    def read(cls, file: Path) -> Self:
        """From a file that `write` wrote. Raises ConfigurationError."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else reason(error)
            raise ConfigurationError(
                f"{file} is no configuration of the shadower: {why}",
                remedy="`tritonctl rollout start` writes it",
            ) from error

    def write(self, file: Path) -> None:
        """As JSON."""
        write_atomically(file, self.model_dump_json(indent=2) + "\n", mode=PRIVATE)
