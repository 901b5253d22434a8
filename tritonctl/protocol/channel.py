# SPDX-License-Identifier: Apache-2.0
"""An endpoint and its gRPC channels: plain, TLS, or mutual TLS.

    tls = ClientTls(ca="certs/ca.crt", certificate="certs/client.crt", key="certs/client.key")
    with TritonClient("127.0.0.1:8001", tls=tls) as client:
        ...

Load generators run in a process of their own and get the same paths in their plan.
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
    # Text may be long; the default of 4 MiB is gRPC's, not Triton's.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnect within a second to a server that comes back; gRPC's default is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# An address as most people give it; gRPC knows more: unix:PATH, dns:///NAME, a name without a port.
_HOST_AND_PORT = re.compile(r"(?:\[[\w:.%-]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)
_MOST_PORT = 65535
# Where gRPC looks for a proxy.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class ClientTls:
    """PEM files that a client uses; only their paths are ever stored or passed on.

    ca: the authority that it trusts, by default gRPC's own list. certificate, key: for servers that
    ask the client for one. server_name: the name in the server's certificate where that is not the
    name or address that is dialled.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def to_record(self) -> dict[str, str | None]:
        """As plain data."""
        return {name: value and str(value) for name, value in asdict(self).items()}

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC needs, read now. Raises HostError for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.certificate),
        )


@dataclass(frozen=True)
class Endpoint:
    """A gRPC port and what calls to it need: TLS, a gateway's key, the token of our own server.

    headers: go with each call, such as who asks.
    """

    url: str
    tls: ClientTls | None = None
    token: str = ""
    api_key: ApiKey | None = None
    headers: Metadata = ()

    @property
    def metadata(self) -> Metadata:
        """What goes with every call. Raises UsageError or HostError for a key that cannot go."""
        if self.api_key is None:
            return self.headers
        key = self.api_key.metadata(self.url, encrypted=self.tls is not None)
        return (*key, *self.headers)

    @property
    def admin_metadata(self) -> Metadata:
        """What goes with calls of restricted protocols, such as loading a model."""
        return (*self.metadata, *grpc_metadata(self.token))

    @property
    def is_direct(self) -> bool:
        """Whether it is a host and its port, with no proxy in between."""
        place = _HOST_AND_PORT.fullmatch(self.url)
        if place is None or int(place[1]) > _MOST_PORT:
            return False
        return self._is_here or not any(os.environ.get(name) for name in _PROXIES)

    @property
    def _is_here(self) -> bool:
        return is_loopback(self.url.rpartition(":")[0])

    def channel(self) -> grpc.Channel:
        """A new synchronous channel."""
        if self.tls is None:
            return grpc.insecure_channel(self.url, options=self._options)
        return grpc.secure_channel(self.url, self.tls.credentials(), options=self._options)

    def aio_channel(self) -> grpc.aio.Channel:
        """A new channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.url, options=self._options)
        return grpc.aio.secure_channel(self.url, self.tls.credentials(), options=self._options)

    @property
    def _options(self) -> list[tuple[str, Any]]:
        options = list(_OPTIONS)
        if self.tls and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        if self._is_here:
            # gRPC would ask the proxy of http_proxy for this machine's own ports.
            options.append(("grpc.enable_http_proxy", 0))
        return options


def headers_of(given: Mapping[str, str] | None) -> Metadata:
    """As gRPC sends them, names in lower case. Raises UsageError for what it cannot send."""
    headers = tuple((name.lower(), value) for name, value in (given or {}).items())
    for name, value in headers:
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"the header {name}: {value!r} cannot be sent",
                remedy="a name has letters, digits and hyphens, a value printable ASCII; names "
                "that begin with grpc- or end in -bin are gRPC's own",
            )
    return headers


def client_tls(record: Mapping[str, str | None] | None) -> ClientTls | None:
    """From plain data; None stays None."""
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
