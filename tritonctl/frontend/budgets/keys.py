# SPDX-License-Identifier: Apache-2.0
"""Identify a request's tenant, by its API key or by the gateway's headers.

Keys stay in their files, one line each; files are read again every two seconds. A client cannot
choose its tenant: the tenant header counts only together with the gateway's secret, which clients
do not know. The gateway overwrites both headers of a client.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.frontend.budgets.tenant import ALL_CLIENTS, TenantLimits

# The gateway's tenants.lua sets these headers.
TENANT_HEADER, GATEWAY_HEADER = b"x-tritonctl-tenant", b"x-tritonctl-gateway"
_FORWARDED_HEADER = b"x-forwarded-for"  # Envoy appends its client's address
RELOAD_SECONDS = 2.0
_MAX_KEY_BYTES = 4096

Headers = Sequence[tuple[bytes, bytes]]  # in ASGI's form: names in lower case

log = logging.getLogger(__name__)


class Keys:
    """The tenants and their keys. Without tenants every request is accepted.

    `files`: the tenants' key files by name. `gateway_secret`: the file with the gateway's secret;
    None: ignore the gateway's headers.
    """

    def __init__(
        self,
        tenants: Mapping[str, TenantLimits],
        files: Mapping[str, Path],
        gateway_secret: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenants = tenants
        self._files = files
        self._gateway_secret = gateway_secret
        self._clock = clock
        self._read_at = -float("inf")
        self._digests: dict[str, bytes] = {}
        self._secret: bytes | None = None
        self._unusable: frozenset[str] = frozenset()

    def tenant_of(self, headers: Headers) -> TenantLimits | None:
        """Return the tenant, or None for an unknown client. Reads the files every two seconds."""
        if not self._tenants:
            return ALL_CLIENTS
        self._reload_files()
        if self._from_gateway(headers):
            tenant_names = _values(headers, TENANT_HEADER)
            return (
                self._tenants.get(tenant_names[0].decode("latin-1"))
                if len(tenant_names) == 1
                else None
            )
        client_key = _key_in(headers)
        if client_key is None:
            return None
        digest, matching_tenant = _digest(client_key), None
        # Compare with every key, so that the time does not reveal anything about other keys.
        for name, tenant_digest in self._digests.items():
            if hmac.compare_digest(digest, tenant_digest):
                matching_tenant = name
        return self._tenants[matching_tenant] if matching_tenant is not None else None

    def client_address(self, scope: Mapping[str, Any]) -> str:
        """Return the client's address: of the gateway's client, if the gateway proves itself."""
        if self._from_gateway(scope["headers"]):
            forwarded = _values(scope["headers"], _FORWARDED_HEADER)
            return b",".join(forwarded).rpartition(b",")[2].strip().decode("latin-1")
        client = scope.get("client")
        return str(client[0]) if client else ""

    def _from_gateway(self, headers: Headers) -> bool:
        secrets = _values(headers, GATEWAY_HEADER)
        if self._secret is None or len(secrets) != 1:
            return False
        return hmac.compare_digest(_digest(secrets[0]), self._secret)

    def _reload_files(self) -> None:
        now = self._clock()
        if now - self._read_at < RELOAD_SECONDS:
            return
        self._read_at = now
        tenant_keys = {
            name: key for name, path in self._files.items() if (key := _first_line(path))
        }
        keys = list(tenant_keys.values())
        usable = {name: key for name, key in tenant_keys.items() if keys.count(key) == 1}
        self._digests = {name: _digest(key) for name, key in usable.items()}
        secret = self._gateway_secret and _first_line(self._gateway_secret)
        self._secret = _digest(secret) if secret else None
        self._log_unusable(frozenset(self._tenants.keys() - usable.keys()))

    def _log_unusable(self, unusable: frozenset[str]) -> None:
        for name in sorted(unusable - self._unusable):
            log.warning(
                "tenant %s is refused: %s contains no key, or the key of another tenant",
                name,
                self._files.get(name, "no file"),
            )
        self._unusable = unusable


class KeyFile:
    """One key in a file, which is read again every two seconds."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._read_at = -float("inf")
        self._digest: bytes | None = None
        self._is_unusable = False

    def is_in(self, headers: Headers) -> bool:
        """Whether a request has the key. A file without a key matches no request."""
        now = self._clock()
        if now - self._read_at >= RELOAD_SECONDS:
            self._read_at = now
            key = _first_line(self._file)
            if key is None and not self._is_unusable:
                log.warning("%s contains no key: requests that need it are refused", self._file)
            self._is_unusable = key is None
            self._digest = None if key is None else _digest(key)
        client_key = _key_in(headers)
        if client_key is None or self._digest is None:
            return False
        return hmac.compare_digest(_digest(client_key), self._digest)


def _key_in(headers: Headers) -> bytes | None:
    """Read the key as the gateway does: x-api-key, else a bearer token. None unless exactly one."""
    candidates = _values(headers, b"x-api-key")
    if not candidates:
        for value in _values(headers, b"authorization"):
            scheme, _, token = value.strip().partition(b" ")
            candidates.append(token.strip() if scheme.lower() == b"bearer" else b"")
    if len(candidates) != 1 or not 0 < len(candidates[0]) <= _MAX_KEY_BYTES:
        return None
    return candidates[0]


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _first_line(path: Path) -> bytes | None:
    """Return the key in a file; None if it is unreadable or its first line is not a key."""
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_KEY_BYTES + 2).strip()
    except OSError:
        return None
    return line if line and len(line) <= _MAX_KEY_BYTES and line.isascii() else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
