# SPDX-License-Identifier: Apache-2.0
"""Without what only Linux has: everything can be imported, and what needs no server works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import run_here
from tests.unit.checks.repositories import put
from tests.unit.conftest import MODEL, Sandbox
from tritonctl.host import process, resources
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Silent

PROGRAM = Path(__file__).with_name("without_linux.py")
ROOT = Path(__file__).parents[3]


def elsewhere(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What the program says, with everything that only Linux has taken away."""
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What the same command says on Linux."""
    return run_here(*arguments, cwd=Path.cwd())


def test_every_module_and_name_can_be_imported() -> None:
    """Whether or not it can be used there."""
    done = elsewhere("import")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_taken_away_is_missed() -> None:
    """Else this module would prove nothing: the supervisor of an embedded server needs Linux."""
    taken = "import runpy; runpy.run_path(sys.argv[1])['_block']()"
    locked = "from tritonctl.host.files import _try_lock; _try_lock(open(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {taken}; {locked}", PROGRAM],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=ROOT,
    )
    assert "no module named fcntl on this system" in done.stderr


def test_check_finds_the_same(tmp_path: Path) -> None:
    """A repository with mistakes of several families."""
    files = {
        "a/config.pbtxt": 'name: "b"\nbackend: "python"\nmax_batch_size: 4\n',
        "a/1/model.py": "import os\nos.system('ls')\n",
    }
    repository = put(tmp_path, files)
    found, usual = elsewhere("check", repository), here("check", repository)
    assert found.returncode == usual.returncode != 0
    assert "TC" in usual.stdout
    assert (found.stdout, found.stderr) == (usual.stdout, usual.stderr)


@pytest.mark.parametrize(
    "arguments",
    [("plan", "--device-memory", "16G"), ("artefacts", "verify"), ("graph", MODEL), ("schema",)],
)
def test_commands_without_a_server_say_the_same(
    built: Sandbox, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Of a project with an engine."""
    monkeypatch.chdir(built.root)
    assert here("render").returncode == 0
    found, usual = elsewhere(*arguments), here(*arguments)
    assert (found.returncode, found.stdout) == (usual.returncode, usual.stdout) != (1, "")


def test_clients_and_doctor_reach_their_end(built: Sandbox) -> None:
    """A client says that nobody answers, doctor what an embedded server would lack."""
    asked = elsewhere("infer", "m", "--url", "127.0.0.1:1", "--input", "a=1")
    assert "no answer from Triton at 127.0.0.1:1" in asked.stderr
    assert elsewhere("doctor", "--project", built.file).returncode in (0, 4)


def test_a_lock_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module locks bytes: one is enough, and a taken one is asked for again and again."""
    calls: list[tuple[int, int]] = []

    class Msvcrt:
        LK_NBLCK = 2

        @staticmethod
        def locking(_: int, mode: int, count: int) -> None:
            calls.append((mode, count))
            if len(calls) < 3:
                raise PermissionError(13, "taken")

    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt)
    monkeypatch.setattr("tritonctl.host.files._LOCK_POLL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "platform", "win32")
    with exclusive(tmp_path / "x.lock", Silent(), "test"):
        pass
    assert calls == [(2, 1)] * 3


def test_resources_that_a_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores, no figure for memory."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.delattr(os, "statvfs")
    assert resources.usable_cores() == os.cpu_count()
    assert resources.host_memory() is None
    assert resources.shared_memory() is None


def test_a_program_is_ended_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without process groups."""
    program = subprocess.Popen(
        [sys.executable, "-c", "input()"], encoding="utf-8", stdin=subprocess.PIPE
    )
    monkeypatch.setattr(sys, "platform", "win32")
    with program:
        process.terminate_group(program)
    assert program.poll() == -9
