# SPDX-License-Identifier: Apache-2.0
"""Test guides in a separate process before an engine compiles them.

    engine ─ one guide at a time ─▶ guide_worker: compiles it, with limits on time and memory
           ◀───── problem ─────────

A guide is a program that comes with a request. Some take minutes and gigabytes to compile, and one
that fails inside an engine may fail every stream. Here it can only end its own process. The results
are cached. Tenants share the time of the process (guide_queue), which starts with the first guide.
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
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from textlib.engine.guide_queue import GuideQueue
from textlib.engine.guide_worker import CPU_SECONDS, MEMORY_BYTES
from textlib.errors import EngineFailedError, QueueFullError, RequestError, TextPathError
from textlib.frames import FrameReader, write_frame
from textlib.triton.request_tensors import GuideSpec

MAX_RESULTS = 1024
# The kernel limits the CPU time of a trial; this limit is for a process without CPU time.
SILENCE_SECONDS = 10.0
LOADING_SECONDS = 120.0
# Less stack than an engine has: a guide that nests too deeply ends this process first.
_WITH_STACK = 'ulimit -s 4096 && exec "$@"'  # KB
_RESTART_BYTES = MEMORY_BYTES // 2
_READ_BYTES = 1 << 16
_GUIDE = "guided_decoding_guide"


class GuideTrials:
    """Tests guides and caches the results. Use it from one thread.

    program: interpreter arguments of a program that calls `guide_worker.main`. setup: passed to
    the program's compiler.
    """

    def __init__(
        self,
        program: Sequence[str],
        setup: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program, self._setup, self._clock = program, setup, clock
        self._results: OrderedDict[bytes, TextPathError | None] = OrderedDict()
        self._waiting = GuideQueue()
        self._tested: _RunningTest | None = None
        self._process: _CompilerProcess | None = None
        self._compiled_bytes = 0

    @property
    def compiled_bytes(self) -> int:
        """Memory that the accepted guides since `reset` occupy in a compiler that caches all."""
        return self._compiled_bytes

    def reset(self) -> None:
        """Drop all results, after the engine has dropped its guides."""
        self.close()
        self._results.clear()
        self._compiled_bytes = 0

    @property
    def pid(self) -> int | None:
        """The process id, if the process runs."""
        return self._process.pid if self._process else None

    def is_accepted(self, guide: GuideSpec, tenant: str = "") -> bool:
        """Whether the guide compiles; also False until the result is available.

        Raises RequestError if it does not compile, EngineFailedError if guides cannot be tested,
        QueueFullError if too many others wait for their test, most of them this tenant's.
        """
        self._advance()
        digest = _digest(guide)
        if digest not in self._results:
            if self._tested is None or self._tested.guide != guide:
                displaced = self._waiting.add(guide, tenant)
                if displaced is not None and displaced not in self._waiting:
                    reason = "guides of other tenants wait to be tested"
                    full = QueueFullError(f"{reason}. Send the request again later.")
                    self._record(displaced, full)
                self._advance()
            return False
        self._results.move_to_end(digest)
        problem = self._results[digest]
        if problem is None:
            return True
        if not isinstance(problem, RequestError):
            del self._results[digest]  # the next attempt may succeed
        raise type(problem)(str(problem))

    def withdraw(self, guide: GuideSpec) -> None:
        """Do not test a guide that no request needs any more; a test that runs is finished."""
        self._waiting.remove(guide)

    def reject(self, guide: GuideSpec, problem: RequestError) -> None:
        """Refuse a guide that passed its test and was too slow in the engine."""
        self._record(guide, problem)

    def wait(self, seconds: float) -> None:
        """Wait for a result, at most `seconds`."""
        self._advance(seconds)

    def close(self) -> None:
        """Kill the process."""
        self._tested = None  # whoever waits for it adds it again
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _advance(self, seconds: float = 0.0) -> None:
        if not self._waiting and self._tested is None:
            return
        if self._process is None:
            self._process = _CompilerProcess(
                self._program, self._setup, self._clock() + LOADING_SECONDS
            )
        process = self._process
        for message in process.read_messages(seconds):
            self._handle(process, message)
        if self._process is None:
            return
        late = self._clock() > process.deadline and (process.busy or not process.ready)
        if process.hung_up or late:
            self._replace_process(process)
        elif self._waiting and process.ready and not process.busy:
            guide, tenant = self._waiting.take()
            now = self._clock()
            self._tested = _RunningTest(guide, tenant, now)
            process.send(guide, now + SILENCE_SECONDS)

    def _handle(self, process: "_CompilerProcess", message: Mapping[str, Any]) -> None:
        if "refused" in message:  # the process then ends
            self._fail_all(f"guides cannot be compiled: {message['refused']}")
            self.close()
        elif "ready" in message:
            process.ready = True
        else:
            process.busy = False
            text = message["problem"]
            self._finish_test(RequestError(f"{_GUIDE}{text}") if text else None)
            self._compiled_bytes += 0 if text else max(0, message["bytes"] - process.bytes)
            process.bytes = message["bytes"]
            if process.bytes > _RESTART_BYTES:
                self.close()

    def _replace_process(self, process: "_CompilerProcess") -> None:
        status = process.kill()
        self._process = None
        if not process.ready:
            self._fail_all(f"guides cannot be compiled: their process ended with {status}")
        elif process.busy:
            if status == -signal.SIGPROF:
                reason = f"takes more than {CPU_SECONDS:g} s to compile"
            else:
                reason = f"takes too much time or memory: its compiler ended with {status}"
            self._finish_test(RequestError(f"{_GUIDE} {reason}. Send a simpler one."))

    def _fail_all(self, reason: str) -> None:
        for guide in self._waiting.clear():
            self._record(guide, EngineFailedError(f"{reason}. The server's log may say more."))

    def _finish_test(self, problem: TextPathError | None) -> None:
        test, self._tested = self._tested, None
        if test is not None:
            self._waiting.charge(test.tenant, self._clock() - test.started_at)
            self._waiting.remove(test.guide)
            self._record(test.guide, problem)

    def _record(self, guide: GuideSpec, problem: TextPathError | None) -> None:
        self._results[_digest(guide)] = problem
        if len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)


@dataclass(frozen=True)
class _RunningTest:
    """The guide in the process, the tenant whose turn it is, and when it was sent."""

    guide: GuideSpec
    tenant: str
    started_at: float


class _CompilerProcess:
    """A running guide_worker.

    ready: its compiler is loaded. busy: it compiles a guide. deadline: time of its next message at
    the latest. bytes: its memory growth.
    """

    def __init__(self, program: Sequence[str], setup: Mapping[str, Any], deadline: float) -> None:
        self.ready = self.busy = self.hung_up = False
        self.deadline = deadline
        self.bytes = 0
        self._frames = FrameReader()
        self._socket, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                # A server may set stacks of 64 MB for each thread of a compiler.
                ["/bin/sh", "-c", _WITH_STACK, "sh", sys.executable, *program],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ
                | {
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "PYTHONUTF8": "1",
                    # Otherwise each thread of a compiler takes 64 MB of its address space.
                    "MALLOC_ARENA_MAX": "2",
                },
            )
        self.pid = self._process.pid
        self._write(json.dumps(setup))

    def read_messages(self, seconds: float) -> list[Mapping[str, Any]]:
        """Return the messages that arrive within `seconds`."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return []
        try:
            piece = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            piece = b""
        self.hung_up = not piece
        return [json.loads(frame) for frame in self._frames.feed(piece)]

    def send(self, guide: GuideSpec, deadline: float) -> None:
        """Send a guide; does not block, because the process waits for it."""
        self._write(json.dumps(asdict(guide), ensure_ascii=False))
        self.busy, self.deadline = True, deadline

    def _write(self, text: str) -> None:
        try:
            write_frame(self._socket, text.encode())
        except OSError:
            self.hung_up = True

    def kill(self) -> int:
        """Kill the process and return its exit status."""
        self._socket.close()
        self._process.kill()
        return self._process.wait()


def _digest(guide: GuideSpec) -> bytes:
    return hashlib.sha256(f"{guide.kind}\0{guide.text}".encode("utf-8", "surrogatepass")).digest()
