# SPDX-License-Identifier: Apache-2.0
"""Options that select an installation in a Kubernetes cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from tritonctl.cli.vocabulary import CLUSTER
from tritonctl.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.options import ProjectOptions
    from tritonctl.project.schema import Project
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation
    from tritonctl.runtimes.kubernetes.kubectl import Kubectl


@dataclass(frozen=True)
class ClusterOptions:
    """The installation, in terms of the user's kubectl."""

    panel: ClassVar[str] = CLUSTER

    on: Annotated[
        Literal["kubernetes"] | None,
        typer.Option(
            "--on",
            metavar="CHOICE",
            help="kubernetes: the cluster of your kubectl",
            show_default="this machine",
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="context of kubectl", show_default="the current one"
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="where it is installed",
            show_default="the context's",
        ),
    ] = None
    release_name: Annotated[
        str | None,
        typer.Option(
            "--release-name",
            metavar="NAME",
            help="name of the Helm release",
            show_default="the project's name",
        ),
    ] = None

    def kubectl(self) -> Kubectl | None:
        """Return the user's kubectl; None for this machine. Raises UsageError."""
        if self.on is None:
            if self != ClusterOptions():
                raise UsageError(
                    "--context, --namespace and --release-name require a cluster",
                    remedy="add --on kubernetes, or leave them out",
                )
            return None
        from tritonctl.runtimes.kubernetes.kubectl import Kubectl

        return Kubectl(self.context, self.namespace)

    def installation(self, project: ProjectOptions | Project) -> ChartInstallation | None:
        """Return the installation in the cluster; None for this machine.

        The project is optional and provides only the name. Raises ClusterError, HostError,
        UsageError.
        """
        kubectl = self.kubectl()
        if kubectl is None:
            return None
        from tritonctl.runtimes.kubernetes.installation import find_installation

        return find_installation(kubectl, find_project(project), self.release_name)


def find_project(project: ProjectOptions | Project) -> Project | None:
    """Return the project; None if no project was named and this folder has none."""
    from tritonctl.cli.options import ProjectOptions

    if not isinstance(project, ProjectOptions):
        return project
    try:
        return project.load()
    except ConfigurationError:
        if project.path is not None:
            raise
        return None
