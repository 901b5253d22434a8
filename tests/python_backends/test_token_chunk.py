# SPDX-License-Identifier: Apache-2.0
"""The packed layout survives a round trip and refuses what no engine sends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textlib.errors import RequestError
from textlib.tokens.token_chunk import (
    HEADER,
    SLOTS,
    WINDOW,
    FinishReason,
    TokenChunk,
    pack,
    slots_for,
    unpack,
)

counts = st.integers(min_value=0, max_value=2**31 - 1)
ids = st.integers(min_value=0, max_value=2**31 - 1)
chunk_values = st.builds(
    TokenChunk,
    stream_id=counts,
    index=counts,
    last=st.booleans(),
    finish_reason=st.sampled_from(FinishReason),
    num_input_tokens=counts,
    num_output_tokens=counts,
    window=st.lists(ids, max_size=WINDOW),
    token_ids=st.lists(ids, max_size=40),
    position=counts,
    cut=counts,
    log_probs=st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    cum_log_prob=st.floats(width=32, allow_nan=False),
    text=st.none() | st.binary(max_size=100),
)


@given(chunk=chunk_values)
def test_round_trip(chunk: TokenChunk) -> None:
    """unpack undoes pack."""
    assert unpack(pack(chunk)) == chunk


@given(chunk=chunk_values)
def test_shape(chunk: TokenChunk) -> None:
    """Fixed for a streamed chunk; beyond it powers of two, so that there are few shapes."""
    packed = pack(chunk)

    text = 0 if chunk.text is None else slots_for(-(-len(chunk.text) // 4))
    slots = len(packed) - HEADER - WINDOW - len(chunk.log_probs) - text
    assert slots == SLOTS or (slots.bit_count() == 1 and slots < 2 * len(chunk.token_ids))
    assert len(chunk.token_ids) <= slots
    assert packed.dtype == np.int32


def test_layout() -> None:
    """The positions that other engines and clients rely on."""
    texts, minus_one, minus_two = ([7, 8], [11, 12]), -1.0, -2.0
    chunk = TokenChunk(
        *(9, 2, True, FinishReason.LENGTH, 5, 4, *texts, 6, 3, [minus_one], minus_two, 99, b"abcde")
    )
    bits = [np.array([x], np.float32).view(np.int32).item() for x in (minus_one, minus_two)]

    assert pack(chunk).tolist() == [
        *[9, 2, 1, 2, 5, 4, 2, 6, 3, 1, bits[1], 99, 5],
        *[-1, -1, -1, -1, -1, 7, 8],
        *[11, 12, *[-1] * 14],
        bits[0],
        *[int.from_bytes(b"abcd", "little"), ord("e"), *[0] * 14],
    ]


def test_only_the_newest_ids_of_a_long_history_are_kept() -> None:
    """A caller may pass everything that it has."""
    packed = pack(TokenChunk(1, 0, False, FinishReason.NONE, 1, 20, list(range(20)), []))

    assert unpack(packed).window == list(range(13, 20))


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (2, 2, "last=2"),
        (3, 3, "finish_reason=3"),
        (3, -1, "finish_reason=-1"),
        (6, 17, "17 ids in 16 slots"),
        (6, -1, "-1 ids"),
        (7, -1, "position -1"),
        (8, -1, "cut -1"),
        (9, 17, "17 log probabilities"),
        (12, -2, "-2 bytes of text"),
        (12, 1, "1 bytes of text"),
    ],
)
def test_foreign_values_are_refused(position: int, value: int, problem: str) -> None:
    """Nonsense is named instead of decoded."""
    packed = pack(TokenChunk(1, 0, False, FinishReason.NONE, 1, 0, [], []))
    packed[position] = value

    with pytest.raises(RequestError, match=problem):
        unpack(packed)


@pytest.mark.parametrize("shape", [(), (0,), (33,), (2, 35), (40, 40)])
def test_foreign_shapes_are_refused(shape: tuple[int, ...]) -> None:
    """One row of at least 36 values."""
    with pytest.raises(RequestError, match="shape"):
        unpack(np.zeros(shape, dtype=np.int32))


def test_finish_reason_text() -> None:
    """What the public tensor says."""
    assert [reason.text for reason in FinishReason] == ["", "stop", "length"]


@pytest.mark.parametrize(
    ("ids", "slots"),
    [(0, 16), (1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128), (1000, 1024)],
)
def test_slots(ids: int, slots: int) -> None:
    """The next power of two, and none that is larger than needed."""
    assert slots_for(ids) == slots


@pytest.mark.parametrize(
    ("sent", "generated"), [(0, []), (1, [14]), (2, [13, 14]), (5, [10, 11, 12, 13, 14]), (9, None)]
)
def test_an_echoed_prompt_is_no_output(sent: int, generated: list[int] | None) -> None:
    """What was generated so far is at the end; a later chunk has nothing else."""
    ids = [10, 11, 12, 13, 14]
    chunk = TokenChunk(1, 0, False, FinishReason.NONE, 3, sent, [], ids)
    assert chunk.output_ids == (ids if generated is None else generated)
