# SPDX-License-Identifier: Apache-2.0
"""Running other programs: output as it comes, errors named, no child left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host import process
from tritonctl.host.process import process_start_time

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil


def _shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_lines_arrive_while_the_program_runs(tmp_path: Path) -> None:
    """Both streams, line by line, before the program has ended."""
    seen: list[str] = []
    heard = tmp_path / "heard"

    def hear(line: str) -> None:
        seen.append(line)
        if line == "two":
            heard.touch()  # the program does not end before

    script = f"echo one; echo two >&2; until [ -e {heard} ]; do sleep 0.02; done; echo three"
    process.run(_shell(script), on_line=hear, remedy="")
    assert seen == ["one", "two", "three"]


def test_log_is_appended_to(tmp_path: Path) -> None:
    """The log keeps what was in it; bytes that are no UTF-8 do not stop it."""
    log = tmp_path / "log"
    log.write_text("before\n", encoding="utf-8")
    process.run(_shell(r"printf 'caf\351\nl\303\251\nno newline'"), log=log, remedy="")
    assert log.read_text(encoding="utf-8") == "before\ncaf\ufffd\nlé\nno newline\n"


def test_failure_carries_status_and_the_last_lines() -> None:
    """Status 3, the last 20 of 30 lines, the command as it could be typed, the remedy."""
    with pytest.raises(CommandFailedError) as caught:
        process.run(_shell("seq 1 30; exit 3"), remedy="do something")
    error = caught.value
    assert error.returncode == 3
    assert error.exit_code == 4
    assert error.problem == "`/bin/sh -c 'seq 1 30; exit 3'` exited with status 3"
    assert error.details == "\n".join(str(n) for n in range(11, 31))
    assert error.remedy == "do something"


def test_death_by_signal_is_a_failure() -> None:
    """A killed program reports its signal as a negative status."""
    with pytest.raises(CommandFailedError) as caught:
        process.run(_shell("kill -9 $$"), remedy="")
    assert caught.value.returncode == -9


@pytest.mark.parametrize("program", ["/no/such/program", "/etc"])
def test_program_that_cannot_start(program: str) -> None:
    """Missing or not executable: named, exit code 4."""
    with pytest.raises(HostError, match=f"cannot start `{program}`: ") as caught:
        process.run([program], remedy="")
    assert not isinstance(caught.value, CommandFailedError)


def test_working_directory_and_environment(tmp_path: Path) -> None:
    """The environment given is the whole environment."""
    seen: list[str] = []
    process.run(
        _shell("pwd; echo $ONLY; echo [$HOME]"),
        cwd=tmp_path,
        environment={"ONLY": "this"},
        on_line=seen.append,
        remedy="",
    )
    assert seen == [str(tmp_path), "this", "[]"]


def test_standard_input_is_empty() -> None:
    """A program that asks a question gets no answer instead of waiting for ever."""
    process.run(_shell("! read answer"), remedy="")


def test_interruption_ends_the_whole_group(wait_until: WaitUntil) -> None:
    """An exception while we listen (as Ctrl-C is one) ends the program and its children."""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(int(pid) for pid in line.split())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.run(_shell("sleep 60 & echo $$ $!; wait"), on_line=interrupt, remedy="")
    assert len(pids) == 2
    assert process_start_time(pids[0]) is None
    wait_until(lambda: process_start_time(pids[1]) is None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_amid_the_start(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Waits until the child is known, and ends it then."""
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            started.append(self)
            signal.raise_signal(number)

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(number, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.run(_shell("sleep 60"), remedy="")
        assert signal.getsignal(number) is handle
    finally:
        signal.signal(number, before)
    assert started[0].returncode == -signal.SIGTERM


def test_an_ignored_signal_stays_ignored() -> None:
    """Under nohup a child ignores SIGHUP as we do."""
    lines: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process.run(_shell("kill -HUP $$; echo alive"), on_line=lines.append, remedy="")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert lines == ["alive"]


def test_a_program_deaf_to_sigterm_is_killed(
    monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """After the grace period comes SIGKILL, for the whole group."""
    monkeypatch.setattr(process, "_TERM_GRACE_SECONDS", 0.3)
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(int(pid) for pid in line.split())
        raise KeyboardInterrupt

    script = "trap '' TERM; sleep 600 & echo $$ $!; while :; do sleep 0.1; done"
    with pytest.raises(KeyboardInterrupt):
        process.run(_shell(script), on_line=interrupt, remedy="")
    wait_until(lambda: all(process_start_time(pid) is None for pid in pids))


class _Deaf:
    """A program that hears so many signals before it ends; what was done to its group."""

    pid = 4711

    def __init__(self, survives: int, *, gone: bool = False) -> None:
        self._survives, self._gone = survives, gone
        self.done: list[object] = []

    def kill(self, group: int, number: int) -> None:
        """As os.killpg."""
        assert group == self.pid
        if self._gone:
            raise ProcessLookupError
        self.done.append(signal.Signals(number).name)
        self._survives -= 1

    def wait(self, timeout: float | None = None) -> int:
        """As Popen.wait."""
        self.done.append(timeout)
        if self._survives >= 0 and timeout is not None:
            raise subprocess.TimeoutExpired("program", timeout)
        return 0


@pytest.mark.parametrize(
    ("program", "done"),
    [
        (_Deaf(0), ["SIGTERM", 10.0, "SIGKILL", 10.0, None]),
        (_Deaf(1), ["SIGTERM", 10.0, "SIGKILL", 10.0, None]),
        (_Deaf(0, gone=True), [None]),
    ],
    ids=["hears", "deaf", "gone"],
)
def test_ten_seconds_between_the_signals(
    program: _Deaf, done: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM first, SIGKILL for whoever is left of the group, also where its leader has ended."""
    monkeypatch.setattr(os, "killpg", program.kill)
    process.terminate_group(program)  # type: ignore[arg-type]
    assert program.done == done


def test_full_disk_under_the_log(small_disk: Path, wait_until: WaitUntil) -> None:
    """A log that cannot be written ends the program and is told as "no space"."""
    pid = small_disk / "pid"
    script = (
        f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()))\nwhile True: print('x'*99)"
    )
    with pytest.raises(HostError, match=r"no space left while writing .*/log"):
        process.run([sys.executable, "-c", script], log=small_disk / "log", remedy="")
    assert process_start_time(int(pid.read_text(encoding="utf-8"))) is None


def test_log_that_cannot_be_opened(tmp_path: Path) -> None:
    """The program does not outlive a log that cannot be made."""
    with pytest.raises(HostError, match="none/log: No such file"):
        process.run(_shell("sleep 60"), log=tmp_path / "none" / "log", remedy="")
