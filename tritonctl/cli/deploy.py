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
    from tritonctl.server.containers.publishing import Published

_KEEP = (
    "keep small changes in a file of values of your own; see what would change with "
    "`tritonctl deploy kubernetes{flag} --output OTHER` and diff; or overwrite with "
    "`tritonctl deploy kubernetes{flag} --force`"
)
ForceOption = Annotated[
    bool, typer.Option("--force", help="overwrite files that were changed by hand")
]
ValuesOption = Annotated[
    Path | None,
    typer.Option(help="with --manifests: values over the chart's own", show_default=False),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--kubernetes",
        help="with --manifests: the cluster's version, as 1.31",
        show_default="the newest known",
    ),
]
ApisOption = Annotated[
    str | None,
    typer.Option(
        help="with --manifests: what the cluster has besides, as keda.sh/v1alpha1, separated by "
        "commas (`kubectl api-versions`)",
        show_default=False,
    ),
]
_HELP = "Write files that run the project in containers, on one machine or on many."
app = typer.Typer(no_args_is_help=True, help=_HELP)


@app.callback()
def root() -> None:
    """Write files that run the project in containers, on one machine or on many."""


@app.command()
@options.expand_options
def compose(
    *,
    output: Annotated[
        Path | None, typer.Option(help="folder to write to", show_default="deploy/ of the project")
    ] = None,
    force: ForceOption = False,
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
        **_done(published),
    }
    lines = _listed(published)
    profiles = [rendering.profile, *(["gateway"] if loaded.gateway else [])]
    chosen = " ".join(f"--profile {name}" for name in profiles)
    lines += [f"start it there: docker compose {chosen} up --wait"]
    console.result(record, "\n".join(lines))


@app.command()
@options.expand_options
def kubernetes(
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            help="folder to write to",
            show_default="deploy/chart/ of the project, or deploy/manifests/",
        ),
    ] = None,
    force: ForceOption = False,
    release: Annotated[
        str, typer.Option(help="the release that pods serve: its number, or `latest`")
    ] = "latest",
    manifests: Annotated[
        bool, typer.Option("--manifests", help="plain manifests instead of the chart")
    ] = False,
    values: ValuesOption = None,
    version: VersionOption = None,
    apis: ApisOption = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Write a Helm chart that serves a release on Kubernetes; no cluster is asked."""
    from tritonctl.server.containers.publishing import MANIFESTS_RECORD, RECORD, publish
    from tritonctl.server.kubernetes.chart import (
        installation_name,
        known_holes_of,
        released,
        render_chart,
    )
    from tritonctl.server.kubernetes.manifests import read_values, render_manifests, supported

    if not manifests and any(given is not None for given in (values, version, apis)):
        raise UsageError(
            "--values, --kubernetes and --apis are for --manifests; the chart has them from Helm",
            remedy="add --manifests, or give the values to `helm upgrade --values`",
        )
    cluster = supported(version)
    console = voice.console()
    loaded = project.load()
    stored = released(loaded, release, console)
    files = render_chart(loaded, stored)
    name = installation_name(loaded)
    if manifests:
        chosen = read_values(values) if values else {}
        others = [each.strip() for each in apis.split(",")] if apis else []
        files = render_manifests(
            files, name, console, kubernetes=cluster, api_versions=others, values=chosen
        )
    if holes := known_holes_of(loaded):
        console.warning(holes)
    folder = (output or loaded.root / "deploy" / ("manifests" if manifests else "chart")).resolve()
    remedy = _KEEP.format(flag=" --manifests" if manifests else "")
    known = MANIFESTS_RECORD if manifests else RECORD
    published = publish(files, folder, force=force, remedy=remedy, record=known)
    record = {"folder": str(folder), "release": stored.name, "name": name, **_done(published)}
    started = (
        f"kubectl apply --filename {folder}" if manifests else f"helm upgrade --install {name} ."
    )
    console.result(record, "\n".join([*_listed(published), f"start it there: {started}"]))


def _done(published: Published) -> dict[str, tuple[str, ...]]:
    return {
        "written": published.written,
        "unchanged": published.unchanged,
        "removed": published.removed,
    }


def _listed(published: Published) -> list[str]:
    """The folder, and what became of each file."""
    lines = [f"{published.folder}"]
    lines += [f"  written    {name}" for name in published.written]
    lines += [f"  unchanged  {name}" for name in published.unchanged]
    lines += [f"  removed    {name}" for name in published.removed]
    return lines


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
