# SPDX-License-Identifier: Apache-2.0
"""Publish a rendered project as a release: stage, verify, check, smoke test, seal, rename.

If publishing fails before the rename, no release appears. The hidden staging folder that it may
leave is removed with the next release.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.engine import Artefact, evaluation_of
from tritonctl.engines.sources.lock_file import LOCK_FILE
from tritonctl.errors import RepositoryError
from tritonctl.host.files import as_host_error, exclusive, read_record, sha256
from tritonctl.host.progress import Progress, Silent
from tritonctl.host.redaction import Redaction
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.releases import staging
from tritonctl.releases.manifest import (
    REPOSITORY,
    CheckSummary,
    ReleasedEngine,
    ReleasedFile,
    ReleasedModel,
    ReleaseManifest,
    SmokeTestSummary,
    release_name,
    write_release,
)
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import (
    LOCK,
    StoredRelease,
    next_number,
    record_number,
    releases_folder,
    stored_releases,
)
from tritonctl.repository.checking import check_staged_repository
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.publish import RenderedRepository, compile_python, hold_unchanged, render
from tritonctl.repository.server_fields import server_version
from tritonctl.store.folders import REMOVED, STAGING, publish_folder, remove_tree, staging_folder

_BLOTTED = "[removed]"
# Asks a server of the staged release; raises ServerError where an answer is wrong.
Trial = Callable[[Project, RenderedRepository, Progress], SmokeTestSummary]


@dataclass(frozen=True)
class PublishedRelease:
    """A published release."""

    stored: StoredRelease
    fresh: bool  # whether this call made it
    copied: tuple[str, ...] = ()  # files that could not be linked


def publish(project: Project, progress: Progress, run_smoke_test: Trial) -> PublishedRelease:
    """Render the project and publish it, unless a release with that content exists.

    Raises RepositoryError for a missing or changed engine and for errors of `check`, any error of
    `run_smoke_test`, and HostError. In each case no release appears.
    """
    rendered = render(project, progress)
    folder = releases_folder(project)
    with exclusive(folder / LOCK, progress, "publish a release"), as_host_error(folder):
        for leftover in (*folder.glob(f"{STAGING}*"), *folder.glob(f"{REMOVED}*")):
            remove_tree(leftover)
        existing = stored_releases(project)
        number = next_number(folder, existing)
        with staging_folder(folder / f"{STAGING}{number}") as staging_path:
            return _publish_rendered(
                project, rendered, existing, number, staging_path, progress, run_smoke_test
            )


def _publish_rendered(
    project: Project,
    rendered: RenderedRepository,
    existing: list[StoredRelease],
    number: int,
    staging_path: Path,
    progress: Progress,
    run_smoke_test: Trial,
) -> PublishedRelease:
    plan, folder = rendered.plan, staging_path.parent
    with progress.step(f"Staging release {number}") as step, hold_unchanged(rendered, progress):
        placed_models = staging.place_models(plan, rendered.repository, staging_path, number)
        staging.place_requirements(plan, staging_path)
        step.update("configurations")
        # Written twice: some name the release folder, whose name has the hash.
        counted = staging.place_configs(
            plan, placed_models, rendered.repository, staging_path, staging_path
        )
        step.update("digests")
        files = staging.describe_files(staging_path, placed_models.linked)
        content = staging.content_hash(files, placed_models.models, counted)
        final = folder / release_name(number, content)
        if same := _release_with_content(existing, content):
            return PublishedRelease(same, fresh=False)
        staging.place_configs(plan, placed_models, rendered.repository, staging_path, final)
        files = _with_updated_digests(files, staging_path, counted)
    engines = _engine_files(plan, placed_models.models)
    _refuse_damaged(files, engines)
    compile_python(staging_path / REPOSITORY / model for model in plan.model_names)
    with progress.step(f"Checking release {number}"):
        # Rendering already reported warnings.
        warnings = check_staged_repository(staging_path / REPOSITORY, project, Silent(), {})
    release = ReleaseManifest(
        number=number,
        hash=content,
        parent=existing[-1].name if existing else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(project),
        project=without_secrets(project.model_dump(mode="json", by_alias=True)),
        lock=read_record(project.root / LOCK_FILE) or None,
        models=list(placed_models.models),
        native=list(plan.native),
        engines={name: _engine(artefact) for name, artefact in sorted(plan.artefacts.items())},
        files=files,
        check=CheckSummary(warnings=warnings),
        smoke=SmokeTestSummary(status="not run", reason="not yet"),
    )
    write_release(staging_path, release)
    smoke_test = run_smoke_test(
        *rendered_release(project, StoredRelease(staging_path, release)), progress
    )
    release = release.model_copy(update={"smoke": smoke_test})
    write_release(staging_path, release)
    with progress.step(f"Sealing release {number}"):
        staging.seal(staging_path)
        record_number(folder, number)
        publish_folder(staging_path, final)
        staging.sync(folder)
    copied = tuple(file.path for file in files if file.path in engines and not file.linked)
    return PublishedRelease(StoredRelease(final, release), fresh=True, copied=copied)


def _release_with_content(existing: list[StoredRelease], content: str) -> StoredRelease | None:
    """Return the existing release with this content hash."""
    return next((each for each in existing if each.record and each.record.hash == content), None)


def _with_updated_digests(
    files: list[ReleasedFile], staging_path: Path, written: Iterable[str]
) -> list[ReleasedFile]:
    """Update digest and size of rewritten files in the list."""
    fresh = {
        path: {"sha256": sha256(staging_path / path), "size": (staging_path / path).stat().st_size}
        for path in written
    }
    return [file.model_copy(update=fresh.get(file.path, {})) for file in files]


def _engine_files(
    plan: RepositoryPlan, models: Iterable[ReleasedModel]
) -> dict[str, tuple[str, str]]:
    """By path in the release: an engine file's digest at build time, and its public model."""
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
                "`tritonctl releases publish`",
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
    """Return a part of the project file without values that look like secrets, or that the
    environment holds as secrets.
    """
    return _redacted(value, key, Redaction.of(os.environ, ()))


def _redacted(value: Any, key: str, redaction: Redaction) -> Any:
    if isinstance(value, dict):
        return {name: _redacted(inner, name, redaction) for name, inner in value.items()}
    if isinstance(value, list):
        return [_redacted(inner, key, redaction) for inner in value]
    if not isinstance(value, str):
        return value
    text = redaction(f"{key}: {value}")
    return text.removeprefix(f"{key}: ") if text.startswith(f"{key}: ") else _BLOTTED
