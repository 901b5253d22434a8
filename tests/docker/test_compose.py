# SPDX-License-Identifier: Apache-2.0
"""Plain `docker compose` in a rendered deployment: real image, real container, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.deployments import OVERRIDE, compose, rendered
from tests.docker.machine import program
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters

pytestmark = pytest.mark.docker

PATIENCE_SECONDS = 180.0
STREAM_TOKENS = 400
LONG = SamplingParameters(max_tokens=STREAM_TOKENS, min_tokens=STREAM_TOKENS)
USERS = 64
Tell = Callable[[str], None]
KILL_SERVER = """
import os, signal, pathlib
for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if comm.read_text().strip() == "tritonserver":
        os.kill(int(comm.parent.name), signal.SIGKILL)
"""


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Figures for whoever watches the tests."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return write


def url(folder: Path, port: int = 8001) -> str:
    return compose(folder, "port", "triton", str(port))


def container(folder: Path) -> dict[str, Any]:
    """Docker's record of the container."""
    name = compose(folder, "ps", "--all", "--quiet", "triton")
    done = subprocess.run(
        [program("docker"), "inspect", name], check=True, capture_output=True, text=True
    )
    [record] = json.loads(done.stdout)
    found: dict[str, Any] = record
    return found


def inside(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the container, as the user that the server is."""
    name = compose(folder, "ps", "--quiet", "triton")
    command = [program("docker"), "exec", name, "python3", "-c", source]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def streamed(endpoint: str, prompt: str) -> list[str]:
    with TritonClient(endpoint) as client:
        return [chunk.text for chunk in client.stream("speller", prompt)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_text_streams_out_of_a_container_without_privileges(running: Path) -> None:
    """The text comes in pieces; the server is nobody and can write nowhere but in /tmp."""
    pieces = streamed(url(running), "7342 in English:")
    assert "".join(pieces) == " seven thousand three hundred forty-two"
    assert len(pieces) > 1
    host = container(running)["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Privileged"] is False
    published = [entry["HostIp"] for ports in host["PortBindings"].values() for entry in ports]
    assert published == ["127.0.0.1"] * 3
    status = inside(running, "print(open('/proc/1/status').read())").stdout
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Uid:\t1000" in status
    for place in ("/models/new", "/new", "/opt/new", "/etc/new"):
        refused = inside(running, f"open({place!r}, 'w')")
        assert "Read-only file system" in refused.stderr, place
    assert inside(running, "open('/tmp/new', 'w')").returncode == 0


def test_the_limits_hold_and_are_not_near(running: Path, tell: Tell) -> None:
    """What 200 answers take stays well below what sizes.py allows."""
    endpoint = url(running)
    for number in range(200):
        streamed(endpoint, f"{number} in English:")
    host = container(running)["HostConfig"]
    source = (
        "import os;s=os.statvfs('/dev/shm');print((s.f_blocks-s.f_bfree)*s.f_frsize);"
        "print(sum(int(l.split()[1])*1024 for p in os.listdir('/proc') if p.isdigit() "
        "for l in open(f'/proc/{p}/status') if l.startswith('VmHWM')))"
    )
    shared, resident = map(int, inside(running, source).stdout.split())
    tell(f"shm: {shared:,} of {host['ShmSize']:,}, all: {resident:,} of {host['Memory']:,} bytes")
    assert 0 < shared < host["ShmSize"] / 2
    assert 0 < resident < host["Memory"] * 0.8
    limits = {entry["Name"]: entry["Hard"] for entry in host["Ulimits"]}
    assert limits["nofile"] > 10_000


def test_a_killed_server_comes_back_by_itself(running: Path, tell: Tell) -> None:
    """SIGKILL under a stream: the client learns it at once, the container starts again."""
    endpoint, before = url(running), container(running)["RestartCount"]
    killer = threading.Timer(1, inside, (running, KILL_SERVER))
    killer.start()
    with pytest.raises(ServerError):
        _stream_on(endpoint)
    began = time.monotonic()
    killer.join()
    wait_until(lambda: container(running)["RestartCount"] > before)
    wait_until(lambda: container(running)["State"]["Health"]["Status"] == "healthy")
    tell(f"healthy again after {time.monotonic() - began:.1f} s")
    assert "".join(streamed(url(running), "7 in English:")) == " seven"


def _stream_on(endpoint: str) -> None:
    """One stream after the other, until one breaks."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with TritonClient(endpoint) as client:
        while time.monotonic() < deadline:
            list(client.stream("speller", "7342 in English:", LONG))


def test_stop_loses_no_stream_that_was_accepted(running: Path, tell: Tell) -> None:
    """`docker compose stop` under streams: those that had begun end whole, nobody is cut off."""
    endpoint, streams, stopping = url(running), list[Stream](), threading.Event()
    # They ask again and again: a busy machine may see all of one round end before it looks. Not
    # during the stop: a server that is asked without a pause is not idle before its timeout.
    threads = [
        threading.Thread(target=_ask_again_and_again, args=(endpoint, number, streams, stopping))
        for number in range(USERS)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(stream.tokens > 0 for stream in tuple(streams)) >= USERS // 4)
    stopping.set()
    stopped_at = time.monotonic()
    compose(running, "stop")
    seconds = time.monotonic() - stopped_at
    for thread in threads:
        thread.join()
    begun = [stream for stream in streams if stream.tokens]
    under_way = [stream for stream in begun if stream.began < stopped_at < stream.ended]
    tell(f"{len(under_way)} streams under way, stopped after {seconds:.1f} s")
    assert under_way
    assert {(stream.tokens, stream.problem) for stream in begun} == {(STREAM_TOKENS, "")}
    # Those that came too late were refused as a whole.
    assert {stream.tokens for stream in streams if stream.problem} <= {0}
    state = container(running)["State"]
    assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False)


@dataclass
class Stream:
    """A stream as its user saw it. Times by `time.monotonic`."""

    began: float
    tokens: int = 0
    ended: float = 0.0
    problem: str = ""


def _ask_again_and_again(
    endpoint: str, number: int, streams: list[Stream], stopping: threading.Event
) -> None:
    with TritonClient(endpoint) as client:
        while not stopping.is_set():
            stream = Stream(time.monotonic())
            streams.append(stream)
            try:
                for chunk in client.stream("speller", f"{7000 + number} in English:", LONG):
                    stream.tokens = chunk.num_output_tokens
            except TritonctlError as error:
                stream.problem = error.problem
                return
            finally:
                stream.ended = time.monotonic()


def test_a_model_that_cannot_load_is_told_by_the_log(deployable: Path, tmp_path: Path) -> None:
    """The container ends with Triton's own reason; `up --wait` does not hang."""
    repository = tmp_path / "models" / "broken"
    (repository / "1").mkdir(parents=True)
    text = 'name: "broken"\nbackend: "python"\nmax_batch_size: 0\n'
    (repository / "config.pbtxt").write_text(text, encoding="utf-8")
    broken = "raise RuntimeError('as the test wants it')\n"
    (repository / "1" / "model.py").write_text(broken, encoding="utf-8")
    override = tmp_path / "broken.yaml"
    volume = {"type": "bind", "source": str(repository.parent), "target": "/models"}
    service = {"volumes": [{**volume, "read_only": True}], "restart": "no"}
    override.write_text(yaml.safe_dump({"services": {"triton": service}}), encoding="utf-8")
    deployment = rendered(deployable, OVERRIDE["services"])
    # A project of its own: the server that other tests ask stays as it is.
    command = [program("docker"), "compose", "--project-name", f"{deployable.name}-broken"]
    command += ["--profile", "cpu", "--file", str(deployment / "compose.yaml")]
    command += ["--file", str(deployment / "compose.override.yaml"), "--file", str(override)]
    try:
        done = subprocess.run(
            [*command, "up", "--detach", "--wait"], capture_output=True, check=False, text=True
        )
        logs = subprocess.run(
            [*command, "logs", "triton"], capture_output=True, check=True, text=True
        )
    finally:
        subprocess.run([*command, "down", "--volumes"], capture_output=True, check=True)
    assert done.returncode != 0
    assert "as the test wants it" in logs.stdout
