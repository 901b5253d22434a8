# SPDX-License-Identifier: Apache-2.0
"""A frozen or stuck engine is told from a busy one and from an idle one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from textlib.engine.activity import STUCK_SECONDS, EngineActivity
from textlib.triton.engine_metrics import EngineMetrics, Gauges, MetricsThread

TICKS = os.sysconf("SC_CLK_TCK")
STUB, ENGINE = 10, 11


class Machine:
    """A stub and its engine: their CPU time and state, and a clock."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.now = proc, 100.0
        self.cpu, self.state = 0.0, "S"
        self.progress_at = self.now
        (proc / "self").mkdir(parents=True)
        self.activity = EngineActivity(STUB, proc=proc, clock=lambda: self.now)

    def runs(self, seconds: float, *, cores: float = 0.0, active: int = 1) -> bool:
        """Whether the engine runs after so long, each second checked."""
        answer = True
        for _ in range(round(seconds)):
            self.now += 1.0
            self.cpu += cores
            for pid, parent in ((STUB, 1), (ENGINE, STUB)):
                folder = self.proc / str(pid)
                folder.mkdir(exist_ok=True)
                state = self.state if pid == ENGINE else "S"
                ticks = round(self.cpu * TICKS) if pid == ENGINE else 0
                (folder / "stat").write_text(f"{pid} (x) {state} {parent}" + f" 0 {ticks}" * 12)
            answer = self.activity.is_running(Gauges(active, 0, self.progress_at))
        return answer


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Just started."""
    return Machine(tmp_path / "proc")


def test_a_long_step_is_no_stuck_engine(machine: Machine) -> None:
    """A minute without a token on one core: a large prompt."""
    assert machine.runs(60, cores=1.0)
    assert machine.runs(60, cores=0.2)


def test_an_idle_engine_runs(machine: Machine) -> None:
    """However long nobody asks; and its first request has its time."""
    assert machine.runs(600, active=0)
    assert machine.runs(STUCK_SECONDS - 1)
    assert not machine.runs(2)


def test_an_engine_without_tokens_and_without_cpu_is_stuck(machine: Machine) -> None:
    """Until the next token, or until it works again."""
    assert machine.runs(10, cores=1.0)
    assert not machine.runs(10, cores=0.02)
    machine.progress_at = machine.now
    assert machine.runs(1, cores=0.02)
    assert not machine.runs(6, cores=0.02)
    assert machine.runs(6, cores=1.0)


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_process_is_frozen_at_once(machine: Machine, state: str) -> None:
    """Idle or not, and only while it is stopped."""
    assert machine.runs(10, active=0)
    machine.state = state
    assert not machine.runs(1, active=0)
    machine.state = "S"
    assert machine.runs(1, active=0)


class _Uptime:
    """A Publisher that keeps the uptime."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, *_: object) -> None:
        """Gauges are not its subject."""

    def add(self, key: object, value: float) -> None:
        """Count."""
        if "uptime" in str(key):
            self.value += value

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_real_process_that_is_stopped(child: subprocess.Popen[bytes]) -> None:
    """SIGSTOP stops the uptime of the model that started it, SIGCONT lets it go on."""
    metrics, uptime, offset = EngineMetrics(), _Uptime(), [0.0]
    clock = lambda: time.monotonic() + offset[0]  # noqa: E731
    thread = MetricsThread(
        uptime,
        lambda: (metrics.totals(), None),
        is_running=EngineActivity(os.getpid(), clock=clock).is_running,
        clock=clock,
    )

    def seconds_later() -> float:
        before = uptime.value
        for _ in range(3):
            offset[0] += 6.0  # beyond the scan for new processes
            thread.publish()
        return uptime.value - before

    assert seconds_later() >= 12
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert seconds_later() == 0
    child.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
    assert seconds_later() >= 12
