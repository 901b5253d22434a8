# SPDX-License-Identifier: Apache-2.0
"""The whole instrument against a known endpoint: generator, records, summary.

This machine may be busy, which delays answers and hides none: what is reported is never less than
what the endpoint says that it really did, and not a different order of magnitude. How close it
comes on a quiet machine is what benchmarks/loadtest shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.locust_process import read_json_lines
from tests.loadtests.mock_process import mock_endpoint, read_truth
from tritonctl.cli.console.output import Console
from tritonctl.loadtest.run.execution import LoadJob, LoadRun, run_load
from tritonctl.protocol.client import TritonClient

pytestmark = pytest.mark.server

RATE, SECONDS = 50, 10
STALL_AT, STALL_SECONDS = 6.0, 2.0
CLOCK_MS = 0.5  # percentiles of neighbouring samples, clocks read one after the other
FAR_MS = 400.0  # a busy machine's delays; a wrong unit, or a stall left out, is far beyond


def measure(engine: str, url: str, folder: Path) -> LoadRun:
    """An open loop of 500 requests."""
    prompts = folder / "prompts.txt"
    prompts.write_text("one two\n", encoding="utf-8")
    plan = {
        "schema": "tritonctl/loadplan/v1",
        "endpoint": {"protocol": "grpc", "url": url},
        "model": "mock",
        "kind": "text",
        "classes": [{"name": "short", "prompts": str(prompts)}],
        "arrivals": {"process": "constant", "rate": RATE},
        "duration_seconds": SECONDS,
        "seed": 1,
        "timeout_seconds": 60,
        "cool_down_seconds": 60,
        "started_at": None,
    }
    run = folder / "run"
    run.mkdir()
    return run_load(LoadJob(plan=plan, folder=run, engine=engine), Console(quiet=True))


def paired(run: LoadRun, truth: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Records of the window beside what the endpoint did, in the order of sending."""
    records = read_json_lines(run.folder / "records.jsonl")
    records.sort(key=lambda record: int(record["sent"]))
    served = sorted(read_truth(truth), key=lambda true: int(true["arrival"]))
    window = run.summary.window
    return [
        (record, true)
        for record, true in zip(records, served, strict=True)
        if window.from_s <= record["planned"] / 1e6 < window.to_s
    ]


@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.parametrize("engine", ["asyncio", "locust"])
def test_reported_is_what_happened_with_the_stall_in_full(engine: str, tmp_path: Path) -> None:
    """Constant times and one stall: nobody who waited for it is left out."""
    truth = tmp_path / "truth.jsonl"
    options = ["--ttft", "20", "--itl", "5", "--tokens", "4"]
    options += ["--stall", f"{STALL_AT}:{STALL_SECONDS}", "--truth", str(truth)]
    with mock_endpoint(*options) as url:
        run = measure(engine, url, tmp_path)
    pairs = paired(run, truth)
    assert run.summary.reason == "complete"
    assert run.summary.counts.ok == len(pairs) >= RATE * SECONDS // 2
    for metric, of in (("ttft", "first"), ("e2e", "last")):
        true = sorted((t[of] - t["arrival"]) / 1000 for _, t in pairs)
        told = run.summary.metrics[metric]
        assert told.n == len(true)
        assert told.max_ms >= true[-1] - CLOCK_MS
        for q in (0.5, 0.9):
            expected = true[int(q * (len(true) - 1))]
            reported = told.percentile(q)
            assert reported is not None
            assert expected - CLOCK_MS <= reported.ms <= expected + FAR_MS
    # The schedule goes on during the stall: everybody who came in its first 1.5 s waited for it.
    waited = [r for r, _ in pairs if r["end"] - r["planned"] > 500_000]
    assert len(waited) >= RATE * 1.5 - 2
    assert max(r["end"] - r["planned"] for r in waited) >= STALL_SECONDS * 1e6 - 100_000


def test_the_mock_as_a_command(tmp_path: Path) -> None:
    """`tritonctl loadtest mock` takes every option of the program and ends well."""
    truth = tmp_path / "truth.jsonl"
    options = {
        "--ttft": "exponential:2", "--itl": "1", "--tokens": "3", "--latency": "1",
        "--text-model": "a", "--tokens-per-response": "1", "--stall": "50:1", "--servers": "4",
        "--queue-size": "9", "--batch": "1:1:4", "--error-share": "0", "--tensor-model": "b",
        "--seed": "2",
        "--port": "0", "--truth": str(truth),
    }  # fmt: skip
    given = [part for pair in options.items() for part in pair]
    command = [sys.executable, "-m", "tritonctl", "loadtest", "mock", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["grpc"]
            with TritonClient(url) as client:
                assert client.generate("a", "x").num_output_tokens == 3
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert [record["outcome"] for record in read_truth(truth)] == ["ok"]


@pytest.mark.exhaustive
@pytest.mark.alone
def test_every_gap_between_tokens_is_told(tmp_path: Path) -> None:
    """ITL over all gaps, weighted by tokens: as many, and none shorter on average."""
    truth = tmp_path / "truth.jsonl"
    options = ["--ttft", "5", "--itl", "bimodal:5:50:0.2", "--tokens", "6", "--seed", "4"]
    with mock_endpoint(*options, "--truth", truth) as url:
        run = measure("asyncio", url, tmp_path)
    gaps = [
        b - a for _, t in paired(run, truth) for a, b in zip(t["at"], t["at"][1:], strict=False)
    ]
    told = run.summary.metrics["itl"]
    assert told.n == len(gaps)
    assert told.mean_ms == pytest.approx(sum(gaps) / len(gaps) / 1000, rel=0.25)
    last = json.loads((run.folder / "progress.jsonl").read_text().splitlines()[-1])
    assert last["finished"]
