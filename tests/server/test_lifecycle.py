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

from tritonctl.errors import RequestRejectedError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.server.presence import alive
from tritonctl.server.state import Server, ServerFiles, read_state
from tritonctl.server.supervisor import leftovers

pytestmark = [pytest.mark.server, pytest.mark.alone]

CHECKOUT = Path(__file__).resolve().parents[2]

Cli = Callable[..., subprocess.CompletedProcess[str]]


def state_of(project: Project) -> Server:
    """The recorded state, which must be there."""
    state = read_state(ServerFiles.of(project))
    assert state is not None
    return state


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Fail unless the condition holds within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def up(cli: Cli, project: Project, *arguments: str) -> Server:
    """Start the server, insisting on success."""
    done = cli("up", *arguments, cwd=project.root)
    assert done.returncode == 0, done.stderr
    return state_of(project)


def server_pid(state: Server) -> int:
    """The process id of tritonserver itself, from its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"/tritonserver") and state.shm_prefix.encode() in b"".join(
            arguments
        ):
            return int(entry.parent.name)
    raise AssertionError("tritonserver is not running")


def assert_answers(state: Server) -> None:
    """The server generates text."""
    with TritonClient(state.grpc_url) as client:
        assert client.generate("int8", "7 in English:").text == " seven"


def test_up_status_logs_down(cli: Cli, small_project: Project) -> None:
    """The whole life of a server, and nothing of it left."""
    state = up(cli, small_project)
    assert state.address == "127.0.0.1"
    status = json.loads(cli("status", "--json", cwd=small_project.root).stdout)
    assert status["ready"] is True
    assert set(status["models"].values()) == {"READY"}
    assert len(status["models"]) == 4
    assert "Started GRPCInferenceService" in cli("logs", cwd=small_project.root).stdout
    assert_answers(state)
    assert leftovers(state.shm_prefix) != []  # the check below can fail
    assert cli("down", cwd=small_project.root).returncode == 0
    assert leftovers(state.shm_prefix) == []
    assert not ServerFiles.of(small_project).state.exists()
    assert cli("status", cwd=small_project.root).returncode == 7


def test_a_folder_that_a_shell_would_take_apart(
    cli: Cli, small_project: Project, tmp_path: Path
) -> None:
    """Triton's Python backend starts its stubs by a shell, with paths as they are."""
    folder = tmp_path / "Größe (2); $(touch pwned) & so on"
    shutil.copytree(small_project.root, folder, ignore=shutil.ignore_patterns(folder.name))
    try:
        done = cli("up", cwd=folder)
        assert done.returncode == 0, done.stderr
        done = cli("generate", "int8", "7 in English:", cwd=folder)
        assert done.stdout == " seven\n"
    finally:
        cli("down", cwd=folder)
    assert list(tmp_path.rglob("pwned")) == []


def test_down_does_not_wait_for_streams_that_are_gone(cli: Cli, small_project: Project) -> None:
    """Triton never forgets cancelled and refused ensemble requests; `down` knows better."""
    state = up(cli, small_project)
    with TritonClient(state.grpc_url) as client:
        next(client.stream("int8", "777777 in English:"))
        with pytest.raises(RequestRejectedError):
            client.generate("int8", "")
    began = time.monotonic()
    assert cli("down", cwd=small_project.root).returncode == 0
    assert time.monotonic() - began < state.exit_timeout_seconds / 2
    assert leftovers(state.shm_prefix) == []


# 20 ms a step: a stream of 200 tokens takes 4 s.
SLOW = """

_fast_step = OpenvinoEngine.step


def _slow_step(self):
    import time
    time.sleep(0.02)
    return _fast_step(self)


OpenvinoEngine.step = _slow_step
"""


def test_down_lets_streams_finish(cli: Cli, small_project: Project) -> None:
    """Triton itself would cut them off: it refuses what a running ensemble asks of its steps."""
    backends = small_project.root / "python_backends"
    shutil.copytree(CHECKOUT / "python_backends", backends)
    with (backends / "openvino_engine" / "model.py").open("a", encoding="utf-8") as file:
        file.write(SLOW)
    state = up(cli, small_project)
    sampling = SamplingParameters(max_tokens=200, end_id=-1)
    with TritonClient(state.grpc_url) as client:
        stream = client.stream("int8", "777777 in English:", sampling)
        first = next(stream)
        down = subprocess.Popen([sys.executable, "-m", "tritonctl", "down"], cwd=small_project.root)
        chunks = [first, *stream]
    assert (chunks[-1].num_output_tokens, chunks[-1].finish_reason) == (200, "length")
    assert down.wait(60) == 0
    assert leftovers(state.shm_prefix) == []


def test_up_twice_at_once_starts_one_server(cli: Cli, small_project: Project) -> None:
    """The second waits for the first, then finds its server."""
    command = [sys.executable, "-m", "tritonctl", "up", "--json"]
    both = [
        subprocess.Popen(command, cwd=small_project.root, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    records = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    assert sorted(record["started"] for record in records) == [False, True]
    assert records[0]["pid"] == records[1]["pid"]


def test_up_on_other_settings_is_refused_while_running(cli: Cli, small_project: Project) -> None:
    """A running server is never silently replaced or left stale."""
    up(cli, small_project)
    done = cli("up", "--set", "server.exit_timeout_seconds=5", cwd=small_project.root)
    assert done.returncode == 7
    assert "tritonctl down" in done.stderr


def test_killed_server_leaves_nothing_and_starts_again(cli: Cli, small_project: Project) -> None:
    """SIGKILL of tritonserver: stubs and shared memory go, status says so, up works."""
    state = up(cli, small_project)
    os.kill(server_pid(state), signal.SIGKILL)
    wait_until(lambda: not alive(state))
    assert leftovers(state.shm_prefix) == []
    status = cli("status", cwd=small_project.root)
    assert status.returncode == 7
    assert "ended by itself" in status.stderr
    assert_answers(up(cli, small_project))


def test_killed_supervisor_takes_the_server_with_it(cli: Cli, small_project: Project) -> None:
    """SIGKILL of the supervisor: the kernel ends tritonserver, `up` starts afresh."""
    state = up(cli, small_project)
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: leftovers(state.shm_prefix) == [])
    assert_answers(up(cli, small_project))


def test_interrupted_up_leaves_nothing(small_project: Project) -> None:
    """Ctrl-C while Triton starts: exit 130, no process, no shared memory, no state."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tritonctl", "up"], cwd=small_project.root, stderr=subprocess.PIPE
    )
    files = ServerFiles.of(small_project)
    wait_until(files.state.exists, 60)
    state = state_of(small_project)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert leftovers(state.shm_prefix) == []
    assert not alive(state)
    assert not files.state.exists()


def test_stale_state_of_a_dead_process_is_cleared(cli: Cli, small_project: Project) -> None:
    """A state file that names a process which is not ours (reused pid) counts for nothing."""
    state = up(cli, small_project)
    files = ServerFiles.of(small_project)
    record = json.loads(files.state.read_text())
    assert cli("down", cwd=small_project.root).returncode == 0
    record["pid"] = os.getpid()  # alive, but started at another time
    files.state.write_text(json.dumps(record))
    assert cli("status", cwd=small_project.root).returncode == 7
    assert_answers(up(cli, small_project))
    assert state.shm_prefix != state_of(small_project).shm_prefix


def test_taken_port_is_named(cli: Cli, small_project: Project) -> None:
    """Exit 4, the field, the port, the way out."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = cli("up", "--set", f"server.grpc_port={port}", cwd=small_project.root)
    assert done.returncode == 4
    assert f"port {port} (server.grpc_port) is taken" in done.stderr
    assert "--set server.grpc_port=0" in done.stderr


def test_model_that_loads_but_does_not_answer_is_not_ready(
    cli: Cli, small_project: Project
) -> None:
    """Triton calls it READY; one token through the whole ensemble shows otherwise."""
    broken = "models.int8.serving.config.tokenizer.parameters.max_input_len={string_value: '1'}"
    done = cli("up", "--set", broken, cwd=small_project.root)
    assert done.returncode == 7
    assert "model int8 is loaded but does not answer" in done.stderr
    assert read_state(ServerFiles.of(small_project)) is None


def test_model_that_does_not_load_is_explained(cli: Cli, small_project: Project) -> None:
    """Triton's own error and the tail of its log, exit 7, nothing left running."""
    broken = "models.int8.serving.config.engine.parameters.vocab_size={string_value: many}"
    done = cli("up", "--set", broken, cwd=small_project.root)
    assert done.returncode == 7
    assert "int8_engine" in done.stderr
    assert "vocab_size" in done.stderr
    assert str(ServerFiles.of(small_project).log) in done.stderr
    assert read_state(ServerFiles.of(small_project)) is None
