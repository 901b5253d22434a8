# SPDX-License-Identifier: Apache-2.0
"""Streams through several models; the other cases of the family are in `cases/streaming.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, MODEL
from tests.check_models.streaming import (
    CALLER,
    DECODER,
    DEMANDING,
    STREAM,
    SUMMER,
    beside,
    stream_model,
)
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.id.startswith("TC4")]
BATCHING = "dynamic_batching { }\n"
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"


def findings(folder: Path, files: Example, version: str = "2.51.0") -> list[CheckFinding]:
    put(folder, files)
    return list(check_repository(folder, CheckTarget(version), rules=OURS).findings)


def rules_of(folder: Path, files: Example, version: str = "2.51.0") -> list[str]:
    return [finding.rule for finding in findings(folder, files, version)]


def underlined(finding: CheckFinding) -> str:
    return finding.text[finding.column - 1 : finding.end - 1]


def ensemble(name: str, *steps: tuple[str, str, str]) -> Example:
    """Return an ensemble; each step is a model, the tensor it reads and the tensor it writes."""
    maps = 'input_map {{ key: "INPUT" value: "{}" }} output_map {{ key: "OUTPUT" value: "{}" }}'
    written = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 {maps.format(reads, writes)} }}'
        for model, reads, writes in steps
    )
    head = CONFIG.replace('"m"', f'"{name}"').replace('backend: "python"', 'platform: "ensemble"')
    config = f"{head}ensemble_scheduling {{ step [ {written} ] }}\n"
    return {f"{name}/config.pbtxt": config, f"{name}/1/.keep": ""}


def test_models_far_behind_a_stream_lose_its_order(tmp_path: Path) -> None:
    """The rule follows a stream through models and inner ensembles, but not upstream."""
    steps = (
        ("before", "INPUT", "a"),
        ("d", "a", "b"),
        ("inner", "b", "c"),
        ("last", "c", "OUTPUT"),
    )
    files = {
        **ensemble("e", *steps),
        **ensemble("inner", ("one", "INPUT", "x"), ("two", "x", "OUTPUT")),
        **DECODER,
    }
    for name in ("before", "one", "two", "last"):
        files |= beside(name, CONFIG + BATCHING + TWO, MODEL)
    found = findings(tmp_path, files)
    assert [(Path(one.path).parent.name, one.rule) for one in found] == [
        ("last", "TC401"),
        ("one", "TC401"),
        ("two", "TC401"),
    ]


def test_an_inner_ensemble_with_a_decoupled_step_streams(tmp_path: Path) -> None:
    """A decoupled model inside an inner ensemble makes that ensemble a stream."""
    files = {
        **ensemble("e", ("inner", "INPUT", "x"), ("m", "x", "OUTPUT")),
        **ensemble("inner", ("d", "INPUT", "OUTPUT")),
        **DECODER,
        **beside("m", CONFIG + BATCHING + TWO, MODEL),
    }
    [finding] = findings(tmp_path, files)
    assert (finding.rule, "inner in e" in finding.message) == ("TC401", True)


def test_an_ensemble_that_contains_itself(tmp_path: Path) -> None:
    """An ensemble that contains itself causes no endless loop; another rule reports it."""
    circle = ensemble("e", ("e", "INPUT", "x"), ("e", "x", "OUTPUT"))
    assert rules_of(tmp_path, circle) == []


def test_calls_of_a_decoupled_ensemble(tmp_path: Path) -> None:
    """A call of an ensemble with a decoupled step is reported for exec, async_exec and a chain."""
    code = CALLER.replace('"d"', '"e"').replace(
        "answer = call.exec()", "answer = call.async_exec()"
    )
    files = {**ensemble("e", ("d", "INPUT", "OUTPUT")), **DECODER, **beside("c", CONFIG, code)}
    [finding] = findings(tmp_path, files)
    assert (finding.rule, underlined(finding)) == ("TC421", "call.async_exec()")
    chained = 'pb_utils.InferenceRequest(model_name="e", inputs=[]).exec()\n'
    files |= {"c/1/model.py": f"import x\n\ndef f():\n    {chained}"}
    [finding] = findings(tmp_path, files)
    assert (finding.rule, finding.line) == ("TC421", 4)


PIECES = [*STREAM.splitlines(), *SUMMER.splitlines(), *DEMANDING.splitlines(), *CALLER.splitlines()]


@examples(150)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_code_can_be_checked(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    """The rules finish and raise nothing, whatever a model.py contains."""
    folder = tmp_path_factory.mktemp("any")
    findings(folder, stream_model("\n".join(lines)))
