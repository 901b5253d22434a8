# SPDX-License-Identifier: Apache-2.0
"""TC92x: tenants whom the frontend would refuse. What a key is: docs/how-to/limit-tenants.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Source
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.small_file import UnreadableError, read_small

_LARGEST_FILE, _LONGEST_KEY = 1 << 20, 4096


@warning(
    "TC922 tenant-without-key",
    summary="a tenant whose file holds no key, or another tenant's",
    why="The frontend refuses all requests of that tenant with 401.",
    shows="elsewhere",
)
def keys(repository: Repository) -> Iterator[Hit]:
    offered = repository.target.openai
    files = {} if offered is None else offered.keys
    found = {name: _key(repository.path / file) for name, file in files.items()}
    times = Counter(found.values())
    for name, key in found.items():
        source = Source(str(files[name]), "")
        if key is None:
            yield Hit(
                f"the tenant {name} has no key: its file is to have one line of ASCII, of at most "
                f"{_LONGEST_KEY} characters",
                f"write one: openssl rand -hex 32 > {files[name]}",
                source=source,
            )
        elif times[key] > 1:
            others = [other for other, its in found.items() if its == key and other != name]
            yield Hit(
                f"the key of the tenant {name} is also that of {', '.join(others)}: nobody can "
                "tell whose request it is",
                f"give it one of its own: openssl rand -hex 32 > {files[name]}",
                source=source,
            )


def _key(file: Path) -> bytes | None:
    """The first line, as the frontend takes it; None where that is no key."""
    try:
        line = read_small(file, _LARGEST_FILE).partition(b"\n")[0].strip()
    except UnreadableError:
        return None
    return line if line and len(line) <= _LONGEST_KEY and line.isascii() else None
