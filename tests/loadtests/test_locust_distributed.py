# SPDX-License-Identifier: Apache-2.0
"""Plain `locust -f`: several workers under a master, and the web UI."""

from __future__ import annotations

import json
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from tests.loadtests.locust_process import Process, locust, read_records, until
from tests.loadtests.mock_process import mock_endpoint
from tests.loadtests.test_locust import FAST, write_plan
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.runtimes.ports import reserved_ports

pytestmark = pytest.mark.server

# The cool-down of a plan from options, and ten seconds.
PATIENCE_OF_THE_MASTER = 60.0


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the load generators' environment."""
    return generator_python(Silent())


@contextmanager
def distributed(python: Path, plan: Path, folder: Path) -> Iterator[tuple[Process, list[Process]]]:
    """A headless master, and two workers that it waits for."""
    with ExitStack() as stack:
        start = stack.enter_context
        (number,) = start(reserved_ports("127.0.0.1", {"master": 0}))
        port = str(number)
        master = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        master += ["--headless", "--only-summary", "--expect-workers", "2"]
        master += ["--plan", str(plan), "--output", str(folder)]
        workers = [
            start(locust(python, ["--worker", "--master-port", port], folder / f"w{number}"))
            for number in range(2)
        ]
        yield start(locust(python, master, folder)), workers


def test_the_schedule_is_split_and_everything_comes_together(python: Path, tmp_path: Path) -> None:
    """Each worker sends every other request; records and histograms meet at the master."""
    folder = tmp_path / "run"
    with mock_endpoint(*FAST) as url:
        plan = write_plan(tmp_path, url)
        with distributed(python, plan, folder) as (master, workers):
            assert master.end() == 0, master.log
            assert [worker.end() for worker in workers] == [0, 0]
    for worker in range(2):
        indices = sorted(record["i"] for record in read_records(folder, worker))
        assert indices == list(range(worker, 40, 2))
    ends = master.last_lines()
    assert {number: end["reason"] for number, end in ends.items()} == {0: "complete", 1: "complete"}
    counts = [
        HdrHistogram.decode(end["histograms"]["itl"]).get_total_count() for end in ends.values()
    ]
    assert sum(counts) == 120
    [row] = [line for line in master.log.splitlines() if " itl " in line]
    assert "120" in row.split()


@pytest.mark.exhaustive
def test_a_lost_worker_is_told_and_the_run_is_not_valid(python: Path, tmp_path: Path) -> None:
    """What it had told is kept, the other one goes on; it never has a last line."""
    folder = tmp_path / "run"
    with mock_endpoint(*FAST) as url:
        arrivals = {"process": "constant", "rate": 20}
        plan = write_plan(tmp_path, url, arrivals=arrivals, count=300)
        with distributed(python, plan, folder) as (master, workers):
            until(lambda: {line["worker"] for line in master.progress} == {0, 1}, "both workers")
            workers[0].signal(signal.SIGKILL)
            assert master.end() == 1, master.log
            assert workers[1].end() == 0
    assert "was lost" in master.log
    assert "not valid" in master.log
    [(kept, last)] = master.last_lines().items()
    assert last["totals"]["ok"] == len(read_records(folder, kept)) == 150
    assert 0 < len(read_records(folder, 1 - kept)) < 150


def test_an_interrupted_master_lets_its_workers_finish(python: Path, tmp_path: Path) -> None:
    """SIGINT: nothing more is sent, what is in flight is answered and written."""
    folder = tmp_path / "run"
    with mock_endpoint("--ttft", "2000", "--tokens", "1") as url:
        plan = write_plan(tmp_path, url, count=100_000)
        with distributed(python, plan, folder) as (master, workers):
            until(lambda: {line["worker"] for line in master.progress} == {0, 1}, "both workers")
            master.signal(signal.SIGINT)
            assert master.end() == 0, master.log
            assert [worker.end() for worker in workers] == [0, 0]
    for worker, last in master.last_lines().items():
        records = read_records(folder, worker)
        assert last["reason"] == "interrupted"
        assert last["totals"]["sent"] == len(records)
        assert {record["outcome"] for record in records} == {"ok"}


def test_a_refusal_by_a_worker_ends_the_run(python: Path, tmp_path: Path) -> None:
    """Exit code and line of JSON are those of a generator, at the master."""
    folder = tmp_path / "run"
    with mock_endpoint(*FAST) as url:
        plan = write_plan(tmp_path, url, model="nobody")
        with distributed(python, plan, folder) as (master, workers):
            assert master.end() == 3, master.log
            assert [worker.end() for worker in workers] == [0, 0]
    [line] = [line for line in master.log.splitlines() if line.startswith("{")]
    assert "nobody" in json.loads(line)["problem"]
    assert master.progress == []


def ask(url: str, form: dict[str, Any] | None = None) -> str:
    """A page, or "" while nobody answers."""
    data = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(url, data, timeout=60) as answer:  # noqa: S310 - our own
            return str(answer.read().decode())
    except OSError:
        return ""


def test_the_web_ui_without_a_plan(python: Path, tmp_path: Path) -> None:
    """Started from a form; statistics with TTFT and ITL of their own; SIGTERM ends it cleanly."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n", encoding="utf-8")
    with mock_endpoint(*FAST) as url, reserved_ports("127.0.0.1", {"web": 0}) as (port,):
        page = f"http://127.0.0.1:{port}"
        arguments = ["--host", url, "--model", "mock", "--prompts", str(prompts), "--rate", "20"]
        arguments += ["--web-host", "127.0.0.1", "--web-port", str(port)]
        with locust(python, arguments, tmp_path / "ui") as process:
            assert "Locust" in until(lambda: ask(page), "the web UI")
            form = {"user_count": 1, "spawn_rate": 1, "host": url, "rate": "30"}
            assert json.loads(ask(f"{page}/swarm", form))["success"]
            stats = until(lambda: with_three_rows(ask(f"{page}/stats/requests")), "statistics")
            assert json.loads(ask(f"{page}/stop", {"now": 1}))["success"]
            until(lambda: json.loads(ask(f"{page}/stats/requests"))["state"] == "stopped", "end")
            # A second run in the same process starts from nothing.
            assert json.loads(ask(f"{page}/swarm", form))["success"]
            until(lambda: with_three_rows(ask(f"{page}/stats/requests")), "new statistics")
            began = time.monotonic()
            process.signal(signal.SIGTERM)
            assert process.end() == 0, process.log
            # Also when its generator was still being started: those may be the first run's rows.
            assert time.monotonic() - began < PATIENCE_OF_THE_MASTER
    rows = {row["method"]: row for row in stats["stats"]}
    assert rows["stream"]["num_failures"] == 0
    # The total is of requests alone: neither TTFT nor ITL counts as one.
    assert rows[""]["num_requests"] == rows["stream"]["num_requests"]


def with_three_rows(content: str) -> dict[str, Any] | None:
    """Locust's statistics, once something of each kind is there."""
    stats: dict[str, Any] = json.loads(content or "{}")
    kinds = {row["method"] for row in stats.get("stats", ()) if row["num_requests"]}
    return stats if {"TTFT", "ITL", "stream"} <= kinds else None
