# SPDX-License-Identifier: Apache-2.0
"""The wall clock jumps under a server, its supervisor, its stubs, clients and a load test.

`pytest -rP` shows the figures; benchmarks/results/faults.md has those of one run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE
from tests.faked_clock import FakedClock
from tests.servers import PATIENCE_SECONDS, Handle, paced_project, wait_until
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.lifecycle import stop
from tritonctl.runtimes.server_state import ServerFiles
from tritonctl.supervision.supervisor import server_leftovers

pytestmark = [pytest.mark.server, pytest.mark.alone, pytest.mark.exhaustive]

CHILD = Path(__file__).with_name("streaming_child.py")
MODEL = "int8"
DAY = 86_400
STEP_SECONDS = 0.1
TOKENS, STREAMS = 40, 8
TIMEOUT = 60.0
SAMPLES = 3  # of the server's metrics, before the clock jumps
SCENARIO = {
    "model": MODEL,
    "requests": [{"name": "short", "prompts": str(EXAMPLE / "prompts.jsonl"), "max_tokens": 8}],
    "arrivals": {"process": "constant", "rate": 4},
    "count": 48,
    "cool_down_seconds": 20,
}
PROMPTS = [f"{100003 * (i + 1) % 1_000_000} in English:" for i in range(STREAMS)]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> FakedClock:
    """One for the server and its clients."""
    return FakedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def handle(speller_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The int8 speller."""
    handle = Handle(paced_project(speller_project, tmp_path_factory.mktemp("c") / "clock"), MODEL)
    yield handle
    handle.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest, clock: FakedClock, handle: Handle) -> Handle:
    """Ten tokens a second; supervisor, tritonserver and stubs live by the faked clock."""
    with living_by(clock):
        handle.ready(request.node, STEP_SECONDS)
    return handle


@contextmanager
def living_by(clock: FakedClock) -> Iterator[None]:
    """What is started now sees the faked clock."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in clock.environment().items():
            patched.setenv(name, value)
        yield


def streamed(clock: FakedClock, server: Handle, to: int) -> tuple[list[dict[str, Any]], float]:
    """Streams of a client that lives by the clock, which jumps amid; and how far it saw it jump."""
    job = {
        "urls": [server.url],
        "model": MODEL,
        "prompts": PROMPTS,
        "max_tokens": TOKENS,
        "timeout": TIMEOUT,
    }
    with subprocess.Popen(
        [sys.executable, CHILD, json.dumps(job)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment(),
    ) as child:
        assert child.stdout is not None
        word, before = child.stdout.readline().split()
        assert word == "amid"
        clock.jump_to(to)
        answer = json.loads(child.stdout.readline())
    return answer["streams"], answer["time"] - float(before)


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])
def test_streams_do_not_notice(clock: FakedClock, server: Handle, jump: int) -> None:
    """Nothing times out, nothing waits for the old time to come back; the next answers, too."""
    clock.jump_to(0)
    undisturbed, none = streamed(clock, server, 0)
    assert abs(none) < TIMEOUT
    streams, seen = streamed(clock, server, jump)
    expect_no_lost_lock(clock, server)
    assert abs(seen - jump) < TIMEOUT, "the client never saw the jump"
    after, _ = streamed(clock, server, jump)
    for each in (undisturbed, streams, after):
        assert [stream.get("error") for stream in each] == [None] * STREAMS
        assert {stream["tokens"] for stream in each} == {TOKENS}
        assert [stream["text"] for stream in each] == [stream["text"] for stream in undisturbed]
    pauses = [max(s["longest_pause"] for s in each) for each in (undisturbed, streams, after)]
    print(f"jump {jump:+d} s: longest pauses before, amid, after {pauses}")  # noqa: T201
    assert pauses[1] < TIMEOUT / 2


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])
def test_a_load_test_does_not_notice(
    clock: FakedClock, server: Handle, jump: int, tmp_path: Path
) -> None:
    """It ends when it should; requests and samples have the times that passed, no SLO is missed."""
    clock.jump_to(0)
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tritonctl", "loadtest", "run", "--output", str(folder)]
    with subprocess.Popen(
        [*command, "--set", f"loadtests={json.dumps({'steady': SCENARIO})}"],
        cwd=server.project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | clock.environment(),
    ) as test:
        wait_until(lambda: len(lines(folder / "server.jsonl")) > SAMPLES, "samples are written")
        clock.jump_to(jump)
        said, _ = test.communicate(timeout=PATIENCE_SECONDS)
    expect_no_lost_lock(clock, server)
    assert test.returncode in (0, 8, 9), said  # 9: this machine is too busy to measure anything on
    times = [sample["t"] for sample in lines(folder / "server.jsonl")]
    assert times == sorted(times)
    assert -TIMEOUT < times[0] < times[-1] < TIMEOUT
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    slowest = summary["metrics"]["ttft"]["max_ms"]
    print(  # noqa: T201
        f"jump {jump:+d} s: samples from {times[0]} to {times[-1]} s, slowest TTFT {slowest:.0f} ms"
    )
    assert summary["counts"]["ok"] == SCENARIO["count"], summary["counts"]
    assert slowest < TIMEOUT * 1000


def expect_no_lost_lock(clock: FakedClock, server: Handle) -> None:
    """Triton's own fault (failure-behaviour.md). The next test gets a server that runs."""
    log = ServerFiles.of(server.project).log.read_text(encoding="utf-8", errors="replace")
    if "lock_exception" in log:
        server.wait_until_gone()
        with living_by(clock):
            server.start_again()
        pytest.xfail("the Python backend's timed locks live by the wall clock: a stub has ended")


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; none while there is no file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("jump", [0, DAY, -DAY], ids=["right", "forward", "back"])
def test_supervision_does_not_notice(clock: FakedClock, server: Handle, jump: int) -> None:
    """`down` ends in its time, and a killed stub ends the server, both after a jump."""
    clock.jump_to(jump)
    began = time.monotonic()
    stop(server.project, Silent())
    down = time.monotonic() - began
    assert server_leftovers(server.state.shm_prefix) == []
    with living_by(clock):
        server.start_again()
    clock.jump_to(0)
    [stub] = [pid for pid in server.processes() if b"_detokenizer" in command_line(pid)]
    began = time.monotonic()
    os.kill(stub, signal.SIGKILL)
    wait_until(lambda: not is_running(server.state), "the server ends", PATIENCE_SECONDS)
    gone = time.monotonic() - began
    print(f"jump {jump:+d} s: down after {down:.1f} s, killed stub told after {gone:.1f} s")  # noqa: T201
    with living_by(clock):
        server.start_again()


def command_line(pid: int) -> bytes:
    """Of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
