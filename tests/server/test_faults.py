# SPDX-License-Identifier: Apache-2.0
"""Faults under a running server: what clients see, for how long, what is left.

docs/explanation/failure-behaviour.md has a table of them.

Figures are printed (`pytest -rP`); what is asserted holds on a busy machine, too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest

from tests.server.test_lifecycle import up
from tests.servers import Handle, server_pid, wait_until
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.supervision.progress import FROZEN_SECONDS
from tritonctl.supervision.supervisor import child_processes, server_leftovers, server_processes

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
PROMPT = "777777 in English:"
LONG = SamplingParameters(max_tokens=200, end_id=-1)
SHORT = SamplingParameters(max_tokens=40, end_id=-1)
# A stream that hangs, hangs until its client gives up: this is far from both.
SOON_SECONDS = 60.0
STEP_SECONDS = 0.05  # amid an answer
ANSWER = " seven hundred seventy-seven thousand seven hundred seventy-seven"


def text_of(url: str, sampling: SamplingParameters) -> str:
    """The answer of a server that nothing happens to."""
    with TritonClient(url) as client:
        return client.generate("int8", PROMPT, sampling).text


def stub_of(state: EmbeddedServer, model: str) -> int:
    """The process of a Python model."""
    for pid in server_processes(state.shm_prefix):
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(b"stub") and f"/{model}/".encode() in b" ".join(arguments):
                return pid
    raise AssertionError(f"{model} has no stub")


class Stream(threading.Thread):
    """One answer, and how it ended."""

    def __init__(self, url: str, resume_on: str | None) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._resume_on = resume_on
        self.begun = threading.Event()
        self.text = ""
        self.counts: list[tuple[int, int]] = []  # of each chunk: its ids, all ids so far
        self.resumes = 0
        self.error: TritonctlError | None = None
        self.ended = 0.0

    def run(self) -> None:
        """Read it."""
        with TritonClient(self._url, resume_on=self._resume_on or ()) as client:
            try:
                for chunk in client.stream("int8", PROMPT, LONG, timeout=150):
                    self.text += chunk.text
                    self.counts.append((len(chunk.token_ids), chunk.num_output_tokens))
                    self.resumes = chunk.resumes
                    self.begun.set()
            except TritonctlError as error:
                self.error = error
        self.ended = time.monotonic()

    @property
    def whole(self) -> bool:
        """Every id once. (What a quantised engine rambles after its answer depends on who else is
        in the batch: exact texts across a resume are test_resume.py's.)"""
        ids = list(accumulate(count for count, _ in self.counts))
        return ids == [total for _, total in self.counts] and ids[-1:] == [LONG.max_tokens]


@pytest.mark.parametrize(
    "step", [pytest.param("tokenizer", marks=pytest.mark.exhaustive), "engine", "detokenizer"]
)
def test_a_stub_is_killed_under_streams(cli: Cli, pair: list[Handle], step: str) -> None:
    """All streams know soon; those with a second server lose and repeat nothing; `up` starts anew.

    Triton by itself would stay "ready", and the streams would hang until their clients give up.
    """
    server, other = pair
    state = server.state
    server.pace(STEP_SECONDS)
    elsewhere = [other.url, None] * 4
    streams = [Stream(state.grpc_url, resume_on) for resume_on in elsewhere]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(SOON_SECONDS)
    os.kill(stub_of(state, f"int8_{step}"), signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: not is_running(state), "the server ends")
    gone = time.monotonic() - killed
    for stream in streams:
        stream.join(SOON_SECONDS)
        assert not stream.is_alive(), "it hangs"
    for stream, resume_on in zip(streams, elsewhere, strict=True):
        assert ANSWER.startswith(stream.text) or stream.text.startswith(ANSWER)
        if resume_on:
            assert stream.error is None
            assert stream.whole
        elif stream.error is not None:
            assert stream.error.exit_code == 7
    told = [s.ended - killed for s in streams if s.error is not None]
    print(  # noqa: T201 - for -rP
        f"{step}: server ended after {gone:.2f} s, {len(told)} clients told after "
        f"{min(told, default=0):.2f} to {max(told, default=0):.2f} s, "
        f"{sum(s.resumes for s in streams)} of 4 went on elsewhere"
    )
    root = server.project.root
    assert server_leftovers(state.shm_prefix) == []
    assert "a stub process of a Python model was killed" in cli("logs", cwd=root).stdout
    assert cli("status", cwd=root).returncode == 7
    server.pace(0)
    assert text_of(up(cli, server.project).grpc_url, SHORT)


def test_the_supervisor_is_killed_under_streams(cli: Cli, pair: list[Handle]) -> None:
    """Its guard ends the server: streams go on elsewhere or are told, new requests are refused."""
    server, other = pair
    server.spent = True
    state = server.state
    server.pace(STEP_SECONDS)
    elsewhere = [other.url, None] * 2
    streams = [Stream(state.grpc_url, resume_on) for resume_on in elsewhere]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(SOON_SECONDS)
    os.kill(state.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(ServerError):
        text_of(state.grpc_url, SHORT)
    refused = time.monotonic() - killed
    for stream, resume_on in zip(streams, elsewhere, strict=True):
        stream.join(SOON_SECONDS)
        assert not stream.is_alive(), "it hangs"
        assert stream.whole if resume_on else isinstance(stream.error, ServerError)
    told = max(stream.ended - killed for stream in streams if stream.error)
    wait_until(lambda: not server_leftovers(state.shm_prefix), "nothing is left")
    print(  # noqa: T201 - for -rP
        f"new request refused after {refused:.2f} s, streams told after {told:.2f} s"
    )
    root = server.project.root
    reason = "its supervisor died: signal 9 (SIGKILL)"
    wait_until(lambda: reason in cli("status", cwd=root).stderr, "status says why")
    assert f"tritonserver was ended: {reason}" in cli("logs", cwd=root).stdout
    server.pace(0)
    assert text_of(up(cli, server.project).grpc_url, SHORT)


def engine_of(state: EmbeddedServer) -> int:
    """The process of the engine, which its stub has started."""
    children = child_processes(stub_of(state, "int8_engine"))
    return next(p for p in children if b"openvinolib" in Path(f"/proc/{p}/cmdline").read_bytes())


@pytest.mark.parametrize("process", [engine_of, partial(stub_of, model="int8_tokenizer")])
def test_a_frozen_process_is_not_ready_until_it_goes_on(
    cli: Cli, life: Handle, process: Callable[[EmbeddedServer], int]
) -> None:
    """SIGSTOP: Triton still calls every model ready, `status` does not. A busy engine is ready."""
    root = life.project.root
    life.pace(1.0)
    with TritonClient(life.url) as client:
        chunks = client.stream("int8", PROMPT, LONG)
        next(chunks)
        time.sleep(2 * FROZEN_SECONDS)
        assert cli("status", cwd=root).returncode == 0
    life.pace(0)
    pid = process(life.state)
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        wait_until(lambda: cli("status", cwd=root).returncode == 7, "it is not ready")
        print(f"not ready after {time.monotonic() - stopped:.1f} s")  # noqa: T201 - for -rP
        assert "FROZEN" in cli("status", cwd=root).stdout
        assert check_health(life.state).ready  # what Triton says
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: cli("status", cwd=root).returncode == 0, "it is ready again")
    assert text_of(life.url, SHORT)
    log = cli("logs", cwd=root).stdout
    assert "no progress for 5 s" in log
    assert "every model makes progress again" in log


def begun_streams(server: Handle, count: int) -> list[Stream]:
    """Streams of a slow engine that have their first tokens."""
    server.pace(STEP_SECONDS)
    streams = [Stream(server.url, None) for _ in range(count)]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(SOON_SECONDS)
    return streams


def test_a_step_that_throws_ends_its_streams_alone(cli: Cli, life: Handle) -> None:
    """OpenVINO's pipeline is of no use afterwards: the engine has another one, in its process."""
    before = text_of(life.url, SHORT)
    processes = set(life.processes())
    streams = begun_streams(life, 3)
    life.pace(0, broken_steps=1)
    for stream in streams:
        stream.join(SOON_SECONDS)
        assert not stream.is_alive(), "it hangs"
        assert stream.error is not None
        assert "the engine failed while generating" in str(stream.error)
    assert text_of(life.url, SHORT) == before
    assert set(life.processes()) == processes
    assert "the pipeline was reloaded" in cli("logs", cwd=life.project.root).stdout


@pytest.mark.exhaustive
def test_an_engine_whose_steps_keep_throwing_ends_its_server(cli: Cli, life: Handle) -> None:
    """So that its supervisor starts it again: one that refuses everything would stay "ready"."""
    life.pace(0, broken_steps=100)
    for _ in range(3):
        with contextlib.suppress(TritonctlError):
            text_of(life.url, SHORT)
    life.wait_until_gone()
    assert server_leftovers(life.state.shm_prefix) == []
    said = cli("logs", cwd=life.project.root).stdout
    assert "3 steps in a row failed: the engine's process ends" in said
    life.pace(0)
    assert text_of(up(cli, life.project).grpc_url, SHORT)


def test_the_repository_is_replaced_and_removed_under_a_running_server(
    cli: Cli, life: Handle
) -> None:
    """Loaded is loaded: answers stay the same, even without a single file; `down` works.

    Only `status` cannot tell any more: Triton has nothing to list.
    """
    project, state = life.project, life.state
    expected = text_of(state.grpc_url, SHORT)
    repository = Path(state.repository)
    for file in [*repository.rglob("model.py"), *repository.rglob("config.pbtxt")]:
        file.unlink()
        file.write_text("nonsense")
    assert text_of(state.grpc_url, SHORT) == expected
    shutil.rmtree(repository)
    assert text_of(state.grpc_url, SHORT) == expected
    assert cli("status", cwd=project.root).returncode == 7
    assert cli("down", cwd=project.root).returncode == 0
    assert server_leftovers(state.shm_prefix) == []
    assert text_of(up(cli, project).grpc_url, SHORT) == expected  # rendered anew


def test_an_engine_file_is_cut_short_in_place(cli: Cli, small_project: Project) -> None:
    """Weights are mapped: the stub dies of SIGBUS, clients are told, and `up` sees the damage."""
    state = up(cli, small_project)
    weights = max(Path(state.repository).rglob("*.bin"), key=lambda file: file.stat().st_size)
    with weights.open("r+b") as file:
        file.truncate(1000)
    began = time.monotonic()

    def ask_until_the_end() -> None:  # the first answer may live on what is in caches
        while time.monotonic() - began < SOON_SECONDS:
            text_of(state.grpc_url, SHORT)

    with pytest.raises(ServerError):
        ask_until_the_end()
    wait_until(lambda: not is_running(state), "the server ends")
    print(f"ended {time.monotonic() - began:.2f} s after the file was cut")  # noqa: T201
    assert server_leftovers(state.shm_prefix) == []
    again = cli("up", cwd=small_project.root)
    assert again.returncode != 0
    assert weights.name in again.stderr


IDLE = """
import resource, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
sockets = []
for _ in range(count):
    sockets.append(socket.create_connection(("127.0.0.1", port), timeout=60))
    sockets[-1].sendall(preface)
print(sum(s.recv(9)[3:4] == bytes([4]) for s in sockets), flush=True)  # HTTP/2 SETTINGS
sys.stdin.read()
"""
CONNECTIONS = 10_000
SPARE = 500


def memory(pid: int) -> int:
    """Bytes resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def open_files(pid: int) -> int:
    """Sockets among them."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def answers(url: str, expected: str, clients: int = 4) -> list[float]:
    """TTFT in milliseconds of some clients with five requests each, all answered right."""
    times: list[float] = []

    def run() -> None:
        with TritonClient(url) as client:
            for _ in range(5):
                generation = client.generate("int8", PROMPT, SHORT)
                assert generation.text == expected
                times.append(generation.timing.ttft_ms or 0.0)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == clients * 5
    return sorted(times)


@pytest.mark.exhaustive
@pytest.mark.alone
def test_ten_thousand_idle_connections(life: Handle) -> None:
    """Everybody is let in, others are answered as before, and closed ones leave nothing open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + SPARE:
        pytest.skip(f"a process may have {hard} open files here, {CONNECTIONS + SPARE} are needed")
    state = life.state
    pid = server_pid(state)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    expected = text_of(state.grpc_url, SHORT)
    before, ttft = memory(pid), answers(state.grpc_url, expected)
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, str(state.grpc_port), str(CONNECTIONS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as idle:
        assert idle.stdout is not None
        assert idle.stdout.readline() == f"{CONNECTIONS}\n"
        during, ttft_during = memory(pid), answers(state.grpc_url, expected)
        assert open_files(pid) > CONNECTIONS
        idle.communicate("")
    each = (during - before) / CONNECTIONS
    print(  # noqa: T201 - for -rP
        f"{each / 1024:.1f} KiB each, TTFT p50 {ttft[10]:.0f} ms before, {ttft_during[10]:.0f} ms "
        f"during, worst {ttft[-1]:.0f} and {ttft_during[-1]:.0f} ms"
    )
    assert each < 64 * 1024
    wait_until(lambda: open_files(pid) < CONNECTIONS // 10, "closed connections are forgotten")
    answers(state.grpc_url, expected)


class Reader:
    """Between clients and the server; once stopped it reads nothing more of what the server says.

    The server then sees what it would see of a client that hangs: a TCP window that closes.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket()
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                # Above half the window, a segment would wait for the sender's probes: minutes.
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
                server.connect(("127.0.0.1", self._target))
                self._connections += [client, server]
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while not (answers and self._stopped.is_set()):
                data = source.recv(512)
                if not data:
                    return
                sink.sendall(data)

    def stop_reading(self) -> None:
        """From now on; connections stay open."""
        self._stopped.set()

    def close(self) -> None:
        """Hang up."""
        for connection in (self._listener, *self._connections):
            connection.close()


@contextlib.contextmanager
def that_never_read(state: EmbeddedServer, count: int) -> Iterator[None]:
    """Clients with a long stream that they stop reading after its first token."""
    reader = Reader(state.grpc_port)
    clients = [TritonClient(f"127.0.0.1:{reader.port}") for _ in range(count)]
    streams = [client.stream("int8", PROMPT, LONG) for client in clients]
    for stream in streams:
        next(stream)
    reader.stop_reading()
    try:
        yield
    finally:
        reader.close()
        for client in clients:
            client.close()


def test_clients_that_never_read(cli: Cli, life: Handle) -> None:
    """Sixteen beside four that do: their slots become free, nobody else notices, nothing stays."""
    state = life.state
    pid = server_pid(state)
    expected = text_of(state.grpc_url, SHORT)
    before, ttft = memory(pid), answers(state.grpc_url, expected)
    opened = open_files(pid)
    began = time.monotonic()
    with that_never_read(state, 16):
        ttft_during = answers(state.grpc_url, expected)

        def slots() -> float:
            return scrape(state.metrics_url).total("tritonctl_active_streams")

        wait_until(lambda: slots() == 0, "their slots are free")
        print(  # noqa: T201 - for -rP
            f"slots free after {time.monotonic() - began:.1f} s, "
            f"{(memory(pid) - before) >> 20} MiB more, "
            f"TTFT p50 {ttft[10]:.0f} ms before, {ttft_during[10]:.0f} ms beside them"
        )
        assert memory(pid) - before < 2**28
        answers(state.grpc_url, expected)
    wait_until(lambda: open_files(pid) < opened + 16, "their connections are forgotten")
    assert cli("down", cwd=life.project.root).returncode == 0
    assert server_leftovers(state.shm_prefix) == []
