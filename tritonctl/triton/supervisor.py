# SPDX-License-Identifier: Apache-2.0
"""Watches one tritonserver and cleans up behind it, whatever way it ends.

Run as a process of its own: `python -m tritonctl.triton.supervisor SPEC.json`. A server that is
killed leaves its Python stubs (which ignore SIGTERM) and files in /dev/shm behind; this removes
both. Standard library only: it lives as long as the server does.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGTERM, signal.SIGINT)
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
_LOOK_SECONDS = 0.25
# Metrics are published every tenth of a second: one look could miss a request that just came.
_QUIET_LOOKS = 2
_METRICS_SECONDS = 1.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions
_PROGRAMS = (b"/tritonserver", b"/triton_python_backend_stub")
# Beyond Triton's own --exit-timeout-secs: unloading models comes after it.
KILL_MARGIN_SECONDS = 10


def main(specification: Path) -> int:
    """Run the server that `specification` describes until it ends; returns 0.

    Goes on in the background at once, after printing the process id it does so under.
    """
    _detach()
    spec = json.loads(specification.read_text(encoding="utf-8"))
    server = _start(spec)
    ending = _Ending(server, spec)
    _on_signals(ending)
    try:
        returncode = server.wait()
    finally:
        _kill_group(server.pid)
        clean_up(spec["shm_prefix"])
    _record_exit(Path(spec["exit_file"]), returncode, requested=ending.requested)
    return 0


def _detach() -> None:
    """Leave caller, session and terminal: nobody has to wait for us, no Ctrl-C reaches us."""
    # Once our process id is known, a SIGTERM may come any time: it waits until we are ready.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    daemon = os.fork()
    if daemon:
        os.write(sys.stdout.fileno(), f"{daemon}\n".encode())
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(spec["log"]).open("ab") as log:
        return subprocess.Popen(
            spec["argv"],
            env=spec["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,  # server and stubs end together
            preexec_fn=_prepare_server,  # noqa: PLW1509 - this process has one thread
        )


def _prepare_server() -> None:
    """If the supervisor is killed, the kernel asks the server to end, and it ends in order."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Ending:
    """What follows SIGTERM: streams finish, then the server is asked to end, then we insist.

    tritonserver 2.51 cannot do the first itself: once it is asked to end it refuses the calls that
    a running ensemble makes of its own steps, so that every stream under way is cut off.
    """

    def __init__(self, server: subprocess.Popen[bytes], spec: dict[str, Any]) -> None:
        self._server = server
        self._spec = spec
        self._log = Path(spec["log"])
        self._began: float | None = None
        self._quiet_looks = 0
        self._log_size: int | None = None  # when the server was asked to end

    @property
    def requested(self) -> bool:
        """Whether somebody has asked."""
        return self._began is not None

    def stop(self, *_: object) -> None:
        """Begin; asked a second time, wait for no stream."""
        if self._began is None:
            self._began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        else:
            self._terminate()

    def look(self, *_: object) -> None:
        """Take the next step when it is time for it."""
        if self._began is None:
            return
        waited, limit = time.monotonic() - self._began, self._spec["exit_timeout_seconds"]
        if self._log_size is None:
            if waited > limit or self._is_quiet():
                self._terminate()
        elif self._waits_in_vain() or waited > limit + KILL_MARGIN_SECONDS:
            _kill_group(self._server.pid)

    def _is_quiet(self) -> bool:
        busy = streams_under_way(self._spec["metrics_url"])
        self._quiet_looks = 0 if busy else self._quiet_looks + 1
        return self._quiet_looks >= _QUIET_LOOKS

    def _terminate(self) -> None:
        if self._log_size is None:
            self._log_size = self._log.stat().st_size
            self._server.terminate()

    def _waits_in_vain(self) -> bool:
        with self._log.open("rb") as file:
            file.seek(self._log_size or 0)
            said = file.read().decode("utf-8", "replace")
        return only_ghosts(said, self._spec["composing_models"])


def _on_signals(ending: _Ending) -> None:
    for number in _STOPPING:
        signal.signal(number, ending.stop)
    signal.signal(signal.SIGALRM, ending.look)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


def streams_under_way(metrics_url: str) -> bool:
    """Whether an engine advances or will advance a stream, or a request waits for its model.

    False for a server that does not answer: it has nothing to finish.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(metrics_url, timeout=_METRICS_SECONDS) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return False
    return any(float(value) > 0 for value in _UNDER_WAY.findall(text))


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


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return  # everybody has gone by himself


def _record_exit(file: Path, returncode: int, *, requested: bool) -> None:
    record = {"returncode": returncode, "requested": requested, "time": time.time()}
    temporary = file.with_suffix(".writing")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, file)


def clean_up(shm_prefix: str) -> None:
    """Kill what is left of a server and remove its shared memory, both found by its prefix.

    Each server has a prefix of its own; it is on the command lines of server and stubs.
    """
    if not shm_prefix:  # it would match every server of the machine
        return
    for pid in _processes(shm_prefix):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for region in _SHARED_MEMORY.glob(f"{shm_prefix}*"):
        region.unlink(missing_ok=True)


def leftovers(shm_prefix: str) -> list[str]:
    """What of a server is still there: processes and shared-memory files."""
    processes = [f"process {pid}" for pid in _processes(shm_prefix)]
    return processes + [str(region) for region in _SHARED_MEMORY.glob(f"{shm_prefix}*")]


def _processes(shm_prefix: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:  # it ended while we looked
            continue
        ours = any(shm_prefix.encode() in argument for argument in arguments)
        if ours and arguments[0].endswith(_PROGRAMS):
            found.append(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
