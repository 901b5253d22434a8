# SPDX-License-Identifier: Apache-2.0
"""One configuration, changed in a hundred places: the checker and a real Triton agree on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL
from tests.judge import Candidate, Judge
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server

BATCH = "max_batch_size: 8"
DIMS = "dims: [ 4 ]"
OUTPUT = 'name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ]'
BACKEND = 'backend: "python"'
# What takes the place of the first DIMS, the input's.
SHAPES = (
    "",
    "dims: [ ]",
    "dims: [ 0 ]",
    "dims: [ -1 ]",
    "dims: [ -2 ]",
    "dims: [ 4, 0 ]",
    "dims: [ 9223372036854775807, 4 ]",
    "dims: [ 4 ] reshape { shape: [ 2, 2 ] }",
    "dims: [ 4 ] reshape { shape: [ 2, 3 ] }",
    "dims: [ 4 ] reshape { shape: [ -1 ] }",
    "dims: [ 4 ] reshape { shape: [ 0 ] }",
    "dims: [ 4 ] reshape { shape: [ ] }",
    "dims: [ 1 ] reshape { shape: [ ] }",
    "dims: [ -1 ] reshape { shape: [ 4 ] }",
    "dims: [ -1 ] reshape { shape: [ 1, -1 ] }",
    "dims: [ -1 ] reshape { shape: [ 2, -1 ] }",
    "dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }",
    "dims: [ -1, -1 ] reshape { shape: [ -1 ] }",
    "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }",
    "dims: [ 4 ] format: FORMAT_NCHW",
    "dims: [ 2, 2, 3 ] format: FORMAT_NCHW",
    "dims: [ 4 ] is_shape_tensor: true",
    "dims: [ 4 ] optional: true",
)
REPLACED = (
    (BATCH, "max_batch_size: -1"),
    (BATCH, "max_batch_size: 0"),
    (BATCH, ""),
    (BACKEND, ""),
    (BACKEND, 'platform: "python"'),
    (BACKEND, 'platform: "custom"\ndefault_model_filename: "model.py"'),
    (BACKEND, 'backend: "python"\nplatform: "tensorrt_plan"'),
    (BACKEND, 'backend: "pytorch"\nplatform: "custom"'),
    ('name: "INPUT" ', ""),
    ('name: "OUTPUT" ', ""),
    (OUTPUT, OUTPUT.replace("data_type: TYPE_FP32", "")),
    (OUTPUT, OUTPUT.replace("TYPE_FP32", "TYPE_INVALID")),
    (OUTPUT, OUTPUT.replace(DIMS, "")),
    (OUTPUT, OUTPUT + " is_shape_tensor: true"),
    (OUTPUT, OUTPUT + ' label_filename: "labels.txt"'),
)
DELAYED = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
DYNAMIC = (
    "",
    "preferred_batch_size: 0",
    "preferred_batch_size: [ 8, 8 ]",
    "preferred_batch_size: 9",
    "priority_levels: 2",
    "priority_levels: 2 default_priority_level: 2",
    "priority_levels: 2 default_priority_level: 3",
    "default_priority_level: 1",
    "priority_queue_policy { key: 3 value { } }",
    "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
    "priority_levels: 1 default_priority_level: 1 preserve_ordering: true",
    "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
    "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
    "preserve_ordering: true " + DELAYED,
)
CONTROL = 'control_input {{ name: "{}" control {{ kind: CONTROL_SEQUENCE_{} {} }} }}'
VALUES = "int32_false_true: [ 0, 1 ]"
STATE = 'state {{ input_name: "A" output_name: "B" data_type: TYPE_INT32 dims: [ 2 ] {} }}'
FIRST = "initial_state {{ {} data_type: TYPE_{} dims: [ {} ] {} }}"
SEQUENCES = (
    "",
    CONTROL.format("S", "START", VALUES),
    CONTROL.format("", "START", VALUES),
    CONTROL.format("S", "START", ""),
    CONTROL.format("S", "START", "int32_false_true: 0"),
    CONTROL.format("S", "START", VALUES + " fp32_false_true: [ 0, 1 ]"),
    CONTROL.format("S", "START", VALUES + " data_type: TYPE_FP32"),
    CONTROL.format("S", "START", VALUES) + CONTROL.format("S", "END", VALUES),
    CONTROL.format("S", "START", VALUES) + CONTROL.format("T", "START", VALUES),
    CONTROL.format("S", "CORRID", ""),
    CONTROL.format("S", "CORRID", "data_type: TYPE_STRING"),
    CONTROL.format("S", "CORRID", "data_type: TYPE_FP32"),
    CONTROL.format("S", "CORRID", "data_type: TYPE_INT64 " + VALUES),
    "oldest { max_candidate_sequences: 4 preferred_batch_size: 9 }",
    "oldest { max_candidate_sequences: -1 }",
    "direct { minimum_slot_utilization: 1.5 }",
    "direct { minimum_slot_utilization: nan }",
    STATE.format(""),
    STATE.format(FIRST.format('name: "z"', "INT32", "2", "zero_data: true")),
    STATE.format(FIRST.format("", "INT32", "2", "zero_data: true")),
    STATE.format(FIRST.format('name: "z"', "FP32", "2", "zero_data: true")),
    STATE.format(FIRST.format('name: "z"', "INT32", "3", "zero_data: true")),
    STATE.format(FIRST.format('name: "z"', "INT32", "2, 1", "zero_data: true")),
    STATE.format(FIRST.format('name: "z"', "INT32", "-1", "zero_data: true")),
    STATE.format(FIRST.format('name: "z"', "INT32", "2", "")),
)
GROUPS = (
    "kind: KIND_CPU count: 2",
    "kind: KIND_CPU count: -3",
    "kind: KIND_CPU gpus: [ 0 ]",
    "kind: KIND_MODEL gpus: [ 0 ]",
    'kind: KIND_CPU profile: [ "0" ]',
    'kind: KIND_CPU name: "a b"',
    'kind: KIND_CPU name: "a-b"',
    "kind: 9",
)
SAMPLE = 'batch_size: {} inputs {{ key: "{}" value {{ data_type: TYPE_{} dims: [ {} ] {} }} }}'
WARM_UPS = (
    SAMPLE.format(1, "INPUT", "FP32", 4, "zero_data: true"),
    SAMPLE.format(8, "INPUT", "FP32", 4, "random_data: true"),
    SAMPLE.format(9, "INPUT", "FP32", 4, "zero_data: true"),
    SAMPLE.format(0, "X", "INT32", 7, ""),
    SAMPLE.format(1, "X", "FP32", 4, "zero_data: true"),
    SAMPLE.format(1, "INPUT", "INT32", 4, "zero_data: true"),
    SAMPLE.format(1, "INPUT", "FP32", 3, "zero_data: true"),
    SAMPLE.format(1, "INPUT", "FP32", "1, 4", "zero_data: true"),
    SAMPLE.format(1, "INPUT", "FP32", -1, "zero_data: true"),
    SAMPLE.format(1, "INPUT", "FP32", 4, ""),
    SAMPLE.format(1, "INPUT", "FP32", 4, 'input_data_file: "f"'),
)
SCATTER = (
    'batch_output {{ target_name: "{}" source_input: "INPUT"'
    " kind: BATCH_SCATTER_WITH_INPUT_SHAPE }}"
)
ADDED = (
    'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: "INPUT" }',
    'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_INT64 source_input: "INPUT" }',
    'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: "X" }',
    "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 }",
    SCATTER.format("OUTPUT"),
    SCATTER.format("X"),
    "version_policy { }",
    "version_policy { latest { } }",
    "version_policy { latest { num_versions: 3 } }",
    "version_policy { specific { versions: [ 1, 2 ] } }",
    "version_policy { specific { versions: 2 } }",
    "response_cache { enable: true } dynamic_batching { }",
    "response_cache { enable: true } sequence_batching { }",
    'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }',
    'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "No" } }',
    'metric_tags { key: "model" value: "b" }',
    "optimization { priority: 9 }",
    'default_model_filename: "model.txt"',
)


def changes() -> Iterator[str]:
    """The configuration with each of them."""
    yield from (CONFIG.replace(DIMS, shape, 1) for shape in SHAPES)
    yield from (CONFIG.replace(old, new, 1) for old, new in REPLACED)
    yield from (f"{CONFIG}dynamic_batching {{ {body} }}" for body in DYNAMIC)
    yield from (f"{CONFIG}sequence_batching {{ {body} }}" for body in SEQUENCES)
    yield from (f"{CONFIG}instance_group [ {{ {body} }} ]" for body in GROUPS)
    yield from (f"{CONFIG}model_warmup [ {{ {body} }} ]" for body in WARM_UPS)
    yield from (CONFIG + text for text in ADDED)


def error(folder: Path, candidate: Candidate) -> list[str]:
    """The errors that show when the model is loaded."""
    report = check_repository(put(folder, candidate.files), CheckTarget("2.51.0"))
    errors = [finding.rule for finding in report.findings if finding.severity == "error"]
    return [rule for rule in errors if RULES[rule].observable_on == "load"]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(6, id="one in six"),
        pytest.param(1, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_each_is_judged_alike(step: int, tmp_path: Path) -> None:
    """Refused and told, or loaded and not."""
    texts = list(changes())[::step]
    candidates = [
        Candidate(name, {f"{name}/config.pbtxt": text, f"{name}/1/model.py": MODEL})
        for name, text in (
            (f"m{number}", text.replace('name: "m"', f'name: "m{number}"'))
            for number, text in enumerate(texts)
        )
    ]
    judge = Judge(tmp_path / "judge")
    try:
        refusals = list(judge.refusals(candidates))
    finally:
        judge.stop()
    disagreements = [
        (text, told, refusal)
        for text, candidate, refusal in zip(texts, candidates, refusals, strict=True)
        if bool(told := error(tmp_path / candidate.model, candidate)) != bool(refusal)
    ]
    assert disagreements == []
    assert sum(map(bool, refusals)) in range(len(refusals) // 3, len(refusals))
