# SPDX-License-Identifier: Apache-2.0
"""Scenario and command line → load plan, read back by the generator's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tritonctl.errors import UsageError
from tritonctl.host import bundled
from tritonctl.loadtest.analysis.summary import P99_REQUESTS
from tritonctl.loadtest.run.plan import (
    Overrides,
    build_load_plan,
    describe_load,
    effective_slo,
    expected_seconds,
    scenarios,
    select_scenario,
)
from tritonctl.project.base import Slo
from tritonctl.project.scenario import Closed, Gamma, Poisson, Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint

REQUEST = {"prompts": "prompts.txt", "max_tokens": 8, "parameters": {"temperature": 1.0}}
SCENARIO: dict[str, Any] = {
    "model": "speller",
    "requests": [REQUEST],
    "arrivals": {"process": "poisson", "rate": 20.0},
    "duration_seconds": 30,
}


def _scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate(SCENARIO | changes)


def _project(root: Path, **sections: Any) -> Project:
    model = {"checkpoint": "weights", "engine": {"builder": "openvino", "precision": "int8"}}
    model |= {"slo": {"ttft_p99_ms": 500}} | sections.pop("model", {})
    return Project.at(root, {"schema": "tritonctl/v1", "models": {"speller": model}, **sections})


def _plan(root: Path, **changes: Any) -> dict[str, Any]:
    return build_load_plan(root, _scenario(**changes), Endpoint("127.0.0.1:8001"))


def test_plan(tmp_path: Path) -> None:
    """Paths absolute, whole numbers whole, tensors of the request as they were given."""
    plan = _plan(tmp_path)
    assert plan["endpoint"] == {"protocol": "grpc", "url": "127.0.0.1:8001"}
    (one,) = plan["classes"]
    assert one["prompts"] == str(tmp_path / "prompts.txt")
    assert json.dumps(one["max_tokens"]) == "8"
    assert json.dumps(one["parameters"]) == '{"temperature": 1.0}'
    assert json.dumps(plan["arrivals"]) == '{"process": "poisson", "rate": 20}'
    assert (plan["duration_seconds"], plan["count"], plan["started_at"]) == (30, None, None)


MIXES: list[dict[str, Any]] = [
    {},
    {"arrivals": {"process": "closed", "concurrency": 2}, "duration_seconds": None, "count": 9},
    {"arrivals": {"process": "gamma", "rate": 3, "cv": 2.5}},
    {"arrivals": {"process": "ramp", "from": 0, "to": 9.5}},
    {"arrivals": {"process": "steps", "steps": [{"rate": 1, "seconds": 2}]}},
    {
        "arrivals": {
            "process": "spike",
            "rate": 1,
            "peak": 5,
            "at_seconds": 2,
            "for_seconds": 1,
        }
    },
    {"requests": [REQUEST | {"max_tokens": {"lognormal": {"median": 9, "sigma": 0.5}}}]},
    {"requests": [REQUEST | {"max_tokens": {"choice": {"values": [1, 2]}}, "turns": 2}]},
    {"requests": [REQUEST | {"cancel": {"share": 0.5, "after_ms": 3}, "priority": 1}]},
    {"requests": [REQUEST | {"input_tokens": {"uniform": [1, 9]}, "order": "random"}]},
]


def test_the_generator_accepts_every_plan(tmp_path: Path) -> None:
    """Its own reader, in a process of its own, as it is run."""
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    files = []
    for number, changes in enumerate(MIXES):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(_plan(tmp_path, **changes)))
    script = (
        "import sys; from pathlib import Path; from loadlib.plan import read_plan\n"
        "for name in sys.argv[1:]: print(read_plan(Path(name)).model)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *files],
        cwd=bundled.find("loadtests"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["speller"] * len(MIXES), "")


@pytest.mark.parametrize(
    ("changes", "seconds", "words"),
    [
        ({}, 30, "poisson 20/s, 30 s"),
        ({"duration_seconds": None, "count": 100}, 5, "poisson 20/s, 100 requests"),
        ({"duration_seconds": None}, 30, "poisson 20/s, 30 s"),
        (
            {
                "duration_seconds": None,
                "arrivals": {
                    "process": "steps",
                    "steps": [{"rate": 1, "seconds": 2}, {"rate": 2, "seconds": 3}],
                },
            },
            5,
            "steps, 5 s",
        ),
        (
            {"duration_seconds": None, "arrivals": {"process": "trace", "file": "t.jsonl"}},
            None,
            "trace",
        ),
        (
            {"arrivals": {"process": "closed", "concurrency": 4}},
            30,
            "closed, 4 users, 30 s",
        ),
    ],
)
def test_length(tmp_path: Path, changes: dict[str, Any], seconds: float | None, words: str) -> None:
    """What ends it, and how it is called."""
    plan = _plan(tmp_path, **changes)
    assert expected_seconds(plan) == seconds
    assert describe_load(plan) == words


def test_overrides() -> None:
    """The command line replaces parts; what it does not name stays."""
    changed = Overrides(model="m", rate=5, count=7, seed=3, workers=2).apply_to(_scenario())
    assert changed.arrivals == Poisson(process="poisson", rate=5)
    assert (changed.model, changed.count, changed.duration_seconds) == ("m", 7, None)
    assert (changed.seed, changed.workers) == (3, 2)
    assert Overrides().apply_to(changed) == changed


def test_a_rate_keeps_the_process() -> None:
    """Bursts stay bursts; a closed loop becomes Poisson; users keep their thinking time."""
    bursts = _scenario(arrivals={"process": "gamma", "rate": 3, "cv": 2})
    assert Overrides(rate=9).apply_to(bursts).arrivals == Gamma(process="gamma", rate=9, cv=2)
    users = _scenario(arrivals={"process": "closed", "concurrency": 2, "think_seconds": 1})
    assert Overrides(rate=9).apply_to(users).arrivals == Poisson(process="poisson", rate=9)
    more = Overrides(concurrency=5).apply_to(users).arrivals
    assert more == Closed(process="closed", concurrency=5, think_seconds=1)


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(rate=1, concurrency=1),
        Overrides(duration_seconds=1, count=1),
    ],
)
def test_contradictions(overrides: Overrides) -> None:
    """Two that say the same thing."""
    with pytest.raises(UsageError, match="exclude each other"):
        overrides.apply_to(_scenario())


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_impossible_numbers(value: float) -> None:
    """Refused by name, before anything else."""
    with pytest.raises(UsageError, match="--rate"):
        Overrides(rate=value).apply_to(_scenario())
    with pytest.raises(UsageError, match="--duration"):
        Overrides(duration_seconds=value).apply_to(_scenario())


def test_implied_scenario(tmp_path: Path) -> None:
    """A model that has prompts to be evaluated on can be load-tested without a word."""
    evaluation = {"prompts": "right.jsonl", "max_tokens": 24}
    project = _project(tmp_path, model={"evaluation": evaluation})
    name, scenario = select_scenario(project, None)
    assert (name, scenario.model) == ("speller", "speller")
    assert scenario.arrivals == Poisson(process="poisson", rate=5)
    plan = build_load_plan(project.root, scenario, Endpoint("x:1"))
    assert 5 * plan["duration_seconds"] >= P99_REQUESTS
    assert plan["classes"][0]["prompts"] == str(tmp_path / "right.jsonl")
    assert plan["classes"][0]["max_tokens"] == 24
    with_its_own = _project(
        tmp_path, model={"evaluation": evaluation}, loadtests={"mine": SCENARIO}
    )
    assert set(scenarios(with_its_own)) == {"mine"}


def test_choosing(tmp_path: Path) -> None:
    """The only one needs no name; of several, or of none, the error lists what there is."""
    with pytest.raises(UsageError, match="the project has no load test"):
        select_scenario(_project(tmp_path), None)
    project = _project(tmp_path, loadtests={"one": SCENARIO, "two": SCENARIO})
    assert select_scenario(project, "two")[0] == "two"
    for name, problem in ((None, "which load test?"), ("thre", "no load test `thre`")):
        with pytest.raises(UsageError, match=problem.replace("?", r"\?")) as caught:
            select_scenario(project, name)
        assert caught.value.remedy == "name one of: one, two"


def test_slo(tmp_path: Path) -> None:
    """The scenario's own before the model's; none for a model that is not the project's."""
    project = _project(tmp_path)
    assert effective_slo(project, _scenario()) == Slo(ttft_p99_ms=500)
    assert effective_slo(project, _scenario(slo={"e2e_p99_ms": 9})) == Slo(e2e_p99_ms=9)
    assert effective_slo(project, _scenario(model="another")) == Slo()


def test_the_shipped_scenario_says_what_it_sends() -> None:
    """Greedy, short, Poisson; its prompts exist."""
    root = Path(__file__).parents[3]
    project = Project.at(root, yaml.safe_load((root / "tritonctl.yaml").read_text()))
    plan = build_load_plan(root, project.loadtests["speller"], Endpoint("x:1"))
    assert Path(plan["classes"][0]["prompts"]).is_file()
    assert plan["classes"][0]["parameters"] == {"temperature": 0}
