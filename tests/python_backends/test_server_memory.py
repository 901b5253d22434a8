# SPDX-License-Identifier: Apache-2.0
"""The memory of a server and all that it has started: how it is counted, and how seldom."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from textlib.triton.server_memory import STEP_BYTES, ServerMemory

from tritonctl.supervision.process_usage import ServerUsage

PAGE = os.sysconf("SC_PAGE_SIZE")
SERVER = 10


class Machine:
    """Its /proc, and its clock."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.now = proc, 100.0
        (proc / "self").mkdir(parents=True)

    def process(self, number: int, megabytes: float, *, parent: int, name: str = "x") -> None:
        """One that runs."""
        folder = self.proc / str(number)
        folder.mkdir(exist_ok=True)
        stat = f"{number} ({name}) S {parent} 1 1 0 -1 4194560"
        (folder / "stat").write_text(stat, encoding="utf-8")
        resident = round(megabytes * 1e6 / PAGE)
        (folder / "statm").write_text(f"9999999 {resident} 50 1 0 9 0\n", encoding="utf-8")

    def end(self, number: int) -> None:
        """It is gone."""
        shutil.rmtree(self.proc / str(number))

    def memory(self) -> ServerMemory:
        """Of the server."""
        return ServerMemory(SERVER, proc=self.proc, clock=lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A server with a stub, which has started an engine, and others that are none of its."""
    machine = Machine(tmp_path / "proc")
    machine.process(1, 5000, parent=0)
    machine.process(SERVER, 100, parent=1, name="triton) S 1 (server")
    machine.process(11, 30, parent=SERVER)
    machine.process(9, 200, parent=11)
    machine.process(12, 7000, parent=1)
    return machine


def megabytes(memory: ServerMemory) -> float:
    """The reading in MB, rounded to 0.1: it counts whole pages."""
    told = memory.read()
    assert told is not None
    return round(told / 1e6, 1)


def test_the_server_and_all_below_it(machine: Machine) -> None:
    """Also what a stub has started, whatever its process id and the command's name are."""
    assert megabytes(machine.memory()) == 330


def test_once_a_second_and_new_processes_once_in_five(machine: Machine) -> None:
    """Ten reads a second are as cheap as one; who ends counts for nothing from the next read on."""
    memory = machine.memory()
    assert megabytes(memory) == 330
    machine.process(11, 40, parent=SERVER)
    machine.process(13, 50, parent=SERVER)
    machine.now += 0.9
    assert megabytes(memory) == 330
    machine.now += 0.1
    assert megabytes(memory) == 340
    machine.now += 4
    assert megabytes(memory) == 390
    machine.end(9)
    machine.now += 1
    assert megabytes(memory) == 190


def test_less_than_a_step_is_no_change(machine: Machine) -> None:
    """However often; what adds up to one is, and so is less memory."""
    memory, told = machine.memory(), []
    for size in (100, 100.4, 99.6, 100.8, 101.2, 100.4, 100.0):
        machine.process(SERVER, size, parent=1)
        told.append(megabytes(memory) - 230)
        machine.now += 1
    assert told == [100, 100, 100, 100, pytest.approx(101.2), pytest.approx(101.2), 100]
    assert STEP_BYTES == 1_000_000


def test_a_server_that_is_gone(machine: Machine) -> None:
    """Nothing new is known of it; of one that never was, nothing at all."""
    memory = machine.memory()
    assert megabytes(memory) == 330
    for number in (SERVER, 11, 9):
        machine.end(number)
    machine.now += 10
    assert megabytes(memory) == 330
    assert machine.memory().read() is None
    shutil.rmtree(machine.proc)
    assert machine.memory().read() is None


def test_by_the_same_definition_as_on_one_host(tmp_path: Path) -> None:
    """Two real processes, one below the other: the figure is that of `ServerUsage`."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    child = "import time; kept = bytearray(30_000_000); print(1, flush=True); time.sleep(600)"
    script = (
        "import subprocess, sys\n"
        f"subprocess.run([{sys.executable!r}, '-c', {child!r}], check=False)\n"
    )
    prefix = f"tritonctl_test{os.getpid()}_"
    with subprocess.Popen(
        [stub, "-c", script, prefix], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            deadline = time.monotonic() + 60
            while (found := ServerMemory(process.pid).read()) != ServerUsage(prefix).read()[1]:
                assert time.monotonic() < deadline, found
            assert found is not None
            assert found > 30_000_000
        finally:
            os.killpg(process.pid, signal.SIGKILL)
