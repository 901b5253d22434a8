# SPDX-License-Identifier: Apache-2.0
"""`tritonctl.lock` as a file: engines by profile, commits of the hub's models by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tritonctl.engines.hub.cache import COMMIT, HubModel
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import read_object, write_atomically

FILE = "tritonctl.lock"
SCHEMA = "tritonctl.lock/1"

Record = dict[str, Any]


def read_lock_file(root: Path) -> Record:
    """Everything that the lock of a project says; raises ConfigurationError for a malformed one."""
    file = root / FILE
    if not file.exists():
        return {"schema": SCHEMA, "profiles": {}}
    remedy = (
        "restore it (`git checkout tritonctl.lock`), or remove it and build every profile again"
    )
    record = read_object(file, remedy=remedy)
    if record.get("schema") != SCHEMA or "profiles" not in record:
        raise ConfigurationError(f"{file} is not a {SCHEMA}", remedy=remedy)
    return record


def write_lock_file(root: Path, record: Record) -> None:
    """Write the lock of a project, unless it says that already."""
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    file = root / FILE
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)


def pinned_commit(root: Path, model: HubModel) -> str | None:
    """The commit that a project has fetched a model at before; None if it has not."""
    commit = read_lock_file(root).get("checkpoints", {}).get(model.key)
    return commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else None


def pin_commit(root: Path, model: HubModel, commit: str) -> None:
    """Write down the commit that a project has fetched a model at, to be committed with it."""
    record = read_lock_file(root)
    record.setdefault("checkpoints", {})[model.key] = commit
    write_lock_file(root, record)
