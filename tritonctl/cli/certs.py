# SPDX-License-Identifier: Apache-2.0
"""`tritonctl certs`: create a development CA with a server and a client certificate."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import TritonctlError


@options.expand_options
def command(
    *,
    folder: Annotated[Path, typer.Argument(help="where to write them")] = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="further name or address of the server; repeatable"),
    ] = None,
    days: Annotated[
        int, typer.Option(metavar="DAYS", min=1, max=825, help="days of validity")
    ] = 90,
    force: Annotated[bool, typer.Option("--force", help="replace what exists")] = False,
    output_options: options.OutputOptions,
) -> None:
    """Create a development CA, a server and a client certificate; print `server.tls` for them."""
    from tritonctl.security.certificates import make_certificates, tls_section

    console = output_options.console()
    make_certificates(folder, host or (), lifetime=timedelta(days=days), force=force)
    section = tls_section(_relative_to_project(folder))
    lines = ["server:", "  tls:", *(f"    {name}: {path}" for name, path in section.items())]
    console.result({"folder": str(folder), "tls": section}, "\n".join(lines))
    console.note(
        f"wrote a development set to {folder}, valid for {days} days; put the lines above into "
        "tritonctl.yaml, then `tritonctl up`"
    )


def _relative_to_project(folder: Path) -> Path:
    """Return the path relative to the project's folder, or unchanged without a project."""
    from tritonctl.project.file import find_project_file

    try:
        root = find_project_file(Path.cwd()).parent
    except TritonctlError:
        return folder
    return folder if folder.is_absolute() else Path(os.path.relpath(folder.resolve(), root))
