# SPDX-License-Identifier: Apache-2.0
"""Locust against a real Triton: HTTP streams, HTTP in one piece, and gRPC, the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.locust_process import locust_generator, read_records
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.server.state import Server

pytestmark = pytest.mark.server

NUMBERS = (7342, 15, 999, 4021)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_streams_of_a_real_server(protocol: str, speller_server: Server, tmp_path: Path) -> None:
    """As many tokens by either protocol; a class that does not stream has one response."""
    records = measure(protocol, speller_server, tmp_path)
    assert {record["outcome"] for record in records} == {"ok"}
    streamed = [record for record in records if record["class"] == "streamed"]
    whole = [record for record in records if record["class"] == "whole"]
    assert len(streamed) > 0
    assert all(len(record["at"]) > 1 for record in streamed)
    assert all(len(record["at"]) == 1 for record in whole)
    assert all(record["out"] >= 3 for record in records)
    assert all(record["in"] >= 3 for record in records)


def measure(protocol: str, server: Server, folder: Path) -> list[dict[str, Any]]:
    """Twenty requests of two classes."""
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps({"text_input": f"{number} in English:"}) for number in NUMBERS]
    prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    port = server.http_port if protocol == "http" else server.grpc_port
    one = {"prompts": str(prompts), "order": "sequential"}
    plan = {
        "schema": "tritonctl/loadplan/v1",
        "endpoint": {"protocol": protocol, "url": f"{server.address}:{port}"},
        "model": "exact",
        "kind": "text",
        "classes": [{"name": "streamed", **one}, {"name": "whole", "stream": False, **one}],
        "arrivals": {"process": "poisson", "rate": 10},
        "count": 20,
        "seed": 1,
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    with locust_generator(generator_python(Silent()), file, folder / "run") as process:
        assert process.end() == 0, process.log
    return read_records(folder / "run")
