# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases publish`: store the rendered, verified and smoke-tested repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.releases_image import pack_image

if TYPE_CHECKING:
    from tritonctl.releases.publish import PublishedRelease


@options.expand_options
def command(
    *,
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="smoke-test the new version before it serves"),
    ] = True,
    oci_archive: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="also pack it as an OCI image in this new file, for a registry",
            show_default=False,
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Publish the output of `render` as an immutable release; serves nothing."""
    from functools import partial

    from tritonctl.releases.image import require_unused_path
    from tritonctl.releases.publish import publish
    from tritonctl.runtimes.staging_server import skip_smoke_test, smoke_test_release

    console = output_options.console()
    if oci_archive is not None:
        require_unused_path(oci_archive)
    smoke_test = smoke_test_release if ask else partial(skip_smoke_test, reason="--no-smoke")
    loaded = project.load()
    done = publish(loaded, console, smoke_test)
    release = done.stored.manifest()
    if done.copied:
        console.note(
            f"{len(done.copied)} engine files are copies: the folder of the releases is on "
            "another file system than the engines, or another user owns the engines"
        )
    if done.fresh and release.smoke.status == "not run":
        console.warning(f"not smoke-tested: {release.smoke.reason}")
    record = {
        "release": release.name,
        "number": release.number,
        "folder": str(done.stored.folder),
        "published": done.fresh,
        "parent": release.parent,
        "models": [model.model_dump() for model in release.models],
        "size_bytes": sum(file.size for file in release.files),
        "linked": sum(file.linked for file in release.files),
        "copied": list(done.copied),
        "smoke": release.smoke.model_dump(),
        "warnings": release.check.warnings,
        "image": None,
    }
    lines = [_summary(done)]
    if oci_archive is not None:
        record["image"], text = pack_image(loaded, done.stored, oci_archive, console)
        lines.append(text)
    console.result(record, "\n".join(lines))


def _summary(done: PublishedRelease) -> str:
    release = done.stored.manifest()
    if not done.fresh:
        return f"unchanged: release {release.name} has this content"
    smoke = release.smoke
    smoke_text = f"{smoke.passed} checks passed" if smoke.status == "passed" else "not tested"
    serve = f"tritonctl up --release {release.number}"
    return f"release {release.name} ({smoke_text})\n  serve it: {serve}"
