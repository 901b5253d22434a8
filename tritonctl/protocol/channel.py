# SPDX-License-Identifier: Apache-2.0
"""An endpoint and its gRPC channels: plain, TLS, or mutual TLS.

    tls = ClientTls(ca="certs/ca.crt", certificate="certs/client.crt", key="certs/client.key")
    with TritonClient("127.0.0.1:8001", tls=tls) as client:
        ...

Load generators run in separate processes and get the same paths in their plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from tritonctl.errors import HostError, UsageError
from tritonctl.host.addresses import is_loopback
from tritonctl.protocol.api_key import ApiKey, Metadata
from tritonctl.protocol.restrictions import grpc_metadata

_HEADER = re.compile(r"(?!grpc-)[a-z0-9][a-z0-9-]*(?<!-bin)")
_OPTIONS: tuple[tuple[str, Any], ...] = (
    # Text may be longer than gRPC's default limit of 4 MiB; Triton has no such limit.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnect within a second to a server that comes back; gRPC's default is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# The usual form of an address. gRPC has others: unix:PATH, dns:///NAME, a name without a port.
_HOST_AND_PORT = re.compile(r"(?:\[[\w:.%-]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)
_MAX_PORT = 65535
# The variables that gRPC reads for a proxy.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class ClientTls:
    """PEM files of a client; only their paths are stored or passed on."""

    ca: str | Path | None = None  # the trusted authority; None: gRPC's list
    certificate: str | Path | None = None  # for servers that require a client certificate
    key: str | Path | None = None
    server_name: str | None = None  # the certificate's name, if it differs from the address

    def to_record(self) -> dict[str, str | None]:
        """Convert to plain data."""
        return {name: value and str(value) for name, value in asdict(self).items()}

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files as gRPC credentials. Raises HostError for an unreadable file."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.certificate),
        )


@dataclass(frozen=True)
class Endpoint:
    """A gRPC port with the credentials for calls to it."""

    url: str
    tls: ClientTls | None = None
    token: str = ""  # of a server that this project started
    api_key: ApiKey | None = None  # of a gateway
    headers: Metadata = ()  # sent with each call, such as the user's name

    @property
    def metadata(self) -> Metadata:
        """Metadata of every call. Raises UsageError or HostError if the key cannot be sent."""
        if self.api_key is None:
            return self.headers
        key = self.api_key.metadata(self.url, encrypted=self.tls is not None)
        return (*key, *self.headers)

    @property
    def admin_metadata(self) -> Metadata:
        """Metadata of calls to restricted protocols, such as loading a model."""
        return (*self.metadata, *grpc_metadata(self.token))

    @property
    def is_direct(self) -> bool:
        """Whether the address is a host and port that is reached without a proxy."""
        match = _HOST_AND_PORT.fullmatch(self.url)
        if match is None or int(match[1]) > _MAX_PORT:
            return False
        return self._is_local or not any(os.environ.get(name) for name in _PROXIES)

    @property
    def _is_local(self) -> bool:
        return is_loopback(self.url.rpartition(":")[0])

    def channel(self) -> grpc.Channel:
        """Open a synchronous channel."""
        if self.tls is None:
            return grpc.insecure_channel(self.url, options=self._options)
        return grpc.secure_channel(self.url, self.tls.credentials(), options=self._options)

    def aio_channel(self) -> grpc.aio.Channel:
        """Open a channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.url, options=self._options)
        return grpc.aio.secure_channel(self.url, self.tls.credentials(), options=self._options)

    @property
    def _options(self) -> list[tuple[str, Any]]:
        options = list(_OPTIONS)
        if self.tls and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        if self._is_local:
            # gRPC would use the proxy of http_proxy even for local ports.
            options.append(("grpc.enable_http_proxy", 0))
        return options


def header_metadata(headers: Mapping[str, str] | None) -> Metadata:
    """Convert headers to gRPC metadata, names in lower case. Raises UsageError if invalid."""
    metadata = tuple((name.lower(), value) for name, value in (headers or {}).items())
    for name, value in metadata:
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"the header {name}: {value!r} cannot be sent",
                remedy="use letters, digits and hyphens in a name, printable ASCII in a value; "
                "gRPC reserves names that start with grpc- or end in -bin",
            )
    return metadata


def client_tls(record: Mapping[str, str | None] | None) -> ClientTls | None:
    """Convert from plain data; None stays None."""
    return None if record is None else ClientTls(**record)


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise HostError(
            f"{path} cannot be read: {error.strerror}",
            remedy="check the path and its permissions; `tritonctl certs` makes a set to develop "
            "with",
        ) from error
