# SPDX-License-Identifier: Apache-2.0
"""The arguments of tensorrt_llm.LLM by version: `builders/tensorrt_llm/arguments.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from tritonctl.host import bundled

_FILE = "builders/tensorrt_llm/arguments.toml"


def names() -> tuple[str, ...]:
    """Return the names of the arguments."""
    return tuple(_table()["llm"])


def kv_cache_fields(version: str = "") -> tuple[str, ...]:
    """Return the fields of KvCacheConfig, of one version or of all."""
    fields = _table()["classes"]["KvCacheConfig"]
    return tuple(name for name, entry in fields.items() if not version or _has(entry, version))


def _has(entry: Mapping[str, Any], version: str) -> bool:
    try:
        current = Version(version)
    except InvalidVersion:  # a custom build: nothing is known about it
        return True
    first, removed = entry.get("since"), entry.get("gone")
    return not (first and current < Version(first)) and not (
        removed and current >= Version(removed)
    )


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(bundled.text(_FILE))
