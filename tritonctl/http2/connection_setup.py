# SPDX-License-Identifier: Apache-2.0
"""Addresses, headers and TLS settings for both kinds of channels."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from tritonctl.http2.frames import literals

CONNECT_SECONDS = 20.0  # gRPC's
_ALPN = "h2"
_PLAIN = b"\0"  # message prefix: not compressed; the length follows
_MAX_TIMEOUT_MS = 99_999_999  # eight digits
Headers = Sequence[tuple[str, str]]


class TlsFiles(Protocol):
    """The PEM files of a client, as tritonctl.protocol.channel.ClientTls."""

    @property
    def ca(self) -> str | Path | None:
        """The trusted authority; None: gRPC's list."""

    @property
    def certificate(self) -> str | Path | None:
        """For servers that require a client certificate."""

    @property
    def key(self) -> str | Path | None:
        """The key of the certificate."""

    @property
    def server_name(self) -> str | None:
        """The certificate's name, if it differs from the address."""

    def credentials(self) -> Any:
        """Read the files. Raises HostError for an unreadable file."""


class ServerAddress(Protocol):
    """A server's address, as tritonctl.protocol.channel.Endpoint."""

    @property
    def url(self) -> str:
        """Host and port."""

    @property
    def tls(self) -> TlsFiles | None:
        """None: no TLS."""


def address_of(endpoint: ServerAddress) -> tuple[str, int]:
    """Return host and port of an endpoint.

    Raises HostError for unreadable certificates. They are read again for each connection, which
    may be days later.
    """
    if endpoint.tls is not None:
        endpoint.tls.credentials()
    host, _, port = endpoint.url.rpartition(":")
    return host.strip("[]"), int(port)


class CallHeaders:
    """The headers of a method's calls."""

    def __init__(self, endpoint: ServerAddress, method: str) -> None:
        tls = endpoint.tls
        self._common_block = literals(
            (
                (":method", "POST"),
                (":scheme", "http" if tls is None else "https"),
                (":path", method),
                (":authority", (tls and tls.server_name) or endpoint.url),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "tritonctl"),
            )
        )

    def header_block(self, timeout: float | None, metadata: Headers) -> bytes:
        """Encode the header block of a call. timeout: seconds."""
        block = self._common_block
        if metadata:
            block += literals(metadata)
        if timeout is not None:
            milliseconds = min(max(int(timeout * 1000), 1), _MAX_TIMEOUT_MS)
            block += literals((("grpc-timeout", f"{milliseconds}m"),))
        return block


def frame_message(message: bytes) -> bytes:
    """Add gRPC's message prefix."""
    return _PLAIN + len(message).to_bytes(4, "big") + message


def tls_context(tls: TlsFiles) -> ssl.SSLContext:
    """Create a context that is exactly as strict as gRPC's. Raises OSError."""
    context = ssl.create_default_context(cafile=tls.ca or _authorities())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols([_ALPN])
    return context


def _authorities() -> str | None:
    """Return gRPC's default authorities; None (the system's) if it has no list."""
    if path := os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return path
    bundled = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
    return str(bundled) if bundled.is_file() else None


def require_http2(secured: ssl.SSLObject | ssl.SSLSocket | None) -> None:
    """Raise ValueError for TLS without HTTP/2. None: a connection without TLS."""
    if secured is not None and secured.selected_alpn_protocol() != _ALPN:
        raise ValueError("the server uses TLS without HTTP/2")
