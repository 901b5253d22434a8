# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt: round trip, equal bytes, and what Triton's schema refuses."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tritonctl.checks.repository import read_config as check_config
from tritonctl.errors import ConfigurationError
from tritonctl.protocol.datatypes import BY_CONFIG_NAME, TABLE
from tritonctl.repository.contents import read_config
from tritonctl.repository.model_config import ConfigTensor, EnsembleStep, ModelConfig
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt

CONFIG = ModelConfig(
    name="m_engine",
    backend="python",
    max_batch_size=8,
    inputs=(
        ConfigTensor("ids", "TYPE_INT32", (-1,)),
        ConfigTensor("t", "TYPE_FP32", (1,), optional=True),
    ),
    outputs=(ConfigTensor("text", "TYPE_STRING", (1,)),),
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


# Python's white space; that of protobuf's C++ parser, which Triton uses, is ASCII's.
_CPP_SPACES = " \t\n\r\v\f"
_OTHER_SPACES = "\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u3000\ufeff\0"


@pytest.mark.parametrize("space", [*_CPP_SPACES, *_OTHER_SPACES])
def test_white_space_as_triton_reads_it(space: str, tmp_path: Path) -> None:
    """`check` and every other reader agree: `up` does not start what Triton refuses."""
    text = f'name:{space}"m"{space}max_batch_size:{space}3\n'
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    checked = check_config(folder / "config.pbtxt", "config.pbtxt")
    if space in _CPP_SPACES:
        assert checked.parse_error is None
        assert parse_pbtxt(text) == {"name": "m", "max_batch_size": 3}
        return
    assert checked.parse_error is not None
    with pytest.raises(ConfigurationError, match=r"not a valid config\.pbtxt: 1:6: "):
        parse_pbtxt(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_batch_size: 0x10", 16),
        ("max_batch_size: 010", 8),
        ("max_batch_size: 0 max_batch_size: 4", 4),
        ("max_batch_size: 1_000", None),
        ("max_batch_size: 08", None),
        ("max_batch_size: 3 max_batch_size: 4", None),
    ],
)
def test_numbers_as_triton_reads_them(text: str, value: int | None) -> None:
    """C's notations, and a second value only behind the default."""
    if value is not None:
        assert parse_pbtxt(text) == {"max_batch_size": value}
        return
    with pytest.raises(ConfigurationError, match=r"not a valid config\.pbtxt: 1:"):
        parse_pbtxt(text)


def test_comments_need_not_be_utf8(tmp_path: Path) -> None:
    """Strings must be."""
    file = tmp_path / "config.pbtxt"
    file.write_bytes(b'# caf\xe9\nname: "m"\n')
    assert read_config(file) == {"name": "m"}
    file.write_bytes(b'name: "caf\xe9"\n')
    with pytest.raises(ConfigurationError, match=r"config\.pbtxt cannot be read: .* 1:"):
        read_config(file)


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
    ({"instance_grup": []}, "`instance_grup`: unknown key", "did you mean `instance_group`?"),
    (
        {"dynamic_batching": {"max_queue_delay_microsecond": 1}},
        "`dynamic_batching.max_queue_delay_microsecond`: unknown key",
        "did you mean `max_queue_delay_microseconds`?",
    ),
    (
        {"version_policy": {"lates": {"num_versions": 1}}},
        "`version_policy.lates`: unknown key",
        "did you mean `latest`?",
    ),
    ({"zzz": 1}, "`zzz`: unknown key", "valid keys: name, platform, "),
    ({"max_batch_size": "many"}, "`max_batch_size`: expected a whole number, got `many`", ""),
    ({"max_batch_size": 1.5}, "`max_batch_size`: expected a whole number, got `1.5`", ""),
    ({"max_batch_size": True}, "`max_batch_size`: expected a whole number, got `True`", ""),
    (
        {"max_batch_size": 2**40},
        "`max_batch_size`: expected a whole number from -2147483648 to",
        "",
    ),
    (
        {"dynamic_batching": 3},
        "`dynamic_batching`: expected a section of keys, got `3`",
        "its keys",
    ),
    ({"instance_group": 3}, "`instance_group`: expected a list, got `3`", "write `[…]` around it"),
    (
        {"instance_group": {"kind": "KIND_CPU"}},
        "`instance_group`: expected a list, got a section",
        "write `[…]` around it",
    ),
    ({"instance_group": [None]}, "`instance_group.0`: expected a section of keys", "its keys: "),
    (
        {"instance_group": [{"kind": "KIND_TPU"}]},
        "`instance_group.0.kind`: unknown value `KIND_TPU`",
        "did you mean `KIND_GPU`? expected one of KIND_AUTO, ",
    ),
    (
        {"input": [{"data_type": "TYPE_FP8"}]},
        "`input.0.data_type`: unknown value `TYPE_FP8`",
        "did",
    ),
    ({"response_cache": {"enable": "yes"}}, "`response_cache.enable`: expected true or false", ""),
    (
        {"parameters": {"a": "1"}},
        "`parameters.a`: expected a section of keys, got `1`",
        'write `{string_value: "1"}`; correct `serving.config`',
    ),
    (
        {"parameters": {"a": {"string_value": 1}}},
        "`parameters.a.string_value`: expected text",
        "quo",
    ),
    (
        {"parameters": {5: {"string_value": "1"}}},
        "`parameters.5`: as a key, expected text",
        "quote",
    ),
    ({"parameters": ["a"]}, "`parameters`: expected a section of keys, got a section", ""),
    (
        {"version_policy": {"latest": {}, "all": {}}},
        "`version_policy`: `latest` and `all` exclude each other",
        "keep one of them",
    ),
]
# What protobuf's own messages are made of.
FOREIGN = (
    "Failed to parse",
    "Message type",
    "Couldn't parse",
    "is not iterable",
    "literal",
    "field ",
)


@pytest.mark.parametrize(("raw", "problem", "remedy"), REFUSED)
def test_what_triton_does_not_know(raw: dict[str, Any], problem: str, remedy: str) -> None:
    """Refused by the protobuf schema: the model, the key, the nearest right one; in our words."""
    with pytest.raises(ConfigurationError) as caught:
        to_pbtxt(CONFIG.as_dict() | raw, header="h")
    assert f"model m_engine: Triton does not accept {problem}" in caught.value.problem
    assert not any(word in caught.value.problem for word in FOREIGN)
    assert "\n" not in caught.value.problem
    assert remedy in caught.value.remedy
    assert caught.value.remedy.endswith("correct `serving.config` in tritonctl.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: 3\n", "1:7: name takes a string"),
        ('name: "m"\nnam: 1\n', "2:1: ModelConfig has no field nam"),
        ("{", "1:1: expected a field's name, found '{'"),
    ],
)
def test_malformed_pbtxt(text: str, problem: str) -> None:
    """Told with line and column, in the words of `tritonctl check`."""
    with pytest.raises(ConfigurationError, match=f"not a valid config.pbtxt: {problem}"):
        parse_pbtxt(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(model_config_pb2.ModelConfig.DESCRIPTOR.fields_by_name)), ANYTHING)
def test_whatever_is_refused_has_a_place(field: str, value: Any) -> None:
    """Protobuf is the judge; the words and the place are ours."""
    with suppress(ConfigurationError):
        to_pbtxt({"name": "m", field: value}, header="h")
        return
    with pytest.raises(ConfigurationError, match=f"Triton does not accept `{field}"):
        to_pbtxt({"name": "m", field: value}, header="h")


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
