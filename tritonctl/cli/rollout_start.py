# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout start`: move all traffic to a release, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.rollout.platforms import RolloutPlatform


@options.expand_options
def command(
    *,
    release: Annotated[
        str, typer.Argument(help="a number, NUMBER-HASH, or `latest`", show_default=False)
    ],
    breaking: Annotated[
        bool,
        typer.Option("--breaking", help="allow tensor changes that may break clients"),
    ] = False,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Load a release next to the live one, and move traffic to it as `rollout:` says.

    A controller in the background evaluates it every second, and rolls back if it is worse. This
    command returns once the controller runs.
    """
    from tritonctl.cli.console.rollout_view import plain_text
    from tritonctl.rollout.starting import start
    from tritonctl.rollout.steering import ProjectSource
    from tritonctl.runtimes.measurement_locks import refuse_during_tuning

    console, loaded = output_options.console(), project.load()
    source = ProjectSource(project.path, project.profile, project.overrides or ())
    platform = _platform(loaded, cluster)
    if platform is None:
        refuse_during_tuning(loaded)
    status = start(loaded, source, release, console, breaking=breaking, platform=platform)
    console.result(status.record(), plain_text(status).rstrip("\n"))
    console.note("watch it: tritonctl rollout watch; roll back: tritonctl rollout abort")


def _platform(project: Project, cluster: ClusterOptions) -> RolloutPlatform | None:
    """Return the cluster's platform; None for this machine."""
    kubectl = cluster.kubectl()
    if kubectl is None:
        return None
    from tritonctl.rollout.kubernetes_environment import KubernetesPlatform
    from tritonctl.runtimes.kubernetes.chart import installation_name
    from tritonctl.runtimes.kubernetes.kubectl import require_name

    release_name = cluster.release_name
    chosen = (
        require_name("--release-name", release_name) if release_name else installation_name(project)
    )
    return KubernetesPlatform(project, kubectl, chosen)
