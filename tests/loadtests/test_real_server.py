# SPDX-License-Identifier: Apache-2.0
"""The generator in its own environment against a real tritonserver, over both protocols."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE
from tests.loadtests.conftest import Ran, command, ran
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server
PROTOCOLS = ("grpc", "http")


@pytest.fixture(scope="session")
def python() -> Path:
    """The generators' interpreter."""
    return generator_python(Silent())


def load(python: Path, server: Server, folder: Path, protocol: str, **changes: Any) -> Ran:
    """Carry a plan out."""
    port = server.grpc_port if protocol == "grpc" else server.http_port
    plan = {
        "schema": "tritonctl/loadplan/v1",
        "endpoint": {"protocol": protocol, "url": f"{server.address}:{port}"},
        "model": "exact",
        "kind": "text",
        "arrivals": {"process": "poisson", "rate": 20},
        "count": 30,
    } | changes
    line = [str(python), *command(plan, folder)[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    return ran(done.returncode, folder, done.stdout, done.stderr)


def speller(**changes: Any) -> dict[str, Any]:
    """A class of requests to the number-speller."""
    prompts = str(EXAMPLE / "prompts.jsonl")
    return {"name": "short", "prompts": prompts, "max_tokens": 64} | changes


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text(python: Path, speller_server: Server, tmp_path: Path, protocol: str) -> None:
    """Streams, conversations and cancellations; tokens as the server counts them."""
    classes = [
        speller(parameters={"temperature": 0}),
        speller(name="whole", stream=False),
        speller(name="chat", turns=3, max_tokens=8),
        # Longer than the server gathers tokens for one response.
        speller(
            name="cut", cancel={"after_tokens": 2}, max_tokens=200, parameters={"min_tokens": 200}
        ),
    ]
    run = load(python, speller_server, tmp_path, protocol, classes=classes, count=40)
    assert (run.code, run.last["reason"], run.stderr) == (0, "complete", "")
    by_class = {
        name: [r for r in run.records if r["class"] == name]
        for name in ("short", "whole", "chat", "cut")
    }
    for record in run.records:
        assert record["planned"] <= record["sent"] <= record["at"][0] <= record["at"][-1]
        assert record["at"][-1] <= record["end"]
        assert sum(record.get("n", [1] * len(record["at"]))) == record["out"]
        assert record["in"] > 0
    assert all(r["outcome"] == "ok" for name in ("short", "whole", "chat") for r in by_class[name])
    assert any(len(r["at"]) > 1 for r in by_class["short"])
    assert all(len(r["at"]) == 1 for r in by_class["whole"])
    sessions = Counter(r["session"] for r in by_class["chat"])
    assert set(sessions.values()) == {3}
    turns = sorted((r["session"], r["turn"], r["in"]) for r in by_class["chat"])
    # Each turn sends the ones before it along.
    assert all(a[2] < b[2] for a, b in pairwise(turns) if a[0] == b[0])
    assert any(r["outcome"] == "cancelled" for r in by_class["cut"])


def test_the_same_requests_over_both(python: Path, speller_server: Server, tmp_path: Path) -> None:
    """What is asked does not depend on the protocol: greedy answers have equal lengths."""
    runs = [
        load(python, speller_server, tmp_path / protocol, protocol, classes=[speller()])
        for protocol in PROTOCOLS
    ]
    lengths = [{r["i"]: (r["planned"], r["in"], r["out"]) for r in run.records} for run in runs]
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) == 30


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors(python: Path, speller_server: Server, tmp_path: Path, protocol: str) -> None:
    """One answer each, without tokens: the tokenizer step on its own."""
    inputs = {"text_input": {"shape": [1, 1], "datatype": "BYTES", "data": ["7 in English:"]}}
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps({"inputs": inputs}) + "\n", encoding="utf-8")
    changes = {"model": "exact_tokenizer", "kind": "tensors"}
    classes = [{"name": "x", "prompts": str(path)}]
    run = load(python, speller_server, tmp_path, protocol, classes=classes, **changes)
    assert [(r["outcome"], r["at"], r["out"]) for r in run.records] == [("ok", [], None)] * 30


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refused_requests(
    python: Path, speller_server: Server, tmp_path: Path, protocol: str
) -> None:
    """Triton's own words are in the record; the run goes on."""
    classes = [speller(max_tokens=100_000)]
    run = load(python, speller_server, tmp_path, protocol, classes=classes, count=5)
    assert [r["outcome"] for r in run.records] == ["error"] * 5
    assert {r["error"]["kind"] for r in run.records} == {"INVALID_ARGUMENT"}
    assert all("max_tokens" in r["error"]["message"] for r in run.records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_model(python: Path, speller_server: Server, tmp_path: Path, protocol: str) -> None:
    """Exit 3, before anything is sent."""
    run = load(python, speller_server, tmp_path, protocol, classes=[speller()], model="nobody")
    assert (run.code, run.progress) == (3, [])
    assert "model 'nobody' is not ready" in json.loads(run.stderr)["problem"]


def test_the_other_protocol_s_port(python: Path, speller_server: Server, tmp_path: Path) -> None:
    """A gRPC plan for the HTTP port, and the other way round: said so."""
    ports = {"grpc": speller_server.http_port, "http": speller_server.grpc_port}
    for protocol, port in ports.items():
        endpoint = {"protocol": protocol, "url": f"{speller_server.address}:{port}"}
        run = load(
            python, speller_server, tmp_path, protocol, classes=[speller()], endpoint=endpoint
        )
        told = json.loads(run.stderr)
        assert run.code == 3
        assert f"it must be the {protocol} port" in told["remedy"]
