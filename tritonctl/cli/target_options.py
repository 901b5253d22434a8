# SPDX-License-Identifier: Apache-2.0
"""Options that describe the machine that a repository is checked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tritonctl.checks.repository import Target
    from tritonctl.project.schema import Project


@dataclass(frozen=True)
class TargetOptions:
    """What the machine has; this machine's where an option is absent."""

    target_version: Annotated[
        str | None,
        typer.Option("--target-version", help="of Triton: 2.51.0, or a release such as 24.10"),
    ] = None
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="CPU cores of the target", show_default="this machine's"),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(help="memory of the target, e.g. 64G", show_default="this machine's"),
    ] = None
    shm_size: Annotated[
        str | None,
        typer.Option(
            "--shm-size",
            help="size of the target's /dev/shm, e.g. 64m",
            show_default="this machine's",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        typer.Option(help="GPUs of the target by memory: 24G,24G, or none", show_default="unknown"),
    ] = None
    not_completed: Annotated[
        bool,
        typer.Option(
            "--disable-auto-complete-config",
            help="the target's Triton is started with this option, and completes no configuration",
        ),
    ] = False

    def target(self, project: Project | None, *, version: str | None, here: bool) -> Target:
        """This machine, or the project's container, where the options do not say otherwise.

        version: the server's, where no option says it. here: whether the repository is served on
        this machine, as far as known. Raises UsageError.
        """
        from tritonctl.checks.repository import Target
        from tritonctl.checks.target import described, this_host

        target = Target.named(self.target_version or version)
        if here:
            target = this_host(target)
        if project is not None:
            from tritonctl.repository.target import of_project

            target = of_project(target, project)
        # Known vulnerabilities are only reported for a version that the user named.
        named = self.target_version is not None
        completes = target.completes and not self.not_completed
        target = replace(target, named_by_user=named, completes=completes)
        return described(target, self.cores, self.memory, self.shm_size, self.gpus)
