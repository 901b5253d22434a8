# SPDX-License-Identifier: Apache-2.0
"""Open gRPC channels: plaintext, or TLS with the certificate files of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from loadlib.plan_types import ClientTlsFiles, GeneratorEndpoint
from loadlib.refusal import RunRefusedError
from loadlib.schema import field_error

Options = Sequence[tuple[str, Any]]
_THIS_MACHINE = {"127.0.0.1", "::1", "localhost"}


def check_tls(endpoint: GeneratorEndpoint) -> None:
    """Check `endpoint.tls` of a plan. Raises RunRefusedError for contradictions."""
    tls, location = endpoint.tls, "endpoint.tls"
    if tls is None:
        return
    if endpoint.protocol != "grpc":
        raise field_error(location, "Triton supports TLS on gRPC only", "drop tls, or use grpc")
    if (tls.certificate is None) != (tls.key is None):
        raise field_error(location, "certificate and key need each other", "set both, or drop both")


def create_channel(url: str, tls: ClientTlsFiles | None, options: Options) -> grpc.aio.Channel:
    """Open an asyncio channel; loopback connections bypass any proxy.

    Raises RunRefusedError if a TLS file cannot be read.
    """
    if url.rpartition(":")[0].strip("[]") in _THIS_MACHINE:
        options = [*options, ("grpc.enable_http_proxy", 0)]
    if tls is None:
        return grpc.aio.insecure_channel(url, options=list(options))
    if tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    return grpc.aio.secure_channel(url, _credentials(tls), options=list(options))


def _credentials(tls: ClientTlsFiles) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise RunRefusedError(
            f"endpoint.tls: {path} cannot be read: {error.strerror}",
            remedy="check the path and its permissions",
        ) from error
