# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest mock`: serve an endpoint with known latencies, to test load tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options

_DISTRIBUTION = "5, exponential:20, bimodal:10:100:0.05, lognormal:20:0.5 or uniform:10:30"


@dataclass(frozen=True)
class MockOptions:
    """Options of `mock_endpoint.py`, which has the same."""

    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="port to listen on; 0: a free one"),
    ] = 0
    ttft: Annotated[
        str, typer.Option(metavar="DISTRIBUTION", help=f"ms to the first token: {_DISTRIBUTION}")
    ] = "20"
    itl: Annotated[str, typer.Option(metavar="DISTRIBUTION", help="ms between two responses")] = "5"
    tokens: Annotated[str, typer.Option(metavar="DISTRIBUTION", help="tokens per answer")] = "16"
    tokens_per_response: Annotated[
        str, typer.Option(metavar="DISTRIBUTION", help="tokens in a response")
    ] = "1"
    latency: Annotated[str, typer.Option(metavar="DISTRIBUTION", help="ms of a unary request")] = (
        "10"
    )
    stall: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="AT:FOR, stall at AT seconds after the first request for FOR seconds",
        ),
    ] = None
    servers: Annotated[
        int | None, typer.Option(help="requests processed at once", min=1, show_default="all")
    ] = None
    queue_size: Annotated[
        int | None, typer.Option(help="refuse requests when this many wait", min=0)
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="BASE:EACH:MOST, a batch of k takes BASE + EACH * k ms"),
    ] = None
    error_share: Annotated[
        float, typer.Option(metavar="SHARE", help="probability that a request fails")
    ] = 0.0
    text_model: Annotated[str, typer.Option(metavar="NAME", help="name of the text model")] = "mock"
    tensor_model: Annotated[str, typer.Option(metavar="NAME", help="name of the unary model")] = (
        "mock_tensors"
    )
    seed: Annotated[int, typer.Option(help="random seed; the same repeats the result", min=0)] = 0
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the true times, as JSON lines")
    ] = None

    def arguments(self) -> Iterator[str]:
        """Yield the program's arguments; an option that is not set is left out."""
        for name, value in asdict(self).items():
            for each in value if isinstance(value, list) else [value]:
                if each is not None:
                    yield from (f"--{name.replace('_', '-')}", str(each))


@options.expand_options
def command(
    *,
    mock: MockOptions,
    output_options: options.OutputOptions,
) -> None:
    """Serve Triton's gRPC protocol with latencies drawn from known distributions, until Ctrl-C."""
    from tritonctl.loadtest.run.environment import generator_folder, generator_python

    python = generator_python(output_options.console())
    arguments = [str(python), str(generator_folder() / "mock_endpoint.py")]
    arguments += mock.arguments()
    sys.stdout.flush()
    # The mock replaces this process and handles signals and output itself.
    os.execv(python, arguments)  # noqa: S606
