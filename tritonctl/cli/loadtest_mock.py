# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest mock`: an endpoint whose latencies are known, to try load tests against."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options

_DISTRIBUTION = "5, exponential:20, bimodal:10:100:0.05, lognormal:20:0.5 or uniform:10:30"


@options.expand_options
def command(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port to listen on; 0 picks a free one")
    ] = 0,
    ttft: Annotated[str, typer.Option(help=f"ms to the first token: {_DISTRIBUTION}")] = "20",
    itl: Annotated[str, typer.Option(help="ms between two responses, in the same form")] = "5",
    tokens: Annotated[str, typer.Option(help="tokens per answer, in the same form")] = "16",
    tokens_per_response: Annotated[str, typer.Option(help="tokens in a response")] = "1",
    latency: Annotated[str, typer.Option(help="ms of a unary request, in the same form")] = "10",
    stall: Annotated[
        list[str] | None,
        typer.Option(help="AT:FOR, stall at AT seconds after the first request for FOR seconds"),
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="requests processed at once", min=1, show_default="all")
    ] = None,
    queue_size: Annotated[
        int | None, typer.Option(help="refuse requests when this many wait", min=0)
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="BASE:EACH:MOST, a batch of k takes BASE + EACH * k ms")
    ] = None,
    error_share: Annotated[float, typer.Option(help="probability that a request fails")] = 0.0,
    model: Annotated[str, typer.Option(help="name of the text model")] = "mock",
    tensor_model: Annotated[str, typer.Option(help="name of the unary model")] = "mock_tensors",
    seed: Annotated[int, typer.Option(help="random seed", min=0)] = 0,
    truth: Annotated[
        Path | None, typer.Option(help="write the true times to this file, as JSON lines")
    ] = None,
    voice: options.OutputOptions,
) -> None:
    """Serve Triton's gRPC protocol with latencies drawn from known distributions, until Ctrl-C."""
    given = {name: value for name, value in locals().items() if name not in {"voice", "stall"}}
    from tritonctl.loadtest.run.environment import generator_python, generators

    python = generator_python(voice.console())
    arguments = [str(python), str(generators() / "mock_endpoint.py")]
    for name, value in given.items():
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    for text in stall or ():
        arguments += ["--stall", text]
    sys.stdout.flush()
    # The mock becomes this process: signals and its one line of output are its own.
    os.execv(python, arguments)  # noqa: S606
