# SPDX-License-Identifier: Apache-2.0
"""Whose request is this? By the API key that it brings, or by what the gateway says of it.

Keys stay in their files, one line each, which are read again every two seconds. What a client says
of itself never counts: the tenant's header does only beside the gateway's secret, which no client
knows and which the gateway writes over whatever a client sent.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tritonctl.frontend.budgets.tenant import EVERYBODY, Tenant

# What tenants.lua of the gateway sets.
TENANT_HEADER, GATEWAY_HEADER = b"x-tritonctl-tenant", b"x-tritonctl-gateway"
READ_AGAIN_SECONDS = 2.0
_LONGEST_KEY = 4096

Headers = Sequence[tuple[bytes, bytes]]  # as ASGI has them: names in lower case

log = logging.getLogger(__name__)


class Keys:
    """The table of tenants; `files`: where each one's key is, by name. No tenants: open to all.

    `gateway_secret`: the file by which the gateway is known; None: its headers mean nothing.
    """

    def __init__(
        self,
        tenants: Mapping[str, Tenant],
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

    def tenant_of(self, headers: Headers) -> Tenant | None:
        """The tenant, or None for a stranger. Reads files, every two seconds."""
        if not self._tenants:
            return EVERYBODY
        self._read_again()
        if self._from_gateway(headers):
            named = _values(headers, TENANT_HEADER)
            return self._tenants.get(named[0].decode("latin-1")) if len(named) == 1 else None
        brought = _key_in(headers)
        if brought is None:
            return None
        digest, found = _digest(brought), None
        # Each is compared, whichever fits: time tells nothing of the others.
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return self._tenants[found] if found is not None else None

    def _from_gateway(self, headers: Headers) -> bool:
        said = _values(headers, GATEWAY_HEADER)
        if self._secret is None or len(said) != 1:
            return False
        return hmac.compare_digest(_digest(said[0]), self._secret)

    def _read_again(self) -> None:
        now = self._clock()
        if now - self._read_at < READ_AGAIN_SECONDS:
            return
        self._read_at = now
        found = {name: key for name, path in self._files.items() if (key := _first_line(path))}
        keys = list(found.values())
        usable = {name: key for name, key in found.items() if keys.count(key) == 1}
        self._digests = {name: _digest(key) for name, key in usable.items()}
        secret = self._gateway_secret and _first_line(self._gateway_secret)
        self._secret = _digest(secret) if secret else None
        self._tell(frozenset(self._tenants.keys() - usable.keys()))

    def _tell(self, unusable: frozenset[str]) -> None:
        for name in sorted(unusable - self._unusable):
            log.warning(
                "tenant %s is refused: %s holds no key, or another tenant's",
                name,
                self._files.get(name, "no file"),
            )
        self._unusable = unusable


def _key_in(headers: Headers) -> bytes | None:
    """The key as the gateway reads it: x-api-key, else a bearer's token. None unless one."""
    brought = _values(headers, b"x-api-key")
    if not brought:
        for value in _values(headers, b"authorization"):
            scheme, _, token = value.strip().partition(b" ")
            brought.append(token.strip() if scheme.lower() == b"bearer" else b"")
    if len(brought) != 1 or not 0 < len(brought[0]) <= _LONGEST_KEY:
        return None
    return brought[0]


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _first_line(path: Path) -> bytes | None:
    """None for a file that cannot be read, or whose first line is no key."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_KEY + 2).strip()
    except OSError:
        return None
    return line if line and len(line) <= _LONGEST_KEY and line.isascii() else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
