# SPDX-License-Identifier: Apache-2.0
"""`tritonctl.lock` records the inputs of engines, so that a later build can refuse changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.engine import Artefact
from tritonctl.engines.builds.fingerprint import settings_of
from tritonctl.engines.builds.stages import StageBuild
from tritonctl.engines.sources.lock_file import (
    LOCK_FILE,
    LockRecord,
    read_lock_file,
    write_lock_file,
)
from tritonctl.errors import BuildFailedError, ConfigurationError
from tritonctl.project.schema import Project


def lock_file(project: Project) -> Path:
    """Return the path of the lock file, next to `tritonctl.yaml`."""
    return project.root / LOCK_FILE


def read_lock(project: Project) -> LockRecord:
    """Return the lock's models by profile. Raises ConfigurationError if missing or malformed."""
    file = lock_file(project)
    if not file.exists():
        make = "create it with `tritonctl build` and commit it"
        raise ConfigurationError(f"{file} does not exist", remedy=make)
    profiles: LockRecord = read_lock_file(project.root)["profiles"]
    return profiles


def refuse_unreadable_lock(project: Project) -> None:
    """Raise ConfigurationError for an unreadable lock before hours of building.

    Writing a new lock would drop the other profiles.
    """
    read_lock_file(project.root)


def stage_inputs(stages: list[StageBuild]) -> LockRecord:
    """Return the input digests and settings of each stage, by stage name."""
    return {
        build.stage.name: {
            "inputs": dict(sorted(build.fingerprint.inputs.items())),
            "settings": settings_of(build.request, build.stage),
        }
        for build in stages
    }


def update_lock(
    project: Project, profile: str | None, name: str, stages: list[StageBuild], engine: Artefact
) -> None:
    """Record the inputs and tool versions of a model's engine."""
    record = read_lock_file(project.root)
    versions = engine.manifest.result.versions
    entry = {"stages": stage_inputs(stages), "versions": dict(sorted(versions.items()))}
    record["profiles"].setdefault(profile or "", {})[name] = entry
    write_lock_file(project.root, record)


def refuse_drift(
    project: Project, profile: str | None, name: str, stages: list[StageBuild]
) -> None:
    """Raise ConfigurationError if a model's inputs or settings differ from the lock."""
    locked = _locked_model(project, profile, name)
    changed = list(_differences(locked.get("stages", {}), stage_inputs(stages)))
    if changed:
        raise ConfigurationError(
            f"model {name} has drifted from {LOCK_FILE}: {'; '.join(changed)}",
            remedy="revert the change, or build without --locked to update the lock",
        )


def refuse_other_tools(project: Project, profile: str | None, name: str, engine: Artefact) -> None:
    """Raise BuildFailedError if an engine's tool versions differ from the lock."""
    locked = _locked_model(project, profile, name)
    changed = list(_differences(locked.get("versions", {}), engine.manifest.result.versions))
    if changed:
        raise BuildFailedError(
            f"the engine of {name} was built with other tools than {LOCK_FILE} records: "
            + "; ".join(changed),
            remedy="build with those tools, or without --locked to update the lock",
        )


def _locked_model(project: Project, profile: str | None, name: str) -> LockRecord:
    entry = read_lock(project).get(profile or "", {}).get(name)
    if entry is None:
        profile_suffix = f" of profile {profile}" if profile else ""
        raise ConfigurationError(
            f"{LOCK_FILE} has no entry for model {name}{profile_suffix}",
            remedy=f"add it with `tritonctl build {name}`",
        )
    record: LockRecord = entry
    return record


def _differences(
    locked: Mapping[str, Any], current: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Yield the dotted name of each different value, with shortened old and new values."""
    for key in sorted({*locked, *current}):
        old, new = locked.get(key), current.get(key)
        name = f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield f"{name}: {_shorten(old)} became {_shorten(new)}"


def _shorten(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"  # noqa: PLR2004
