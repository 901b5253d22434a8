# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, for engines that hold the interpreter lock during a step.

    execute() ─▶ stepping thread ─ requests, cancels ─▶ the engine's process: step, step, step
                 sender thread  ◀─ what steps made ────  (engine_worker)

OpenVINO GenAI's `step` holds the lock throughout. In the stub's own process the threads that take
requests in and send responses would get one turn a step, and each turn would hold up the next step.

The engine is the heart of its stub. If its process ends, the stub ends by a signal, so that the
supervisor sees a killed stub, as it would if the engine had crashed within.
"""

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from textlib.engine_contract import Progress
from textlib.engine_messages import packed, read_progress, request_message
from textlib.engine_metrics import KvCache
from textlib.errors import ConfigurationError, EngineFailedError
from textlib.frames import Frames, framed, read_frame, write_frame
from textlib.parameters import ModelParameters
from textlib.request_tensors import GenerationRequest

_BYTES = 1 << 18
_LOG = logging.getLogger(__name__)


def _end_the_stub(status: int) -> None:
    _LOG.critical("the engine's process ended with %d; so does its stub", status)
    os.kill(os.getpid(), signal.SIGKILL)


def _nothing(_: int) -> None:
    """It was asked to."""


class EngineProcess:
    """textlib's Engine over a program that calls `engine_worker.main`.

    `add`, `cancel`, `wake` and `kv_cache` may come from any thread, `step` from one.
    program: arguments of the interpreter. on_end: what to do when the process has ended by itself,
    with its status as Popen gives it.
    """

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        parameters: ModelParameters,
        on_end: Callable[[int], None] = _end_the_stub,
    ) -> None:
        """Start it and wait until it has loaded `folder`. Raises ConfigurationError."""
        self._on_end = on_end
        self._frames, self._made = Frames(), deque[Mapping[str, Any]]()
        self._cache = KvCache(0, 0)
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUTF8": "1"},
            )
        self._await_ready({"folder": str(folder), **parameters.as_message()})
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(self._socket, select.POLLIN)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Send it over; if the engine refuses it, a step says so."""
        self._send(request_message(stream_id, request))

    def cancel(self, stream_id: int) -> None:
        """Send that over."""
        self._send(packed({"cancel": stream_id}))

    def step(self) -> Sequence[Progress]:
        """What steps have made since; waits for it, or for `wake`. Raises EngineFailedError."""
        if not self._made:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._socket.fileno() in ready:
                self._receive()
        progress: list[Progress] = []
        while self._made and ("failed" not in self._made[0] or not progress):
            message = self._made.popleft()
            progress += read_progress(message.get("made", ()))
            if "failed" in message:
                raise EngineFailedError(message["failed"])
        return progress

    def wake(self) -> None:
        """Let a step that waits return."""
        os.eventfd_write(self._wake, 1)

    def kv_cache(self) -> KvCache:
        """Used and free blocks, as last told."""
        return self._cache

    def close(self) -> None:
        """End the process."""
        self._on_end = _nothing
        self._socket.close()
        self._process.kill()
        self._process.wait()
        os.close(self._wake)

    def _await_ready(self, setup: Mapping[str, Any]) -> None:
        try:
            write_frame(self._socket, packed(setup))
            answer = json.loads(read_frame(self._socket) or b"{}")
        except OSError:
            answer = {}
        if "ready" in answer:
            return
        self._socket.close()
        status = self._process.wait()
        raise ConfigurationError(
            answer.get("refused")
            or f"the engine's process ended with {status} while it loaded; see the server's log."
        )

    def _send(self, content: bytes) -> None:
        """Never waits for a process that waits for us to read what it made."""
        with self._sending:
            self._send_all(memoryview(framed(content)))

    def _send_all(self, left: memoryview) -> None:
        while left:
            try:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                select.select([self._socket], [self._socket], [])
                self._receive()
                self.wake()  # for what is received now, a step would wait in vain
            except (BrokenPipeError, ConnectionResetError):
                self._on_end(self._process.wait())
                return

    def _receive(self) -> None:
        with self._receiving:
            try:
                piece = self._socket.recv(_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it ended before it read everything
                piece = b""
            if not piece:
                self._on_end(self._process.wait())
            for frame in self._frames.feed(piece):
                message = json.loads(frame)
                if "kv" in message:
                    self._cache = KvCache(**message["kv"])
                if "made" in message or "failed" in message:
                    self._made.append(message)
