# SPDX-License-Identifier: Apache-2.0
"""Watches one tritonserver and cleans up behind it, whatever way it ends.

Run as a process of its own: `python -m tritonctl.triton.supervisor SPEC.json`. A server that is
killed leaves its Python stubs (which ignore SIGTERM) and files in /dev/shm behind; this removes
both. Standard library only: it lives as long as the server does.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGTERM, signal.SIGINT)
# server.cc: "Timeout 9: Found 1 model versions that have in-flight inferences", then each of them.
_ROUND = re.compile(r"Timeout \d+: Found")
_IN_FLIGHT = re.compile(r"Model '([^']+)' \(version \d+\) has \d+ in-flight")
_UNLOADED = re.compile(r"successfully unloaded '([^']+)'")
_AGREEING_ROUNDS = 2
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
    stopping = _forward_signals(server, spec)
    try:
        returncode = server.wait()
    finally:
        _kill_group(server.pid)
        clean_up(spec["shm_prefix"])
    _record_exit(Path(spec["exit_file"]), returncode, requested=stopping())
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


def _forward_signals(server: subprocess.Popen[bytes], spec: dict[str, Any]) -> Callable[[], bool]:
    """On SIGTERM ask the server to end, then look every second whether to insist."""
    log, patience = Path(spec["log"]), spec["exit_timeout_seconds"] + KILL_MARGIN_SECONDS
    began: list[tuple[float, int]] = []  # when it was asked, and how long the log was then

    def stop(*_: object) -> None:
        began.append((time.monotonic(), log.stat().st_size))
        server.terminate()
        signal.setitimer(signal.ITIMER_REAL, 1, 1)

    def insist(*_: object) -> None:
        asked, offset = began[0]
        with log.open("rb") as file:
            file.seek(offset)
            said = file.read().decode("utf-8", "replace")
        ghosts = only_ghosts(said, spec["composing_models"])
        if ghosts or time.monotonic() - asked > patience:
            _kill_group(server.pid)

    for number in _STOPPING:
        signal.signal(number, stop)
    signal.signal(signal.SIGALRM, insist)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    return lambda: bool(began)


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
