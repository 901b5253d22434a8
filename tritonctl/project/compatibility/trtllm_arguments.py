# SPDX-License-Identifier: Apache-2.0
"""The arguments of tensorrt_llm.LLM by version: `builders/tensorrt_llm/arguments.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import Version

from tritonctl.host import bundled

_FILE = "builders/tensorrt_llm/arguments.toml"


def names() -> tuple[str, ...]:
    """Return the names of the arguments."""
    return tuple(_table()["llm"])


def is_read(version: str) -> bool:
    """Whether this release's arguments were read; those of other releases are not checked."""
    return version in _releases()


def kv_cache_fields(version: str = "") -> tuple[str, ...]:
    """Return the fields of KvCacheConfig, of one version or, if it was not read, of all."""
    fields = _table()["classes"]["KvCacheConfig"]
    return tuple(name for name, entry in fields.items() if _has(entry, version))


def may_have_other_kv_cache_fields(version: str) -> bool:
    """Whether a version may have fields of KvCacheConfig that the table lacks."""
    release = _releases().get(version)
    return bool(version) and (release is None or "KvCacheConfig" in release.get("partly", ()))


def _has(entry: Mapping[str, Any], version: str) -> bool:
    if not is_read(version) or version in entry.get("unread", ()):
        return True
    current, first, removed = Version(version), entry.get("since"), entry.get("gone")
    return not (first and current < Version(first)) and not (
        removed and current >= Version(removed)
    )


@cache
def _releases() -> Mapping[str, Mapping[str, Any]]:
    return {entry["version"]: entry for entry in _table()["releases"]}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(bundled.text(_FILE))
