# SPDX-License-Identifier: Apache-2.0
"""A Triton endpoint with exactly known latencies, to calibrate load generators.

    python loadtests/mock_endpoint.py --port 0 --ttft exponential:20 --itl 5 --tokens 16 --stall 5:2

Prints {"grpc": "127.0.0.1:PORT"} when it is ready and serves until SIGTERM. `--truth FILE` writes
the real times, one JSON line per request. Distributions: see loadlib/mock_distributions.py.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import selectors
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import grpc

from loadlib.mock_behaviour import Batching, Behaviour, Stall
from loadlib.mock_distributions import MockDistribution
from loadlib.mock_service import MockEndpoint
from loadlib.mock_truth import TruthFile

_Parsed = TypeVar("_Parsed")
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # two mocks on one port would silently share the load
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def main() -> None:
    """Parse options and serve; exit with status 0 on SIGTERM or SIGINT."""
    arguments = parse()
    # epoll waits in milliseconds, select in microseconds; gRPC's sockets use neither.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        loop.run_until_complete(serve(arguments))
    finally:
        loop.close()


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until a signal."""
    loop = asyncio.get_running_loop()
    stop_event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_event.set)
    truth = TruthFile(arguments.truth)
    server = grpc.aio.server(options=_OPTIONS)
    endpoint = MockEndpoint(
        (arguments.text_model, arguments.tensor_model), build_behaviour(arguments), truth
    )
    server.add_generic_rpc_handlers((endpoint.handler(),))
    port = bind_port(server, arguments.host, arguments.port)
    await server.start()
    flushing = asyncio.create_task(truth.keep_flushing())
    document = {"schema": "tritonctl.loadtest.mock/1", "grpc": f"{arguments.host}:{port}"}
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # a full collection would stall the endpoint
    await stop_event.wait()
    await server.stop(grace=None)
    flushing.cancel()
    with suppress(asyncio.CancelledError):
        await flushing
    truth.close()


def bind_port(server: grpc.aio.Server, host: str, port: int) -> int:
    """Listen and return the port. Exits with status 4 on failure."""
    with suppress(RuntimeError):
        bound: int = server.add_insecure_port(f"{host}:{port}")
        if bound:
            return bound
    sys.stderr.write(
        f"cannot listen on {host}:{port}: is the port taken? --port 0 finds a free one\n"
    )
    raise SystemExit(4)


def build_behaviour(arguments: argparse.Namespace) -> Behaviour:
    """Return the parsed options as a Behaviour."""
    return Behaviour(
        ttft=arguments.ttft,
        itl=arguments.itl,
        tokens=arguments.tokens,
        tokens_per_response=arguments.tokens_per_response,
        latency=arguments.latency,
        stalls=tuple(arguments.stall),
        servers=arguments.servers,
        queue_size=arguments.queue_size,
        batching=arguments.batch,
        error_share=arguments.error_share,
        seed=arguments.seed,
    )


def parse() -> argparse.Namespace:
    """Parse the command line; argparse exits with status 2 on errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    distribution, add = _argument_type(MockDistribution.parse), parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on [default: %(default)s]")
    add("--port", type=int, default=0, help="0: any free one [default]")
    add("--text-model", default="mock", help="name of the text model [default: %(default)s]")
    add(
        "--tensor-model",
        default="mock_tensors",
        help="name of the unary model [default: %(default)s]",
    )
    for name, default, text in (
        ("ttft", "20", "ms from the request to its first token"),
        ("itl", "5", "ms between two responses of a stream"),
        ("tokens", "16", "tokens per answer; the request's max_tokens cuts it"),
        ("tokens-per-response", "1", "tokens in a response"),
        ("latency", "10", "ms of a unary request"),
    ):
        help_text = f"{text} [default: {default}]"
        add(f"--{name}", type=distribution, default=MockDistribution.parse(default), help=help_text)
    add("--stall", type=_argument_type(Stall.parse), action="append", default=[], metavar="AT:FOR",
        help="pause all work for FOR seconds, AT seconds after the first request")  # fmt: skip
    add("--servers", type=_min_integer(1), help="number of concurrent requests [default: all]")
    add("--queue-size", type=_min_integer(0), help="maximum number of waiting requests")
    add("--batch", type=_argument_type(Batching.parse), metavar="BASE:EACH:MOST",
        help="a server takes k <= MOST waiting unary requests for BASE + EACH*k ms")  # fmt: skip
    add("--error-share", type=float, default=0.0, help="probability that a request fails")
    add("--seed", type=_min_integer(0), default=0)
    add("--truth", type=Path, metavar="FILE", help="write the real times as JSON lines")
    arguments = parser.parse_args()
    if arguments.batch and not arguments.servers:
        parser.error("--batch needs --servers: without a limit no request waits")
    return arguments


def _argument_type(parse_one: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    def convert(text: str) -> _Parsed:
        try:
            return parse_one(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _min_integer(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if (number := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"{number} is less than {lowest}")
        return number

    return convert


if __name__ == "__main__":
    main()
