# SPDX-License-Identifier: Apache-2.0
"""Faults of the machine under a running server: no disk for its log, no shared memory.

Each disk is a small tmpfs of the test's own; the server sees it in a mount namespace of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tests.servers import embedded
from tritonctl.errors import TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.supervision.supervisor import server_leftovers

pytestmark = pytest.mark.server

MODEL = "echo"
SCRIPT = {"ids": [70], "repeat": True}
ASK = SamplingParameters(max_tokens=20, random_seed=0)
SECONDS = 60.0
LONG = "x " * 2_000_000  # does not fit into the regions that a stub begins with


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A model that is served by nobody yet; stopped at the end, whatever happened."""
    if (
        os.geteuid() != 0
        or subprocess.run(["/usr/bin/unshare", "--mount", "true"], check=False).returncode
    ):
        pytest.skip("only root, where it may make mount namespaces, can give a server a small disk")
    tokenizer = sample_tokenizers.byte_level(tmp_path)
    project = replay_project(tmp_path / "project", {MODEL: (tokenizer, [SCRIPT])})
    yield project
    stop(project, Silent())


def up_with(project: Project, place: Path, size: str) -> subprocess.CompletedProcess[str]:
    """`tritonctl up` where `place` is a file system of that size; the server stays in there."""
    place.mkdir(parents=True, exist_ok=True)
    script = 'mount -t tmpfs -o size="$1" tmpfs "$2"; shift 2; exec "$@"'
    command = [sys.executable, "-m", "tritonctl", "up", "--json"]
    return subprocess.run(
        ["/usr/bin/unshare", "--mount", "sh", "-ec", script, "sh", size, place, *command],
        cwd=project.root,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def inside(pid: int, *command: str | Path) -> None:
    """Run a command that sees what the server sees; it may fail (a full disk makes dd fail)."""
    subprocess.run(
        ["/usr/bin/nsenter", "--target", str(pid), "--mount", *command],
        capture_output=True,
        check=False,
    )


def answer(url: str, prompt: str = "x") -> int:
    """Tokens of an answer."""
    with TritonClient(url) as client:
        return client.generate(MODEL, prompt, ASK, timeout=SECONDS).num_output_tokens


def test_too_little_shared_memory_to_start(project: Project) -> None:
    """It is found before a server is started: both sizes, and what to do; exit code 6."""
    done = up_with(project, Path("/dev/shm"), "2m")  # noqa: S108 - Triton's own place
    assert done.returncode == 6
    assert "TC802" in done.stderr
    assert "2.0 MiB" in done.stderr


def test_shared_memory_that_fills_up(project: Project) -> None:
    """Requests that fit go on; one that needs more is refused with the reason, alone; then all."""
    shm = Path("/dev/shm")  # noqa: S108 - Triton's own place
    started = up_with(project, shm, "16m")
    assert started.returncode == 0, started.stderr
    record = json.loads(started.stdout)
    state = embedded(running_server(project))
    inside(record["pid"], "dd", "if=/dev/zero", f"of={shm}/filler", "bs=4k")
    assert answer(record["grpc"]) == ASK.max_tokens
    with pytest.raises(TritonctlError, match="shared memory pool"):
        answer(record["grpc"], LONG)
    assert answer(record["grpc"]) == ASK.max_tokens
    inside(record["pid"], "rm", shm / "filler")
    assert answer(record["grpc"]) == ASK.max_tokens
    stop(project, Silent())
    assert server_leftovers(state.shm_prefix) == []


def test_no_disk_for_the_log(project: Project, tmp_path: Path) -> None:
    """The server answers on, without a log; `down` stops it and leaves nothing."""
    disk = tmp_path / "disk"
    # Only the log goes there: what the command itself writes is its own matter.
    logs = project.state / "server"
    logs.mkdir(parents=True)
    disk.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        (logs / "triton.log").symlink_to(disk / "triton.log")
        (disk / "filler").write_bytes(b"x" * (1 << 20))
        done = subprocess.run(
            [sys.executable, "-m", "tritonctl", "up", "--json"],
            cwd=project.root,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        state = embedded(running_server(project))
        for _ in range(20):
            assert answer(state.grpc_url) == ASK.max_tokens
        stop(project, Silent())
        assert server_leftovers(state.shm_prefix) == []
    finally:
        subprocess.run(["/bin/umount", "-l", disk], check=True)
