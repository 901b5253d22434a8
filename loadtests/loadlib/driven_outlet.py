# SPDX-License-Identifier: Apache-2.0
"""A generator that another process, such as Locust, drives through pipes.

Standard output carries JSON lines: {"ready": true} once the endpoint has answered and the schedule
is drawn, then records and progress. Standard input carries the plan, then commands:

    {"start": 1760000000.5}     start time (seconds since the epoch; null: shortly)
    {"users": 3}                the number of users in a closed loop
    {"stop": "interrupted"}     stop sending; the second one abandons requests in flight

The end of standard input abandons the run: the driver has exited.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from loadlib.engine import LoadEngine
from loadlib.json_lines import encode_line
from loadlib.worker_share import INTERRUPTED

_READ_BYTES = 65536


class DrivenOutlet:
    """Writes records and progress to standard output; standard input controls the run."""

    def __init__(self) -> None:
        self.records = OutputPipe()
        self._partial_line = b""
        self._users = 0
        self._stops: list[str] = []
        self._engine: LoadEngine | None = None
        self._start: asyncio.Future[float | None] | None = None

    async def wait_for_start(self) -> float | None:
        """Report ready and return the start time: seconds since the epoch, None: shortly."""
        loop = asyncio.get_running_loop()
        await self.records.open()
        self._start = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), self._read)
        self.write_progress({"ready": True})
        return await self._start

    def attach(self, engine: LoadEngine) -> None:
        """Apply the commands received so far to the engine."""
        self._engine = engine
        engine.set_users(self._users)
        for reason in self._stops:
            engine.stop(reason)

    def flush(self) -> None:
        """Send the records so far."""
        self.records.flush()
        if self.records.broken and self._engine and not self._engine.stopped:
            self._engine.stop(INTERRUPTED)

    def write_progress(self, line: dict[str, Any]) -> None:
        """Send a progress line."""
        self.records.write(encode_line(line))

    async def close(self) -> None:
        """Wait until the driver has read all output."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        await self.records.drain()

    def _read(self) -> None:
        content = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not content:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._run_command({"start": None, "stop": INTERRUPTED})
            self._run_command({"stop": INTERRUPTED})
            return
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        for line in lines:
            self._run_command(json.loads(line))

    def _run_command(self, command: dict[str, Any]) -> None:
        if "users" in command:
            self._users = command["users"]
            if self._engine is not None:
                self._engine.set_users(self._users)
        if "stop" in command:
            self._stops.append(command["stop"])
            if self._engine is not None:
                self._engine.stop(command["stop"])
        if {"start", "stop"} & command.keys() and self._start and not self._start.done():
            self._start.set_result(command.get("start"))


class OutputPipe(asyncio.BaseProtocol):
    """Standard output without waiting: a slow reader must not delay the measurement."""

    failure: OSError | None = None
    lost = 0

    def __init__(self) -> None:
        self.broken = False
        self._pending: list[str] = []
        self._transport: asyncio.WriteTransport | None = None
        self._closed: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Connect standard output to the event loop."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._transport, _ = await loop.connect_write_pipe(lambda: self, sys.stdout)

    def add(self, line: str) -> None:
        """Buffer a record until the next flush."""
        self._pending.append(line)

    def flush(self) -> None:
        """Send the buffered records."""
        if self._pending:
            self.write("".join(self._pending))
            self._pending = []

    def close(self) -> None:
        """Send the last records."""
        self.flush()

    def write(self, text: str) -> None:
        """Send text unless the pipe is broken."""
        if self._transport is not None and not self.broken:
            self._transport.write(text.encode())

    async def drain(self) -> None:
        """Close the pipe and wait until all output is written."""
        if self._transport is not None and self._closed is not None:
            self._transport.close()
            await self._closed

    def connection_lost(self, _exc: Exception | None) -> None:
        """Mark the pipe as broken: the reader has exited, or all output is written."""
        self.broken = True
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
