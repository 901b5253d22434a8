# SPDX-License-Identifier: Apache-2.0
"""`tritonctl release`: what was rendered, verified and asked, under a number for good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.releases_image import packed

if TYPE_CHECKING:
    from tritonctl.releases.publish import Published


@options.expand_options
def command(
    *,
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="start a server of it, on free ports, and ask it"),
    ] = True,
    image: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="pack it as an OCI image in this new file, for Kubernetes or a registry",
            show_default=False,
        ),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Publish what `render` makes as a release that never changes; serves nothing."""
    from functools import partial

    from tritonctl.releases.image import refuse_taken
    from tritonctl.releases.publish import publish
    from tritonctl.server.trial import not_asked, smoke_release

    console = voice.console()
    if image is not None:
        refuse_taken(image)
    trial = smoke_release if ask else partial(not_asked, reason="--no-smoke")
    loaded = project.load()
    done = publish(loaded, console, trial)
    release = done.stored.manifest()
    if done.copied:
        console.note(
            f"{len(done.copied)} files of engines are copies: the folder of the releases is on "
            "another file system than the engines, or their owner is another user"
        )
    if done.fresh and release.smoke.status == "not run":
        console.warning(f"no server was asked: {release.smoke.reason}")
    record = {
        "release": release.name,
        "number": release.number,
        "folder": str(done.stored.folder),
        "published": done.fresh,
        "parent": release.parent,
        "models": [model.model_dump() for model in release.models],
        "bytes": sum(file.size for file in release.files),
        "linked": sum(file.linked for file in release.files),
        "copied": list(done.copied),
        "smoke": release.smoke.model_dump(),
        "warnings": release.check.warnings,
        "image": None,
    }
    lines = [_summary(done)]
    if image is not None:
        record["image"], text = packed(loaded, done.stored, image, console)
        lines.append(text)
    console.result(record, "\n".join(lines))


def _summary(done: Published) -> str:
    release = done.stored.manifest()
    if not done.fresh:
        return f"nothing new: release {release.name} has this content"
    smoke = release.smoke
    asked = f"{smoke.passed} checks passed" if smoke.status == "passed" else "not asked"
    return f"release {release.name} ({asked})\n  serve it: tritonctl up --release {release.number}"
