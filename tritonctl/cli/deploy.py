# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy`: files that run the project elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options

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
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Render the repository, then compose.yaml and everything it needs; nothing is started."""
    from tritonctl.repository.publish import render
    from tritonctl.server.containers.compose import render_compose
    from tritonctl.server.containers.publishing import publish

    console = voice.console()
    loaded = options.chosen(project.load(), models)
    plan = render(loaded, console).plan
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
