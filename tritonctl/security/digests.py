# SPDX-License-Identifier: Apache-2.0
"""Verify that deployed files match their build byte for byte, and that the image is pinned.

The builder records an engine's SHA-256 in its manifest. Every start reads every file: rendering
links files again, which changes their times, so no cheaper check detects changes. Triton then reads
them from the page cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.containers import ContainerEngine, image_digests
from tritonctl.host.files import as_host_error, sha256
from tritonctl.host.progress import Progress
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Project
from tritonctl.repository.plan import RepositoryPlan

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def verify_repository(project: Project, plan: RepositoryPlan, progress: Progress) -> int:
    """Compare every engine file of the model repository with its manifest; return their number.

    Raises RepositoryError for the first modified file, HostError for an unreadable one.
    """
    files = list(_repository_files(project, plan, dict(_engine_files(plan))))
    threads = ThreadPoolExecutor(usable_cores())  # hashing releases Python's GIL
    with progress.step("Verifying engines"), as_host_error(project.repository), threads:
        for actual, (model, file, digest) in zip(
            threads.map(sha256, (file for _, file, _ in files)), files, strict=True
        ):
            if actual != digest:
                threads.shutdown(cancel_futures=True)
                raise RepositoryError(
                    f"{file} was modified after its build: its SHA-256 differs from the manifest "
                    f"of {model}",
                    remedy=f"rebuild it: `tritonctl build --force {model}`, then `tritonctl up`; "
                    "`tritonctl artefacts verify` lists all modified files",
                )
    return len(files)


def _engine_files(plan: RepositoryPlan) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Yield each engine file with its model and digest."""
    for name, artefact in plan.artefacts.items():
        for file in artefact.manifest.result.files:
            yield artefact.folder / file.path, (name, file.sha256)


def _repository_files(
    project: Project, plan: RepositoryPlan, expected: dict[Path, tuple[str, str]]
) -> Iterator[tuple[str, Path, str]]:
    for planned in plan.models:
        folder = project.repository / planned.name / planned.version
        for source, relative in planned.files:
            if source in expected:
                model, digest = expected[source]
                yield model, folder / relative, digest


def verify_image(engine: ContainerEngine, image: str) -> None:
    """Raise HostError unless the local image has the digest of `name@sha256:...`.

    A name without a digest passes.
    """
    name, separator, digest = image.partition("@")
    if not separator:
        return
    if not _DIGEST.fullmatch(digest):
        raise HostError(
            f"docker.image: `{image}` has no valid digest",
            remedy="use name@sha256: followed by 64 hexadecimal digits",
        )
    try:
        local_digests = image_digests(engine, image)
    except HostError as error:
        raise HostError(
            f"docker.image: {image} is not on this machine{_local_digests_text(engine, name)}",
            remedy=f"fetch it: `{engine.name} pull {image}`",
            details=error.details,
        ) from error
    if digest not in local_digests:
        raise HostError(
            f"docker.image: {engine.name} has {image} as {', '.join(local_digests)}",
            remedy=f"remove it (`{engine.name} image rm {image}`) and fetch it again: "
            f"`{engine.name} pull {image}`",
        )


def _local_digests_text(engine: ContainerEngine, name: str) -> str:
    """Return a note on the local digests of an image name; "" without any."""
    try:
        digests = image_digests(engine, name)
    except HostError:
        return ""
    return f"; the local {name} is {', '.join(digests)}"
