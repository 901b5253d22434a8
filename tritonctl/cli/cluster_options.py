# SPDX-License-Identifier: Apache-2.0
"""Options that say which installation in a Kubernetes cluster a verb is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.options import ProjectOptions
    from tritonctl.project.schema import Project
    from tritonctl.server.kubernetes.installation import Installation
    from tritonctl.server.kubernetes.kubectl import Kubectl


@dataclass(frozen=True)
class ClusterOptions:
    """Where it is installed, as the user's kubectl knows it."""

    on: Annotated[
        Literal["kubernetes"] | None,
        typer.Option(
            "--on",
            metavar="WORD",
            help="kubernetes: a cluster, by your kubectl",
            show_default="this machine",
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option("--context", help="of kubectl's configuration", show_default="its current"),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="where it is installed", show_default="the context's"),
    ] = None
    release_name: Annotated[
        str | None,
        typer.Option(
            "--release-name", help="what Helm calls it there", show_default="the project's name"
        ),
    ] = None

    def kubectl(self) -> Kubectl | None:
        """The user's kubectl; None where this machine is meant. Raises UsageError."""
        if self.on is None:
            if self != ClusterOptions():
                raise UsageError(
                    "--context, --namespace and --release-name are about a cluster",
                    remedy="add --on kubernetes, or leave them out",
                )
            return None
        from tritonctl.server.kubernetes.kubectl import Kubectl

        return Kubectl(self.context, self.namespace)

    def installation(self, project: ProjectOptions | Project) -> Installation | None:
        """What is installed there; None where this machine is meant.

        A project is needed only for its name. Raises ClusterError, HostError, UsageError.
        """
        kubectl = self.kubectl()
        if kubectl is None:
            return None
        from tritonctl.server.kubernetes.installation import find_installation

        return find_installation(kubectl, project_here(project), self.release_name)


def project_here(project: ProjectOptions | Project) -> Project | None:
    """The project; None where there is none here, and none was named."""
    from tritonctl.cli.options import ProjectOptions

    if not isinstance(project, ProjectOptions):
        return project
    try:
        return project.load()
    except ConfigurationError:
        if project.path is not None:
            raise
        return None
