# SPDX-License-Identifier: Apache-2.0
"""What a program begins with that a supervisor starts: its signals, its environment, its end."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.another_user import as_nobody, as_root, open_folder
from tritonctl.supervision.exec_launcher import STOP_SIGNALS, launcher_command

# Says what it began with, as JSON.
SAYS = """
import json, os, resource, signal, sys
print(json.dumps({
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "environment": dict(os.environ),
    "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
    "group": os.getpgid(0) == os.getpid(),
    "open": sorted(os.listdir("/proc/self/fd")),
    "arguments": sys.argv[1:],
}))
"""


def said(**options: Any) -> dict[str, Any]:
    """By a program with two arguments that becomes so."""
    argv = [sys.executable, "-S", "-c", SAYS, "one", "two words"]
    with launcher_command(argv, **options) as (command, needs):
        assert "two words" not in command
        done = subprocess.run(
            command, pass_fds=[needs], process_group=0, stdout=subprocess.PIPE, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_it_begins_with() -> None:
    """Its own arguments and environment, no signal held back, nothing of ours open."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        found = said(environment={"SECRET": "x"}, stack_bytes=3 << 20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    assert found["arguments"] == ["one", "two words"]
    assert found["environment"].items() >= {"SECRET": "x"}.items()
    assert "PATH" not in found["environment"]
    assert not {*found["blocked"]} & {*STOP_SIGNALS}
    assert found["stack"] == 3 << 20
    assert found["group"]
    assert len(found["open"]) == 4  # the fourth is the folder that is listed


def test_our_own_environment() -> None:
    """By default."""
    assert said(die_with_parent=False)["environment"]["PATH"] == os.environ["PATH"]


# What boost::interprocess::shared_memory_object does with create_only, and what others may do.
_BOOST = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
os.fchmod(descriptor, 0o644)
os.write(descriptor, b"a prompt")
os.fchmod(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o666), 0o640)
os.chmod(sys.argv[3], 0o644)
"""
_READ = """
try:
    print(pathlib.Path(sys.argv[1]).read_text())
except PermissionError:
    print("refused")
"""


@contextmanager
def region_of_boost(*, private: bool) -> Iterator[Path]:
    """Made by a program that was started so."""
    with open_folder() as folder:
        region, group, public = (folder / name for name in ("region", "group", "public"))
        public.touch(0o600)
        argv = [sys.executable, "-S", "-c", _BOOST, str(region), str(group), str(public)]
        with launcher_command(argv, private_files=private) as (command, needs):
            subprocess.run(command, pass_fds=[needs], check=True)
        modes = [stat.S_IMODE(file.stat().st_mode) for file in (region, group, public)]
        assert modes == [0o600 if private else 0o644, 0o640, 0o644]
        yield region


@as_root
def test_other_users_cannot_read_its_memory() -> None:
    """Though it sets the mode itself, as Boost does; any other mode that it sets is its own."""
    for private, output in ((False, "a prompt\n"), (True, "refused\n")):
        with region_of_boost(private=private) as region:
            assert as_nobody(_READ, region) == output


def test_a_pipe_that_nobody_reads() -> None:
    """Ends it, as any program; Python ignores that signal, and what it became would, too."""
    with launcher_command(["sh", "-c", "kill -PIPE $$; echo lives"]) as (command, needs):
        done = subprocess.run(command, pass_fds=[needs], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize(("mode", "status"), [(None, 127), (0o600, 126)])
def test_what_cannot_be_started(tmp_path: Path, mode: int | None, status: int) -> None:
    """Says so where its output goes, with a shell's status."""
    program = tmp_path / "program"
    if mode is not None:
        program.write_text("no program")
        program.chmod(mode)
    with launcher_command([str(program)]) as (command, needs):
        done = subprocess.run(
            command, pass_fds=[needs], capture_output=True, encoding="utf-8", check=False
        )
    assert done.returncode == status
    assert done.stderr.startswith(f"tritonctl: cannot start {program}: ")
    assert len(done.stderr.splitlines()) == 1


def test_nobody_is_left_to_end_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who started it was killed before the kernel knew: it does not begin."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with launcher_command(["sh", "-c", "echo lives"]) as (command, needs):
        done = subprocess.run(command, pass_fds=[needs], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


def test_no_thread_of_ours_is_copied(forks: Callable[[], int]) -> None:
    """Beside threads, Python's handlers of forks run in no copy of this process."""
    go_on = threading.Event()
    beside = threading.Thread(target=go_on.wait)
    beside.start()
    try:
        said()
    finally:
        go_on.set()
        beside.join()
    assert forks() == 0


@pytest.fixture
def forks() -> Callable[[], int]:
    """How often this process has forked, in the way that copies it, since the test began."""
    seen: list[None] = []
    os.register_at_fork(before=lambda: seen.append(None))
    return lambda: len(seen)
