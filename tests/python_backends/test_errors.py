# SPDX-License-Identifier: Apache-2.0
"""Codes of errors that come as text alone."""

import pytest
from textlib.errors import ensemble_error_code

TENSORS = {"max_tokens", "beam_width"}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("in ensemble 'a', max_tokens is 0, expected at least 1.", "INVALID_ARG"),
        ("in ensemble 'a', the prompt has 600 tokens and both", "INVALID_ARG"),
        ("beam_width is 3, expected 1.", "INVALID_ARG"),
        ("in ensemble 'a', the engine's queue is full: 8 wait", "UNAVAILABLE"),
        ("in ensemble 'a', Exceeds maximum queue size", "UNAVAILABLE"),
        ("in ensemble 'a', the engine failed while generating: max_tokens", "INTERNAL"),
        ("in ensemble 'a', max_tokens_of is no tensor", "INTERNAL"),
        ("", "INTERNAL"),
    ],
)
def test_code_of_a_message(message: str, code: str) -> None:
    """What begins with a tensor is about the request; what may pass later is UNAVAILABLE."""
    assert ensemble_error_code(message, TENSORS) == code
