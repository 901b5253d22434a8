# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy`: files that run the project elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.repository.plan import Plan

app = typer.Typer(no_args_is_help=True, help="Write files that run the project in containers.")


@app.callback()
def root() -> None:
    """Write files that run the project in containers."""


@app.command()
@options.expand_options
def compose(
    *,
    output: Annotated[
        Path | None, typer.Option(help="folder to write to", show_default="deploy/ of the project")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="overwrite files that were changed by hand")
    ] = False,
    models: options.ModelsOption = None,
    release: Annotated[
        str | None,
        typer.Option(
            help="serve this release, by its number or `latest`, not what is rendered now",
            show_default=False,
        ),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Render the repository, then compose.yaml and everything it needs; nothing is started."""
    from tritonctl.server.containers.compose import render_compose
    from tritonctl.server.containers.publishing import publish

    console = voice.console()
    loaded, plan = _planned(project.load(), models, release, console)
    folder = (output or loaded.root / "deploy").resolve()
    rendering = render_compose(loaded, plan, folder)
    published = publish(rendering.files, folder, force=force)
    record = {
        "folder": str(folder),
        "profile": rendering.profile,
        "written": published.written,
        "unchanged": published.unchanged,
        "removed": published.removed,
    }
    lines = [f"{folder}"]
    lines += [f"  written    {name}" for name in published.written]
    lines += [f"  unchanged  {name}" for name in published.unchanged]
    lines += [f"  removed    {name}" for name in published.removed]
    profiles = [rendering.profile, *(["gateway"] if loaded.gateway else [])]
    chosen = " ".join(f"--profile {name}" for name in profiles)
    lines += [f"start it there: docker compose {chosen} up --wait"]
    console.result(record, "\n".join(lines))


def _planned(
    project: Project, models: str | None, release: str | None, console: Console
) -> tuple[Project, Plan]:
    """What the containers serve: rendered now, or a release, from its own folder."""
    if release is None:
        from tritonctl.repository.publish import render

        chosen = options.chosen(project, models)
        return chosen, render(chosen, console).plan
    if models is not None:
        raise UsageError(
            "--release serves all models of a release, --models a few of what is rendered now",
            remedy="leave one of them away",
        )
    from tritonctl.releases.serving import rendered_release
    from tritonctl.releases.store import find_release, stored_releases
    from tritonctl.releases.verification import require_whole

    stored = find_release(stored_releases(project), release)
    require_whole(stored, console)
    released, rendered = rendered_release(project, stored)
    return released, rendered.plan
