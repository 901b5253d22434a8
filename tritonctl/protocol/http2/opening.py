# SPDX-License-Identifier: Apache-2.0
"""What a channel needs to open connections and to begin calls, however it waits."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

import grpc

from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.http2.frames import literals

CONNECT_SECONDS = 20.0  # gRPC's
_ALPN = "h2"
_PLAIN = b"\0"  # of a message: not compressed; its length follows
_MOST_TIMEOUT_MS = 99_999_999  # eight digits
Headers = Sequence[tuple[str, str]]


def place(endpoint: Endpoint) -> tuple[str, int]:
    """Host and port of one that `is_direct`. Raises HostError for certificates that are not read.

    They are read again for each connection, which may be days later.
    """
    if endpoint.tls is not None:
        endpoint.tls.credentials()
    host, _, port = endpoint.url.rpartition(":")
    return host.strip("[]"), int(port)


class Head:
    """The headers of a method's calls."""

    def __init__(self, endpoint: Endpoint, method: str) -> None:
        tls = endpoint.tls
        self._same = literals(
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

    def of(self, timeout: float | None, metadata: Headers) -> bytes:
        """A call's block. timeout: seconds."""
        block = self._same
        if metadata:
            block += literals(metadata)
        if timeout is not None:
            left = min(max(int(timeout * 1000), 1), _MOST_TIMEOUT_MS)
            block += literals((("grpc-timeout", f"{left}m"),))
        return block


def framed(message: bytes) -> bytes:
    """As gRPC sends a message."""
    return _PLAIN + len(message).to_bytes(4, "big") + message


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """As strict as gRPC's: what it accepts, and no more. Raises OSError."""
    context = ssl.create_default_context(cafile=tls.ca or _authorities())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols([_ALPN])
    return context


def _authorities() -> str | None:
    """Those that gRPC trusts where nobody names one; None, the system's, where it has no list."""
    if named := os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return named
    bundled = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
    return str(bundled) if bundled.is_file() else None


def refuse_other_protocol(secured: ssl.SSLObject | ssl.SSLSocket | None) -> None:
    """Raises ValueError for TLS without HTTP/2; None is no TLS at all."""
    if secured is not None and secured.selected_alpn_protocol() != _ALPN:
        raise ValueError("it uses TLS, and does not speak HTTP/2")
