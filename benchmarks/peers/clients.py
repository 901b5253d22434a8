# SPDX-License-Identifier: Apache-2.0
"""What a client costs, whatever the server: the same paced answers over gRPC and over HTTP.

Usage: python benchmarks/peers/clients.py [--streams 1 8 32 128] [--seconds 3]

A server without an engine plays one answer of 15 tokens: the first at once, then two every 10 ms,
as servers at the default pace do. Our client reads it over its own HTTP/2 and over grpc.aio,
aiohttp as chunks of HTTP/1.1, all by load.py.
Processor time of the client, so a busy machine shifts both alike. Needs a checkout's environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1])]

import hpack  # noqa: E402
from tritonclient.grpc import service_pb2  # noqa: E402

from bench import MODEL, heading, say  # noqa: E402
from servers import free_port, python_of  # noqa: E402
from tritonctl.http2 import frames  # noqa: E402

PIECES, WORD = (1, 2, 2, 2, 2, 2, 2, 2), "seven "
TOKENS, INTERVAL_SECONDS, END_SECONDS = sum(PIECES), 0.010, 0.0002
HEAD = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"), ("grpc-message", ""))
HTTP_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def response(tokens: int, so_far: int) -> bytes:
    """A ModelStreamInferResponse of the ensemble, as gRPC frames it."""
    message = service_pb2.ModelStreamInferResponse()
    answer, last = message.infer_response, so_far == TOKENS
    answer.model_name = MODEL
    answer.parameters["triton_final_response"].bool_param = last
    text, reason = (WORD * tokens).encode(), b"stop" if last else b""
    for name, kind, count, content in (
        ("text_output", "BYTES", 1, struct.pack("<I", len(text)) + text),
        ("output_ids", "INT32", tokens, struct.pack(f"<{tokens}i", *range(tokens))),
        ("num_input_tokens", "INT32", 1, struct.pack("<i", 9)),
        ("num_output_tokens", "INT32", 1, struct.pack("<i", so_far)),
        ("finish_reason", "BYTES", 1, struct.pack("<I", len(reason)) + reason),
    ):
        answer.outputs.add(name=name, datatype=kind, shape=[1, count])
        answer.raw_output_contents.append(content)
    content = message.SerializeToString()
    return b"\0" + struct.pack(">L", len(content)) + content


RESPONSES = [response(n, sum(PIECES[: at + 1])) for at, n in enumerate(PIECES)]
CHUNKS = [b"%x\r\n%b\r\n" % (len(WORD) * n, WORD.encode() * n) for n in PIECES]


class Answering(Protocol):
    """A connection that sends pieces of answers."""

    def piece(self, stream: int, at: int) -> bytes:
        """One, with whatever comes before it."""

    def end(self, stream: int) -> bytes:
        """What comes behind the last one."""


def play(connection: Answering, transport: Any, stream: int, at: int = 0) -> None:
    """The answer from this piece on."""
    if transport.is_closing():
        return
    loop = asyncio.get_running_loop()
    transport.write(connection.piece(stream, at))
    if at + 1 < len(PIECES):
        loop.call_later(INTERVAL_SECONDS, play, connection, transport, stream, at + 1)
    else:
        loop.call_later(END_SECONDS, lambda: transport.write(connection.end(stream)))


class Grpc(asyncio.Protocol):
    """HTTP/2, of which it reads where requests end."""

    def connection_made(self, transport: Any) -> None:
        """Settings, and a window for any number of requests."""
        self.transport, self.encoder, self.rest, self.at = transport, hpack.Encoder(), b"", 24
        transport.write(frames.frame(frames.SETTINGS, 0, 0) + frames.window_update(0, 1 << 30))

    def data_received(self, data: bytes) -> None:
        """Frames, behind 24 bytes of a preface."""
        self.rest += data
        while len(self.rest) >= self.at + frames.HEAD_BYTES:
            high, low, kind, flags, stream = frames.HEAD.unpack_from(self.rest, self.at)
            end = self.at + frames.HEAD_BYTES + (high << 8 | low)
            if len(self.rest) < end:
                return
            self.rest, self.at = self.rest[end:], 0
            if kind == frames.DATA and flags & frames.END_STREAM:
                play(self, self.transport, stream)

    def piece(self, stream: int, at: int) -> bytes:
        """As Answering."""
        head = b"" if at else self.headers(stream, HEAD, 0)
        return head + frames.frame(frames.DATA, 0, stream, RESPONSES[at])

    def end(self, stream: int) -> bytes:
        """As Answering."""
        return self.headers(stream, OK, frames.END_STREAM)

    def headers(self, stream: int, headers: Any, flags: int) -> bytes:
        """A block."""
        block = self.encoder.encode(headers)
        return frames.frame(frames.HEADERS, flags | frames.END_HEADERS, stream, block)


class Http(asyncio.Protocol):
    """HTTP/1.1; a request is what ends with its JSON."""

    def connection_made(self, transport: Any) -> None:
        """Nothing to say."""
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        """A request at a time."""
        self.rest += data
        if self.rest.endswith(b"}"):
            self.rest = b""
            play(self, self.transport, 0)

    def piece(self, _: int, at: int) -> bytes:
        """As Answering."""
        return (b"" if at else HTTP_HEAD) + CHUNKS[at]

    def end(self, _: int) -> bytes:
        """As Answering."""
        return b"0\r\n\r\n"


async def serve(grpc_port: int, http_port: int) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    await loop.create_server(Grpc, "127.0.0.1", grpc_port)
    await loop.create_server(Http, "127.0.0.1", http_port)
    print("serving", flush=True)
    await asyncio.Event().wait()


def client_costs(
    folder: Path, protocol: str, port: int, streams: int, seconds: float
) -> tuple[float, float]:
    """CPU time per token in µs, and the median time to the first token in ms."""
    cases = [{"prompt": "7 in English:", "tokens": TOKENS, "text": WORD * TOKENS}]
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    url = (
        f"127.0.0.1:{port}" if protocol.startswith("grpc") else f"http://127.0.0.1:{port}/generate"
    )
    job = {
        "subject": "text", "protocol": protocol, "url": url, "marker": "none", "seed": 1,
        "cases": str(folder / "cases.json"), "streams": streams, "model": MODEL, "output": "",
        "max_tokens": TOKENS, "warm_up": 1.0, "seconds": seconds,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [python_of("client"), HERE / "load.py", folder / "job.json"]
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    result: dict[str, float] = json.loads(done.stdout)
    if result["wrong"] or result["failed"] or not result["requests"]:
        raise SystemExit(f"{protocol}, {streams} streams: {result}")
    return result["client_cpu"], result["ttft_p50"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(*arguments.serve))
        return
    ports = {"grpc": free_port(), "http": free_port()}
    command = [sys.executable, __file__, "--serve", *(str(port) for port in ports.values())]
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    heading(
        "CPU of the client, us/token; TTFT P50, ms",
        ("streams", "ours", "grpc.aio", "aiohttp", "CPU to grpc.aio", "to aiohttp"),
    )
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            next(iter(server.stdout or ()))  # it says when it serves
            for streams in arguments.streams:
                costs = {
                    protocol: client_costs(
                        Path(folder), protocol, ports[protocol.split(".")[0]], streams,
                        arguments.seconds,
                    )
                    for protocol in ("grpc", "grpc.aio", "http")
                }  # fmt: skip
                cells = (f"{cpu:.1f}, {ttft:.2f}" for cpu, ttft in costs.values())
                ratios = (f"{costs['grpc'][0] / costs[p][0]:.2f}" for p in ("grpc.aio", "http"))
                say(f"{streams}", *cells, *ratios)
        finally:
            server.kill()
    print(f"load average after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
