# SPDX-License-Identifier: Apache-2.0
"""Whether the files to serve are those that were built, byte for byte, and the image is right.

An engine's SHA-256 is in its manifest since the builder reported it. Every file is read, at every
start: rendering links files again, which changes their times, so nothing cheaper tells an
untouched file from another. Triton reads them next, then out of the page cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.containers import ContainerEngine, image_digests
from tritonctl.host.files import explained
from tritonctl.host.progress import Progress
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import Project
from tritonctl.repository.plan import Plan

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def verify_repository(project: Project, plan: Plan, progress: Progress) -> int:
    """Compare every engine file in the model repository with its manifest; returns their number.

    Raises RepositoryError for the first that differs, HostError for one that cannot be read.
    """
    files = list(_served(project, plan, dict(_expected(plan))))
    threads = ThreadPoolExecutor(usable_cores())  # hashing holds no lock of Python's
    with progress.step("Verifying engines"), explained(project.repository), threads:
        for actual, (model, file, digest) in zip(
            threads.map(sha256, (file for _, file, _ in files)), files, strict=True
        ):
            if actual != digest:
                threads.shutdown(cancel_futures=True)
                raise RepositoryError(
                    f"{file} is not what was built: its SHA-256 differs from the manifest of "
                    f"{model}",
                    remedy=f"build it again: `tritonctl build --force {model}`, then `tritonctl "
                    "up`; `tritonctl artefacts verify` shows what else has changed",
                )
    return len(files)


def _expected(plan: Plan) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Each file of each engine: the model it belongs to, and its digest."""
    for name, artefact in plan.artefacts.items():
        for file in artefact.manifest.result.files:
            yield artefact.folder / file.path, (name, file.sha256)


def _served(
    project: Project, plan: Plan, expected: dict[Path, tuple[str, str]]
) -> Iterator[tuple[str, Path, str]]:
    for planned in plan.models:
        folder = project.repository / planned.name / planned.version
        for source, relative in planned.files:
            if source in expected:
                model, digest = expected[source]
                yield model, folder / relative, digest


def verify_image(engine: ContainerEngine, image: str) -> None:
    """Raise HostError unless the image of `name@sha256:...` is the one on this machine.

    A name without a digest passes.
    """
    name, at, digest = image.partition("@")
    if not at:
        return
    if not _DIGEST.fullmatch(digest):
        raise HostError(
            f"docker.image: `{image}` has no valid digest",
            remedy="write it as name@sha256: and 64 hexadecimal digits",
        )
    try:
        present = image_digests(engine, image)
    except HostError as error:
        raise HostError(
            f"docker.image: {image} is not on this machine{_others(engine, name)}",
            remedy=f"fetch it: `{engine.name} pull {image}`",
            details=error.details,
        ) from error
    if digest not in present:
        raise HostError(
            f"docker.image: {engine.name} takes {image} for {', '.join(present)}",
            remedy=f"remove it (`{engine.name} image rm {image}`) and fetch it again: "
            f"`{engine.name} pull {image}`",
        )


def _others(engine: ContainerEngine, name: str) -> str:
    """The local digests of that name."""
    try:
        digests = image_digests(engine, name)
    except HostError:
        return ""
    return f"; what is here as {name} is {', '.join(digests)}"
