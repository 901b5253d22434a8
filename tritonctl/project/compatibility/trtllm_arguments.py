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
    """The names of the arguments."""
    return tuple(_table()["llm"])


def kv_cache_fields(version: str = "") -> tuple[str, ...]:
    """The fields of KvCacheConfig, of all versions or of one."""
    fields = _table()["classes"]["KvCacheConfig"]
    return tuple(name for name, entry in fields.items() if not version or _has(entry, version))


def _has(entry: Mapping[str, Any], version: str) -> bool:
    try:
        here = Version(version)
    except InvalidVersion:  # a build of one's own: nothing is known of it
        return True
    first, gone = entry.get("since"), entry.get("gone")
    return not (first and here < Version(first)) and not (gone and here >= Version(gone))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(bundled.text(_FILE))
