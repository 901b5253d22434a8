# SPDX-License-Identifier: Apache-2.0
"""A state file counts only while the very process it names is alive."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.host.process import process_start_time
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.server_state import (
    ContainerServer,
    Deployment,
    EmbeddedServer,
    ServerFiles,
    read_state,
    remove_state,
    to_record,
    write_state,
)

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox, WaitUntil

STATE = EmbeddedServer(
    pid=os.getpid(),
    process_started=process_start_time(os.getpid()) or 0,
    address="127.0.0.1",
    grpc_port=1,
    http_port=2,
    metrics_port=3,
    repository="/r",
    models=["a"],
    settings="{}",
    shm_prefix="p_",
    exit_timeout_seconds=30,
)

_EMBEDDED_ONLY = {"process_started", "shm_prefix", "readiness_port", "frontend"}


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    """The files of a server that was never started."""
    return ServerFiles(tmp_path / "server")


def test_round_trip(files: ServerFiles) -> None:
    """What is written is read; the folder is made."""
    assert read_state(files) is None
    write_state(files, STATE)
    assert read_state(files) == STATE


def test_a_server_in_containers_comes_back_as_one(files: ServerFiles) -> None:
    """And the file has the same keys whatever the server."""
    deployment = Deployment("c" * 64, "/deploy", "demo", "triton", ["cpu"], "")
    common = {k: v for k, v in to_record(STATE).items() if k not in _EMBEDDED_ONLY}
    server = ContainerServer(**common | {"deployment": deployment})
    write_state(files, server)
    assert read_state(files) == server
    assert to_record(server).keys() == to_record(STATE).keys()


def test_urls() -> None:
    """Endpoints as clients want them."""
    assert STATE.grpc_url == "127.0.0.1:1"
    assert STATE.http_url == "http://127.0.0.1:2"
    assert STATE.metrics_url == "http://127.0.0.1:3/metrics"


def test_this_process_is_alive() -> None:
    """Same pid, same start time."""
    assert STATE.process_started > 0
    assert is_running(STATE)


def test_a_reused_pid_is_not_the_server() -> None:
    """Same pid, started at another time: somebody else."""
    other = dataclasses.replace(STATE, process_started=STATE.process_started - 1)
    assert not is_running(other)


def test_ended_process_and_zombie_are_not_alive(wait_until: WaitUntil) -> None:
    """A zombie still has its pid and its start time, yet it serves nobody."""
    process = subprocess.Popen(["/bin/sleep", "60"])
    started = process_start_time(process.pid)
    assert started is not None
    state = dataclasses.replace(STATE, pid=process.pid, process_started=started)
    assert is_running(state)
    process.kill()
    wait_until(lambda: not is_running(state))
    assert Path(f"/proc/{process.pid}").exists()  # not yet waited for: a zombie
    process.wait()
    assert process_start_time(process.pid) is None
    assert not is_running(state)


def test_a_process_name_with_parentheses_and_spaces(tmp_path: Path) -> None:
    """The name stands in the same line of /proc/PID/stat."""
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    plain = subprocess.Popen(["/bin/sleep", "60"])
    odd = subprocess.Popen([program, "60"])
    try:
        first, second = process_start_time(plain.pid), process_start_time(odd.pid)
        assert first is not None
        assert second is not None
        assert 0 <= second - first < 500  # ticks of 10 ms
    finally:
        for process in (plain, odd):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"x"', "{}", '{"pid": 1}', "\ufeff{}", '{"a": 1}']
)
def test_damaged_file_is_no_state(files: ServerFiles, text: str) -> None:
    """Cut off, of another version or of another kind: as if it were not there."""
    files.folder.mkdir()
    files.state.write_text(text, encoding="utf-8")
    assert read_state(files) is None


@pytest.mark.parametrize("text", [None, "", '{"pid": 12'])
def test_a_record_that_was_cut_off_is_read_from_its_copy(
    files: ServerFiles, text: str | None
) -> None:
    """A full disk or a stray `>` must not make a running server an orphan."""
    write_state(files, STATE)
    files.state.unlink()
    if text is not None:
        files.state.write_text(text, encoding="utf-8")
    assert read_state(files) == STATE
    remove_state(files)
    assert read_state(files) is None


def test_state_of_another_version_is_no_state(files: ServerFiles) -> None:
    """A field too many or too few."""
    record = to_record(STATE)
    files.folder.mkdir()
    for damaged in (record | {"new": 1}, {k: v for k, v in record.items() if k != "pid"}):
        files.state.write_text(json.dumps(damaged), encoding="utf-8")
        assert read_state(files) is None


def test_binary_rubbish_is_no_state(files: ServerFiles) -> None:
    """A power cut may leave anything."""
    files.folder.mkdir()
    files.state.write_bytes(b"\xff\x00\xfe")
    assert read_state(files) is None


def test_files_of_a_project(sandbox: Sandbox) -> None:
    """All below `.tritonctl/server`."""
    files = ServerFiles.of(sandbox.load())
    assert files.folder == sandbox.root / ".tritonctl" / "server"
    paths = {files.state, files.log, files.specification, files.exit, files.lock}
    assert len(paths) == 5
    assert {path.parent for path in paths} == {files.folder}
