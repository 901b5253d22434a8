# SPDX-License-Identifier: Apache-2.0
"""Starting and stopping a real Triton: nothing stays behind, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.json_page import as_documented
from tests.servers import Handle, paced_project, server_pid, wait_until
from tritonctl.errors import RequestRejectedError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, read_state
from tritonctl.supervision.supervisor import server_leftovers

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]


def state_of(project: Project) -> EmbeddedServer:
    """The recorded state, which must be there."""
    state = read_state(ServerFiles.of(project))
    assert isinstance(state, EmbeddedServer)
    return state


def up(cli: Cli, project: Project, *arguments: str) -> EmbeddedServer:
    """Start the server, insisting on success."""
    done = cli("up", *arguments, cwd=project.root)
    assert done.returncode == 0, done.stderr
    return state_of(project)


def assert_answers(state: EmbeddedServer) -> None:
    """The server generates text."""
    with TritonClient(state.grpc_url) as client:
        assert client.generate("int8", "7 in English:").text == " seven"


@pytest.fixture
def down(cli: Cli, life: Handle) -> Project:
    """The project of a server that has ended, as it should: nothing of it is left."""
    assert cli("down", cwd=life.project.root).returncode == 0
    assert server_leftovers(life.state.shm_prefix) == []
    return life.project


@pytest.mark.path
def test_up_status_logs_down(cli: Cli, life: Handle) -> None:
    """The whole life of a server, and nothing of it left."""
    project = life.project
    assert cli("down", cwd=project.root).returncode == 0
    assert not ServerFiles.of(project).state.exists()
    state = up(cli, project)
    assert state.address == "127.0.0.1"
    status = as_documented("status", cli("status", "--json", cwd=project.root).stdout)
    assert status["ready"] is True
    assert set(status["models"].values()) == {"READY"}
    assert len(status["models"]) == 4
    by = {
        name: (one["backend"], one["instances"]) for name, one in status["model_backends"].items()
    }
    assert by["int8"] == ("ensemble of 3 steps", "-")
    assert by["int8_engine"] == ("python: openvino int8", "1 CPU")
    assert "python: openvino int8" in cli("status", cwd=project.root).stdout
    assert "Started GRPCInferenceService" in cli("logs", cwd=project.root).stdout
    lines = cli("logs", "int8_engine", cwd=project.root).stdout.splitlines()
    assert lines
    assert all("int8_engine" in line for line in lines)
    assert_answers(state)
    assert server_leftovers(state.shm_prefix) != []  # the check below can fail
    assert cli("down", cwd=project.root).returncode == 0
    assert server_leftovers(state.shm_prefix) == []
    assert not ServerFiles.of(project).state.exists()
    assert cli("status", cwd=project.root).returncode == 7


@pytest.mark.path
def test_killed_server_leaves_nothing_and_starts_again(cli: Cli, life: Handle) -> None:
    """SIGKILL of tritonserver: stubs and shared memory go, status says so, up works."""
    project, state = life.project, life.state
    os.kill(server_pid(state), signal.SIGKILL)
    life.wait_until_gone()
    assert server_leftovers(state.shm_prefix) == []
    status = cli("status", cwd=project.root)
    assert status.returncode == 7
    assert "crashed" in status.stderr
    assert_answers(up(cli, project))


def test_up_on_other_settings_is_refused_while_running(cli: Cli, life: Handle) -> None:
    """A running server is never silently replaced or left stale."""
    done = cli("up", "--set", "server.exit_timeout_seconds=5", cwd=life.project.root)
    assert done.returncode == 7
    assert "tritonctl down" in done.stderr
    assert is_running(life.state)


def test_killed_supervisor_takes_the_server_with_it(cli: Cli, small_project: Project) -> None:
    """SIGKILL of the supervisor: the kernel ends tritonserver, `up` starts afresh.

    Where Triton has lost a request, nobody knows better than to wait its exit timeout.
    """
    state = up(cli, small_project)
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: server_leftovers(state.shm_prefix) == [], "the kernel ends what it started")
    assert_answers(up(cli, small_project))


def test_down_does_not_wait_for_streams_that_are_gone(cli: Cli, life: Handle) -> None:
    """Triton never forgets cancelled and refused ensemble requests; `down` knows better."""
    state = life.state
    with TritonClient(state.grpc_url) as client:
        next(client.stream("int8", "777777 in English:"))
        with pytest.raises(RequestRejectedError):
            client.generate("int8", "")
    began = time.monotonic()
    assert cli("down", cwd=life.project.root).returncode == 0
    assert time.monotonic() - began < state.exit_timeout_seconds / 2  # it is long
    assert server_leftovers(state.shm_prefix) == []


def test_stale_state_of_a_dead_process_is_cleared(cli: Cli, life: Handle) -> None:
    """A state file that names a process which is not ours (reused pid) counts for nothing."""
    project, state = life.project, life.state
    files = ServerFiles.of(project)
    record = json.loads(files.state.read_text())
    assert cli("down", cwd=project.root).returncode == 0
    record["pid"] = os.getpid()  # alive, but started at another time
    files.state.write_text(json.dumps(record))
    assert cli("status", cwd=project.root).returncode == 7
    again = up(cli, project)
    assert_answers(again)
    assert state.shm_prefix != again.shm_prefix


@pytest.mark.parametrize("damage", ["state", "both", "folder"])
def test_a_server_without_its_record_is_found_again(cli: Cli, life: Handle, damage: str) -> None:
    """Its files are cut off or gone: `status` and `down` find its processes and ports."""
    project, state = life.project, life.state
    files = ServerFiles.of(project)
    if damage == "folder":
        shutil.rmtree(files.folder)
    for file in {"state": [files.state], "both": [files.state, files.state_copy]}.get(damage, []):
        file.write_text("")
    life.spent = True
    status = json.loads(cli("status", "--json", cwd=project.root).stdout)
    # Without its second repository Triton lists no models.
    assert status["ready"] is (damage != "folder")
    assert status["grpc"] == state.grpc_url
    assert set(status["models"]) == set(state.models)
    assert cli("up", cwd=project.root).returncode == (0 if damage == "state" else 7)
    assert cli("down", cwd=project.root).returncode == 0
    assert server_leftovers(state.shm_prefix) == []
    assert cli("status", cwd=project.root).returncode == 7


def test_interrupted_up_leaves_nothing(down: Project) -> None:
    """Ctrl-C while Triton starts: exit 130, no process, no shared memory, no state."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tritonctl", "up"], cwd=down.root, stderr=subprocess.PIPE
    )
    files = ServerFiles.of(down)
    wait_until(files.state.exists, "a start is recorded")
    state = state_of(down)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert server_leftovers(state.shm_prefix) == []
    assert not is_running(state)
    assert not files.state.exists()


@pytest.fixture
def off(tmp_path: Path, speller_project: Project) -> Project:
    """A project of which no server runs, and none will."""
    return paced_project(speller_project, tmp_path / "off")


def test_taken_port_is_named(cli: Cli, off: Project) -> None:
    """Exit 4, the field, the port, the way out."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = cli("up", "--set", f"server.grpc_port={port}", cwd=off.root)
    assert done.returncode == 4
    assert f"port {port} (server.grpc_port) is in use" in done.stderr
    assert "--set server.grpc_port=0" in done.stderr


def test_model_that_loads_but_does_not_answer_is_not_ready(cli: Cli, off: Project) -> None:
    """Triton calls it READY; one token through the whole ensemble shows otherwise."""
    broken = "models.int8.serving.config.tokenizer.parameters.max_input_len={string_value: '1'}"
    done = cli("up", "--set", broken, cwd=off.root)
    assert done.returncode == 7
    assert "model int8 is loaded but does not answer" in done.stderr, done.stderr
    assert read_state(ServerFiles.of(off)) is None


def test_model_that_does_not_load_is_explained(cli: Cli, off: Project) -> None:
    """Triton's own error and the tail of its log, exit 7, nothing left running."""
    broken = "models.int8.serving.config.engine.parameters.vocab_size={string_value: many}"
    done = cli("up", "--set", broken, cwd=off.root)
    assert done.returncode == 7
    assert "int8_engine" in done.stderr
    assert "vocab_size" in done.stderr
    assert str(ServerFiles.of(off).log) in done.stderr
    assert read_state(ServerFiles.of(off)) is None


def test_up_twice_at_once_in_a_folder_that_a_shell_would_take_apart(
    cli: Cli, speller_project: Project, tmp_path: Path
) -> None:
    """The second waits for the first, then finds its server.

    Triton's Python backend starts its stubs by a shell, with paths as they are.
    """
    folder = tmp_path / "Größe (2); $(touch pwned) & so on"
    paced_project(speller_project, folder)
    command = [sys.executable, "-m", "tritonctl", "up", "--json"]
    try:
        both = [
            subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        records = [as_documented("up", process.communicate(timeout=240)[0]) for process in both]
        done = cli("generate", "int8", "7 in English:", cwd=folder)
    finally:
        cli("down", cwd=folder)
    assert sorted(record["started"] for record in records) == [False, True]
    assert records[0]["pid"] == records[1]["pid"]
    assert done.stdout == " seven\n"
    assert list(tmp_path.rglob("pwned")) == []
