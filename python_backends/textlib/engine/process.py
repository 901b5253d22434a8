# SPDX-License-Identifier: Apache-2.0
"""Run an engine in a separate process, for engines that hold the interpreter lock during a step.

    execute() ─▶ stepping thread ─ requests, cancels ─▶ the engine's process: step, step, step
                 sender thread  ◀─ progress ───────────  (worker.py)

OpenVINO GenAI's `step` holds the lock throughout. In the stub's process the threads that accept
requests and send responses would get one turn per step, and each turn would delay the next step.

If the engine's process ends, the stub kills itself with a signal, so that the supervisor sees a
killed stub, as if the engine had crashed inside it.
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

from textlib.engine.contract import StreamProgress
from textlib.engine.messages import encode_message, read_progress, request_message
from textlib.errors import EngineFailedError, ModelConfigurationError
from textlib.frames import FrameReader, encode_frame, read_frame, write_frame
from textlib.triton.engine_metrics import KvCache
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest

_READ_BYTES = 1 << 18
_LOG = logging.getLogger(__name__)


def _kill_stub(status: int) -> None:
    _LOG.critical("the engine's process ended with %d; its stub ends too", status)
    os.kill(os.getpid(), signal.SIGKILL)


def _ignore_exit(_: int) -> None:
    """The exit was requested."""


class EngineProcess:
    """A GenerationEngine over a program that calls `textlib.engine.worker.main`.

    Call `add`, `cancel`, `wake` and `kv_cache` from any thread, `step` from one thread.
    program: arguments of the interpreter. on_exit: called with Popen's status when the process
    ends unexpectedly.
    """

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        parameters: ModelParameters,
        on_exit: Callable[[int], None] = _kill_stub,
    ) -> None:
        """Start the process and wait until it loads `folder`. Raises ModelConfigurationError."""
        self._on_exit = on_exit
        self._frames, self._step_messages = FrameReader(), deque[Mapping[str, Any]]()
        self._cache = KvCache(0, 0)
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._socket, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, *program],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "1"},
            )
        self._await_ready({"folder": str(folder), **parameters.as_message()})
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(self._socket, select.POLLIN)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Send the request; if the engine rejects it, a later step reports that."""
        self._send(request_message(stream_id, request))

    def cancel(self, stream_id: int) -> None:
        """Send the cancellation."""
        self._send(encode_message({"cancel": stream_id}))

    def step(self) -> Sequence[StreamProgress]:
        """Wait for progress, or for `wake`, and return it. Raises EngineFailedError."""
        if not self._step_messages:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._socket.fileno() in ready:
                self._receive()
        progress: list[StreamProgress] = []
        while self._step_messages and ("failed" not in self._step_messages[0] or not progress):
            message = self._step_messages.popleft()
            progress += read_progress(message.get("made", ()))
            if "failed" in message:
                raise EngineFailedError(message["failed"])
        return progress

    def wake(self) -> None:
        """Make a waiting step return."""
        os.eventfd_write(self._wake, 1)

    def kv_cache(self) -> KvCache:
        """Return the last reported used and free blocks."""
        return self._cache

    def close(self) -> None:
        """Kill the process."""
        self._on_exit = _ignore_exit
        self._socket.close()
        self._process.kill()
        self._process.wait()
        os.close(self._wake)

    def _await_ready(self, setup: Mapping[str, Any]) -> None:
        try:
            write_frame(self._socket, encode_message(setup))
            answer = json.loads(read_frame(self._socket) or b"{}")
        except OSError:
            answer = {}
        if "ready" in answer:
            return
        self._socket.close()
        status = self._process.wait()
        raise ModelConfigurationError(
            answer.get("refused")
            or f"the engine's process ended with {status} while it loaded; see the server's log."
        )

    def _send(self, content: bytes) -> None:
        """Send a message; reads progress meanwhile, so that the processes cannot deadlock."""
        with self._sending:
            self._send_all(memoryview(encode_frame(content)))

    def _send_all(self, remaining: memoryview) -> None:
        while remaining:
            try:
                remaining = remaining[
                    self._socket.send(remaining, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :
                ]
            except BlockingIOError:
                select.select([self._socket], [self._socket], [])
                self._receive()
                self.wake()  # a step would not notice the progress received here
            except (BrokenPipeError, ConnectionResetError):
                self._on_exit(self._process.wait())
                return

    def _receive(self) -> None:
        with self._receiving:
            try:
                piece = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:  # the process ended before it read everything
                piece = b""
            if not piece:
                self._on_exit(self._process.wait())
            for frame in self._frames.feed(piece):
                message = json.loads(frame)
                if "kv" in message:
                    self._cache = KvCache(**message["kv"])
                if "made" in message or "failed" in message:
                    self._step_messages.append(message)
