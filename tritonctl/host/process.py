# SPDX-License-Identifier: Apache-2.0
"""Runs other programs from argument lists, streams and logs their output, ends all children."""

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
from tritonctl.host.files import as_host_error

_TAIL_LINES = 20
_TERM_GRACE_SECONDS = 10.0
_TERMINATION_SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
_RUNNING: set[subprocess.Popen[str]] = set()
_RUNNING_LOCK = threading.Lock()


def without_python_variables() -> dict[str, str]:
    """Return our environment for another interpreter.

    PYTHONPATH and PYTHONHOME would expose our packages, which pip considers installed.
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
    """Run a program to completion; pass stdout and stderr, merged, to `log` and `on_line`.

    Raises HostError if it cannot be started or logged, and CommandFailedError with the last lines
    of output for a non-zero exit status. On an interruption, terminates the process group.
    """
    command = [str(part) for part in argv]
    process: subprocess.Popen[str] | None = None
    try:
        with _defer_signals():
            process = _start(command, cwd, environment)
            with _RUNNING_LOCK:
                _RUNNING.add(process)
        tail = _stream(process, log, on_line)
        returncode = process.wait()
    except BaseException:
        if process is not None:
            terminate_group(process)
            if process.stdout is not None:
                process.stdout.close()  # interrupted before the first read
        raise
    finally:
        with _RUNNING_LOCK:
            _RUNNING.difference_update([process])
    if returncode != 0:
        raise CommandFailedError(
            f"`{shlex.join(command)}` exited with status {returncode}",
            remedy=remedy,
            details="\n".join(tail),
            returncode=returncode,
        )


def terminate_running() -> None:
    """Terminate the programs of other threads, which do not receive an interruption."""
    with _RUNNING_LOCK:
        running = list(_RUNNING)
    for process in running:
        terminate_group(process)


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer termination signals until the context ends (in the main thread).

    An exception between the start of a child and the return of Popen would leak the child.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    # Keep ignored signals ignored: children inherit that.
    numbers = [n for n in _TERMINATION_SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    previous_handlers = {
        n: signal.signal(n, lambda number, _: received.append(number)) for n in numbers
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        for number in received:
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
            start_new_session=True,  # one process group, because pip and builders start children
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
    with process.stdout or io.StringIO() as lines, _open_log(log) as keep:
        for text in lines:
            line = text.rstrip("\r\n")
            tail.append(line)
            keep(line)
            if on_line:
                on_line(line)
    return tail


@contextmanager
def _open_log(log: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends a line to `log` unbuffered. Raises HostError."""
    if log is None:
        yield lambda _: None
        return
    with as_host_error(log):
        sink = log.open("ab", buffering=0)

    def keep(line: str) -> None:
        with as_host_error(log):
            sink.write(f"{line}\n".encode())

    with sink:
        yield keep


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Send SIGINT to a program, as Ctrl-C does; on Windows, terminate it."""
    if sys.platform == "win32":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to a process group; on Windows, kill the program."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, number)


def terminate_group(process: subprocess.Popen[str]) -> None:
    """Terminate a process group with SIGTERM, then SIGKILL after 10 s."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        try:
            signal_group(process, number)
            process.wait(timeout=_TERM_GRACE_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def process_start_time(pid: int) -> int | None:
    """Return a process' start time (field 22 of /proc/PID/stat); None if gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in parentheses, may itself contain spaces and parentheses.
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else int(fields[19])
