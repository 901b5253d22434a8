# SPDX-License-Identifier: Apache-2.0
"""`tritonctl.lock` records what engines were made of, so that a later build can refuse changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.build.engine import Artefact
from tritonctl.engines.build.fingerprint import settings_of
from tritonctl.engines.build.stages import StageBuild
from tritonctl.engines.hub.lock_file import FILE, Record, read_lock_file, write_lock_file
from tritonctl.errors import BuildFailedError, ConfigurationError
from tritonctl.project.schema import Project


def lock_file(project: Project) -> Path:
    """Beside `tritonctl.yaml`, to be committed with it."""
    return project.root / FILE


def read_lock(project: Project) -> Record:
    """The lock's models by profile. Raises ConfigurationError when it is missing or malformed."""
    file = lock_file(project)
    if not file.exists():
        make = "make it with `tritonctl build`, and commit it"
        raise ConfigurationError(f"{file} does not exist", remedy=make)
    profiles: Record = read_lock_file(project.root)["profiles"]
    return profiles


def refuse_damaged(project: Project) -> None:
    """Raise ConfigurationError for an unreadable lock, before hours of building.

    Writing a new one would drop the other profiles."""
    read_lock_file(project.root)


def stage_inputs(stages: list[StageBuild]) -> Record:
    """What goes into each stage of an engine, by its name: digests and settings."""
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
    """Write down what a model's engine was made of and with."""
    record = read_lock_file(project.root)
    versions = engine.manifest.result.versions
    entry = {"stages": stage_inputs(stages), "versions": dict(sorted(versions.items()))}
    record["profiles"].setdefault(profile or "", {})[name] = entry
    write_lock_file(project.root, record)


def refuse_drift(
    project: Project, profile: str | None, name: str, stages: list[StageBuild]
) -> None:
    """Raise ConfigurationError if a model would now be built of something else."""
    locked = _entry(project, profile, name)
    changed = list(_differences(locked.get("stages", {}), stage_inputs(stages)))
    if changed:
        raise ConfigurationError(
            f"model {name} has drifted from {FILE}: {'; '.join(changed)}",
            remedy="put back what changed, or build without --locked to update the lock",
        )


def refuse_other_tools(project: Project, profile: str | None, name: str, engine: Artefact) -> None:
    """Raise BuildFailedError if an engine was made with other tools than the lock names."""
    locked = _entry(project, profile, name)
    changed = list(_differences(locked.get("versions", {}), engine.manifest.result.versions))
    if changed:
        raise BuildFailedError(
            f"the engine of {name} was made with other tools than {FILE} says: "
            + "; ".join(changed),
            remedy="build with those tools, or without --locked to update the lock",
        )


def _entry(project: Project, profile: str | None, name: str) -> Record:
    entry = read_lock(project).get(profile or "", {}).get(name)
    if entry is None:
        of = f" of profile {profile}" if profile else ""
        raise ConfigurationError(
            f"{FILE} does not know the model {name}{of}",
            remedy=f"add it with `tritonctl build {name}`",
        )
    record: Record = entry
    return record


def _differences(
    locked: Mapping[str, Any], present: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Dotted names of what differs, with both values where they are short."""
    for key in sorted({*locked, *present}):
        before, now = locked.get(key), present.get(key)
        name = f"{path}{key}"
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{name}.")
        elif before != now:
            yield f"{name}: {_short(before)} became {_short(now)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"  # noqa: PLR2004
