# SPDX-License-Identifier: Apache-2.0
"""Options that describe the target machine of a repository check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from tritonctl.cli.vocabulary import TARGET

if TYPE_CHECKING:
    from tritonctl.checks.repository import CheckTarget
    from tritonctl.project.schema import Project


@dataclass(frozen=True)
class TargetOptions:
    """The target machine; an absent option means the value of this machine."""

    panel: ClassVar[str] = TARGET

    target_version: Annotated[
        str | None,
        typer.Option(
            "--target-version",
            metavar="VERSION",
            help="Triton version: 2.51.0, or a release like 24.10",
        ),
    ] = None
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="CPU cores", show_default="this machine's"),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="memory, e.g. 64G", show_default="this machine's"),
    ] = None
    shm_size: Annotated[
        str | None,
        typer.Option(
            "--shm-size",
            metavar="SIZE",
            help="size of /dev/shm, e.g. 64m",
            show_default="this machine's",
        ),
    ] = None
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="memory of each GPU: 24G,24G, or none",
            show_default="unknown",
        ),
    ] = None
    not_completed: Annotated[
        bool,
        typer.Option(
            "--disable-auto-complete-config",
            help="Triton runs there with this option",
        ),
    ] = False

    def target(
        self, project: Project | None, *, version: str | None, is_local: bool
    ) -> CheckTarget:
        """Return the target: the options, else this machine or the project's container.

        version: the server's version, used without an explicit one. is_local: whether this machine
        serves the repository, as far as known. Raises UsageError.
        """
        from tritonctl.checks.repository import CheckTarget
        from tritonctl.checks.target import target_from_host, target_from_options

        target = CheckTarget.from_name(self.target_version or version)
        if is_local:
            target = target_from_host(target)
        if project is not None:
            from tritonctl.repository.target import EMBEDDED_BACKENDS, with_project_facts

            target = with_project_facts(target, project)
            if project.server.mode == "embedded" and self.target_version is None and is_local:
                target = replace(target, backends=EMBEDDED_BACKENDS)
        # Known vulnerabilities are only reported for a version that the user named.
        is_explicit = self.target_version is not None
        completes = target.completes and not self.not_completed
        target = replace(target, named_by_user=is_explicit, completes=completes)
        return target_from_options(target, self.cores, self.memory, self.shm_size, self.gpu_memory)
