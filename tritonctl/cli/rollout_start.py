# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout start`: a release to all users, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions

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
    cluster: ClusterOptions,
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
    place = _place(loaded, cluster)
    found = start(loaded, source, release, console, breaking=breaking, place=place)
    console.result(found.record(), plain(found).rstrip("\n"))
    console.note("watch it: tritonctl rollout watch; take its users back: tritonctl rollout abort")


def _place(project: Project, cluster: ClusterOptions) -> Place | None:
    """None: this machine."""
    kubectl = cluster.kubectl()
    if kubectl is None:
        return None
    from tritonctl.rollout.kubernetes import Cluster
    from tritonctl.server.kubernetes.chart import installation_name
    from tritonctl.server.kubernetes.kubectl import name

    given = cluster.release_name
    chosen = name("--release-name", given) if given else installation_name(project)
    return Cluster(project, kubectl, chosen)
