# SPDX-License-Identifier: Apache-2.0
"""The file `tritonctl.lock`: engines by profile, commits of hub models by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tritonctl.engines.sources.cache import COMMIT, HubModel
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import read_object, write_atomically

LOCK_FILE = "tritonctl.lock"
SCHEMA = "tritonctl.lock/1"

LockRecord = dict[str, Any]


def read_lock_file(root: Path) -> LockRecord:
    """Read the lock of a project; an empty one if missing. Raises ConfigurationError."""
    file = root / LOCK_FILE
    if not file.exists():
        return {"schema": SCHEMA, "profiles": {}}
    remedy = (
        "restore it (`git checkout tritonctl.lock`), or remove it and build every profile again"
    )
    record = read_object(file, remedy=remedy)
    if record.get("schema") != SCHEMA or "profiles" not in record:
        raise ConfigurationError(f"{file} is not a {SCHEMA}", remedy=remedy)
    return record


def write_lock_file(root: Path, record: LockRecord) -> None:
    """Write the lock of a project if its content changes."""
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    file = root / LOCK_FILE
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)


def pinned_commit(root: Path, model: HubModel) -> str | None:
    """Return the commit that the lock pins for a model, or None."""
    commit = read_lock_file(root).get("checkpoints", {}).get(model.lock_key)
    return commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else None


def pin_commit(root: Path, model: HubModel, commit: str) -> None:
    """Record the commit of a fetched model in the lock."""
    record = read_lock_file(root)
    record.setdefault("checkpoints", {})[model.lock_key] = commit
    write_lock_file(root, record)
