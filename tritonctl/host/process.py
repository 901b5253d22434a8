# SPDX-License-Identifier: Apache-2.0
"""Runs other programs: argument lists only, output streamed and kept, no child outlives us."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.files import explained

_TAIL_LINES = 20
_TERM_GRACE_SECONDS = 10.0
_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
_RUNNING: set[subprocess.Popen[str]] = set()
_RUNNING_LOCK = threading.Lock()


def without_python_variables() -> dict[str, str]:
    """Our environment for another interpreter.

    PYTHONPATH and PYTHONHOME would show it our packages: pip takes those for installed ones.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    on_line: Callable[[str], object] | None = None,
    remedy: str,
) -> None:
    """Run a program to its end, both output streams merged into `log` and `on_line`.

    Raises HostError when it cannot be started or logged, and CommandFailedError, with the last
    lines it printed, when it ends with a non-zero status. Ends its whole process group when we are
    interrupted.
    """
    command = [str(part) for part in argv]
    process: subprocess.Popen[str] | None = None
    try:
        with _uninterrupted():
            process = _start(command, cwd, environment)
            with _RUNNING_LOCK:
                _RUNNING.add(process)
        tail = _stream(process, log, on_line)
        returncode = process.wait()
    except BaseException:
        if process is not None:
            end_group(process)
            if process.stdout is not None:
                process.stdout.close()  # interrupted before anybody has read it
        raise
    finally:
        with _RUNNING_LOCK:
            _RUNNING.difference_update([process])
    if returncode != 0:
        raise CommandFailedError(
            f"`{shlex.join(command)}` ended with status {returncode}",
            remedy=remedy,
            details="\n".join(tail),
            returncode=returncode,
        )


def end_running() -> None:
    """End the programs of other threads, which do not receive an interruption."""
    with _RUNNING_LOCK:
        running = list(_RUNNING)
    for process in running:
        end_group(process)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end us wait until the context is over (in the main thread).

    A child that an exception meets between its start and the return of Popen would be nobody's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # One that is ignored stays so: children inherit that.
    numbers = [n for n in _ENDING if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _start(
    command: list[str], cwd: Path | None, environment: Mapping[str, str] | None
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment) if environment is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # one group to end: pip and builders start children
        )
    except OSError as error:
        raise HostError(
            f"cannot start `{command[0]}`: {error.strerror}",
            remedy="check that it is installed and executable",
        ) from error


def _stream(
    process: subprocess.Popen[str], log: Path | None, on_line: Callable[[str], object] | None
) -> deque[str]:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with process.stdout or io.StringIO() as lines, _kept(log) as keep:
        for text in lines:
            line = text.rstrip("\r\n")
            tail.append(line)
            keep(line)
            if on_line:
                on_line(line)
    return tail


@contextmanager
def _kept(log: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that appends a line to `log` unbuffered. Raises HostError, as on a full disk."""
    if log is None:
        yield lambda _: None
        return
    with explained(log):
        sink = log.open("ab", buffering=0)

    def keep(line: str) -> None:
        with explained(log):
            sink.write(f"{line}\n".encode())

    with sink:
        yield keep


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a program to end as Ctrl-C does; on Windows, which cannot, end it."""
    if sys.platform == "win32":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to a program and what it started; on Windows, end the program."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[str]) -> None:
    """Ask a process group to end (SIGTERM), then make it (SIGKILL after 10 s)."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        try:
            signal_group(process, number)
            process.wait(timeout=_TERM_GRACE_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def process_started(pid: int) -> int | None:
    """Start time of a process (field 22 of /proc/PID/stat), None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in parentheses, may itself contain spaces and parentheses.
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else int(fields[19])
