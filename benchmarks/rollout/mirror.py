# SPDX-License-Identifier: Apache-2.0
"""Measures what a copy of every request costs those who ask, whatever becomes of the shadower.

Usage: python benchmarks/rollout/mirror.py [--requests 2000]

A real Envoy for each state of the shadower, one server that answers at once behind all of them, and
all requests copied, not a share of them. States: no copies; a shadower that takes them; none (no
socket); one that is frozen (SIGSTOP: connections succeed, nothing is read); one whose connections
are closed at once. One stream after the other sends more than all buffers together hold; then small
requests go to all Envoys in turn.

Exit code 1 if a request fails, a stream does not end, or the P50 is more than 0.5 ms later.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

import grpc  # noqa: E402
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402

from tests.envoy_copies import copying_envoy  # noqa: E402
from tests.envoy_process import Envoy  # noqa: E402
from tritonctl.rollout.shadow.listening import Listener  # noqa: E402
from tritonctl.server.gateway.placement import Upstream  # noqa: E402

NONE, TAKING, ABSENT, FROZEN, CLOSING = "no copies", "taking", "absent", "frozen", "closing"
STATES = (NONE, TAKING, ABSENT, FROZEN, CLOSING)
MOST_LATER_MS = 0.5
STREAMS = ((20_000, 200), (600, 64 << 10))  # requests, bytes of each
PATIENCE_SECONDS = 90.0


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers at once."""

    async def ModelInfer(self, request: Any, _: Any) -> Any:  # noqa: N802
        return service_pb2.ModelInferResponse(model_name=request.model_name)

    async def ModelStreamInfer(self, requests: Any, _: Any) -> Any:  # noqa: N802
        async for request in requests:
            answer = service_pb2.ModelInferResponse(id=request.id)
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)


def triton(port: Any) -> None:
    """A process: gRPC, and readiness over HTTP; says both ports."""

    async def health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
        grpc_port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        http = await asyncio.start_server(health, "127.0.0.1", 0)
        port.send((grpc_port, http.sockets[0].getsockname()[1]))
        await server.wait_for_termination()

    asyncio.run(run())


def shadower(socket: str, closing: bool, copies: Any) -> None:
    """A process that takes copies and does nothing with them, or closes every connection."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def take(_: Any) -> None:
        copies.value += 1

    async def run() -> None:
        if closing:
            await asyncio.start_unix_server(close, socket)
        else:
            await Listener(Path(socket), take).start()
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[multiprocessing.Process]:
    """For the context."""
    one = multiprocessing.Process(target=target, args=arguments, daemon=True)
    one.start()
    try:
        yield one
    finally:
        one.kill()
        one.join()


def envoy_with(root: Path, upstream: Upstream, socket: Path | None) -> Envoy:
    """Copies every request to this socket."""
    root.mkdir()
    return Envoy(root, [upstream]) if socket is None else copying_envoy(root, [upstream], socket)


def request(size: int) -> Any:
    """With one input of so many bytes."""
    made = service_pb2.ModelInferRequest(model_name="m")
    made.inputs.add(name="x", datatype="UINT8", shape=[1, size])
    made.raw_input_contents.append(b"x" * size)
    return made


async def small(envoys: dict[str, Envoy], count: int) -> dict[str, list[float]]:
    """Milliseconds of each request, to all in turn."""
    channels = {name: grpc.aio.insecure_channel(envoy.url) for name, envoy in envoys.items()}
    stubs = {
        name: service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, channel in channels.items()
    }
    found: dict[str, list[float]] = {name: [] for name in envoys}
    one = request(200)
    for number in range(count + 50):
        for name, stub in stubs.items():
            began = time.perf_counter()
            await stub.ModelInfer(one, timeout=10)
            if number >= 50:
                found[name].append(1000 * (time.perf_counter() - began))
    for channel in channels.values():
        await channel.close()
    return found


async def stream(envoy: Envoy, count: int, size: int) -> tuple[int, float, float]:
    """Answers, seconds, and the longest time without one, of one stream of so many requests."""
    one = request(size)
    last, longest, answers = time.monotonic(), 0.0, 0

    async def requests() -> Any:
        for _ in range(count):
            yield one

    async with grpc.aio.insecure_channel(envoy.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        began = time.monotonic()
        try:
            async for _ in stub.ModelStreamInfer(requests(), timeout=PATIENCE_SECONDS):
                answers += 1
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
        except grpc.RpcError as error:
            print(f"    {error.code().name}: {error.details()}")
        longest = max(longest, time.monotonic() - last)
    return answers, time.monotonic() - began, longest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    requests = parser.parse_args().requests
    failed = False
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ours, theirs = multiprocessing.Pipe()
        stack.enter_context(process(triton, theirs))
        grpc_port, http_port = ours.recv()
        upstream = Upstream("127.0.0.1", grpc_port, http_port)
        sockets = {name: root / name / "s" for name in (TAKING, FROZEN, CLOSING)}
        copies = multiprocessing.Value("i", 0)
        envoys = {}
        for name in STATES:
            socket = None if name == NONE else root / name / "s"
            envoys[name] = stack.enter_context(envoy_with(root / name, upstream, socket))
        processes = {
            name: stack.enter_context(process(shadower, str(socket), name == CLOSING, copies))
            for name, socket in sockets.items()
        }
        while not all(socket.exists() for socket in sockets.values()):
            time.sleep(0.05)
        os.kill(processes[FROZEN].pid or 0, signal.SIGSTOP)
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        print("| shadower | stream | answers | seconds | longest wait s |\n|---|---|---|---|---|")
        for count, size in STREAMS:
            for name, envoy in envoys.items():
                answers, seconds, longest = asyncio.run(stream(envoy, count, size))
                shape = f"{count} × {size} bytes"
                print(f"| {name} | {shape} | {answers} | {seconds:.1f} | {longest:.2f} |")
                failed |= answers != count
        found = asyncio.run(small(envoys, requests))
        base = statistics.median(found[NONE])
        print("| shadower | P50 ms | P99 ms | longest ms | requests |\n|---|---|---|---|---|")
        for name, ms in found.items():
            cuts = statistics.quantiles(ms, n=100)
            print(f"| {name} | {cuts[49]:.2f} | {cuts[98]:.2f} | {max(ms):.1f} | {len(ms)} |")
            failed |= len(ms) != requests or cuts[49] > base + MOST_LATER_MS
        print(f"copies taken: {copies.value}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
