# SPDX-License-Identifier: Apache-2.0
"""Load plans: what is wrong, where, and what would be right."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from loadlib.distributions import parse_distribution
from loadlib.plan import parse_plan
from loadlib.refusal import RunRefusedError
from loadlib.tls import create_channel
from loadlib.workload import Workload

from tests.loadtests.conftest import Generate


def changed(plan: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with something else at `a.0.b`."""
    new = copy.deepcopy(plan)
    *way, last = path.split(".")
    place: Any = new
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    return new


@pytest.mark.parametrize(
    ("path", "value", "problem", "remedy"),
    [
        ("schema", "tritonctl/loadplan/v0", "plan.schema: unknown", '"tritonctl/loadplan/v1"'),
        ("durations", 3, "plan.durations: unknown field", '"duration_seconds"'),
        ("duration_seconds", 3, "plan.count: duration_seconds and count", "drop one"),
        ("count", None, "plan: it never ends", "set duration_seconds or count"),
        ("count", 2.5, "plan.count: 2.5 is not a whole number", ""),
        ("model", None, "plan.model: missing", "add model"),
        ("kind", "txt", "plan.kind: unknown: 'txt'", '"text"'),
        ("endpoint.url", "localhost", "endpoint.url: 'localhost' is not HOST:PORT", "127.0.0.1"),
        ("endpoint.tls", {"crt": "x"}, "endpoint.tls.crt: unknown field", "certificate"),
        ("endpoint.tls", {"certificate": "x"}, "endpoint.tls: certificate and key", "set both"),
        ("endpoint.protocol", "grcp", "endpoint.protocol: unknown", '"grpc"'),
        ("timeout_seconds", 0, "plan.timeout_seconds: 0 is out of range", "more than 0"),
        ("arrivals.process", "poison", "arrivals.process: unknown: 'poison'", '"poisson"'),
        ("arrivals.rate", 0, "arrivals.rate: 0 is out of range", "more than 0"),
        ("arrivals.cv", 2, "arrivals.cv: unknown field", "known: process, rate"),
        ("arrivals", {"process": "ramp", "from": 1, "to": 2}, "a ramp needs a", "duration"),
        (
            "arrivals",
            {"process": "steps", "steps": [{"rate": 1}]},
            "arrivals.steps[0].seconds: missing",
            "add seconds",
        ),
        ("classes", [], "plan.classes: [] is not a list of 1 or more", "1 or more"),
        ("classes.0.max_token", 3, "classes[0].max_token: unknown field", '"max_tokens"'),
        ("classes.0.max_tokens", {"unform": [1, 2]}, "classes[0].max_tokens.unform", '"uniform"'),
        ("classes.0.max_tokens", {"uniform": [2, 1]}, "max_tokens.uniform: 2 is above 1", "lowest"),
        (
            "classes.0.max_tokens",
            {"choice": {"values": [1, 2], "weights": [1]}},
            "classes[0].max_tokens.choice.weights: 1 weights for 2 values",
            "each value",
        ),
        ("classes.0.weight", 0, "classes[0].weight: 0 is out of range", "more than 0"),
        ("classes.0.order", "shuffle", "classes[0].order: unknown", '"shuffled"'),
        ("classes.0.prompts", None, "classes[0].prompts: missing", "name a file"),
        ("classes.0.priority", 0, "classes[0].priority: 0 is out of range", "at least 1"),
        (
            "classes.0.cancel",
            {"share": 0.5},
            "classes[0].cancel: needs exactly one of",
            "after_tokens",
        ),
        (
            "classes.0.cancel",
            {"share": 2, "after_ms": 1},
            "classes[0].cancel.share: 2 is out of range",
            "at most 1",
        ),
        ("kind", "tensors", "classes[0].max_tokens: only for kind text", "drop"),
    ],
)
def test_refused(plan: dict[str, Any], path: str, value: Any, problem: str, remedy: str) -> None:
    """The field by its path, and the nearest valid one."""
    with pytest.raises(RunRefusedError) as caught:
        parse_plan(changed(plan, path, value))
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("line", "changes", "told"),
    [
        ({"at": 1, "class": "shrt"}, {}, "arrival 1: class: unknown: 'shrt'"),
        (
            {"at": 1, "text_input": "a"},
            {"kind": "tensors"},
            "arrival 1: text where kind is tensors",
        ),
        ({"at": 1}, {"prompts": None}, "classes[0].prompts: missing"),
        (
            {"at": 1, "text_input": "a"},
            {"prompts": None, "turns": 2},
            "classes[0].prompts: missing",
        ),
        ({"at": 1, "text_input": "a"}, {"prompts": None}, None),
    ],
)
def test_traces(
    plan: dict[str, Any], tmp_path: Path, line: Any, changes: Any, told: str | None
) -> None:
    """A trace must fit the classes; one that brings all texts needs no prompts."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    plan |= {"arrivals": {"process": "trace", "file": str(path)}, "count": None}
    plan["kind"] = changes.pop("kind", "text")
    if plan["kind"] == "tensors":
        del plan["classes"][0]["max_tokens"]
    plan["classes"][0] |= changes
    if told is None:
        assert Workload(parse_plan(plan)).planned_requests()[0].turns[0].prompt.text == "a"
        return
    with pytest.raises(RunRefusedError) as caught:
        parse_plan(plan)
    assert told in caught.value.problem


def test_tls_is_for_grpc_and_names_files(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths only; a file that is not there is told when the connection is made."""
    files = {"ca": str(tmp_path / "ca.crt"), "server_name": "triton.example.com"}
    tls = parse_plan(changed(plan, "endpoint.tls", files)).endpoint.tls
    assert tls is not None
    assert (tls.ca, tls.certificate, tls.key) == (tmp_path / "ca.crt", None, None)
    with pytest.raises(RunRefusedError, match=r"ca\.crt cannot be read"):
        create_channel("10.0.0.1:8001", tls, ())
    (tmp_path / "ca.crt").write_text("PEM", encoding="utf-8")
    monkeypatch.setattr("grpc.aio.secure_channel", lambda *_, options: options)
    options: Any = create_channel("10.0.0.1:8001", tls, [("a", 1)])
    assert options == [("a", 1), ("grpc.ssl_target_name_override", "triton.example.com")]
    http = changed(plan, "endpoint.protocol", "http")
    with pytest.raises(RunRefusedError, match=r"endpoint\.tls: Triton supports TLS on gRPC only"):
        parse_plan(changed(http, "endpoint.tls", files))


def test_no_priority_over_generate(plan: dict[str, Any]) -> None:
    """Triton takes it there and does nothing with it."""
    plan["classes"][0]["priority"] = 1
    assert parse_plan(plan).classes[0].priority == 1
    with pytest.raises(RunRefusedError, match="generate endpoints ignore priorities"):
        parse_plan(changed(plan, "endpoint.protocol", "http"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.jsonl", "", ":1: no prompts in the file"),
        ("p.txt", "\n\n", ":1: no prompts in the file"),
        ("p.jsonl", '{"text_input": "a"}\n{"text": "b"}\n', ":2: neither text_input nor messages"),
        ("p.jsonl", '{"messages": []}\n', ":1: messages: not a conversation"),
        ("p.jsonl", "seven\n", ":1: not JSON"),
    ],
)
def test_bad_prompts(
    plan: dict[str, Any], tmp_path: Path, name: str, content: str, told: str
) -> None:
    """File and line."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RunRefusedError) as caught:
        Workload(parse_plan(changed(plan, "classes.0.prompts", str(path))))
    assert f"{path}{told}" in caught.value.problem


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ({"shape": [2], "datatype": "FP32", "data": [1]}, "1 values for shape [2]"),
        ({"shape": [1], "datatype": "FP31", "data": [1]}, "unknown datatype 'FP31'"),
        ({"shape": [1], "datatype": "INT8", "data": [300]}, "does not fit into INT8"),
        ({"shape": [1], "data": [300]}, "no datatype"),
    ],
)
def test_bad_tensors(
    plan: dict[str, Any], tmp_path: Path, tensor: dict[str, Any], told: str
) -> None:
    """A tensor that contradicts itself is refused before anything is sent."""
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps({"inputs": {"X": tensor}}) + "\n", encoding="utf-8")
    plan |= {"kind": "tensors", "classes": [{"name": "x", "prompts": str(path)}]}
    with pytest.raises(RunRefusedError) as caught:
        Workload(parse_plan(plan))
    assert f"{path}:1: inputs.X" in caught.value.problem
    assert told in caught.value.problem


def test_the_generator_refuses(generate: Generate, plan: dict[str, Any]) -> None:
    """Exit 2, one JSON line, nothing on standard output."""
    run = generate(changed(plan, "arrivals.rte", 3))
    assert (run.code, run.progress) == (2, [])
    assert set(json.loads(run.stderr)) == {"problem", "remedy"}


@pytest.mark.parametrize(
    ("content", "mean", "lowest", "highest"),
    [
        (7, 7, 7, 7),
        ({"uniform": [1.0, 5.0], "normal": None}, 3, 1, 5),
        ({"normal": {"mean": 50, "std": 5}}, 50, 20, 80),
        ({"lognormal": {"median": 20, "sigma": 0}}, 20, 20, 20),
        ({"exponential": {"mean": 10}}, 10, 1, 200),
        ({"choice": {"values": [1, 9], "weights": [3, 1]}}, 3, 1, 9),
    ],
)
def test_distributions(content: Any, mean: float, lowest: int, highest: int) -> None:
    """Mean and range of what is drawn; ends of a range as often as the rest."""
    distribution, random = parse_distribution(content, "here"), Random(1)  # noqa: S311
    drawn = [distribution.draw_whole(random) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.05)
    assert lowest <= min(drawn) <= max(drawn) <= highest
    if isinstance(content, dict) and "uniform" in content:
        assert drawn.count(1) / len(drawn) == pytest.approx(0.2, abs=0.02)


def test_a_file_of_numbers(tmp_path: Path) -> None:
    """One of them each time; what is none is told with its line."""
    path = tmp_path / "lengths.txt"
    path.write_text("3\n\n8\n", encoding="utf-8")
    distribution, random = parse_distribution({"file": path}, "here"), Random(1)  # noqa: S311
    assert {distribution.draw(random) for _ in range(50)} == {3.0, 8.0}
    path.write_text("3\nmany\n", encoding="utf-8")
    with pytest.raises(RunRefusedError, match=r"lengths\.txt:2: 'many' is not a number"):
        parse_distribution({"file": path}, "here")
