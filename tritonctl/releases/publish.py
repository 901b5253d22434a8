# SPDX-License-Identifier: Apache-2.0
"""Publishes what was rendered as a release: stage, verify, check, ask, seal, rename.

Whatever ends it before the rename, no release appears; the folder it leaves is hidden, and goes
with the next release.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tritonctl.engines.build.engine import Artefact, evaluation_of
from tritonctl.engines.build.fingerprint import sha256
from tritonctl.engines.hub.lock_file import FILE as LOCK_FILE
from tritonctl.errors import RepositoryError
from tritonctl.host.files import exclusive, explained, read_record
from tritonctl.host.progress import Progress, Silent
from tritonctl.host.redaction import Redaction
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.releases import staging
from tritonctl.releases.manifest import (
    REPOSITORY,
    Checked,
    Release,
    ReleasedEngine,
    ReleasedFile,
    ReleasedModel,
    Smoked,
    release_name,
    write_release,
)
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import (
    LOCK,
    REMOVED,
    STAGING,
    Stored,
    keep_number,
    next_number,
    releases_folder,
    remove_tree,
    stored_releases,
)
from tritonctl.repository.checking import refuse_mistakes
from tritonctl.repository.plan import Plan
from tritonctl.repository.publish import Rendered, compile_python, render, unchanged
from tritonctl.repository.server_fields import server_version

_BLOTTED = "[removed]"
# Asks a server of the staged release; raises ServerError where an answer is wrong.
Trial = Callable[[Project, Rendered, Progress], Smoked]


@dataclass(frozen=True)
class Published:
    """A release, and whether this call made it. `copied`: files that could not be linked."""

    stored: Stored
    fresh: bool
    copied: tuple[str, ...] = ()


def publish(project: Project, progress: Progress, trial: Trial) -> Published:
    """Render the project and publish it, unless a release with that content is there.

    Raises RepositoryError for an engine that is not built or not as it was built and for what
    `check` refuses, what `trial` raises, and HostError. There is then no new release.
    """
    rendered = render(project, progress)
    folder = releases_folder(project)
    with exclusive(folder / LOCK, progress, "publish a release"), explained(folder):
        remove_leftovers(folder)
        known = stored_releases(project)
        number = next_number(folder, known)
        with _staging(folder / f"{STAGING}{number}") as place:
            return _published(project, rendered, known, number, place, progress, trial)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed commands left. The caller holds the lock. Raises OSError."""
    for pattern in (f"{STAGING}*", f"{REMOVED}*"):
        for left in folder.glob(pattern):
            remove_tree(left)


@contextmanager
def _staging(place: Path) -> Iterator[Path]:
    place.mkdir()
    try:
        yield place
    finally:
        if place.exists():
            with suppress(OSError):  # the next release removes it
                remove_tree(place)


def _published(
    project: Project,
    rendered: Rendered,
    known: list[Stored],
    number: int,
    place: Path,
    progress: Progress,
    trial: Trial,
) -> Published:
    plan, folder = rendered.plan, place.parent
    with progress.step(f"Staging release {number}") as step, unchanged(rendered, progress):
        placed = staging.place_models(plan, rendered.repository, place, number)
        staging.place_requirements(plan, place)
        step.update("configurations")
        # Twice: the hash is part of the place that some of them name.
        counted = staging.place_configs(plan, placed, rendered.repository, place, place)
        step.update("digests")
        files = staging.described(place, placed.linked)
        content = staging.content_hash(files, placed.models, counted)
        final = folder / release_name(number, content)
        if same := next(
            (one for one in known if one.release and one.release.hash == content), None
        ):
            return Published(same, fresh=False)
        staging.place_configs(plan, placed, rendered.repository, place, final)
        files = _with_digests_again(files, place, counted)
    engines = _engine_files(plan, placed.models)
    _refuse_damaged(files, engines)
    compile_python(place / REPOSITORY / model for model in plan.served)
    with progress.step(f"Checking release {number}"):
        # What is doubtful has been said while rendering.
        warnings = refuse_mistakes(place / REPOSITORY, project, Silent(), {})
    release = Release(
        number=number,
        hash=content,
        parent=known[-1].name if known else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(project),
        project=without_secrets(project.model_dump(mode="json", by_alias=True)),
        lock=read_record(project.root / LOCK_FILE) or None,
        models=list(placed.models),
        native=list(plan.native),
        engines={name: _engine(artefact) for name, artefact in sorted(plan.artefacts.items())},
        files=files,
        check=Checked(warnings=warnings),
        smoke=Smoked(status="not run", reason="not yet"),
    )
    write_release(place, release)
    asked = trial(*rendered_release(project, Stored(place, release)), progress)
    release = release.model_copy(update={"smoke": asked})
    write_release(place, release)
    with progress.step(f"Sealing release {number}"):
        staging.seal(place)
        keep_number(folder, number)
        os.rename(place, final)
        staging.sync(folder)
    copied = tuple(file.path for file in files if file.path in engines and not file.linked)
    return Published(Stored(final, release), fresh=True, copied=copied)


def _with_digests_again(
    files: list[ReleasedFile], place: Path, written: Iterable[str]
) -> list[ReleasedFile]:
    """The list with these files as they were written last."""
    fresh = {
        path: {"sha256": sha256(place / path), "size": (place / path).stat().st_size}
        for path in written
    }
    return [file.model_copy(update=fresh.get(file.path, {})) for file in files]


def _engine_files(plan: Plan, models: Iterable[ReleasedModel]) -> dict[str, tuple[str, str]]:
    """By path in the release: an engine file's digest when it was built, and its public model."""
    versions = {model.name: model.version for model in models}
    built = {
        artefact.folder / file.path: (file.sha256, name)
        for name, artefact in plan.artefacts.items()
        for file in artefact.manifest.result.files
    }
    return {
        f"{REPOSITORY}/{model.name}/{versions[model.name]}/{place}": built[source]
        for model in plan.models
        for source, place in model.files
        if source in built
    }


def _refuse_damaged(files: Iterable[ReleasedFile], expected: Mapping[str, tuple[str, str]]) -> None:
    for file in files:
        digest, owner = expected.get(file.path, (file.sha256, ""))
        if digest != file.sha256:
            raise RepositoryError(
                f"{file.path.partition('/')[2]} is not what was built: its SHA-256 differs from "
                f"the manifest of {owner}",
                remedy=f"build it again: `tritonctl build --force {owner}`, then "
                "`tritonctl release`",
            )


def _engine(artefact: Artefact) -> ReleasedEngine:
    manifest, evaluation = artefact.manifest, evaluation_of(artefact)
    record = manifest.result.model_dump(mode="json")
    return ReleasedEngine(
        builder=manifest.builder,
        precision=manifest.request.precision,
        fingerprint=manifest.fingerprint,
        revision=manifest.revision,
        limits=record["limits"],
        versions=record["versions"],
        evaluation=evaluation.model_dump(mode="json") if evaluation else record.get("proof"),
    )


def _versions(project: Project) -> dict[str, str]:
    versions = {"tritonctl": __version__, "python": platform.python_version()}
    server = server_version(project)
    return versions | ({"triton": server} if server else {})


def without_secrets(value: Any, key: str = "") -> Any:
    """A part of the project file without what looks like a secret, or stands in the environment
    as one.
    """
    return _cleaned(value, key, Redaction.of(os.environ, ()))


def _cleaned(value: Any, key: str, redaction: Redaction) -> Any:
    if isinstance(value, dict):
        return {name: _cleaned(inner, name, redaction) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cleaned(inner, key, redaction) for inner in value]
    if not isinstance(value, str):
        return value
    text = redaction(f"{key}: {value}")
    return text.removeprefix(f"{key}: ") if text.startswith(f"{key}: ") else _BLOTTED
