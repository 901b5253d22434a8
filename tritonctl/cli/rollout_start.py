# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout start`: a release to all users, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.rollout.places import Place


@options.expand_options
def command(
    *,
    release: Annotated[
        str, typer.Argument(help="a number, NUMBER-HASH, or `latest`", show_default=False)
    ],
    breaking: Annotated[
        bool,
        typer.Option("--breaking", help="also if clients may fail with its other tensors"),
    ] = False,
    on: Annotated[
        Literal["kubernetes"] | None,
        typer.Option("--on", help="a cluster, by your kubectl", show_default="this machine"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", help="of kubectl's configuration", show_default="its current"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="where it is installed", show_default="the context's"),
    ] = None,
    release_name: Annotated[
        str | None,
        typer.Option(
            "--release-name", help="what Helm calls it there", show_default="the project's name"
        ),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Load a release beside the one that serves, and move users to it as `rollout:` says.

    A controller in the background judges it every second, and takes all users back when it is
    worse. This command returns once that has begun.
    """
    from tritonctl.cli.console.rollout_view import plain
    from tritonctl.rollout.starting import start
    from tritonctl.rollout.steering import Source

    console, loaded = voice.console(), project.load()
    source = Source(project.path, project.profile, project.overrides or ())
    place = _place(loaded, on, context, namespace, release_name)
    found = start(loaded, source, release, console, breaking=breaking, place=place)
    console.result(found.record(), plain(found).rstrip("\n"))
    console.note("watch it: tritonctl rollout watch; take its users back: tritonctl rollout abort")


def _place(
    project: Project,
    on: str | None,
    context: str | None,
    namespace: str | None,
    release_name: str | None,
) -> Place | None:
    """None: this machine."""
    if on is None:
        if (context, namespace, release_name) != (None, None, None):
            raise UsageError(
                "--context, --namespace and --release-name are about a cluster",
                remedy="add --on kubernetes, or leave them out",
            )
        return None
    from tritonctl.rollout.kubernetes import Cluster
    from tritonctl.server.kubernetes.chart import installation_name
    from tritonctl.server.kubernetes.kubectl import Kubectl, name

    chosen = name("--release-name", release_name) if release_name else installation_name(project)
    return Cluster(project, Kubectl(context, namespace), chosen)
