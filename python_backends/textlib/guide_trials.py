# SPDX-License-Identifier: Apache-2.0
"""Guides are tried in a process of their own before an engine sees them.

    engine ─ a guide at a time ─▶ guide_worker: compiles it, within bounds of time and memory
           ◀─ what is wrong with it ─

A guide is a program that comes with a request. Some take minutes and gigabytes to compile, and one
that fails within an engine may take every stream along. Here it can only end a process that nobody
else waits for. What came of it is remembered. The process starts with the first guide.
"""

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.frames import Frames, write_frame
from textlib.guide_worker import CPU_SECONDS, MEMORY_BYTES
from textlib.request_tensors import Guide

MOST_KNOWN = 1024
# The kernel limits the CPU time of a trial; this is for a process that gets none.
SILENCE_SECONDS = 10.0
LOADING_SECONDS = 120.0
# Less than an engine has: what nests too deeply for it ends this process first.
_WITH_STACK = 'ulimit -s 4096 && exec "$@"'  # KB
_REPLACED_BYTES = MEMORY_BYTES // 2
_BYTES = 1 << 16
_GUIDE = "guided_decoding_guide"


class GuideTrials:
    """What is known about guides. For one thread.

    program: arguments of the interpreter, a program that calls `guide_worker.main`. setup: what
    that gives to its compiler.
    """

    def __init__(
        self,
        program: Sequence[str],
        setup: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program, self._setup, self._clock = program, setup, clock
        self._known: OrderedDict[bytes, TextPathError | None] = OrderedDict()
        self._waiting: deque[Guide] = deque()  # the first one is being tried
        self._process: _Process | None = None
        self._compiled_bytes = 0

    @property
    def compiled_bytes(self) -> int:
        """What the guides that passed since `begin_anew` take in a compiler that remembers all."""
        return self._compiled_bytes

    def begin_anew(self) -> None:
        """Forget all guides: the engine has, too."""
        self.close()
        self._known.clear()
        self._compiled_bytes = 0

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process else None

    def passed(self, guide: Guide) -> bool:
        """Whether it compiles; False also as long as that is not known.

        Raises RequestError for one that does not, EngineFailedError where none can be tried.
        """
        self._advance()
        digest = _digest(guide)
        if digest not in self._known:
            if guide not in self._waiting:
                self._waiting.append(guide)
                self._advance()
            return False
        self._known.move_to_end(digest)
        problem = self._known[digest]
        if problem is None:
            return True
        if not isinstance(problem, RequestError):
            del self._known[digest]  # the next one may have better luck
        raise type(problem)(str(problem))

    def wait(self, seconds: float) -> None:
        """Until there is news, or for so long."""
        self._advance(seconds)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _advance(self, seconds: float = 0.0) -> None:
        if not self._waiting:
            return
        if self._process is None:
            self._process = _Process(self._program, self._setup, self._clock() + LOADING_SECONDS)
        process = self._process
        for message in process.received(seconds):
            self._take(process, message)
        if self._process is None:
            return
        late = self._clock() > process.deadline and (process.busy or not process.ready)
        if process.hung_up or late:
            self._give_up(process)
        elif self._waiting and process.ready and not process.busy:
            process.send(self._waiting[0], self._clock() + SILENCE_SECONDS)

    def _take(self, process: "_Process", message: Mapping[str, Any]) -> None:
        if "refused" in message:  # and ends
            self._fail_all(f"guides cannot be compiled: {message['refused']}")
            self.close()
        elif "ready" in message:
            process.ready = True
        else:
            process.busy = False
            text = message["problem"]
            self._learn(self._waiting.popleft(), RequestError(f"{_GUIDE}{text}") if text else None)
            self._compiled_bytes += 0 if text else max(0, message["bytes"] - process.bytes)
            process.bytes = message["bytes"]
            if process.bytes > _REPLACED_BYTES:
                self.close()

    def _give_up(self, process: "_Process") -> None:
        status = process.end()
        self._process = None
        if not process.ready:
            self._fail_all(f"guides cannot be compiled: their process ended with {status}")
        elif process.busy:
            if status == -signal.SIGPROF:
                what = f"takes more than {CPU_SECONDS:g} s to compile"
            else:
                what = f"takes too much time or memory: its compiler ended with {status}"
            problem = RequestError(f"{_GUIDE} {what}. Send a simpler one.")
            self._learn(self._waiting.popleft(), problem)

    def _fail_all(self, reason: str) -> None:
        while self._waiting:
            error = EngineFailedError(f"{reason}. The server's log may say more.")
            self._learn(self._waiting.popleft(), error)

    def _learn(self, guide: Guide, problem: TextPathError | None) -> None:
        self._known[_digest(guide)] = problem
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


class _Process:
    """ready: it has loaded. busy: it tries a guide. deadline: when it must have said something.

    bytes: what it has grown by.
    """

    def __init__(self, program: Sequence[str], setup: Mapping[str, Any], deadline: float) -> None:
        self.ready = self.busy = self.hung_up = False
        self.deadline = deadline
        self.bytes = 0
        self._frames = Frames()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # A server may have given stacks of 64 MB to each thread of a compiler.
                ["/bin/sh", "-c", _WITH_STACK, "sh", sys.executable, *program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ
                | {
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "PYTHONUTF8": "1",
                    # Else each thread of a compiler takes 64 MB of the addresses it may have.
                    "MALLOC_ARENA_MAX": "2",
                },
            )
        self.pid = self._process.pid
        self._write(json.dumps(setup))

    def received(self, seconds: float) -> list[Mapping[str, Any]]:
        """What it says within that time."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return []
        try:
            piece = self._socket.recv(_BYTES)
        except ConnectionResetError:
            piece = b""
        self.hung_up = not piece
        return [json.loads(frame) for frame in self._frames.feed(piece)]

    def send(self, guide: Guide, deadline: float) -> None:
        """Have it tried; it waits for that, so this does not."""
        self._write(json.dumps(asdict(guide), ensure_ascii=False))
        self.busy, self.deadline = True, deadline

    def _write(self, text: str) -> None:
        try:
            write_frame(self._socket, text.encode())
        except OSError:
            self.hung_up = True

    def end(self) -> int:
        """Its status."""
        self._socket.close()
        self._process.kill()
        return self._process.wait()


def _digest(guide: Guide) -> bytes:
    return hashlib.sha256(f"{guide.kind}\0{guide.text}".encode("utf-8", "surrogatepass")).digest()
