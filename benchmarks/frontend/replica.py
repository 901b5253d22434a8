# SPDX-License-Identifier: Apache-2.0
"""A replica with a scripted speed: the mock endpoint, which also reads prompts and tells its load.

    python replica.py --slots 8 --itl 20 --prefill 0.1 [--slow-after 10 --slow-factor 8]

Prints {"grpc": PORT, "http": PORT}. HTTP: /v2/health/ready, /metrics with an engine's gauges. gRPC
besides Triton's service: ORCA's OpenRcaService, for Envoy's client_side_weighted_round_robin. What
it has lately read of prompts' beginnings it does not read again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "loadtests"))

from loadlib.mock_behaviour import Behaviour, Drawn
from loadlib.mock_distributions import Distribution
from loadlib.mock_service import Endpoint
from loadlib.mock_truth import Story, Truth

BLOCK = 64  # characters of a prompt that are kept, or not, together
MOST_BLOCKS = 2000
BASE_MS = 5.0
TOKENS_A_RESPONSE = 10
ORCA = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"


@dataclass(frozen=True)
class Scripted(Behaviour):
    """Behaviour whose first token waits for the prompt to be read, and which may slow down."""

    slow_after: float = float("inf")
    slow_factor: float = 1.0
    reading: dict[int, float] = field(default_factory=dict, compare=False)

    def draw_stream(self, index: int, max_tokens: int | None, whole: bool) -> Drawn:
        """As the mock's, with the time to read this request's prompt."""
        drawn = super().draw_stream(index, max_tokens, whole)
        first, *gaps = drawn.steps
        now = asyncio.get_running_loop().time()
        factor = self.slow_factor if now > self.slow_after else 1.0
        steps = (first + self.reading.pop(index, 0.0), *gaps)
        return Drawn(tuple(step * factor for step in steps), drawn.tokens, drawn.error)


class Replica(Endpoint):
    """The mock's service, with a prefix cache and figures of its load."""

    def __init__(self, behaviour: Scripted, prefill_ms: float) -> None:
        super().__init__(("mock", "mock_tensors"), behaviour, Truth(None))
        self._reading, self._prefill = behaviour.reading, prefill_ms / 1000
        self._slots = behaviour.servers or 1
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.live = self.done = 0

    def _story(self, request: Any, kind: str, arrival: float) -> Story:
        story = super()._story(request, kind, arrival)
        text = next(
            raw[4:]
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
            if tensor.name in {"text_input", "messages"}
        )
        self._reading[story.index] = self._unread(text) / 4 * self._prefill
        return story

    def _unread(self, text: bytes) -> int:
        """Characters of a prompt behind the beginning that is kept."""
        known = True
        unread = len(text) % BLOCK
        for end in range(BLOCK, len(text) + 1, BLOCK):
            block = hash(text[:end])
            known = known and block in self._blocks
            unread += 0 if known else BLOCK
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return unread

    async def _answer(self, request: Any, arrival: float, write: Any) -> None:
        self.live += 1
        try:
            await super()._answer(request, arrival, write)
        finally:
            self.live -= 1
            self.done += 1

    @property
    def page(self) -> str:
        """An engine's gauges."""
        active = min(self.live, self._slots)
        return (
            f'tritonctl_active_streams{{model="mock"}} {active}\n'
            f'tritonctl_waiting_streams{{model="mock"}} {self.live - active}\n'
        )

    async def _config(self, request: Any, context: Any) -> Any:
        answer = await super()._config(request, context)
        answer.config.parameters["max_num_seqs"].string_value = str(self._slots)
        return answer

    async def reports(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """OrcaLoadReport each tenth of a second: application_utilization, rps_fractional."""
        before, rate = self.done, 1.0
        while True:
            await asyncio.sleep(0.1)
            rate += (10.0 * (self.done - before) - rate) * 0.1
            before = self.done
            used = struct.pack("<d", self.live / self._slots)
            yield b"\x49" + used + b"\x31" + struct.pack("<d", max(rate, 0.01))


async def _http(replica: Replica, reader: Any, writer: Any) -> None:
    line = await reader.readline()
    body = replica.page if b"/metrics" in line else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write((head + body).encode())
    await writer.drain()
    writer.close()


async def serve(arguments: argparse.Namespace) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    behaviour = Scripted(
        ttft=Distribution.parse(str(BASE_MS)),
        itl=Distribution.parse(str(arguments.itl * TOKENS_A_RESPONSE)),
        tokens=Distribution.parse("100000"),
        latency=Distribution.parse("1"),
        tokens_per_response=Distribution.parse(f"uniform:{TOKENS_A_RESPONSE}:{TOKENS_A_RESPONSE}"),
        servers=arguments.slots,
        slow_after=loop.time() + arguments.slow_after,
        slow_factor=arguments.slow_factor,
    )
    replica = Replica(behaviour, arguments.prefill)
    orca = grpc.unary_stream_rpc_method_handler(replica.reports)
    service, _, method = ORCA[1:].rpartition("/")
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = grpc.method_handlers_generic_handler(service, {method: orca})
    server.add_generic_rpc_handlers((replica.handler(), handlers))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pages = await asyncio.start_server(lambda r, w: _http(replica, r, w), "127.0.0.1", 0)
    http = pages.sockets[0].getsockname()[1]
    print(json.dumps({"grpc": port, "http": http}), flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--itl", type=float, default=20.0, help="ms between two tokens")
    parser.add_argument("--prefill", type=float, default=0.1, help="ms for a token of a prompt")
    parser.add_argument("--slow-after", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--slow-factor", type=float, default=1.0)
    asyncio.run(serve(parser.parse_args()))
