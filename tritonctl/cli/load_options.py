# SPDX-License-Identifier: Apache-2.0
"""Options of commands that put load on a server: the load, its generator, its target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli.options import MetricsUrlOption
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from tritonctl.host.progress import Progress
    from tritonctl.loadtest.run.jobs import LoadTarget
    from tritonctl.project.schema import Project


class LoadGenerator(StrEnum):
    """The program that sends the requests."""

    ASYNCIO = "asyncio"
    LOCUST = "locust"


Scenario = Annotated[
    str | None,
    typer.Argument(
        help="a load test of `loadtests:` in tritonctl.yaml", show_default="the only one"
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", metavar="RATE", help="requests per second", show_default="the scenario's"
    ),
]


@dataclass(frozen=True)
class LoadOptions:
    """Options of a load test: target, generator, output folder."""

    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="load generator processes", show_default="the scenario's"
        ),
    ] = None
    generator: Annotated[LoadGenerator, typer.Option("--generator", help="load generator")] = (
        LoadGenerator.ASYNCIO
    )
    server: ServerOptions = field(default_factory=ServerOptions)
    metrics_url: MetricsUrlOption = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="model to query", show_default="the scenario's"
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, help="random seed; the same repeats the result", show_default=False
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="folder of the run",
            show_default="a new one in .tritonctl/loadtests",
        ),
    ] = None

    @contextmanager
    def target(self, project: Project, protocol: str, progress: Progress) -> Iterator[LoadTarget]:
        """Yield the named server, or the project's, which `tune` must not use meanwhile.

        Raises ServerError, HostError, UsageError.
        """
        from tritonctl.loadtest.run.jobs import resolve_target
        from tritonctl.runtimes.measurement_locks import load_testing

        with (
            self.server.open_server(project) as named_server,
            named_server.metrics(self.metrics_url) as metrics,
            named_server.description_endpoint(project) as description_endpoint,
            ExitStack() as reserved,
        ):
            endpoint = named_server.endpoint()
            target = resolve_target(project, protocol, endpoint, metrics)
            if endpoint is None:
                reserved.enter_context(load_testing(project, progress))
            yield replace(target, metadata_endpoint=description_endpoint)
            if named_server.connection is not None:
                named_server.connection.require_alive()
