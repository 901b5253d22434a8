# SPDX-License-Identifier: Apache-2.0
"""What users reported about tensors of ONNX models, written again from their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.onnx_models import onnx_model
from tests.unit.checks.test_tensors import config, only, rules, tensor
from tritonctl.checks.examples.onnx import FLOAT, INT64, Values, onnx_file
from tritonctl.checks.rules import RULES

Report = tuple[str, str, Values, Values, str]

REPORTS: dict[str, Report] = {
    "server#1338": (
        "TC211",
        config(tensor("input_ids", "-1, 128", "INT64"), tensor("pooled", "768"), 1024),
        {"input_ids": (INT64, ["batch", 128])},
        {"pooled": (FLOAT, ["batch", 768])},
        "remove the first one: dims: [ 128 ]",
    ),
    "server#924": (
        "TC212",
        config(
            tensor("000_net", "1, 3, 416, 416"),
            tensor("082_convolutional", "18, 13, 13") + "," + tensor("094", "18, 26, 26"),
            0,
        ),
        {"000_net": (FLOAT, [1, 3, 416, 416])},
        {"082_convolutional": (FLOAT, [1, 18, 13, 13]), "094": (FLOAT, [1, 18, 26, 26])},
        "or write dims: [ 1, 18, 13, 13 ]",
    ),
    "server#2387": (
        "TC210",
        config(
            tensor("data", "3, 112, 112", more="reshape: { shape: [ 1, 3, 112, 112 ] }"),
            tensor("fc1", "1, 512"),
            16,
        ),
        {"data": (FLOAT, [16, 3, 112, 112])},
        {"fc1": (FLOAT, [16, 512])},
        "export the graph with its first dimension dynamic",
    ),
    "server#2644": (
        "TC208",
        config(tensor("users", "-1", "FP32"), tensor("output", "-1"), 1000),
        {"users": (INT64, ["n", "m"])},
        {"output": (FLOAT, ["n", "m"])},
        "declare it TYPE_INT64",
    ),
    "server#4065": (
        "TC213",
        config(tensor("input_ids", "-1", "INT64"), tensor("logits", "-1, 25")),
        {"input_ids": (INT64, ["batch_size", "sequence"])},
        {"logits": (FLOAT, ["batch_size", 256, 25])},
        "write dims: [ 256, 25 ]",
    ),
    "server#4159": (
        "TC210",
        config(tensor("input", "3, -1, -1"), tensor("output", "-1, -1, -1", "INT64")),
        {"input": (FLOAT, ["n", 3, "h", "w"])},
        {"output": (INT64, [1, "a", "b", "c"])},
        "export the graph with its first dimension dynamic",
    ),
    "onnxruntime_backend#220": (
        "TC210",
        config(tensor("input.1", "1, 32, 100"), tensor("307", "-1, 26, 37"), 256),
        {"input.1": (FLOAT, ["n", 1, 32, 100])},
        {"307": (FLOAT, [1, 26, 37])},
        "export the graph with its first dimension dynamic",
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports(name: str, tmp_path: Path) -> None:
    """One finding, of the rule that claims the report, with what would have helped."""
    rule, text, inputs, outputs, fix = REPORTS[name]
    assert name in RULES[rule].user_reports
    found = only(tmp_path, onnx_model(onnx_file(inputs, outputs), text))
    assert found.rule == rule
    assert fix in found.fix


def test_a_classifier_of_scikit_learn(tmp_path: Path) -> None:
    """server#3798: the probabilities are a sequence of maps, declared or not."""
    text = config(tensor("float_input", "4"), tensor("output_label", "1", "INT64"))
    graph = onnx_file(
        {"float_input": (FLOAT, ["n", 4])},
        {"output_label": (INT64, ["n", 1])},
        sequences=["output_probability"],
    )
    assert rules(tmp_path, onnx_model(graph, text)) == ["TC204"]
