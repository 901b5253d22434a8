# SPDX-License-Identifier: Apache-2.0
"""`tritonctl deploy`: write files that run the project elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.repository.plan import RepositoryPlan
    from tritonctl.runtimes.docker.deployment_files import WriteResult

_KEEP = (
    "keep small changes in a separate values file; compare with "
    "`tritonctl deploy kubernetes{flag} --output OTHER` and diff; or overwrite with "
    "`tritonctl deploy kubernetes{flag} --force`"
)
ForceOption = Annotated[
    bool, typer.Option("--force", help="replace what exists: files that were changed by hand")
]
ValuesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="with --manifests: values that override the chart's",
        show_default=False,
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--kubernetes",
        metavar="VERSION",
        help="with --manifests: the cluster's version, such as 1.31",
        show_default="the newest supported",
    ),
]
ApisOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="with --manifests: further APIs of the cluster, such as keda.sh/v1alpha1",
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
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="folder to write to",
            show_default="deploy/ of the project",
        ),
    ] = None,
    force: ForceOption = False,
    models: options.ModelsOption = None,
    release: Annotated[
        str | None,
        typer.Option(
            metavar="RELEASE",
            help="release to serve",
            show_default="the current project",
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Render the repository, then compose.yaml with all its files; starts nothing."""
    from tritonctl.runtimes.docker.compose import render_compose, unpinned_images
    from tritonctl.runtimes.docker.deployment_files import write_files

    console = output_options.console()
    loaded, plan = _project_and_plan(project.load(), models, release, console)
    folder = (output or loaded.root / "deploy").resolve()
    rendering = render_compose(loaded, plan, folder)
    for image in unpinned_images(rendering):
        console.note(
            f"{image} is not pinned: `docker buildx imagetools inspect {image}` prints its digest; "
            f"set docker.image or docker.base_image to {image}@sha256:..."
        )
    published = write_files(rendering.files, folder, force=force)
    record = {
        "folder": str(folder),
        "profile": rendering.profile,
        **_published_record(published),
    }
    lines = _published_lines(published)
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
            "--output",
            "-o",
            metavar="FOLDER",
            help="folder to write to",
            show_default="deploy/chart/ of the project, or deploy/manifests/",
        ),
    ] = None,
    force: ForceOption = False,
    release: Annotated[str, typer.Option(metavar="RELEASE", help="release to serve")] = "latest",
    manifests: Annotated[
        bool, typer.Option("--manifests", help="plain manifests instead of the chart")
    ] = False,
    values: ValuesOption = None,
    version: VersionOption = None,
    apis: ApisOption = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Write a Helm chart that serves a release on Kubernetes; contacts no cluster."""
    from tritonctl.runtimes.docker.deployment_files import MANIFESTS_RECORD, RECORD, write_files
    from tritonctl.runtimes.kubernetes.chart import (
        installation_name,
        render_chart,
        require_release,
        vulnerability_warning,
    )
    from tritonctl.runtimes.kubernetes.manifests import minor_version, read_values, render_manifests

    if not manifests:
        _refuse_manifest_options(values, version, apis)
    cluster = minor_version(version)
    console = output_options.console()
    loaded = project.load()
    stored = require_release(loaded, release, console)
    files = render_chart(loaded, stored)
    name = installation_name(loaded)
    if manifests:
        chosen = read_values(values) if values else {}
        api_versions = [each.strip() for each in apis.split(",")] if apis else []
        files = render_manifests(
            files, name, console, kubernetes=cluster, api_versions=api_versions, values=chosen
        )
    if holes := vulnerability_warning(loaded):
        console.warning(holes)
    folder = (output or loaded.root / "deploy" / ("manifests" if manifests else "chart")).resolve()
    remedy = _KEEP.format(flag=" --manifests" if manifests else "")
    record_name = MANIFESTS_RECORD if manifests else RECORD
    published = write_files(files, folder, force=force, remedy=remedy, record=record_name)
    identity = {"folder": str(folder), "release": stored.name, "name": name}
    record = {**identity, **_published_record(published)}
    started = (
        f"kubectl apply --filename {folder}" if manifests else f"helm upgrade --install {name} ."
    )
    console.result(record, "\n".join([*_published_lines(published), f"start it there: {started}"]))


def _refuse_manifest_options(*values: object) -> None:
    """Raise UsageError if an option that only plain manifests take is set."""
    if any(value is not None for value in values):
        raise UsageError(
            "--values, --kubernetes and --apis require --manifests; Helm sets them for the chart",
            remedy="add --manifests, or use `helm upgrade --values`",
        )


def _published_record(published: WriteResult) -> dict[str, tuple[str, ...]]:
    return {
        "written": published.written,
        "unchanged": published.unchanged,
        "removed": published.removed,
    }


def _published_lines(published: WriteResult) -> list[str]:
    """Return the lines of the folder and the result of each file."""
    lines = [f"{published.folder}"]
    lines += [f"  written    {name}" for name in published.written]
    lines += [f"  unchanged  {name}" for name in published.unchanged]
    lines += [f"  removed    {name}" for name in published.removed]
    return lines


def _project_and_plan(
    project: Project, models: str | None, release: str | None, console: Console
) -> tuple[Project, RepositoryPlan]:
    """Return the project and plan for the containers: rendered now, or of a release."""
    if release is None:
        from tritonctl.repository.publish import render

        chosen = options.select_models(project, models)
        return chosen, render(chosen, console).plan
    if models is not None:
        raise UsageError(
            "--release serves all models of a release, --models some of the current project",
            remedy="drop one of the two options",
        )
    from tritonctl.releases.serving import rendered_release
    from tritonctl.releases.store import find_release, stored_releases
    from tritonctl.store.entries import require_unchanged

    stored = find_release(stored_releases(project), release)
    require_unchanged(stored, console)
    released, rendered = rendered_release(project, stored)
    return released, rendered.plan
