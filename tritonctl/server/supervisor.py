# SPDX-License-Identifier: Apache-2.0
"""Watches one tritonserver and cleans up after it, however it ends.

A server that is killed leaves its Python stubs (which ignore SIGTERM) and files in /dev/shm behind;
this removes both. For the supervisor of an embedded server and the first process of a container.
Standard library only, and what it imports: it lives as long as the server does.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tritonctl.server.becoming import STOPPING
from tritonctl.server.readiness import Readiness

# server.cc: "Timeout 9: Found 1 model versions that have in-flight inferences", then each of them.
_ROUND = re.compile(r"Timeout \d+: Found")
_IN_FLIGHT = re.compile(r"Model '([^']+)' \(version \d+\) has \d+ in-flight")
_UNLOADED = re.compile(r"successfully unloaded '([^']+)'")
_AGREEING_ROUNDS = 2
# The engines' own metric (python_backends/textlib/engine_metrics.py) and Triton's queues.
_UNDER_WAY = re.compile(
    r"^(?:tritonctl_(?:active|waiting)_streams|nv_inference_pending_request_count)\{.*\} (\S+)$",
    re.MULTILINE,
)
_BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)$", re.MULTILINE)
_FATAL = 1 << (signal.SIGABRT - 1) | 1 << (signal.SIGSEGV - 1)
_STOPPING = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)
_LOOK_SECONDS = 0.25
WATCH_SECONDS = 0.5  # until the server is asked to end
_FIND_SECONDS = 5.0  # looking at every process of the machine costs time
# Metrics are published every tenth of a second: one look could miss a request that just came.
_QUIET_LOOKS = 2
# Triton itself kills a stub that does not unload, and reaps it as soon as it has the processor.
_REAP_SECONDS = 1.0
_METRICS_SECONDS = 1.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions
_PROGRAMS = (b"/tritonserver", b"/triton_python_backend_stub")
# tritonserver 2.51 copies a body of HTTP onto the stack of the thread that reads it: 5 MB end it
# where stacks have the usual 8 MiB. Only addresses are spent on what no thread touches.
STACK_BYTES = 64 << 20
# Beyond Triton's own --exit-timeout-secs: unloading models comes after it.
KILL_MARGIN_SECONDS = 10


def hold_signals() -> None:
    """Block SIGTERM and SIGINT until `on_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def ring_every(seconds: float) -> None:
    """Send this process a SIGALRM every `seconds`."""
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


class Ending:
    """Ends a server: at once when a stub was killed or it hangs in a crash, in order on SIGTERM.

    A stub that is gone (out of memory, a crash in a library) is not started again by tritonserver
    2.51: it stays "ready", refuses what needs that stub, and the streams under way hang until
    their clients give up. Ended, all of them know at once and can go on elsewhere. `reason` says so
    afterwards. It may also hang in its handler of SIGABRT or SIGSEGV, which prints a stack trace.

    After SIGTERM streams finish, then the server is asked to end, then it is killed.

    tritonserver 2.51 cannot do the first itself: once it is asked to end it refuses the calls that
    a running ensemble makes of its own steps, so that every stream under way is cut off.
    """

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        spec: dict[str, Any],
        readiness: Readiness | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        set_alarm: Callable[[float], object] = ring_every,
    ) -> None:
        self._clock = clock
        self._set_alarm = set_alarm
        self._server = server
        self._spec = spec
        self._readiness = readiness
        self._began: float | None = None
        self._quiet_looks = 0
        self._stubs: set[int] = set()
        self._found = 0.0
        self._killed: dict[int, float] = {}  # since when
        self._crashing = False
        self._looking = False
        self.reason: str | None = None  # why we ended it, other than on SIGTERM
        self._asked = False
        self._log_size = 0  # when the server was asked to end

    @property
    def requested(self) -> bool:
        """Whether the server was asked to end."""
        return self._began is not None

    def stop(self, *_: object) -> None:
        """Begin; the second time, without waiting for streams."""
        if self._began is None:
            self._began = self._clock()
            if self._readiness:
                self._readiness.end()
            self._set_alarm(_LOOK_SECONDS)
        else:
            self._terminate()

    def look(self, *_: object) -> None:
        """Take the next step when it is time for it.

        The signal that asks for a look interrupts one that takes longer, as on a busy machine or
        with a server that does not answer. What must be seen twice would be seen at once by both,
        and looks that all wait for the same would pile up.
        """
        if self._looking:
            return
        self._looking = True
        try:
            self._step()
        finally:
            self._looking = False

    def _step(self) -> None:
        self._look_after_processes()
        if self._began is None:
            return
        waited, limit = self._clock() - self._began, self._spec["exit_timeout_seconds"]
        if not self._asked:
            if waited > limit or self._is_quiet():
                self._terminate()
        elif waited > limit + KILL_MARGIN_SECONDS or only_ghosts(
            self._printed(), self._spec["composing_models"]
        ):
            kill_group(self._server.pid)

    def _look_after_processes(self) -> None:
        if self._clock() - self._found > _FIND_SECONDS:
            self._stubs, self._found = children(self._server.pid), self._clock()
            # Seen twice: a handler that works is done by then.
            crashing = in_crash_handler(self._server.pid)
            if crashing and self._crashing:
                self._end("tritonserver hung in its own crash handler")
            self._crashing = crashing
        now = self._clock()
        killed = {pid: self._killed.get(pid, now) for pid in self._stubs if was_killed(pid)}
        if any(now - since >= _REAP_SECONDS for since in killed.values()):
            self._end(
                "a stub process of a Python model was killed; tritonserver cannot start it again "
                "and would let its streams hang"
            )
        self._killed = killed

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._report(f"tritonctl: {reason}: ending the server")
        kill_group(self._server.pid)

    def _report(self, text: str) -> None:
        with Path(self._spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def _is_quiet(self) -> bool:
        if self._readiness and not self._readiness.is_seen():
            return False  # more may be on its way
        busy = streams_under_way(self._spec["metrics_url"])
        self._quiet_looks = 0 if busy else self._quiet_looks + 1
        return self._quiet_looks >= _QUIET_LOOKS

    def _terminate(self) -> None:
        if not self._asked:
            self._asked = True
            self._mark()
            self._server.terminate()

    def _mark(self) -> None:
        """What the server prints from now on counts."""
        self._log_size = Path(self._spec["log"]).stat().st_size

    def _printed(self) -> str:
        with Path(self._spec["log"]).open("rb") as file:
            file.seek(self._log_size)
            return file.read().decode("utf-8", "replace")


def on_signals(ending: Ending, watch_seconds: float = WATCH_SECONDS) -> None:
    """Let SIGTERM and SIGINT begin it; until then it looks every `watch_seconds`."""
    for number in STOPPING:
        signal.signal(number, ending.stop)
    signal.signal(signal.SIGALRM, ending.look)
    ring_every(watch_seconds)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def stop_looking() -> None:
    """Stop the timer: the server has ended.

    Python puts the default handlers back on its way out; a timer that still runs would then end
    this process by SIGALRM, and its status would be lost.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)


def streams_under_way(metrics_url: str) -> bool:
    """Whether an engine advances or will advance a stream, or a request waits for its model.

    False without a server: it has nothing to finish. One that answers late may have.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(metrics_url, timeout=_METRICS_SECONDS) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        # urllib wraps what happens while it connects, and not what happens while it reads.
        return isinstance(getattr(error, "reason", error), TimeoutError)
    return any(float(value) > 0 for value in _UNDER_WAY.findall(text))


def composing_models(repository: Path, served: Collection[str] | None = None) -> list[str]:
    """The models that do work of their own: all but the ensembles. served: of these alone."""
    configs = sorted(repository.glob("*/config.pbtxt"))
    return [
        config.parent.name
        for config in configs
        if (served is None or config.parent.name in served)
        and "ensemble_scheduling" not in config.read_text(encoding="utf-8", errors="replace")
    ]


def only_ghosts(log: str, composing_models: Collection[str]) -> bool:
    """Whether a server that was asked to end waits for nothing but ensembles' lost requests.

    tritonserver 2.51 never forgets an ensemble's request that was cancelled (it stays in flight)
    or that failed (the ensemble cannot be unloaded) and would wait in vain until its exit timeout.
    A stream that is really under way keeps a composing model busy, and loaded. `log` is what was
    printed since; two rounds of its countdown must agree.
    """
    return _only_lost_requests(log, composing_models) or _only_ensembles_left(log, composing_models)


def _only_lost_requests(log: str, composing_models: Collection[str]) -> bool:
    rounds = [_IN_FLIGHT.findall(text) for text in _ROUND.split(log)[1:]]
    busy = [models for models in rounds if models][-_AGREEING_ROUNDS:]
    idle = [not set(composing_models).intersection(models) for models in busy]
    return len(idle) == _AGREEING_ROUNDS and all(idle)


def _only_ensembles_left(log: str, composing_models: Collection[str]) -> bool:
    since_last_unload = log[log.rfind("successfully unloaded") :]
    rounds = len(_ROUND.findall(since_last_unload))
    unloaded = set(_UNLOADED.findall(log))
    return unloaded.issuperset(composing_models) and rounds >= _AGREEING_ROUNDS


def children(parent: int) -> set[int]:
    """The child processes of a process, including dead ones that it has not reaped."""
    every = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return {pid for pid in every if (fields := process_fields(pid)) and int(fields[1]) == parent}


def was_killed(pid: int) -> bool:
    """Whether a signal has ended a process, and its parent has not reaped it."""
    fields = process_fields(pid)
    return fields is not None and fields[0] == b"Z" and os.WIFSIGNALED(int(fields[49]))


def in_crash_handler(pid: int) -> bool:
    """Whether a thread handles a fatal signal: while it does, the kernel blocks that signal.

    No thread of tritonserver 2.51 blocks it otherwise, but for the C library, which blocks every
    signal while it starts a thread or a program: on a busy machine that is seen, too.
    """
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            blocked = _BLOCKED.search(status.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # the thread has ended
            continue
        mask = int(blocked[1], 16) if blocked else 0
        if mask & _FATAL and not mask & _STOPPING:
            return True
    return False


def process_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on, None without such a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name, in parentheses, may itself contain spaces and parentheses.
    return text.rsplit(b")", 1)[1].split()


def kill_group(leader: int) -> None:
    """Kill what is left of a server and its stubs."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def clean_up(shm_prefix: str) -> None:
    """Kill what is left of a server and remove its shared memory, both found by its prefix.

    Each server has its own prefix, which the command lines of server and stubs contain.
    """
    if not shm_prefix:  # it would match every server of the machine
        return
    for pid in server_processes(shm_prefix):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for region in _SHARED_MEMORY.glob(f"{shm_prefix}*"):
        region.unlink(missing_ok=True)


def leftovers(shm_prefix: str) -> list[str]:
    """What a server has left: processes and shared-memory files."""
    processes = [f"process {pid}" for pid in server_processes(shm_prefix)]
    return processes + [str(region) for region in _SHARED_MEMORY.glob(f"{shm_prefix}*")]


def server_processes(shm_prefix: str) -> list[int]:
    """The process ids of a server, of its stubs, and of what those have started."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:  # it ended while we looked
            continue
        ours = any(shm_prefix.encode() in argument for argument in arguments)
        if ours and arguments[0].endswith(_PROGRAMS):
            processes.append(int(entry.parent.name))
    return with_descendants(processes)


def with_descendants(processes: Sequence[int]) -> list[int]:
    """These processes, then their children and theirs, each once."""
    children_of = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := process_fields(int(entry.name)):
            children_of[int(fields[1])].append(int(entry.name))
    found = dict.fromkeys(processes)
    waiting = list(found)
    for parent in waiting:
        new = [child for child in children_of[parent] if child not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)
