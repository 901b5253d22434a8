# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that load a server: the load, its generator, its target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli.options import MetricsUrlOption
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from tritonctl.loadtest.run.jobs import Target
    from tritonctl.project.schema import Project


class Engine(StrEnum):
    """What sends the requests."""

    ASYNCIO = "asyncio"
    LOCUST = "locust"


Scenario = Annotated[
    str | None,
    typer.Argument(
        help="a load test of `loadtests:` in tritonctl.yaml", show_default="the only one"
    ),
]
Rate = Annotated[
    float | None, typer.Option("--rate", help="requests per second", show_default=False)
]


@dataclass(frozen=True)
class LoadOptions:
    """Which server is loaded with which model, what sends the requests, where the run is kept."""

    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="load generator processes", show_default=False),
    ] = None
    engine: Annotated[Engine, typer.Option("--engine", help="load generator")] = Engine.ASYNCIO
    server: ServerOptions = field(default_factory=ServerOptions)
    metrics_url: MetricsUrlOption = None
    model: Annotated[
        str | None, typer.Option("--model", help="ask this model instead of the scenario's")
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="seed of the schedule", show_default=False)
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="folder of the run",
            show_default="a new one in .tritonctl/loadtests",
        ),
    ] = None

    @contextmanager
    def target(self, project: Project, protocol: str) -> Iterator[Target]:
        """The server that is named, else the project's own.

        Raises ServerError, HostError, UsageError.
        """
        from tritonctl.loadtest.run.jobs import target_of

        with (
            self.server.named(project) as named,
            named.metrics(self.metrics_url) as metrics,
            named.described(project) as described,
        ):
            target = target_of(project, protocol, named.endpoint(), metrics)
            yield replace(target, described=described)
            if named.way is not None:
                named.way.require_alive()
