# SPDX-License-Identifier: Apache-2.0
"""Configuration parameters: typed values, errors that name model, key and remedy."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from textlib.errors import ModelConfigurationError
from textlib.triton.parameters import ModelParameters


def parameters(**values: str) -> ModelParameters:
    """As Triton hands them over."""
    config = {
        "name": "speller_engine",
        "parameters": {key: {"string_value": value} for key, value in values.items()},
    }
    return ModelParameters.from_model_config(json.dumps(config))


def test_values() -> None:
    """Each type from its text form."""
    given = parameters(
        n=" 12 ",
        yes="true",
        no="FALSE",
        ids="[1, 2]",
        none="[]",
        p='{"A": "f32"}',
        deep='{"a": {"b": [1]}}',
        empty="",
    )

    assert given.integer("n") == 12
    assert given.boolean("yes")
    assert not given.boolean("no")
    assert given.integers("ids") == (1, 2)
    assert given.integers("none") == ()
    assert given.settings("p") == {"A": "f32"}
    assert given.json_object("deep") == {"a": {"b": [1]}}
    assert given.choice("empty", ("", "xgrammar")) == ""
    assert given.text("p") == '{"A": "f32"}'


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("twelve", lambda given: given.integer("key"), "a whole number"),
        ("0", lambda given: given.integer("key"), "at least 1"),
        ("1", lambda given: given.boolean("key"), "true or false"),
        ("1, 2", lambda given: given.integers("key"), "JSON list"),
        ("[1.5]", lambda given: given.integers("key"), "JSON list"),
        ("[true]", lambda given: given.integers("key"), "JSON list"),
        ("[]", lambda given: given.settings("key"), "JSON object"),
        ('{"a": {}}', lambda given: given.settings("key"), "JSON object"),
        ("[]", lambda given: given.json_object("key"), "JSON object"),
        ("both", lambda given: given.choice("key", ("", "one", "other")), "one of one, other"),
    ],
)
def test_malformed(text: str, read: Callable[[ModelParameters], Any], expected: str) -> None:
    """The text, what was expected, and what to do."""
    with pytest.raises(ModelConfigurationError) as caught:
        read(parameters(key=text))

    message = str(caught.value)
    assert message.startswith(f"speller_engine: parameter 'key' in config.pbtxt is '{text}'")
    assert expected in message
    assert "tritonctl render" in message


def test_missing() -> None:
    """An old or hand-written configuration."""
    with pytest.raises(
        ModelConfigurationError, match=r"speller_engine: .* no parameter 'max_seq_len'"
    ):
        parameters().integer("max_seq_len")
