# SPDX-License-Identifier: Apache-2.0
"""Watch one tritonserver and clean up after its exit.

A killed server leaves its Python stubs (which ignore SIGTERM) and files in /dev/shm behind; this
module removes both. It runs in the supervisor of an embedded server and in the first process of a
container. Standard library only, including its imports.
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

from tritonctl.supervision.exec_launcher import STOP_SIGNALS
from tritonctl.supervision.new_requests import start_unloading
from tritonctl.supervision.readiness import Readiness

# server.cc: "Timeout 9: Found 1 model versions that have in-flight inferences", then each of them.
_ROUND = re.compile(r"Timeout \d+: Found")
_IN_FLIGHT = re.compile(r"Model '([^']+)' \(version \d+\) has \d+ in-flight")
_UNLOADED = re.compile(r"successfully unloaded '([^']+)'")
_AGREEING_ROUNDS = 2
# The engines' own metric (python_backends/textlib/triton/engine_metrics.py) and Triton's queues.
_LOAD_METRIC = re.compile(
    r"^(?:tritonctl_(?:active|waiting)_streams|nv_inference_pending_request_count)\{.*\} (\S+)$",
    re.MULTILINE,
)
_BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)$", re.MULTILINE)
_CRASH_MASK = 1 << (signal.SIGABRT - 1) | 1 << (signal.SIGSEGV - 1)
_STOP_MASK = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)
_POLL_SECONDS = 0.25
WATCH_SECONDS = 0.5  # until SIGTERM
_REFUSAL_SHARE = 0.5  # of the time for streams, after which new requests are refused
_SCAN_SECONDS = 5.0  # scanning every process of the machine costs time
# Triton publishes metrics every 0.1 s: a single poll could miss a request that has just arrived.
_IDLE_POLLS = 2
# Triton kills stubs that do not unload, and reaps them as soon as it gets CPU time.
_REAP_SECONDS = 1.0
_METRICS_SECONDS = 1.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions
_PROGRAMS = (b"/tritonserver", b"/triton_python_backend_stub")
# tritonserver 2.51 copies an HTTP body onto the stack of the thread that reads it: 5 MB crash it
# with the usual stack of 8 MiB. Untouched stack only costs address space.
STACK_BYTES = 64 << 20
# On top of Triton's --exit-timeout-secs, after which it still unloads models.
KILL_MARGIN_SECONDS = 10


def hold_signals() -> None:
    """Block SIGTERM and SIGINT until `on_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def set_alarm_interval(seconds: float) -> None:
    """Send this process a SIGALRM every `seconds`."""
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


class ServerShutdown:
    """Shuts a server down: immediately if a stub was killed or it hangs, in order on SIGTERM.

    tritonserver 2.51 does not restart a killed stub (out of memory, a crash in a library): it stays
    "ready", rejects requests that need the stub, and open streams hang until their clients give up.
    Killing the server lets the clients retry elsewhere at once; `reason` then says why. The server
    may also hang in its handler of SIGABRT or SIGSEGV, which prints a stack trace.

    After SIGTERM, streams finish first, then the server gets SIGTERM, then SIGKILL. tritonserver
    2.51 cannot drain streams itself: after SIGTERM it rejects a running ensemble's calls to its
    steps, which cuts off every open stream. A server that is asked without a pause would never be
    idle, so new requests are refused in the second half of the time for streams.
    """

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        spec: dict[str, Any],
        readiness: Readiness | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        set_alarm: Callable[[float], object] = set_alarm_interval,
    ) -> None:
        self._clock = clock
        self._set_alarm = set_alarm
        self._server = server
        self._spec = spec
        self._readiness = readiness
        self._stop_time: float | None = None
        self._idle_polls = 0
        self._stubs: set[int] = set()
        self._scan_time = 0.0
        self._killed_stubs: dict[int, float] = {}  # pid to the time at which its death was seen
        self._was_crashing = False
        self._is_polling = False
        self.reason: str | None = None  # why it was killed without SIGTERM
        self._terminated = False
        self._refuses_requests = False
        self._log_size = 0  # when the server got SIGTERM

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_time is not None

    def stop(self, *_: object) -> None:
        """Start the shutdown; a second call does not wait for streams."""
        if self._stop_time is None:
            self._stop_time = self._clock()
            if self._readiness:
                self._readiness.refuse()
            self._set_alarm(_POLL_SECONDS)
        else:
            self._terminate()

    def poll(self, *_: object) -> None:
        """Take the next step when it is due.

        SIGALRM may interrupt a slow poll, on a busy machine or with a server that does not answer.
        Nested polls return at once: they would pile up, and two of them would confirm at the same
        moment what must be seen twice.
        """
        if self._is_polling:
            return
        self._is_polling = True
        try:
            self._step()
        finally:
            self._is_polling = False

    def _step(self) -> None:
        self._check_processes()
        if self._stop_time is None:
            return
        elapsed, limit = self._clock() - self._stop_time, self._spec["exit_timeout_seconds"]
        if not self._terminated:
            if elapsed > limit or self._is_idle():
                self._terminate()
            elif elapsed > limit * _REFUSAL_SHARE and not self._refuses_requests:
                self._refuses_requests = True
                self._append_to_log("tritonctl: streams still run: new requests are refused now")
                start_unloading(
                    self._spec["argv"], self._spec["outer_ensembles"], self._append_to_log
                )
        elif elapsed > limit + KILL_MARGIN_SECONDS or waits_only_for_lost_requests(
            self._new_output(), self._spec["composing_models"]
        ):
            kill_group(self._server.pid)

    def _check_processes(self) -> None:
        if self._clock() - self._scan_time > _SCAN_SECONDS:
            self._stubs, self._scan_time = child_processes(self._server.pid), self._clock()
            # Seen in two scans: a working handler finishes in between.
            crashing = in_crash_handler(self._server.pid)
            if crashing and self._was_crashing:
                self._kill_server("tritonserver hung in its own crash handler")
            self._was_crashing = crashing
        now = self._clock()
        killed = {pid: self._killed_stubs.get(pid, now) for pid in self._stubs if was_killed(pid)}
        if any(now - since >= _REAP_SECONDS for since in killed.values()):
            self._kill_server(
                "a stub process of a Python model was killed; tritonserver cannot restart it "
                "and would leave its streams hanging"
            )
        self._killed_stubs = killed

    def _kill_server(self, reason: str) -> None:
        self.reason = reason
        self._append_to_log(f"tritonctl: {reason}: killing the server")
        kill_group(self._server.pid)

    def _append_to_log(self, text: str) -> None:
        with Path(self._spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def _is_idle(self) -> bool:
        if self._readiness and not self._readiness.is_noticed():
            return False  # more requests may arrive
        busy = has_active_streams(self._spec["metrics_url"])
        self._idle_polls = 0 if busy else self._idle_polls + 1
        return self._idle_polls >= _IDLE_POLLS

    def _terminate(self) -> None:
        if not self._terminated:
            self._terminated = True
            self._mark_log()
            self._server.terminate()

    def _mark_log(self) -> None:
        """Mark the log: `waits_only_for_lost_requests` reads the output from here on."""
        self._log_size = Path(self._spec["log"]).stat().st_size

    def _new_output(self) -> str:
        with Path(self._spec["log"]).open("rb") as file:
            file.seek(self._log_size)
            return file.read().decode("utf-8", "replace")


def install_signal_handlers(shutdown: ServerShutdown, watch_seconds: float = WATCH_SECONDS) -> None:
    """Start the shutdown on SIGTERM and SIGINT; poll every `watch_seconds` until then."""
    for number in STOP_SIGNALS:
        signal.signal(number, shutdown.stop)
    signal.signal(signal.SIGALRM, shutdown.poll)
    set_alarm_interval(watch_seconds)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def stop_timer() -> None:
    """Stop the timer after the server has exited.

    Python restores the default handlers on exit; a running timer would then kill this process by
    SIGALRM, and its exit status would be lost.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)


def has_active_streams(metrics_url: str) -> bool:
    """Whether an engine has an active or waiting stream, or a request waits for its model.

    False if the server does not answer, True if it answers too late.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(metrics_url, timeout=_METRICS_SECONDS) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        # urllib wraps errors of connecting, but not of reading.
        return isinstance(getattr(error, "reason", error), TimeoutError)
    return any(float(value) > 0 for value in _LOAD_METRIC.findall(text))


def composing_models(repository: Path, only: Collection[str] | None = None) -> list[str]:
    """Return the models of a repository that are not ensembles; only: names to choose from."""
    configs = sorted(repository.glob("*/config.pbtxt"))
    return [
        config.parent.name
        for config in configs
        if (only is None or config.parent.name in only)
        and "ensemble_scheduling" not in config.read_text(encoding="utf-8", errors="replace")
    ]


def waits_only_for_lost_requests(log: str, composing_models: Collection[str]) -> bool:
    """Whether a stopping server waits only for lost requests of ensembles.

    tritonserver 2.51 keeps an ensemble's cancelled request in flight, cannot unload an ensemble
    after a failed request, and would wait in vain until its exit timeout. A live stream keeps a
    composing model busy and loaded. `log`: the output since SIGTERM; two rounds of its countdown
    must agree.
    """
    return _has_only_lost_requests(log, composing_models) or _has_only_ensembles(
        log, composing_models
    )


def _has_only_lost_requests(log: str, composing_models: Collection[str]) -> bool:
    rounds = [_IN_FLIGHT.findall(text) for text in _ROUND.split(log)[1:]]
    busy = [models for models in rounds if models][-_AGREEING_ROUNDS:]
    idle = [not set(composing_models).intersection(models) for models in busy]
    return len(idle) == _AGREEING_ROUNDS and all(idle)


def _has_only_ensembles(log: str, composing_models: Collection[str]) -> bool:
    since_last_unload = log[log.rfind("successfully unloaded") :]
    rounds = len(_ROUND.findall(since_last_unload))
    unloaded = set(_UNLOADED.findall(log))
    return unloaded.issuperset(composing_models) and rounds >= _AGREEING_ROUNDS


def child_processes(parent: int) -> set[int]:
    """Return the pids of a process's children, including zombies."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return {pid for pid in pids if (fields := process_fields(pid)) and int(fields[1]) == parent}


def was_killed(pid: int) -> bool:
    """Whether the process is a zombie killed by a signal."""
    fields = process_fields(pid)
    return fields is not None and fields[0] == b"Z" and os.WIFSIGNALED(int(fields[49]))


def in_crash_handler(pid: int) -> bool:
    """Whether a thread is handling a fatal signal, which the kernel blocks meanwhile.

    No other thread of tritonserver 2.51 blocks it, except while the C library starts a thread or a
    program: it then blocks every signal, which shows on a busy machine.
    """
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            blocked = _BLOCKED.search(status.read_text(encoding="utf-8", errors="replace"))
        except OSError:  # the thread has exited
            continue
        mask = int(blocked[1], 16) if blocked else 0
        if mask & _CRASH_MASK and not mask & _STOP_MASK:
            return True
    return False


def process_fields(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on; None without such a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name, in parentheses, may itself contain spaces and parentheses.
    return text.rsplit(b")", 1)[1].split()


def kill_group(leader: int) -> None:
    """Kill the processes of a group, such as a server and its stubs."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_and_remove_shm(shm_prefix: str) -> None:
    """Kill a server's remaining processes and remove its shared memory, found by its prefix.

    The prefix is unique and part of the command lines of server and stubs.
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


def server_leftovers(shm_prefix: str) -> list[str]:
    """List a server's remaining processes and shared-memory files."""
    processes = [f"process {pid}" for pid in server_processes(shm_prefix)]
    return processes + [str(region) for region in _SHARED_MEMORY.glob(f"{shm_prefix}*")]


def server_processes(shm_prefix: str) -> list[int]:
    """Return the pids of a server, its stubs, and their descendants."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:  # the process has exited
            continue
        is_ours = any(shm_prefix.encode() in argument for argument in arguments)
        if is_ours and arguments[0].endswith(_PROGRAMS):
            processes.append(int(entry.parent.name))
    return with_descendants(processes)


def with_descendants(processes: Sequence[int]) -> list[int]:
    """Return these processes, then all their descendants, each once."""
    children_of = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := process_fields(int(entry.name)):
            children_of[int(fields[1])].append(int(entry.name))
    descendants = dict.fromkeys(processes)
    pending = list(descendants)
    for parent in pending:
        new = [child for child in children_of[parent] if child not in descendants]
        descendants |= dict.fromkeys(new)
        pending += new
    return list(descendants)
