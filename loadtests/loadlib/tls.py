# SPDX-License-Identifier: Apache-2.0
"""How a gRPC endpoint is reached: plain, or with the certificates whose paths the plan names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from loadlib.refusal import Refusal
from loadlib.schema import refused

Options = Sequence[tuple[str, Any]]
_THIS_MACHINE = {"127.0.0.1", "::1", "localhost"}
_FILES = ("ca", "certificate", "key")


@dataclass(frozen=True)
class Tls:
    """PEM files, and the name in the server's certificate where it is not that of the endpoint."""

    ca: Path | None
    certificate: Path | None
    key: Path | None
    server_name: str | None

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC needs, read now. Refusal for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            _read(self.ca), _read(self.key), _read(self.certificate)
        )

    def options(self, options: Options) -> list[tuple[str, Any]]:
        """Channel options, with those that belong to it."""
        name = self.server_name
        return [*options, *([("grpc.ssl_target_name_override", name)] if name else [])]


def parse_tls(endpoint: dict[str, Any]) -> Tls | None:
    """`endpoint.tls` of a plan. Refusal for a contradiction."""
    fields, where = endpoint["tls"], "endpoint.tls"
    if fields is None:
        return None
    if endpoint["protocol"] != "grpc":
        raise refused(where, "Triton has TLS on gRPC only", "leave tls out, or use grpc")
    if (fields["certificate"] is None) != (fields["key"] is None):
        raise refused(where, "certificate and key go together", "name both, or neither")
    files = {name: Path(fields[name]) if fields[name] else None for name in _FILES}
    return Tls(**files, server_name=fields["server_name"])


def channel(url: str, tls: Tls | None, options: Options) -> grpc.aio.Channel:
    """An asyncio channel; no proxy stands between two ports of this machine."""
    if url.rpartition(":")[0].strip("[]") in _THIS_MACHINE:
        options = [*options, ("grpc.enable_http_proxy", 0)]
    if tls is None:
        return grpc.aio.insecure_channel(url, options=list(options))
    return grpc.aio.secure_channel(url, tls.credentials(), options=tls.options(options))


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise Refusal(
            f"endpoint.tls: {path} cannot be read: {error.strerror}",
            remedy="check the path and its permissions",
        ) from error
