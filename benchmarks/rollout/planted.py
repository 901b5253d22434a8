# SPDX-License-Identifier: Apache-2.0
"""An engine with a fault, for the proof: it lies beside pipeline.py in the project's openvinolib.

`planted_fault.py`, which planting.py writes next to it, names the fault, and how long the first
token of an answer and each step take at least: those of a larger model than the shipped one.
"""

import ctypes
import math
import os
import random
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openvinolib.planted_fault import FAULT, FIRST_TOKEN_SECONDS, STEP_SECONDS

from textlib.engine.contract import StreamProgress, as_text_path_error
from textlib.errors import EngineFailedError, ModelConfigurationError
from textlib.triton.request_tensors import GenerationRequest

SPREAD = 0.3  # sd of the logarithm of the time to the first token
CRASH_AFTER, REFUSES, HANGS = 100, 50, 200
GROWS_BYTES = 4 << 20  # a second
PENALTY = 1.3
_SLOWER = {"ttft_2x": 2.0, "ttft_1.2x": 1.2}
_METRICS_DIE_AFTER = 10  # requests
_PIDFD_GETFD = 438  # asm-generic/unistd.h
_LISTENING = "0A"  # in /proc/net/tcp


def planted(engine: Any) -> Any:
    """The engine's class, with the fault."""

    class Planted(engine):  # type: ignore[misc]
        def __init__(self, folder: Path, parameters: Any) -> None:
            if FAULT == "crash_at_load":
                raise ModelConfigurationError("the engine's file cannot be read (planted)")
            super().__init__(folder, parameters)
            self._asked = 0
            self._waiting: dict[int, tuple[float, GenerationRequest]] = {}
            self._hung: set[int] = set()
            self._random = random.Random(0)
            if FAULT == "memory":
                threading.Thread(target=_grow, daemon=True).start()

        def add(self, stream_id: int, request: GenerationRequest) -> None:
            self._asked += 1
            if FAULT == "crash_after_100" and self._asked > CRASH_AFTER:
                os._exit(70)
            if FAULT == "refuses_1_in_50" and self._asked % REFUSES == 0:
                raise EngineFailedError("planted: one in fifty")
            if FAULT == "dead_metrics" and self._asked == _METRICS_DIE_AFTER:
                _end_metrics()
            if FAULT == "hangs_1_in_200" and self._asked % HANGS == 0:
                self._hung.add(stream_id)
                return
            if FAULT == "penalty":
                sampling = replace(request.sampling, repetition_penalty=PENALTY)
                request = replace(request, sampling=sampling)
            seconds = FIRST_TOKEN_SECONDS * _SLOWER.get(FAULT, 1.0)
            due = time.monotonic() + seconds * math.exp(self._random.gauss(0.0, SPREAD))
            self._waiting[stream_id] = (due, request)

        def step(self) -> Sequence[StreamProgress]:
            now = time.monotonic()
            refused = [
                found
                for stream_id, (due, _) in list(self._waiting.items())
                if due <= now and (found := self._begin_waiting(stream_id))
            ]
            if not (self._running or self._held):
                time.sleep(0.002)
                return refused
            time.sleep(STEP_SECONDS)
            return [*refused, *super().step()]

        def cancel(self, stream_id: int) -> None:
            self._waiting.pop(stream_id, None)
            self._hung.discard(stream_id)
            super().cancel(stream_id)

        def _begin_waiting(self, stream_id: int) -> StreamProgress | None:
            _, request = self._waiting.pop(stream_id)
            try:
                super().add(stream_id, request)
            except Exception as error:
                return StreamProgress(stream_id, (), error=as_text_path_error(error))
            return None

    return Planted


def _grow() -> None:
    """Memory that is written to, and never given back."""
    kept = []
    while True:
        kept.append(os.urandom(1 << 16) * (GROWS_BYTES >> 20))
        time.sleep((len(kept[-1])) / GROWS_BYTES)


def _end_metrics() -> None:
    """Stop the server's metrics port from listening, from within its engine's process."""
    server = _parent(_parent(os.getpid()))
    arguments = Path(f"/proc/{server}/cmdline").read_bytes().decode().split("\0")
    at = next(place for place, text in enumerate(arguments) if text.startswith("--metrics-port"))
    port = int(arguments[at].partition("=")[2] or arguments[at + 1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port
    }
    pidfd = os.pidfd_open(server)
    for entry in Path(f"/proc/{server}/fd").iterdir():
        if str(entry.readlink()) in inodes:
            own = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, int(entry.name), 0)
            if own < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            with socket.socket(fileno=own) as listening:
                listening.shutdown(socket.SHUT_RDWR)


def _parent(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])
