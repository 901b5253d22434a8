# SPDX-License-Identifier: Apache-2.0
"""Where gRPC channels to a server are made: plain, TLS, or mutual TLS.

    tls = ClientTls(ca="certs/ca.crt", certificate="certs/client.crt", key="certs/client.key")
    with TritonClient("127.0.0.1:8001", tls=tls) as client:
        ...

Every client of ours takes its channel from here; load generators, which run in a process of their
own, are told the same paths in their plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from tritonctl.errors import HostError, UsageError
from tritonctl.protocol.api_key import ApiKey, Metadata
from tritonctl.protocol.restrictions import grpc_metadata

Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class ClientTls:
    """PEM files that a client uses; only their paths are ever stored or passed on.

    ca: what it trusts the server by, gRPC's own list of authorities when None. certificate, key:
    what it shows where the server asks for one. server_name: the name in the server's certificate
    where that is not the name or address that is dialled.
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

    @property
    def options(self) -> list[tuple[str, Any]]:
        """Channel options that belong to it."""
        name = self.server_name
        return [("grpc.ssl_target_name_override", name)] if name else []


@dataclass(frozen=True)
class Endpoint:
    """A gRPC port and what one needs there: TLS, a gateway's key, the token of our own server."""

    url: str
    tls: ClientTls | None = None
    token: str = ""
    api_key: ApiKey | None = None

    @property
    def metadata(self) -> Metadata:
        """What goes with every call. Raises UsageError, HostError for a key that cannot."""
        if self.api_key is None:
            return ()
        return self.api_key.metadata(self.url, encrypted=self.tls is not None)

    @property
    def admin_metadata(self) -> Metadata:
        """What goes with calls of restricted protocols, such as loading a model."""
        return (*self.metadata, *grpc_metadata(self.token))

    def channel(self, options: Options = ()) -> grpc.Channel:
        """A new synchronous channel."""
        if self.tls is None:
            return grpc.insecure_channel(self.url, options=list(options))
        credentials, options = self.tls.credentials(), [*options, *self.tls.options]
        return grpc.secure_channel(self.url, credentials, options=options)

    def aio_channel(self, options: Options = ()) -> grpc.aio.Channel:
        """A new channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.url, options=list(options))
        credentials, options = self.tls.credentials(), [*options, *self.tls.options]
        return grpc.aio.secure_channel(self.url, credentials, options=options)


# What gRPC says of connections that TLS kept from being made, and what to do about each.
_REMEDIES = {
    "certificate has expired": "the server's certificate has expired: renew it (to develop with: "
    "`tritonctl certs --force`), then `tritonctl down` and `tritonctl up`",
    "Hostname Verification": "the server's certificate is for another name or address than the one "
    "dialled: use that, or have one made for both (`tritonctl certs --host NAME`)",
    "CERTIFICATE_VERIFY_FAILED": "another authority has signed the server's certificate: name that "
    "one (`--ca`, or `server.tls.ca` of the project)",
    "WRONG_VERSION_NUMBER": "the server speaks no TLS: leave `--ca` and the like out",
    "Socket closed": "something listens there and hangs up: it may speak TLS, and may ask for a "
    "certificate of its own authority (`--ca`, `--certificate`, `--key`); `tritonctl status` knows "
    "the project's server",
}


def refused_key(error: Any, url: str) -> UsageError | None:
    """What a grpc.RpcError means where the gateway knows no such key; None for all others."""
    if error.code() != grpc.StatusCode.UNAUTHENTICATED:
        return None
    return UsageError(
        f"{url} lets in only who has an API key that it knows: {error.details()}",
        remedy="name the file of yours: --api-key-file FILE, or TRITONCTL_API_KEY_FILE; from "
        "Python `TritonClient(…, api_key=ApiKey(FILE))`",
    )


def connection_remedy(detail: str) -> str | None:
    """What to do about a connection that was not made, where TLS is the reason."""
    if "failed to connect" not in detail:
        return None
    return next((remedy for words, remedy in _REMEDIES.items() if words in detail), None)


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
