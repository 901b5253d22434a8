# SPDX-License-Identifier: Apache-2.0
"""The engine's process: it steps without waiting for the stub to send the progress.

Standard input is a socket to the engine's stub (`process.py`). If the stub lags, the socket buffers
the progress of several steps; once it is full, this process waits.

A failed step ends the streams that it worked on. After `MAX_FAILED_STEPS` in a row, or when an
engine calls `end_process`, the process ends, and its stub with it. The supervisor then restarts the
server, whereas an engine that rejects every request would stay "ready".
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

from textlib.engine.contract import (
    MAX_FAILED_STEPS,
    GenerationEngine,
    StreamProgress,
    as_text_path_error,
)
from textlib.engine.messages import encode_message, progress_rows, read_request
from textlib.engine.progress_batching import HOLD_SHARE, HeldProgress
from textlib.errors import ModelConfigurationError
from textlib.frames import FrameReader, read_frame, write_frame
from textlib.triton.engine_metrics import KvCache
from textlib.triton.log_lines import tag_log_lines
from textlib.triton.parameters import ModelParameters

CACHE_REPORT_SECONDS = 0.05  # between two reports of a changing cache
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
BROKEN_STATUS = 70  # sysexits.h: an internal error
_LOG = logging.getLogger(__name__)


class CachingEngine(GenerationEngine, Protocol):
    """An engine that reports its KV cache."""

    def kv_cache(self) -> KvCache:
        """Return the used and free blocks."""


LoadEngine = Callable[[Path, ModelParameters], CachingEngine]


def end_process(reason: str) -> NoReturn:
    """End the engine's process immediately: libraries of a broken engine may hang at exit."""
    _LOG.critical("%s", reason)
    os._exit(BROKEN_STATUS)


def main(load: LoadEngine) -> None:
    """Load the engine that the stub names, then run it until the stub hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    # If the stub is killed while this process hangs in a step, the kernel ends this process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=0) as stub:
        setup = read_frame(stub)
        if setup is None:
            return
        message = json.loads(setup)
        tag_log_lines(message["model"])
        try:
            parameters = ModelParameters(message["model"], message["parameters"])
            engine = load(Path(message["folder"]), parameters)
        except ModelConfigurationError as error:
            write_frame(stub, encode_message({"refused": str(error)}))
            return
        write_frame(stub, encode_message({"ready": True}))
        interval = parameters.integer("stream_interval_ms", minimum=0, default=0) / 1000
        EngineWorker(engine, stub, HOLD_SHARE * interval).run()


class EngineWorker:
    """Steps an engine while it has streams.

    hold: see textlib.engine.progress_batching. clock: monotonic seconds.
    """

    def __init__(
        self,
        engine: CachingEngine,
        stub: socket.socket,
        hold: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._stub, self._clock = engine, stub, clock
        self._frames, self._progress = FrameReader(), HeldProgress(hold, clock)
        self._active: set[int] = set()
        self._rejected: list[StreamProgress] = []
        self._failed_steps = 0  # in a row
        self._reported_cache: KvCache | None = None
        self._next_cache_report = 0.0

    def run(self) -> None:
        """Step until the stub hangs up."""
        try:
            while self._read_messages():
                if message := self._step() | self._cache_message():
                    write_frame(self._stub, encode_message(message))
        except (BrokenPipeError, ConnectionResetError):  # the stub was killed
            return

    def _read_messages(self) -> bool:
        """Handle received messages; wait for one if idle. False when the stub has hung up."""
        try:
            piece = self._stub.recv(_READ_BYTES, socket.MSG_DONTWAIT if self._active else 0)
        except BlockingIOError:
            return True
        for frame in self._frames.feed(piece):
            self._handle(json.loads(frame))
        return bool(piece)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "cancel" in message:
            self._active.discard(message["cancel"])
            self._progress.forget(message["cancel"])
            self._engine.cancel(message["cancel"])
            return
        try:
            self._engine.add(message["add"], read_request(message))
        except Exception as error:
            self._rejected.append(
                StreamProgress(message["add"], (), error=as_text_path_error(error))
            )
        else:
            self._active.add(message["add"])
            if message["watched"]:
                self._progress.add_stop_word_stream(message["add"])

    def _step(self) -> dict[str, Any]:
        made, self._rejected = self._rejected, []
        failure = {}
        if self._active:
            try:
                made += self._engine.step()
                self._failed_steps = 0
            except Exception as error:
                failure = {"failed": self._fail_step(error)}
        self._active -= {item.stream_id for item in made if item.finish or item.error}
        due = self._progress.take_due(made, urgent=bool(failure))
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
                _LOG.exception("engine.cancel(%d) failed; the worker drops the stream", stream_id)
            self._progress.forget(stream_id)
        self._active.clear()

    def _cache_message(self) -> dict[str, Any]:
        now = self._clock()
        if self._active and now < self._next_cache_report:
            return {}
        self._next_cache_report = now + CACHE_REPORT_SECONDS
        previous, self._reported_cache = self._reported_cache, self._engine.kv_cache()
        return {} if self._reported_cache == previous else {"kv": asdict(self._reported_cache)}
