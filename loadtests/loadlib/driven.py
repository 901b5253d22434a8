# SPDX-License-Identifier: Apache-2.0
"""A generator that another process drives, such as Locust: everything goes through its pipes.

Standard output carries, as JSON lines, {"ready": true} once the endpoint has answered and the
schedule is drawn, then records and progress. Standard input brings the plan, then commands:

    {"start": 1760000000.5}     begin then (seconds since the epoch; null: shortly)
    {"users": 3}                the number of users in a closed loop
    {"stop": "interrupted"}     send nothing more; the second one abandons what is in flight

The end of standard input abandons the run: the driver is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from loadlib.engine import Engine
from loadlib.json_lines import encoded
from loadlib.share import INTERRUPTED

_READ = 65536


class Driven:
    """Where records and progress go, and what starts and ends the run."""

    def __init__(self) -> None:
        self.records = Pipe()
        self._rest = b""
        self._users = 0
        self._stops: list[str] = []
        self._engine: Engine | None = None
        self._start: asyncio.Future[float | None] | None = None

    async def ready(self) -> float | None:
        """Say so, and wait for the start: seconds since the epoch, None: shortly."""
        loop = asyncio.get_running_loop()
        await self.records.open()
        self._start = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), self._read)
        self.say({"ready": True})
        return await self._start

    def attach(self, engine: Engine) -> None:
        """Hand over what was commanded so far."""
        self._engine = engine
        engine.set_users(self._users)
        for reason in self._stops:
            engine.stop(reason)

    def flush(self) -> None:
        """Send the records so far."""
        self.records.flush()
        if self.records.broken and self._engine and not self._engine.stopped:
            self._engine.stop(INTERRUPTED)

    def say(self, line: dict[str, Any]) -> None:
        """Send a progress line."""
        self.records.write(encoded(line))

    async def close(self) -> None:
        """Wait until the driver has taken everything."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        await self.records.drain()

    def _read(self) -> None:
        content = os.read(sys.stdin.fileno(), _READ)
        if not content:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._obey({"start": None, "stop": INTERRUPTED})
            self._obey({"stop": INTERRUPTED})
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
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


class Pipe(asyncio.BaseProtocol):
    """Standard output, never waited for: a slow reader must not delay what is measured."""

    failure: OSError | None = None
    lost = 0

    def __init__(self) -> None:
        self.broken = False
        self._waiting: list[str] = []
        self._transport: asyncio.WriteTransport | None = None
        self._closed: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Take standard output over."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._transport, _ = await loop.connect_write_pipe(lambda: self, sys.stdout)

    def add(self, line: str) -> None:
        """Keep a record for the next flush."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Send the records that wait."""
        if self._waiting:
            self.write("".join(self._waiting))
            self._waiting = []

    def close(self) -> None:
        """Send the last records."""
        self.flush()

    def write(self, text: str) -> None:
        """Send this."""
        if self._transport is not None and not self.broken:
            self._transport.write(text.encode())

    async def drain(self) -> None:
        """Wait until everything has been read."""
        if self._transport is not None and self._closed is not None:
            self._transport.close()
            await self._closed

    def connection_lost(self, _exc: Exception | None) -> None:
        """The reader is gone, or everything was written."""
        self.broken = True
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
