# SPDX-License-Identifier: Apache-2.0
"""`loadtests:` of the project file: every mistake with its line and the nearest right thing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tritonctl.errors import ConfigurationError
from tritonctl.project.file import load_project
from tritonctl.project.scenario import (
    Arrivals,
    Cancel,
    Closed,
    Distribution,
    Ramp,
    RequestClass,
    Scenario,
    Steps,
    Trace,
)
from tritonctl.project.schema import Project

VALID = """\
schema: tritonctl/v1
models:
  speller: {checkpoint: weights, engine: {builder: openvino, precision: int8}}
loadtests:
  mixed:
    model: speller
    requests:
      - name: short
        prompts: prompts.jsonl
        max_tokens: {uniform: [1, 5]}
        cancel: {share: 0.1, after_tokens: 4}
      - {name: long, weight: 2, prompts: long.txt, turns: 3, think_seconds: 0.5}
    arrivals:
      process: poisson
      rate: 20
    duration_seconds: 30
"""
POISSON = "      process: poisson\n      rate: 20\n"
LENGTH = "{uniform: [1, 5]}"
AT = "loadtests.mixed"
LONG = f"`{AT}.requests.0.max_tokens"


def _load(tmp_path: Path, text: str) -> Project:
    (tmp_path / "tritonctl.yaml").write_text(text, encoding="utf-8")
    return load_project(tmp_path, environment={})


def test_a_scenario(tmp_path: Path) -> None:
    """Classes, lengths, arrivals; defaults for the rest."""
    scenario = _load(tmp_path, VALID).loadtests["mixed"]
    short, long = scenario.requests
    assert isinstance(short.max_tokens, Distribution)
    assert short.max_tokens.uniform == [1, 5]
    assert short.cancel == Cancel(share=0.1, after_tokens=4)
    assert (long.weight, long.turns, long.think_seconds, long.stream) == (2, 3, 0.5, True)
    assert (scenario.protocol, scenario.kind, scenario.workers) == ("grpc", "text", 1)


ARRIVALS = {
    "{process: closed, concurrency: 8}": Closed(process="closed", concurrency=8),
    "{process: ramp, from: 1, to: 9}": Ramp.model_validate({"process": "ramp", "from": 1, "to": 9}),
    "{process: steps, steps: [{rate: 1, seconds: 2}]}": Steps.model_validate(
        {"process": "steps", "steps": [{"rate": 1, "seconds": 2}]}
    ),
    "{process: trace, file: t.jsonl}": Trace(process="trace", file=Path("t.jsonl")),
}


@pytest.mark.parametrize("text", ARRIVALS)
def test_arrivals(tmp_path: Path, text: str) -> None:
    """`process` says which fields there are."""
    project = _load(tmp_path, VALID.replace("\n" + POISSON, f" {text}\n"))
    assert project.loadtests["mixed"].arrivals == ARRIVALS[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("{normal: {mean: 3, std: 1}}", "normal"),
        ("{lognormal: {median: 3, sigma: 1}}", "lognormal"),
        ("{exponential: {mean: 3}}", "exponential"),
        ("{choice: {values: [1, 2], weights: [1, 3]}}", "choice"),
        ("{file: lengths.txt}", "file"),
    ],
)
def test_numbers(tmp_path: Path, text: str, value: float | str) -> None:
    """A number, or one distribution."""
    found = _load(tmp_path, VALID.replace(LENGTH, text)).loadtests["mixed"].requests[0].max_tokens
    if isinstance(value, str):
        assert getattr(found, value) is not None
    else:
        assert found == value


MISTAKES = [
    (
        "process: poisson",
        "process: poison",
        13,
        f"`{AT}.arrivals.process`: unknown process `poison`",
    ),
    ("process: poisson", "proces: poisson", 13, f"`{AT}.arrivals.process` is missing"),
    ("rate: 20", "rat: 20", 15, f"unknown key `rat` in `{AT}.arrivals`"),
    ("rate: 20", "rate: -1", 15, f"`{AT}.arrivals.rate`: expected more than 0, got `-1`"),
    ("rate: 20", "rate: .inf", 15, f"`{AT}.arrivals.rate`: expected a finite number"),
    (POISSON, "      process: ramp\n      from: 1\n      too: 2\n", 16, "unknown key `too` in"),
    (POISSON, "      {process: ramp, from: 0, to: 0}\n", 13, f"`{AT}.arrivals`: from"),
    (
        POISSON,
        "      {process: steps, steps: [{rate: 0, seconds: 1}]}\n",
        14,
        f"`{AT}.arrivals.s",
    ),
    (
        POISSON,
        "      {process: steps, steps: [{rate: 1, second: 1}]}\n",
        14,
        "unknown key `second`",
    ),
    ("prompts: prompts", "prompt: prompts", 9, f"unknown key `prompt` in `{AT}.requests.0`"),
    ("name: long", "name: short", 5, f"`{AT}`: two classes of requests have the name sh"),
    ("share: 0.1", "share: 10", 11, f"`{AT}.requests.0.cancel.share`: expected at most"),
    (", after_tokens: 4", "", 11, f"`{AT}.requests.0.cancel`: needs one of after_to"),
    ("_seconds: 30", "_seconds: 30\n    count: 5", 5, f"`{AT}`: duration_seconds and"),
    (LENGTH, "many", 10, f"{LONG}`: expected a number, got `many`"),
    (LENGTH, "-1", 10, f"{LONG}`: expected at least 0, got `-1`"),
    (LENGTH, "{uniform: [5, 1]}", 10, f"{LONG}`: uniform: 5 is above 1"),
    (LENGTH, "{uniform: [5]}", 10, f"{LONG}.uniform`: expected at least 2 in the list, got `[5]`"),
    (LENGTH, "{unifrm: [1, 5]}", 10, f"unknown key `unifrm` in {LONG}`"),
    (LENGTH, "{normal: {mean: 1, sd: 3}}", 10, f"unknown key `sd` in {LONG}.normal`"),
    (LENGTH, "{normal: {mean: 1}}", 10, f"{LONG}.normal.std` is missing"),
    (LENGTH, "{}", 10, f"{LONG}`: needs exactly one of choice, exponential, file"),
    (LENGTH, "{uniform: [1, 2], file: x}", 10, f"{LONG}`: needs exactly one of"),
    (LENGTH, "{choice: {values: [1], weights: [1, 2]}}", 10, f"{LONG}.choice`: 2 w"),
    (LENGTH, "{choice: {values: [1], weights: [0]}}", 10, f"{LONG}.choice`: all weights"),
]


@pytest.mark.parametrize(("old", "new", "line", "problem"), MISTAKES)
def test_mistakes(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    """Each on its own line, under its own path: no names of alternatives in between."""
    assert old in VALID
    with pytest.raises(ConfigurationError) as caught:
        _load(tmp_path, VALID.replace(old, new))
    first = caught.value.problem.splitlines()[0].replace(f"{tmp_path}/", "")
    assert first.startswith(f"tritonctl.yaml:{line}: {problem}")


@pytest.mark.parametrize(
    ("old", "new", "remedy"),
    [
        ("process: poisson", "process: poison", "did you mean `poisson`? expected one of closed,"),
        ("rate: 20", "rat: 20", "did you mean `rate`? valid keys: process, rate"),
        (LENGTH, "{unifrm: [1, 5]}", "did you mean `uniform`? valid keys: choice, exponential"),
        (LENGTH, "{normal: {mean: 1, st: 3}}", "did you mean `std`? valid keys: mean, std"),
        (
            POISSON,
            "      {process: ramp, fro: 1, to: 2}\n",
            "did you mean `from`? valid keys: fro",
        ),
        ("after_tokens", "after_token", "did you mean `after_tokens`? valid keys: after_ms, after"),
    ],
)
def test_the_nearest_key_inside_a_choice(tmp_path: Path, old: str, new: str, remedy: str) -> None:
    """The keys that are offered are those of the alternative that was chosen."""
    with pytest.raises(ConfigurationError) as caught:
        _load(tmp_path, VALID.replace(old, new))
    assert caught.value.remedy.startswith(remedy)


def test_a_profile_can_change_a_scenario(tmp_path: Path) -> None:
    """Merged like everything else."""
    text = VALID + "profiles: {big: {loadtests: {mixed: {arrivals: {rate: 99}}}}}\n"
    (tmp_path / "tritonctl.yaml").write_text(text, encoding="utf-8")
    arrivals = load_project(tmp_path, profile="big", environment={}).loadtests["mixed"].arrivals
    assert getattr(arrivals, "rate", None) == 99


def test_the_documented_scenarios() -> None:
    """Every example of load-tests.md is read, and every process and distribution is there."""
    text = (Path(__file__).parents[3] / "docs" / "reference" / "load-tests.md").read_text(
        encoding="utf-8"
    )
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = {}
    for block in blocks:
        for name, scenario in yaml.safe_load(block)["loadtests"].items():
            found[name] = Scenario.model_validate(scenario)
    assert len(found) == 4
    processes = [arm.model_fields["process"].annotation for arm in get_args(get_args(Arrivals)[0])]
    for (process,) in map(get_args, processes):
        assert f"| `{process}` |" in text
    for kind in Distribution.model_fields:
        assert f"{{{kind}: " in text
    for name in set(Scenario.model_fields) | set(RequestClass.model_fields):
        assert re.search(rf"\b{name}: ", text), name
