# SPDX-License-Identifier: Apache-2.0
"""The engine's own process: it steps without waiting for whoever sends what a step has made.

Standard input is a socket to the engine's stub (`engine_process`), which may be behind: then the
progress of several steps lies in the socket. Once it is full, this process waits.

A step that fails ends the streams that it worked on. After `MAX_FAILED_STEPS` in a row, or where an
engine says by `end_process` that it is beyond repair, the process ends, and its stub with it: a
supervisor starts the server again, while an engine that refuses everything would stay "ready".
"""

import ctypes
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, Protocol

from textlib.engine_contract import MAX_FAILED_STEPS, Engine, Progress, request_failure
from textlib.engine_messages import packed, progress_rows, read_request
from textlib.engine_metrics import KvCache
from textlib.errors import ConfigurationError
from textlib.frames import Frames, read_frame, write_frame
from textlib.held_progress import HOLD_SHARE, HeldProgress
from textlib.log_lines import name_lines
from textlib.parameters import ModelParameters

CACHE_SECONDS = 0.05  # how often the cache's state is told while it changes
_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
BROKEN_STATUS = 70  # sysexits.h: an internal error
_LOG = logging.getLogger(__name__)


class CachingEngine(Engine, Protocol):
    """An engine that tells about its KV cache."""

    def kv_cache(self) -> KvCache:
        """Used and free blocks now."""


Load = Callable[[Path, ModelParameters], CachingEngine]


def end_process(reason: str) -> NoReturn:
    """End the engine's process now: the libraries of a broken engine may hang in their own end."""
    _LOG.critical("%s", reason)
    os._exit(BROKEN_STATUS)


def main(load: Load) -> None:
    """Load the engine that the stub names, then run it until the stub hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server to act on
    # Should the stub be killed while this process hangs in a step, the kernel ends it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=0) as stub:
        setup = read_frame(stub)
        if setup is None:
            return
        message = json.loads(setup)
        name_lines(message["model"])
        try:
            parameters = ModelParameters(message["model"], message["parameters"])
            engine = load(Path(message["folder"]), parameters)
        except ConfigurationError as error:
            write_frame(stub, packed({"refused": str(error)}))
            return
        write_frame(stub, packed({"ready": True}))
        interval = parameters.integer("stream_interval_ms", minimum=0, default=0) / 1000
        EngineWorker(engine, stub, HOLD_SHARE * interval).run()


class EngineWorker:
    """Steps an engine while it has streams.

    `hold`: textlib.held_progress. `clock`: seconds that never go back.
    """

    def __init__(
        self,
        engine: CachingEngine,
        stub: socket.socket,
        hold: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._stub, self._clock = engine, stub, clock
        self._frames, self._progress = Frames(), HeldProgress(hold, clock)
        self._active: set[int] = set()
        self._refused: list[Progress] = []
        self._failed_steps = 0  # in a row
        self._told: KvCache | None = None
        self._tell_next = 0.0

    def run(self) -> None:
        """Until the stub hangs up."""
        try:
            while self._listen():
                if message := self._step() | self._cache():
                    write_frame(self._stub, packed(message))
        except (BrokenPipeError, ConnectionResetError):  # the stub was killed
            return

    def _listen(self) -> bool:
        """Take in what has come, without work wait for it; False when the stub has hung up."""
        try:
            piece = self._stub.recv(_BYTES, socket.MSG_DONTWAIT if self._active else 0)
        except BlockingIOError:
            return True
        for frame in self._frames.feed(piece):
            self._obey(json.loads(frame))
        return bool(piece)

    def _obey(self, message: Mapping[str, Any]) -> None:
        if "cancel" in message:
            self._active.discard(message["cancel"])
            self._progress.ended(message["cancel"])
            self._engine.cancel(message["cancel"])
            return
        try:
            self._engine.add(message["add"], read_request(message))
        except Exception as error:
            self._refused.append(Progress(message["add"], (), error=request_failure(error)))
        else:
            self._active.add(message["add"])
            if message["watched"]:
                self._progress.watched(message["add"])

    def _step(self) -> dict[str, Any]:
        made, self._refused = self._refused, []
        failure = {}
        if self._active:
            try:
                made += self._engine.step()
                self._failed_steps = 0
            except Exception as error:
                failure = {"failed": self._fail_step(error)}
        self._active -= {item.stream_id for item in made if item.finish or item.error}
        due = self._progress.due(made, urgent=bool(failure))
        return ({"made": progress_rows(due)} if due else {}) | failure

    def _fail_step(self, error: Exception) -> str:
        _LOG.exception("a step of the engine failed")
        self._failed_steps += 1
        if self._failed_steps == MAX_FAILED_STEPS:
            end_process(f"{MAX_FAILED_STEPS} steps in a row failed: the engine's process ends")
        self._forget_all()
        return str(error)

    def _forget_all(self) -> None:
        for stream_id in self._active:
            try:
                self._engine.cancel(stream_id)
            except Exception:
                _LOG.exception("engine.cancel(%d) failed; the stream is forgotten", stream_id)
            self._progress.ended(stream_id)
        self._active.clear()

    def _cache(self) -> dict[str, Any]:
        now = self._clock()
        if self._active and now < self._tell_next:
            return {}
        self._tell_next = now + CACHE_SECONDS
        before, self._told = self._told, self._engine.kv_cache()
        return {} if self._told == before else {"kv": asdict(self._told)}
