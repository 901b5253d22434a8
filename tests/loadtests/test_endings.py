# SPDX-License-Identifier: Apache-2.0
"""How a run ends that does not end by itself, and what is left of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests import endpoint as small_endpoint
from tests.loadtests.conftest import Generate, Ran, command, ran
from tests.loadtests.endpoint import Endpoint

pytestmark = pytest.mark.timed

_SECONDS = 60


@pytest.fixture
def long_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Streams of 0.6 s, one every 50 ms, for longer than any test waits."""
    plan["classes"][0] |= {"max_tokens": 3, "parameters": {"gap_ms": 200}}
    del plan["count"]
    return plan | {"arrivals": {"process": "constant", "rate": 20}, "duration_seconds": 300}


def started(plan: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    """A generator that has reported its first second."""
    process = subprocess.Popen(
        command(plan, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    assert json.loads(line)["sent"] > 0
    return process


def ended(process: subprocess.Popen[str], folder: Path) -> Ran:
    """How it ended."""
    stdout, stderr = process.communicate(timeout=_SECONDS)
    return ran(process.returncode, folder, stdout, stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_them_finish(
    number: int, long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path
) -> None:
    """Nothing more is sent; what is in flight is answered, recorded and counted."""
    process = started(long_plan, tmp_path)
    process.send_signal(number)
    run = ended(process, tmp_path)
    assert (run.code, run.last["reason"]) == (0, "interrupted")
    assert {record["outcome"] for record in run.records} == {"ok"}
    assert len(run.records) == len(endpoint.requests)
    assert run.last["unsent"] == 300 * 20 - len(run.records)


def test_a_closed_loop_is_interrupted(
    long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path
) -> None:
    """Users send nothing more; what `count` asked for beyond that is unsent."""
    del long_plan["duration_seconds"]
    think = {"process": "closed", "concurrency": 3, "think_seconds": 0.05}
    process = started(long_plan | {"arrivals": think, "count": 1000}, tmp_path)
    process.send_signal(signal.SIGINT)
    run = ended(process, tmp_path)
    assert (run.code, run.last["reason"]) == (0, "interrupted")
    assert {record["outcome"] for record in run.records} == {"ok"}
    assert run.last["unsent"] == 1000 - len(run.records)


def test_two_signals_abandon(long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """The second one cancels what is in flight; it is recorded all the same."""
    long_plan["classes"][0]["parameters"]["gap_ms"] = 20_000
    process = started(long_plan, tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # two of the same could arrive as one
    run = ended(process, tmp_path)
    assert (run.code, run.last["reason"]) == (0, "interrupted")
    assert {record["outcome"] for record in run.records} == {"abandoned"}
    assert run.last["totals"]["abandoned"] == len(run.records) > 0


def test_cool_down(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """What is not answered within it is abandoned."""
    plan["classes"][0] |= {"max_tokens": 2, "parameters": {"gap_ms": 30_000}}
    run = generate(plan | {"cool_down_seconds": 2})
    assert {record["outcome"] for record in run.records} == {"abandoned"}
    assert run.last["reason"] == "complete"


def test_timeout(
    generate: Generate, plan: dict[str, Any], endpoint: Endpoint, prompts: Path
) -> None:
    """A request's own limit; the tokens that came are kept."""
    prompts.write_text("hang\n", encoding="utf-8")
    run = generate(plan | {"timeout_seconds": 2.0, "count": 3})
    assert [record["outcome"] for record in run.records] == ["timeout"] * 3
    assert {record["error"]["kind"] for record in run.records} == {"timeout"}
    assert all(len(record["at"]) == 1 for record in run.records)
    assert all(record["end"] - record["sent"] > 1_900_000 for record in run.records)


def test_no_folder(plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """Exit 2 where the records cannot go, before anything is sent."""
    line = command(plan, tmp_path)
    (tmp_path / "file").touch()
    line[line.index("--output") + 1] = str(tmp_path / "file" / "records")
    done = subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert (done.returncode, endpoint.requests) == (2, [])
    assert "cannot create the folder" in json.loads(done.stderr)["problem"]


def test_server_down(generate: Generate, plan: dict[str, Any]) -> None:
    """Exit 3 at once, with what to do."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        plan["endpoint"]["url"] = f"127.0.0.1:{unused.getsockname()[1]}"
        run = generate(plan)
    told = json.loads(run.stderr)
    assert (run.code, run.progress, run.records) == (3, [], [])
    assert told["problem"].startswith(f"no answer from {plan['endpoint']['url']}: UNAVAILABLE")
    assert "tritonctl up" in told["remedy"]


def test_a_slow_connection(
    generate: Generate, plan: dict[str, Any], url: str, endpoint: Endpoint
) -> None:
    """TLS to a distant server, or a busy one, takes longer than gRPC's pause between attempts."""
    with slow_proxy(url, seconds=0.6) as slow:
        plan["endpoint"]["url"] = slow
        run = generate(plan)
    assert (run.code, run.last["totals"]["ok"]) == (0, 20), run.stderr


@contextmanager
def slow_proxy(url: str, seconds: float) -> Iterator[str]:
    """Another address of the same server, where a connection waits before its first byte."""
    host, _, port = url.partition(":")
    threads: list[threading.Thread] = []

    def begin(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        threads.append(threading.Thread(target=work, args=arguments))
        threads[-1].start()
        return threads[-1]

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                begin(forward, listening.accept()[0])

    def forward(client: socket.socket) -> None:
        time.sleep(seconds)
        with client, socket.create_connection((host, int(port))) as server:
            back = begin(pump, server, client)
            pump(client, server)
            back.join()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        begin(accept)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(_SECONDS)


def test_unknown_model(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """Exit 3 before anything is sent."""
    run = generate(plan | {"model": "nobody"})
    assert run.code == 3
    assert "model 'nobody' is not ready" in json.loads(run.stderr)["problem"]
    assert endpoint.requests == []


def test_server_dies(long_plan: dict[str, Any], tmp_path: Path) -> None:
    """Requests fail as connection errors; after five seconds of that the run is over."""
    port_line = (
        "from tests.loadtests.endpoint import serve\ns, p, _ = serve()\nprint(p, flush=True)"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", f"{port_line}\ns.wait_for_termination()"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(small_endpoint.__file__).parents[2],
    )
    assert server.stdout is not None
    try:
        long_plan["endpoint"]["url"] = f"127.0.0.1:{int(server.stdout.readline())}"
        process = started(long_plan, tmp_path)
        assert process.stdout is not None
        while not (told := json.loads(process.stdout.readline()))["done"]:
            assert told["failed"] == 0
    finally:
        server.kill()
        server.communicate()
    run = ended(process, tmp_path)
    assert (run.code, run.last["reason"]) == (0, "server gone")
    outcomes = [record["outcome"] for record in sorted(run.records, key=lambda r: r["planned"])]
    assert (outcomes[0], outcomes[-1]) == ("ok", "error")
    assert {r["error"]["kind"] for r in run.records if r["outcome"] == "error"} == {"connection"}
    assert run.last["unsent"] > 0


def limited(command_line: list[str], bytes_per_file: int) -> list[str]:
    """The same where files cannot grow beyond a size: a write is cut, then fails."""
    program = (
        "import os, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_per_file},) * 2)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", program, *command_line]


def test_disk_full(long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """The run ends and says so; what was written is whole lines, the figures are all there."""
    long_plan["classes"][0]["parameters"]["gap_ms"] = 5
    done = subprocess.run(
        limited(command(long_plan, tmp_path), 4000),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    run = ran(done.returncode, tmp_path, done.stdout, done.stderr)
    assert (run.code, run.last["reason"]) == (0, "disk full")
    assert "cannot write the records" in run.stderr
    assert len(run.records) > 5
    assert run.last["lost"] == len(endpoint.requests) - len(run.records) > 0
    assert run.last["totals"]["done"] == len(endpoint.requests)


def test_a_full_device(long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """Where nothing at all can be written, the last line still has the histograms."""
    (tmp_path / "records-0.jsonl").symlink_to("/dev/full")
    process = started(long_plan, tmp_path)
    stdout, _ = process.communicate(timeout=_SECONDS)
    last = json.loads(stdout.splitlines()[-1])
    assert (process.returncode, last["reason"]) == (0, "disk full")
    assert last["totals"]["done"] == last["lost"] == len(endpoint.requests)
    assert last["histograms"]["e2e"]


def test_a_full_disk_holds_the_log_too(
    long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path
) -> None:
    """Standard error is a file on the same disk: the run ends in order all the same."""
    (tmp_path / "records-0.jsonl").symlink_to("/dev/full")
    with open("/dev/full", "w", encoding="utf-8") as log:  # noqa: PTH123 - a device
        done = subprocess.run(
            command(long_plan, tmp_path),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["reason"]) == (0, "disk full")
    assert last["totals"]["done"] == last["lost"] == len(endpoint.requests)


def test_nobody_listens(long_plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """Whoever reads the progress is gone: the generator does not go on alone."""
    process = started(long_plan, tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(_SECONDS) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    assert (tmp_path / "records-0.jsonl").stat().st_size > 0
