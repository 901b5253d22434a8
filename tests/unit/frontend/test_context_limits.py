# SPDX-License-Identifier: Apache-2.0
"""What fits into a context, and what a request that does not is told."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.frontend.counting.context import ContextLengthError, ContextLimits
from tritonctl.frontend.counting.expected_output import ExpectedOutput

TOKENS = st.integers(1, 10_000)


def config(**values: int) -> dict[str, object]:
    """A model's configuration with these parameters."""
    return {"parameters": {key: {"string_value": str(value)} for key, value in values.items()}}


def test_limits_are_the_tightest_of_all_steps() -> None:
    """The KV cache bounds a request as max_seq_len does; what is no number is left out."""
    engine = config(max_seq_len=512, max_input_len=511, num_kv_blocks=8, block_size=32)
    tokenizer = config(max_input_len=500) | {"backend": "python"}
    assert ContextLimits.of([engine, tokenizer]) == ContextLimits(256, 500)
    assert ContextLimits.of([{"parameters": {"max_seq_len": {"string_value": "x"}}}, {}]) == (
        ContextLimits()
    )


def test_without_max_tokens_the_answer_may_have_what_is_left() -> None:
    """Never a default of the frontend's own."""
    assert ContextLimits(512, 511).answer_room(100, None) == 412
    assert ContextLimits().answer_room(100, None) is None
    assert ContextLimits().answer_room(100, 7) == 7


def test_the_error_has_the_exact_numbers() -> None:
    """Of the prompt, of what was asked for, and of what would fit."""
    limits = ContextLimits(512, 511)
    with pytest.raises(ContextLengthError) as both:
        limits.answer_room(500, 13)
    text = str(both.value)
    assert re.findall(r"\d+", text) == ["512", "513", "500", "13", "12"]
    assert not both.value.prompt_alone
    with pytest.raises(ContextLengthError, match=r"length is 512 tokens.*has 600 tokens") as alone:
        limits.answer_room(600, None)
    assert alone.value.prompt_alone
    with pytest.raises(ContextLengthError, match=r"max_input_len\) is 100 tokens"):
        ContextLimits(512, 100).answer_room(101, 1)
    assert "more than 4096 tokens" in str(limits.too_long("more than 4096"))


@given(TOKENS, TOKENS, st.none() | TOKENS, TOKENS)
def test_what_is_let_through_fits(
    context: int, prompt_limit: int, max_tokens: int | None, prompt: int
) -> None:
    """And what fits is let through, with no more than was asked for."""
    limits = ContextLimits(context, prompt_limit)
    fits = prompt <= prompt_limit and prompt + (max_tokens or 1) <= context
    try:
        room = limits.answer_room(prompt, max_tokens)
    except ContextLengthError:
        assert not fits
        return
    assert fits
    assert room == (context - prompt if max_tokens is None else max_tokens)


def test_expected_output_follows_recent_answers() -> None:
    """Of this model; never more than the request lets it have."""
    expected = ExpectedOutput(first_guess=64)
    assert expected.of("m", None) == 64
    assert expected.of("m", 10) == 10
    for _ in range(200):
        expected.learn("m", 300)
    assert expected.of("m", None) == 300
    for _ in range(200):
        expected.learn("m", 20)
    assert expected.of("m", None) == 20
    assert expected.of("other", None) == 64


def test_expected_output_is_bounded_in_memory() -> None:
    """Names of adapters come from requests: the models asked longest ago are forgotten."""
    expected = ExpectedOutput(first_guess=1)
    for number in range(5000):
        expected.learn(f"m{number}", 9)
    assert expected.of("m0", None) == 1
    assert expected.of("m4999", None) == 9
