# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl loadtest` writes is what the generators read: both sides of the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from loadlib.arrivals import ClosedLoop, OpenLoop, TraceReplay
from loadlib.plan import parse_plan
from loadlib.plan_types import GeneratorPlan
from loadlib.workload import Workload

from tests.loadtests.conftest import LOADTESTS
from tritonctl.loadtest.run.plan import build_load_plan
from tritonctl.loadtest.run.plan_files import plan_files
from tritonctl.loadtest.run.plan_schema import plan_schema
from tritonctl.project.scenario import Scenario
from tritonctl.protocol.channel import Endpoint

FILES = {
    "prompts.txt": "one two three\nfour\n",
    "chat.jsonl": '{"messages": [{"role": "user", "content": "hello"}]}\n',
    "inputs.jsonl": '{"inputs": {"X": {"shape": [1], "datatype": "FP32", "data": [1]}}}\n',
    "lengths.txt": "3\n5\n",
    "trace.jsonl": '{"at": 0.5, "class": "chat"}\n{"at": 0.75, "max_tokens": 3}\n',
}
EVERYTHING = {
    "name": "everything",
    "weight": 2,
    "prompts": "prompts.txt",
    "order": "random",
    "max_tokens": {"uniform": [5, 20]},
    "input_tokens": {"normal": {"mean": 5, "std": 1}},
    "parameters": {"temperature": 0, "stop_words": ["x"]},
    "stream": False,
    "priority": 1,
    "cancel": {"share": 0.5, "after_ms": 20},
}
CHAT = {
    "name": "chat",
    "prompts": "chat.jsonl",
    "max_tokens": {"file": "lengths.txt"},
    "turns": {"choice": {"values": [1, 2], "weights": [1, 3]}},
    "think_seconds": {"lognormal": {"median": 1, "sigma": 0.5}},
    "cancel": {"share": 0.5, "after_tokens": 2},
}
ARRIVALS: list[dict[str, Any]] = [
    {"process": "closed", "concurrency": 2, "think_seconds": {"exponential": {"mean": 0.5}}},
    {"process": "constant", "rate": 5},
    {"process": "poisson", "rate": 5},
    {"process": "gamma", "rate": 5, "cv": 2},
    {"process": "ramp", "from": 1, "to": 9},
    {"process": "spike", "rate": 2, "peak": 20, "at_seconds": 2, "for_seconds": 1},
    {"process": "steps", "steps": [{"rate": 5, "seconds": 3}, {"rate": 0, "seconds": 1}]},
    {"process": "trace", "file": "trace.jsonl", "speed": 2},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project's folder."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def read(root: Path, scenario: dict[str, Any]) -> GeneratorPlan:
    """A scenario, written by the host and read by a generator."""
    written = build_load_plan(root, Scenario.model_validate(scenario), Endpoint("127.0.0.1:8001"))
    return parse_plan(json.loads(json.dumps(written)))


def test_the_generators_check_by_the_schema_of_the_models() -> None:
    """Their files are up to date: each fact of a plan is written once."""
    files = {name: (LOADTESTS / name).read_text(encoding="utf-8") for name in plan_files()}
    assert files == plan_files(), "run `make contracts`"


def test_every_field_is_documented() -> None:
    """The README names a plan's own fields, the page that it links those of scenarios."""
    reference = LOADTESTS.parent / "docs" / "reference" / "tritonctl-yaml.md"
    files = (LOADTESTS / "README.md", reference)
    pages = "".join(file.read_text(encoding="utf-8") for file in files)
    fields = {name for one in plan_schema()["$defs"].values() for name in one["properties"]}
    assert [name for name in sorted(fields) if not re.search(rf"\b{name}\b", pages)] == []


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=[one["process"] for one in ARRIVALS])
def test_everything_a_scenario_says(root: Path, arrivals: dict[str, Any]) -> None:
    """No field that one side knows and the other does not."""
    plan = read(root, {"model": "m", "requests": [EVERYTHING, CHAT], "arrivals": arrivals})
    everything, chat = plan.classes
    assert (everything.priority, everything.stream, everything.weight) == (1, False, 2)
    assert everything.parameters == {"temperature": 0, "stop_words": ["x"]}
    assert chat.cancel is not None
    assert (chat.cancel.share, chat.cancel.after_tokens) == (0.5, 2)
    kind = {"closed": ClosedLoop, "trace": TraceReplay}.get(arrivals["process"], OpenLoop)
    assert isinstance(plan.arrivals, kind)
    workload = Workload(plan)
    requests = list(workload.planned_requests()) or [
        next(workload.endless_requests()) for _ in range(5)
    ]
    assert {request.request_class.name for request in requests} <= {"everything", "chat"}
    assert all(turn.max_tokens for request in requests for turn in request.turns)


def test_the_least_that_a_scenario_says(root: Path) -> None:
    """Defaults mean the same on both sides."""
    scenario = {
        "model": "m",
        "kind": "tensors",
        "protocol": "http",
        "requests": [{"prompts": "inputs.jsonl"}],
        "arrivals": {"process": "poisson", "rate": 5},
        "count": 7,
    }
    plan = read(root, scenario)
    assert (plan.kind, plan.endpoint.protocol, plan.duration_seconds) == ("tensors", "http", None)
    assert len(Workload(plan).planned_requests()) == 7
