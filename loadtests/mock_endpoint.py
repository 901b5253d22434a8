# SPDX-License-Identifier: Apache-2.0
"""A Triton endpoint whose latencies are known exactly: what load generators are calibrated against.

    python loadtests/mock_endpoint.py --port 0 --ttft exponential:20 --itl 5 --tokens 16 --stall 5:2

Prints {"grpc": "127.0.0.1:PORT"} when it is ready and serves until SIGTERM. `--truth FILE` writes
what it really did, a JSON line per request. Distributions: see loadlib/mock_distributions.py.
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
from loadlib.mock_distributions import Distribution
from loadlib.mock_service import Endpoint
from loadlib.mock_truth import Truth

_Parsed = TypeVar("_Parsed")
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # two mocks on one port would silently share the load
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


def main() -> None:
    """Parse, serve, end on SIGTERM or SIGINT with status 0."""
    arguments = parse()
    # epoll waits whole milliseconds, select microseconds; gRPC's sockets are in neither.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        loop.run_until_complete(serve(arguments))
    finally:
        loop.close()


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until a signal."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    truth = Truth(arguments.truth)
    server = grpc.aio.server(options=_OPTIONS)
    endpoint = Endpoint((arguments.model, arguments.tensor_model), behaviour(arguments), truth)
    server.add_generic_rpc_handlers((endpoint.handler(),))
    port = bind(server, arguments.host, arguments.port)
    await server.start()
    flushing = asyncio.create_task(truth.keep_flushing())
    sys.stdout.write(json.dumps({"grpc": f"{arguments.host}:{port}"}) + "\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # a full collection would itself be a stall
    await ended.wait()
    await server.stop(grace=None)
    flushing.cancel()
    with suppress(asyncio.CancelledError):
        await flushing
    truth.close()


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Listen; the port. Ends the program with status 4 when that fails."""
    with suppress(RuntimeError):
        bound: int = server.add_insecure_port(f"{host}:{port}")
        if bound:
            return bound
    sys.stderr.write(
        f"cannot listen on {host}:{port}: is the port taken? --port 0 finds a free one\n"
    )
    raise SystemExit(4)


def behaviour(arguments: argparse.Namespace) -> Behaviour:
    """The parsed options as one value."""
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
    """The command line; argparse ends the program with status 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    distribution, add = _type(Distribution.parse), parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on [default: %(default)s]")
    add("--port", type=int, default=0, help="0: any free one [default]")
    add("--model", default="mock", help="name of the text model [default: %(default)s]")
    add("--tensor-model", default="mock_tensors", help="of the unary one [default: %(default)s]")
    for name, default, text in (
        ("ttft", "20", "ms from the request to its first token"),
        ("itl", "5", "ms between two responses of a stream"),
        ("tokens", "16", "tokens per answer; the request's max_tokens cuts it"),
        ("tokens-per-response", "1", "tokens in a response"),
        ("latency", "10", "ms of a unary request"),
    ):
        help_text = f"{text} [default: {default}]"
        add(f"--{name}", type=distribution, default=Distribution.parse(default), help=help_text)
    add("--stall", type=_type(Stall.parse), action="append", default=[], metavar="AT:FOR",
        help="work stands still for FOR seconds, AT seconds after the first request")  # fmt: skip
    add("--servers", type=_at_least(1), help="requests worked on at a time [default: all]")
    add("--queue-size", type=_at_least(0), help="more waiting requests are refused")
    add("--batch", type=_type(Batching.parse), metavar="BASE:EACH:MOST",
        help="a server takes k <= MOST waiting unary requests for BASE + EACH*k ms")  # fmt: skip
    add("--error-share", type=float, default=0.0, help="probability that a request fails")
    add("--seed", type=_at_least(0), default=0)
    add("--truth", type=Path, metavar="FILE", help="write what really happened, as JSON lines")
    arguments = parser.parse_args()
    if arguments.batch and not arguments.servers:
        parser.error("--batch needs --servers: without servers nothing ever waits")
    return arguments


def _type(parse_one: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    def convert(text: str) -> _Parsed:
        try:
            return parse_one(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _at_least(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if (number := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"{number} is less than {lowest}")
        return number

    return convert


if __name__ == "__main__":
    main()
