# SPDX-License-Identifier: Apache-2.0
"""The generator as a process, against an endpoint that speaks Triton's gRPC."""

from __future__ import annotations

import json
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from tests.loadtests.conftest import Generate, command, ran
from tests.loadtests.endpoint import Endpoint

pytestmark = pytest.mark.timed


def test_text(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """Every request with its times in order, and what was planned."""
    run = generate(plan)
    assert (run.code, len(run.records), len(endpoint.requests)) == (0, 20, 20)
    for record in run.records:
        assert record["planned"] == record["i"] * 25_000
        assert record["planned"] <= record["sent"] <= record["at"][0]
        assert record["at"] == sorted(record["at"])
        assert record["at"][-1] <= record["end"]
        assert (record["outcome"], record["in"], record["out"]) == ("ok", 7, 4)
        assert (record["class"], record["session"], record["turn"]) == ("short", None, None)
        assert sum(record.get("n", [1] * len(record["at"]))) == 4


def test_the_last_line(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """Totals and histograms of the whole run are those of the records."""
    run = generate(plan)
    assert (run.last["reason"], run.last["unsent"]) == ("complete", 0)
    totals = run.last["totals"]
    assert (totals["sent"], totals["ok"], totals["tokens"]) == (20, 20, 80)
    e2e = HdrHistogram.decode(run.last["histograms"]["e2e"].encode())
    assert e2e.get_total_count() == 20
    longest = max(record["end"] - record["planned"] for record in run.records)
    assert abs(e2e.get_max_value() - longest) <= longest * 0.002
    assert HdrHistogram.decode(run.last["histograms"]["itl"].encode()).get_total_count() == 60


def test_closed_loop(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """Two users never have more than two requests under way."""
    plan["arrivals"] = {"process": "closed", "concurrency": 2}
    run = generate(plan)
    assert sorted(record["i"] for record in run.records) == list(range(20))
    for record in run.records:
        others = [r for r in run.records if r["sent"] <= record["sent"] < r["end"]]
        assert len(others) <= 2


def test_a_duration_ends_a_closed_loop(
    generate: Generate, plan: dict[str, Any], endpoint: Endpoint
) -> None:
    """Nobody sends after it; who is waiting then is answered."""
    plan["arrivals"] = {"process": "closed", "concurrency": 4, "think_seconds": 0.01}
    run = generate(plan | {"count": None, "duration_seconds": 1.0})
    assert (run.last["reason"], run.last["unsent"]) == ("complete", 0)
    assert len(run.records) > 4  # somebody asked twice
    assert all(record["planned"] < 1_200_000 for record in run.records)
    assert {record["outcome"] for record in run.records} == {"ok"}


def test_two_workers(plan: dict[str, Any], endpoint: Endpoint, tmp_path: Path) -> None:
    """Each sends its part, at times of one clock."""
    plan |= {"started_at": time.time() + 3, "arrivals": {"process": "poisson", "rate": 40}}
    processes = [
        subprocess.Popen(
            command(plan, tmp_path, worker, 2),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(2)
    ]
    told = [process.communicate(timeout=60) for process in processes]
    runs = [ran(0, tmp_path, *told[worker], worker) for worker in range(2)]
    records = [record for run in runs for record in run.records]
    assert [len(run.records) for run in runs] == [10, 10]
    assert [record["worker"] for record in runs[1].records] == [1] * 10
    in_order = sorted(records, key=lambda record: record["i"])
    assert [record["i"] for record in in_order] == list(range(20))
    assert in_order == sorted(records, key=lambda record: record["planned"])
    assert all(record["sent"] >= record["planned"] for record in records)


def test_conversations(generate: Generate, plan: dict[str, Any], endpoint: Endpoint) -> None:
    """Each turn sends all messages and answers before it along."""
    plan["classes"][0] |= {"turns": 3, "max_tokens": 2, "think_seconds": 0.05}
    run = generate(plan | {"count": 4})
    assert sorted((r["i"], r["turn"]) for r in run.records) == [
        (i, turn) for i in range(4) for turn in range(3)
    ]
    by_turn = sorted(run.records, key=lambda record: (record["i"], record["turn"]))
    for before, after in pairwise(by_turn):
        if before["i"] == after["i"]:
            assert after["planned"] >= before["end"] + 45_000
    asked = [json.loads(messages(request)) for request in endpoint.requests]
    longest = max(asked, key=len)
    assert [message["role"] for message in longest] == ["user", "assistant"] * 2 + ["user"]
    assert longest[1]["content"] == "a a "
    assert run.last["totals"]["planned"] == run.last["totals"]["sent"] == 12


def messages(request: Any) -> bytes:
    """The content of that tensor."""
    names = [tensor.name for tensor in request.inputs]
    content: bytes = request.raw_input_contents[names.index("messages")]
    return content[4:]


@pytest.mark.parametrize("when", [{"after_tokens": 2}, {"after_ms": 250}])
def test_cancelled(
    generate: Generate, plan: dict[str, Any], endpoint: Endpoint, when: dict[str, int]
) -> None:
    """On purpose: no failure, and no longer than was asked for."""
    plan["classes"][0] |= {"cancel": when, "max_tokens": 50, "parameters": {"gap_ms": 100}}
    run = generate(plan | {"count": 5})
    assert [record["outcome"] for record in run.records] == ["cancelled"] * 5
    assert all(record["out"] < 50 for record in run.records)
    assert run.last["totals"]["failed"] == 0
    if "after_tokens" in when:
        assert {record["out"] for record in run.records} == {2}
    else:
        assert all(record["end"] - record["sent"] >= 250_000 for record in run.records)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [({"model": "refuse"}, "UNAVAILABLE", "Exceeds maximum queue size"), ({}, None, "broke")],
)
def test_errors(
    generate: Generate,
    plan: dict[str, Any],
    endpoint: Endpoint,
    prompts: Path,
    changes: dict[str, Any],
    kind: str | None,
    words: str,
) -> None:
    """Kind and Triton's words; tokens before the error are kept; the run goes on."""
    prompts.write_text("fail\n", encoding="utf-8")
    run = generate(plan | {"count": 5} | changes)
    assert (run.code, run.last["reason"]) == (0, "complete")
    assert [record["outcome"] for record in run.records] == ["error"] * 5
    assert all(words in record["error"]["message"] for record in run.records)
    assert all(record["error"]["kind"] == kind for record in run.records if kind)
    assert {record["out"] for record in run.records} == {0 if kind else 1}
    assert run.last["totals"]["failed"] == 5


def test_a_stall_delays_nobody(
    generate: Generate, plan: dict[str, Any], endpoint: Endpoint
) -> None:
    """Requests go on leaving although nobody is answered before the last one has come."""
    endpoint.together = 20
    run = generate(plan)
    assert {record["outcome"] for record in run.records} == {"ok"}
    first = min(record["at"][0] for record in run.records)
    assert all(record["sent"] < first for record in run.records)
