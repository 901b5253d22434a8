# SPDX-License-Identifier: Apache-2.0
"""TC92x: tenants that the frontend would refuse. Format of keys: docs/how-to/limit-tenants.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.small_file import UnreadableError, read_small
from tritonctl.checks.source_span import SourceText

_MAX_FILE_BYTES, _MAX_KEY_LENGTH = 1 << 20, 4096


@warning(
    "TC922 tenant-without-key",
    summary="a tenant whose file holds no key, or another tenant's",
    reason="The frontend refuses all requests of that tenant with 401.",
    shows="elsewhere",
)
def tenant_keys(repository: Repository) -> Iterator[Hit]:
    frontend = repository.target.openai
    files = {} if frontend is None else frontend.keys
    key_by_tenant = {name: _read_key(repository.path / file) for name, file in files.items()}
    key_counts = Counter(key_by_tenant.values())
    for name, key in key_by_tenant.items():
        source = SourceText(str(files[name]), "")
        if key is None:
            yield Hit(
                f"the tenant {name} has no key: its file needs one line of ASCII, of at most "
                f"{_MAX_KEY_LENGTH} characters",
                f"write one: openssl rand -hex 32 > {files[name]}",
                source=source,
            )
        elif key_counts[key] > 1:
            sharing_tenants = [
                tenant
                for tenant, tenant_key in key_by_tenant.items()
                if tenant_key == key and tenant != name
            ]
            yield Hit(
                f"the tenant {name} has the same key as {', '.join(sharing_tenants)}: the frontend "
                "cannot "
                "tell their requests apart",
                f"write a different key: openssl rand -hex 32 > {files[name]}",
                source=source,
            )


def _read_key(file: Path) -> bytes | None:
    """Return the first line, as the frontend reads it; None if it is not a key."""
    try:
        line = read_small(file, _MAX_FILE_BYTES).partition(b"\n")[0].strip()
    except UnreadableError:
        return None
    return line if line and len(line) <= _MAX_KEY_LENGTH and line.isascii() else None
