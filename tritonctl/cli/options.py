# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share, and what they all begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tritonctl.console import Console
    from tritonctl.project import Project

ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        "-C",
        help="tritonctl.yaml or its folder [default: found upwards from here]",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="a profile of tritonctl.yaml", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a field: server.grpc_port=0", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no notes")]


def console(as_json: bool, quiet: bool) -> Console:
    """The console that a verb speaks through."""
    from tritonctl.console import Console

    return Console(as_json=as_json, quiet=quiet)


def open_project(path: Path | None, profile: str | None, overrides: list[str] | None) -> Project:
    """The project that the shared options name. Raises ConfigurationError."""
    from tritonctl.project_file import load_project

    return load_project(path, profile=profile, overrides=overrides or ())
