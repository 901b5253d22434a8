# SPDX-License-Identifier: Apache-2.0
"""What Triton's validation refuses, reported in its place; and what it takes, not reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.findings import Finding
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES
from tritonctl.checks.rules.config.tensors import pieces

OURS = [rule for rule in RULES.values() if rule.family == "config"]

TARGET = Target("2.51.0")
BACKEND = 'backend: "python"\n'
LEVELS = "priority_levels: 2 default_priority_level: 1 }"
INPUT = 'name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ]'


def findings(folder: Path, text: str, **files: str) -> tuple[Finding, ...]:
    put(folder, python_model(text, **files))
    return checked(folder)


def checked(folder: Path) -> tuple[Finding, ...]:
    """What these rules say; others may have more to say of the same lines."""
    return check_repository(folder, TARGET, rules=OURS).findings


def only(folder: Path, text: str) -> tuple[str, str, str]:
    """The rule, what is underlined, and the message."""
    [finding] = findings(folder, text)
    return finding.rule, finding.text[finding.column - 1 : finding.end - 1], finding.message


def with_input(text: str) -> str:
    return CONFIG.replace(INPUT, text)


@pytest.mark.parametrize(
    ("text", "rule", "underlined", "message"),
    [
        ("dims: [ 4, 0 ]", "TC163", "0", "input INPUT has 0 in dims"),
        ("dims: [ -2 ]", "TC163", "-2", "input INPUT has -2 in dims"),
        (
            "dims: [ 4 ] reshape { shape: [ 2, 3 ] }",
            "TC164",
            "{ shape: [ 2, 3 ] }",
            "input INPUT has dims [4] and reshape [2, 3], which hold different numbers of elements",
        ),
        (
            "dims: [ 4 ] reshape { shape: [ 0 ] }",
            "TC163",
            "0",
            "input INPUT has 0 in reshape.shape",
        ),
        (
            "dims: [ 4 ] format: FORMAT_NCHW",
            "TC166",
            "FORMAT_NCHW",
            "input INPUT is FORMAT_NCHW, which has 3 dims, and has 1",
        ),
    ],
)
def test_shapes(text: str, rule: str, underlined: str, message: str, tmp_path: Path) -> None:
    """The value itself is underlined."""
    assert only(tmp_path, with_input(INPUT.replace("dims: [ 4 ]", text))) == (
        rule,
        underlined,
        message,
    )


@pytest.mark.parametrize(
    "text",
    [
        "dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] }",
        "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }",
        "dims: [ 1 ] reshape { shape: [ ] }",
        "dims: [ 1, 1 ] reshape { }",
        "dims: [ -1 ] allow_ragged_batch: true",
        "dims: [ 2, 2, 3 ] format: FORMAT_NHWC",
    ],
)
def test_shapes_that_load(text: str, tmp_path: Path) -> None:
    """Reshapes that hold as many elements, and the like."""
    assert findings(tmp_path, with_input(INPUT.replace("dims: [ 4 ]", text))) == ()


@examples(200)
@given(dims=st.lists(st.sampled_from([-1, 1, 2, 3, 4, 6]), max_size=5), data=st.data())
def test_splitting_and_joining_dims_is_a_reshape(dims: list[int], data: st.DataObject) -> None:
    """Ones may come and go, and neighbours that do not vary may be joined; nothing else."""
    shape = [part for size in dims for part in ([2, 3] if size == 6 else [size, 1])]
    assert pieces(dims) == pieces(shape)
    index = data.draw(st.integers(0, len(shape)))
    assert pieces(dims) != pieces([*shape[:index], 5, *shape[index:]])
    assert pieces(dims) != pieces([*shape[:index], -1, *shape[index:]])


def test_what_a_model_may_fill_in(tmp_path: Path) -> None:
    """auto_complete_config, in the class or perhaps in what it inherits; other backends."""
    bare = with_input('name: "INPUT"')
    told = [finding.rule for finding in findings(tmp_path / "plain", bare)]
    assert told == ["TC161", "TC162"]
    fills = (
        MODEL
        + "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    )
    inherits = MODEL.replace("TritonPythonModel", "TritonPythonModel(Base)")
    for name, code in {"fills": fills, "inherits": inherits}.items():
        put(tmp_path / name, python_model(bare) | {"m/1/model.py": code})
        assert checked(tmp_path / name) == ()
    plan = {"m/config.pbtxt": bare.replace("python", "tensorrt"), "m/1/model.plan": ""}
    rules = {f.rule for f in checked(put(tmp_path / "plan", plan))}
    assert not rules & {"TC161", "TC162"}


@pytest.mark.parametrize(
    ("text", "rule", "underlined", "message"),
    [
        (
            "dynamic_batching { preferred_batch_size: [ 4, 16 ] }",
            "TC171",
            "16",
            "dynamic_batching prefers a batch of 16, and max_batch_size is 8",
        ),
        (
            "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: 9 } }",
            "TC171",
            "9",
            "oldest prefers a batch of 9, and max_batch_size is 8",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "TC172",
            "3",
            "default_priority_level is 3, and priority_levels 2",
        ),
        (
            "dynamic_batching { priority_queue_policy { key: 3 value { } } " + LEVELS,
            "TC172",
            "3",
            "priority_queue_policy has level 3, and priority_levels is 2",
        ),
        (
            "dynamic_batching { preserve_ordering: true " + LEVELS,
            "TC173",
            "2",
            "preserve_ordering is set, and priority_levels 2",
        ),
        (
            "response_cache { enable: true }\nsequence_batching { }",
            "TC174",
            "true",
            "response_cache is enabled, and so is sequence_batching",
        ),
        (
            "instance_group [ { kind: KIND_MODEL gpus: [ 0, 1 ] } ]",
            "TC190",
            "0",
            "the instances are of KIND_MODEL, and gpus [0, 1] are listed",
        ),
        (
            'instance_group [ { name: "a;b" kind: KIND_CPU } ]',
            "TC197",
            '"a;b"',
            "the instances are called 'a;b', and ';' means something to the shell that starts them",
        ),
        (
            "instance_group [ { kind: 9 } ]",
            "TC190",
            "9",
            "unknown kind of instances: 9",
        ),
        (
            "instance_group [ { kind: -1 } ]",
            "TC190",
            "-1",
            "unknown kind of instances: -1",
        ),
        (
            'batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT" } ]',
            "TC176",
            '{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT" }',
            "batch_output 1 has no target_name",
        ),
        (
            'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "No" } }',
            "TC195",
            '"No"',
            "FORCE_CPU_ONLY_INPUT_TENSORS is 'No'",
        ),
    ],
)
def test_schedulers(text: str, rule: str, underlined: str, message: str, tmp_path: Path) -> None:
    """The value itself is underlined."""
    assert only(tmp_path, CONFIG + text) == (rule, underlined, message)


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { preferred_batch_size: [ 1, 8 ] }",
        "dynamic_batching { priority_levels: 1 default_priority_level: 1 preserve_ordering: true }",
        "response_cache { enable: false } model_transaction_policy { decoupled: true }",
        "sequence_batching { direct { } }",
        "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]",
    ],
)
def test_schedulers_that_load(text: str, tmp_path: Path) -> None:
    """At the edges of what is allowed."""
    told = {finding.rule for finding in findings(tmp_path, CONFIG + text)}
    assert not {rule for rule in told if "TC150" <= rule <= "TC199"}


CONTROL = 'control_input [ {{ name: "{}" control [ {{ kind: CONTROL_SEQUENCE_{} {} }} ] }} ]'
VALUES = "int32_false_true: [ 0, 1 ]"


@pytest.mark.parametrize(
    ("controls", "rule", "message"),
    [
        ([("A", "START", "")], "TC182", "does not say what false and true are"),
        ([("A", "END", "fp32_false_true: 1")], "TC182", "has 1 value in fp32_false_true"),
        (
            [("A", "READY", VALUES + " bool_false_true: [ false, true ]")],
            "TC182",
            "has int32_false_true and bool_false_true",
        ),
        (
            [("A", "CORRID", "data_type: TYPE_INT64 " + VALUES)],
            "TC182",
            "has int32_false_true, and carries a number",
        ),
        ([("A", "CORRID", "")], "TC183", "has data_type TYPE_INVALID"),
        (
            [("A", "START", VALUES), ("A", "END", VALUES)],
            "TC181",
            "control_input has the tensor A twice",
        ),
        (
            [("A", "START", VALUES), ("B", "START", VALUES)],
            "TC181",
            "CONTROL_SEQUENCE_START goes to B, and to A already",
        ),
    ],
)
def test_controls(
    controls: list[tuple[str, str, str]], rule: str, message: str, tmp_path: Path
) -> None:
    """One finding for each mistake."""
    body = "\n".join(CONTROL.format(*control) for control in controls)
    found, _, told = only(tmp_path, f"{CONFIG}sequence_batching {{ {body} }}")
    assert found == rule
    assert told.endswith(message)


def test_controls_that_load(tmp_path: Path) -> None:
    """All four kinds, each with its tensor; a string for the correlation id."""
    kinds = ("START", VALUES), ("END", VALUES), ("READY", "fp32_false_true: [ 0, 1 ]")
    body = "".join(CONTROL.format(kind, kind, values) for kind, values in kinds)
    body += CONTROL.format("ID", "CORRID", "data_type: TYPE_STRING")
    assert findings(tmp_path, f"{CONFIG}sequence_batching {{ {body} }}") == ()


def test_metrics(tmp_path: Path) -> None:
    """What a controlled metric lacks."""
    control = "model_metrics { metric_control: [ { histogram_options { buckets: 1 } }, { } ] }"
    assert [finding.message for finding in findings(tmp_path, CONFIG + control)] == [
        "metric_control number 1 has no metric_identifier.family",
        "metric_control number 2 has no metric_identifier.family and no histogram_options.buckets",
    ]


def test_backends(tmp_path: Path) -> None:
    """Which one serves: named, by platform, by file; or none, with the field to write."""
    assert only(tmp_path / "a", CONFIG.replace(BACKEND, 'platform: "python"\n'))[:2] == (
        "TC151",
        '"python"',
    )
    [finding] = findings(tmp_path / "b", CONFIG.replace(BACKEND, 'platform: "onnxruntime_onx"\n'))
    assert finding.fix == "did you mean onnxruntime_onnx?"
    [finding] = findings(tmp_path / "c", CONFIG.replace(BACKEND, 'backend: "onnxrutime"\n'))
    assert (finding.rule, finding.fix) == ("TC153", "did you mean onnxruntime?")
    assert findings(tmp_path / "d", CONFIG.replace(BACKEND, 'backend: "my_own"\n')) == ()
    plan = CONFIG.replace(BACKEND, 'backend: "tensorrt"\nplatform: "tensorrt_plan"\n')
    put(tmp_path / "e", {"m/config.pbtxt": plan, "m/1/model.plan": ""})
    assert checked(tmp_path / "e") == ()


SAMPLE = (
    'model_warmup [ {{ name: "w" batch_size: 1 inputs {{ key: "INPUT"\n'
    "  value {{ data_type: TYPE_FP32 dims: [ {} ] {} }} }} }} ]"
)


def test_warm_up(tmp_path: Path) -> None:
    """What a sample lacks, and where."""
    assert only(tmp_path / "a", CONFIG + SAMPLE.format("-1", "zero_data: true")) == (
        "TC192",
        "-1",
        "the sample w has INPUT with dims [-1], and a sample has a size",
    )
    assert only(tmp_path / "b", CONFIG + SAMPLE.format("3", "zero_data: true"))[2] == (
        "the sample w has INPUT with dims [3], and it is declared with [4]"
    )
    large = SAMPLE.replace("batch_size: 1", "batch_size: 9").format("4", "zero_data: true")
    assert only(tmp_path / "e", CONFIG + large)[1:] == (
        "9",
        "the sample w is a batch of 9, and max_batch_size is 8",
    )
    more = CONFIG.replace("} ]\noutput", '}, { name: "B" data_type: TYPE_BOOL dims: 1 } ]\noutput')
    assert only(tmp_path / "c", more + SAMPLE.format("4", "random_data: true"))[2] == (
        "the sample w has no input B"
    )
    optional = more.replace("TYPE_BOOL", "TYPE_BOOL optional: true")
    assert findings(tmp_path / "d", optional + SAMPLE.format("4", "random_data: true")) == ()
