# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that load a server: what is sent, by whom, whereto."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Engine(StrEnum):
    """What sends the requests."""

    ASYNCIO = "asyncio"
    LOCUST = "locust"


Scenario = Annotated[
    str | None,
    typer.Argument(help="of `loadtests:` in tritonctl.yaml [default: the only one]"),
]
Rate = Annotated[
    float | None, typer.Option("--rate", help="requests per second", show_default=False)
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="generator processes", show_default=False),
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="what sends the requests")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="HOST:PORT of another server [default: the project's]", show_default=False
    ),
]
MetricsUrl = Annotated[
    str | None,
    typer.Option("--metrics-url", help="Prometheus metrics of that server", show_default=False),
]
Model = Annotated[str | None, typer.Option("--model", help="another model than the scenario's")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="of the schedule", show_default=False)
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="folder of the run [default: a new one in .tritonctl/loadtests]",
        show_default=False,
    ),
]
