# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt: round trip, equal bytes, and what Triton's schema refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.errors import ConfigurationError
from tritonctl.protocol.datatypes import BY_CONFIG_NAME, TABLE
from tritonctl.repository.model_config import EnsembleStep, ModelConfig, Tensor
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt

CONFIG = ModelConfig(
    name="m_engine",
    backend="python",
    max_batch_size=8,
    inputs=(Tensor("ids", "TYPE_INT32", (-1,)), Tensor("t", "TYPE_FP32", (1,), optional=True)),
    outputs=(Tensor("text", "TYPE_STRING", (1,)),),
    decoupled=True,
    dynamic_batching={},
    instance_group=({"kind": "KIND_CPU", "count": 2},),
    parameters={"b": "2", "a": '{"é": "字\n"}'},
)
ENSEMBLE = ModelConfig(
    name="m",
    max_batch_size=1,
    inputs=(),
    outputs=(),
    steps=(EnsembleStep("m_engine", {"ids": "_ids"}, {"text": "text_output"}),),
)


def test_round_trip() -> None:
    """What is rendered parses back to the same fields; absent ones stay absent."""
    assert parse_pbtxt(to_pbtxt(CONFIG.as_dict(), header="h")) == CONFIG.as_dict() | {
        "input": [
            {"name": "ids", "data_type": "TYPE_INT32", "dims": ["-1"]},
            {"name": "t", "data_type": "TYPE_FP32", "dims": ["1"], "optional": True},
        ],
        "output": [{"name": "text", "data_type": "TYPE_STRING", "dims": ["1"]}],
    }


def test_ensemble_round_trip() -> None:
    """Platform, steps and maps; version -1 is "the latest"."""
    record = parse_pbtxt(to_pbtxt(ENSEMBLE.as_dict(), header="h"))
    assert record["platform"] == "ensemble"
    assert record["ensemble_scheduling"]["step"] == [
        {
            "model_name": "m_engine",
            "model_version": "-1",
            "input_map": {"ids": "_ids"},
            "output_map": {"text": "text_output"},
        }
    ]
    assert "backend" not in record


def test_empty_dynamic_batching_is_not_absent() -> None:
    """`dynamic_batching {}` turns batching on; without it there is none."""
    assert "dynamic_batching {\n}\n" in to_pbtxt(CONFIG.as_dict(), header="h")
    plain = ModelConfig("m", 1, (), ())
    assert "dynamic_batching" not in to_pbtxt(plain.as_dict(), header="h")


def test_max_batch_size_zero_is_written() -> None:
    """Protobuf drops zeros, to Triton an absent size means "complete it"."""
    text = to_pbtxt({"name": "m", "max_batch_size": 0}, header="h")
    assert text == '# h\nname: "m"\nmax_batch_size: 0\n'
    assert parse_pbtxt(text) == {"name": "m"}
    assert to_pbtxt({"name": "m", "max_batch_size": 3}, header="h").count("max_batch_size") == 1


def test_header_is_a_comment_on_every_line() -> None:
    """However many lines, whatever is in them."""
    text = to_pbtxt({"name": "m"}, header='one\n\n"two" {')
    assert text.startswith('# one\n# \n# "two" {\nname: "m"\n')
    assert parse_pbtxt(text) == {"name": "m"}


def test_equal_input_gives_equal_bytes() -> None:
    """Also when mappings were filled in another order."""
    config = CONFIG.as_dict()
    turned = {key: config[key] for key in reversed(config)}
    turned["parameters"] = {key: config["parameters"][key] for key in ("a", "b")}
    assert to_pbtxt(config, header="h") == to_pbtxt(turned, header="h")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"instance_grup": []}, 'has no field named "instance_grup"', "did you mean `instance_group`?"),
    (
        {"dynamic_batching": {"max_queue_delay_microsecond": 1}},
        'has no field named "max_queue_delay_microsecond"',
        "did you mean `max_queue_delay_microseconds`?",
    ),
    (
        {"version_policy": {"lates": {"num_versions": 1}}},
        'has no field named "lates"',
        "did you mean `latest`?",
    ),
    ({"zzz": 1}, 'has no field named "zzz"', "correct `serving.config`"),
    ({"max_batch_size": "many"}, "max_batch_size", "correct `serving.config`"),
    ({"max_batch_size": 2**40}, "max_batch_size", "correct `serving.config`"),
    ({"dynamic_batching": 3}, "dynamic_batching", "correct `serving.config`"),
    ({"instance_group": 3}, "instance_group", "correct `serving.config`"),
    ({"instance_group": [{"kind": "KIND_TPU"}]}, "KIND_TPU", "correct `serving.config`"),
    ({"input": [{"data_type": "TYPE_FP8"}]}, "TYPE_FP8", "correct `serving.config`"),
    ({"parameters": {"a": "1"}}, "parameters", "correct `serving.config`"),
]


@pytest.mark.parametrize(("raw", "problem", "remedy"), REFUSED)
def test_what_triton_does_not_know(raw: dict[str, Any], problem: str, remedy: str) -> None:
    """Refused by the protobuf schema: the model, the field, the nearest right one; one line."""
    with pytest.raises(ConfigurationError) as caught:
        to_pbtxt(CONFIG.as_dict() | raw, header="h")
    assert caught.value.problem.startswith("model m_engine: Triton's model configuration refuses")
    assert problem in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("text", "line"), [("name: 3\n", "1:"), ('name: "m"\nnam: 1\n', "2:"), ("{", "1:")]
)
def test_malformed_pbtxt(text: str, line: str) -> None:
    """Told with the line."""
    with pytest.raises(ConfigurationError, match=f"not a valid config.pbtxt: {line}"):
        parse_pbtxt(text)


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=99), max_size=4))
def test_any_parameter_survives(parameters: dict[str, str]) -> None:
    """Quotes, line ends, emoji, control characters."""
    record = {"name": "m", "parameters": {k: {"string_value": v} for k, v in parameters.items()}}
    parsed = parse_pbtxt(to_pbtxt(record, header="h")).get("parameters", {})
    assert {k: v.get("string_value", "") for k, v in parsed.items()} == parameters


def test_data_types_are_those_of_triton_s_schema() -> None:
    """One row per type of model_config.proto, sizes as NumPy has them."""
    import numpy as np
    from tritonclient.grpc import model_config_pb2
    from tritonclient.utils import np_to_triton_dtype

    known = set(model_config_pb2.DataType.keys()) - {"TYPE_INVALID"}
    assert set(BY_CONFIG_NAME) == known
    assert len(TABLE) == len(known)
    for row in TABLE:
        if row.numpy is not None:
            assert np_to_triton_dtype(np.dtype(row.numpy)) == row.wire
            assert row.size in {np.dtype(row.numpy).itemsize, None}
