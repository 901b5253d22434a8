# SPDX-License-Identifier: Apache-2.0
"""`tritonctl frontend`: the OpenAI API over a running Triton, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonctl.frontend.config import FrontendConfig
    from tritonctl.project.schema import Project
    from tritonctl.protocol.channel import Endpoint


@options.expand_options
def command(
    *,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="where to listen",
            show_default="frontend.address, else 127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="port to listen on; 0: a free one",
            show_default="frontend.port, else 9000",
        ),
    ] = None,
    url: options.UrlOption = None,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Serve the OpenAI API over Triton until Ctrl-C; open streams may finish."""
    from tritonctl.frontend.config import FrontendConfig
    from tritonctl.host.frontend_extra import require_extra
    from tritonctl.project.frontend import Frontend
    from tritonctl.runtimes.ports import reserved_ports

    console = output_options.console()
    loaded = project.load()
    require_extra(loaded.frontend or Frontend())
    servers = _servers(loaded, access.endpoint(url))
    config = FrontendConfig.of(
        loaded,
        [server.url for server in servers],
        tls=servers[0].tls,
        api_key=servers[0].api_key,
        address=address,
        port=port,
        upstreams=url is None,
    )
    settings = config.settings
    with reserved_ports(settings.address, {"port": settings.port}, section="frontend") as (chosen,):
        config = config.with_address(settings.address, chosen)
        api = f"{config.url}/v1"
        behind = ", ".join(config.servers)
        console.result(
            {"url": api, "servers": config.servers}, f"OpenAI API at {api} over {behind}"
        )
        _run(config)


def _run(config: FrontendConfig) -> None:
    from tritonctl.frontend.serve import run

    if not run(config):
        raise ServerError("the frontend did not start", remedy="read the lines above")


def _servers(project: Project, named_endpoint: Endpoint | None) -> Sequence[Endpoint]:
    """Return the named server, or all of the project's. Raises ServerError if none runs."""
    from tritonctl.runtimes.discovery import current_servers
    from tritonctl.runtimes.lifecycle import running_server

    if named_endpoint is not None:
        return [named_endpoint]
    return [server.endpoint for server in current_servers(running_server(project))]
