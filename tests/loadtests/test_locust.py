# SPDX-License-Identifier: Apache-2.0
"""Locust as a load generator: the same plans, records and progress as the asyncio engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from tests.loadtests.locust_process import LOADTESTS, locust_generator, read_records, until
from tests.loadtests.mock_process import mock_endpoint, read_truth
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.environment import generator_python

pytestmark = pytest.mark.server

FAST = ("--ttft", "20", "--itl", "5", "--tokens", "4", "--latency", "5")
CLOCK_US = 1000  # two clocks that were read one after the other


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the load generators' environment."""
    return generator_python(Silent())


def write_plan(folder: Path, url: str, **fields: Any) -> Path:
    """A plan of 40 requests, 40 per second, with these fields changed."""
    prompts = folder / "prompts.txt"
    prompts.write_text("one two\nthree\nfour\n", encoding="utf-8")
    plan = {
        "schema": "tritonctl/loadplan/v1",
        "endpoint": {"protocol": "grpc", "url": url},
        "model": "mock",
        "kind": "text",
        "classes": [{"name": "short", "prompts": str(prompts)}],
        "arrivals": {"process": "poisson", "rate": 40},
        "count": 40,
        "seed": 3,
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan | fields), encoding="utf-8")
    return file


def test_the_same_schedule_and_what_the_endpoint_really_did(python: Path, tmp_path: Path) -> None:
    """Planned as by the asyncio engine; nothing is answered sooner than the endpoint answered."""
    truth, ours, theirs = tmp_path / "truth.jsonl", tmp_path / "locust", tmp_path / "asyncio"
    with mock_endpoint(*FAST, "--truth", truth) as url:
        plan = write_plan(tmp_path, url)
        with locust_generator(python, plan, ours) as process:
            assert process.end() == 0, process.log
    with mock_endpoint(*FAST) as url:
        plan = write_plan(tmp_path, url)
        generator = [sys.executable, str(LOADTESTS / "generator.py")]
        command = [*generator, "--plan", str(plan), "--output", str(theirs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    records = sorted(read_records(ours), key=lambda record: record["i"])
    planned = [(r["i"], r["class"], r["planned"]) for r in records]
    expected = sorted(read_records(theirs), key=lambda record: record["i"])
    assert planned == [(r["i"], r["class"], r["planned"]) for r in expected]
    assert all(r["outcome"] == "ok" and len(r["at"]) == r["out"] == 4 for r in records)
    assert all(r["planned"] <= r["sent"] <= r["at"][0] <= r["at"][-1] <= r["end"] for r in records)
    served = sorted(r["last"] - r["arrival"] for r in read_truth(truth))
    seen = sorted(r["end"] - r["sent"] for r in records)
    assert all(ours >= true - CLOCK_US for ours, true in zip(seen, served, strict=True))
    check_progress(process.last_lines()[0], records)


def check_progress(last: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """The histograms of the whole run hold what the records hold."""
    assert (last["reason"], last["unsent"], last["totals"]["ok"]) == ("complete", 0, 40)
    counts = {"ttft": 40, "e2e": 40, "itl": 120}
    for name, count in counts.items():
        assert HdrHistogram.decode(last["histograms"][name]).get_total_count() == count
    longest = max(record["end"] - record["planned"] for record in records)
    e2e = HdrHistogram.decode(last["histograms"]["e2e"]).get_max_value()
    assert e2e == pytest.approx(longest, rel=0.002)


def test_tensors_in_a_closed_loop(python: Path, tmp_path: Path) -> None:
    """As many users as the plan says; each waits for its answer."""
    prompts = tmp_path / "inputs.jsonl"
    tensor = {"shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    prompts.write_text(json.dumps({"inputs": {"INPUT0": tensor}}) + "\n", encoding="utf-8")
    with mock_endpoint(*FAST) as url:
        plan = write_plan(
            tmp_path,
            url,
            model="mock_tensors",
            kind="tensors",
            classes=[{"name": "pair", "prompts": str(prompts)}],
            arrivals={"process": "closed", "concurrency": 4},
        )
        with locust_generator(python, plan, tmp_path / "run") as process:
            assert process.end() == 0, process.log
    records = read_records(tmp_path / "run")
    assert sorted(record["i"] for record in records) == list(range(40))
    assert {(r["outcome"], r["out"], len(r["at"])) for r in records} == {("ok", None, 0)}
    under_way = sorted([(r["sent"], 1) for r in records] + [(r["end"], -1) for r in records])
    level, highest = 0, 0
    for _, change in under_way:
        level += change
        highest = max(highest, level)
    assert 1 < highest <= 4


def test_a_full_disk_ends_the_run(python: Path, tmp_path: Path) -> None:
    """Locust writes what its generator sends: exit code 0, and the last line says why."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "records-0.jsonl").symlink_to("/dev/full")
    with mock_endpoint(*FAST) as url:
        plan = write_plan(tmp_path, url, count=100_000)
        with locust_generator(python, plan, full) as process:
            assert process.end() == 0, process.log
    last = process.last_lines()[0]
    assert last["reason"] == "disk full"
    assert last["lost"] == last["totals"]["done"] > 0


@pytest.mark.parametrize(("times", "outcome"), [(1, "ok"), (2, "abandoned")])
def test_interrupted(times: int, outcome: str, python: Path, tmp_path: Path) -> None:
    """Once: what is in flight finishes. Twice: it is abandoned. Everything is written."""
    ttft = {1: "3000", 2: "600000"}[times]
    with mock_endpoint("--ttft", ttft, "--tokens", "1") as url:
        plan = write_plan(tmp_path, url, count=100_000, cool_down_seconds=300)
        with locust_generator(python, plan, tmp_path / "run") as process:
            until(process.seconds_seen, "the first second")
            process.signal(signal.SIGINT)
            if times == 2:
                seen = len(process.seconds_seen())
                until(lambda: len(process.seconds_seen()) > seen, "a second of waiting")
                process.signal(signal.SIGINT)
            assert process.end() == 0, process.log
    last = process.last_lines()[0]
    records = read_records(tmp_path / "run")
    assert last["reason"] == "interrupted"
    assert last["totals"]["sent"] == len(records) == 100_000 - last["unsent"]
    assert {record["outcome"] for record in records} == {outcome}


def test_refusals(python: Path, tmp_path: Path) -> None:
    """2 for the plan, 3 for the endpoint and the model; a line of JSON says what to do."""
    plans = {"plan": {"kind": "pictures"}, "endpoint": {}, "model": {"model": "other"}}
    told = {}
    with mock_endpoint(*FAST) as url:
        for name, fields in plans.items():
            folder = tmp_path / name
            folder.mkdir()
            plan = write_plan(folder, "127.0.0.1:9" if name == "endpoint" else url, **fields)
            with locust_generator(python, plan, folder) as process:
                code = process.end()
            [line] = [line for line in process.log.splitlines() if line.startswith("{")]
            told[name] = (code, json.loads(line)["problem"])
            assert process.progress == []
    assert {name: code for name, (code, _) in told.items()} == {
        "plan": 2,
        "endpoint": 3,
        "model": 3,
    }
    assert "pictures" in told["plan"][1]
    assert "other" in told["model"][1]


def test_three_digits(python: Path) -> None:
    """Locust's own rounding would make 147 of neither 147.3 nor 147.9."""
    code = (
        "import locust, json; from locust import stats\n"
        "from loadlib.locust_stats import use_hdr_buckets; use_hdr_buckets()\n"
        "entry = stats.RequestStats().get('a', 'b')\n"
        "for value in (147.31, 147.94, 3432.1): entry.log(value, 0)\n"
        "print(json.dumps(sorted(entry.response_times)))"
    )
    done = subprocess.run([python, "-c", code], cwd=LOADTESTS, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found == [pytest.approx(value, rel=0.001) for value in (147.31, 147.94, 3432.1)]
