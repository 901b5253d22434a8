# SPDX-License-Identifier: Apache-2.0
"""Options that describe the machine which a repository is checked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tritonctl.checks.repository import Target
    from tritonctl.project.schema import Project

VersionOption = Annotated[
    str | None,
    typer.Option("--target-version", help="of the server: 2.51.0, or a release, 24.10"),
]
CoresOption = Annotated[
    int | None, typer.Option(min=1, help="of the target [default: this machine's]")
]
MemoryOption = Annotated[
    str | None, typer.Option(help="of the target, 64G [default: this machine's]")
]
ShmOption = Annotated[
    str | None,
    typer.Option("--shm-size", help="of the target's /dev/shm, 64m [default: this machine's]"),
]
GpusOption = Annotated[
    str | None,
    typer.Option(help="of the target, by memory: 24G,24G, or none [default: unknown]"),
]


def chosen_target(
    version: str | None,
    cores: int | None,
    memory: str | None,
    shm_size: str | None,
    gpus: str | None,
    project: Project | None,
    *,
    here: bool = True,
) -> Target:
    """This machine, or the project's container, where the options do not say otherwise.

    here: whether it is served on this machine, as far as anybody knows. Raises ConfigurationError,
    UsageError.
    """
    from tritonctl.checks.repository import Target
    from tritonctl.checks.target import described, this_host

    target = this_host(Target.named(version)) if here else Target.named(version)
    if project is not None:
        from tritonctl.repository.target import of_project

        target = of_project(target, project)
    return described(target, cores, memory, shm_size, gpus)
