# SPDX-License-Identifier: Apache-2.0
"""Streamed text equals the tokenizer's own decode of all ids, however the stream is cut."""

import importlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from textlib.errors import ModelConfigurationError, RequestError
from textlib.tokens.decoder_chain import SUPPORTED_STEPS
from textlib.tokens.detokenize import decode_chunk
from textlib.tokens.token_bytes import (
    TokenBytes,
    TokenTable,
    byte_level_bytes,
    bytes_per_id,
    load_token_bytes,
)
from textlib.tokens.token_chunk import SLOTS, WINDOW, FinishReason, TokenChunk
from tokenizers import Tokenizer

from tests.examples import examples

STREAMS = examples(300, HealthCheck.function_scoped_fixture)
HARD_TEXTS = [
    "👩‍👩‍👧‍👦👍🏽🇩🇪🇫🇷 7️⃣3️⃣ \U0001fae8",
    "e\u0301\u0323 n\u0303 ก็ กำ हिन्दी",
    "שלום עולם \u202eمرحبا\u202c abc",
    "七千三百四十二 東京都 한국어",
    "  leading   and trailing  ",
    "𝒜𝓑 𐍈 \u0000 \ufeff \ufffd",
]
texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(HARD_TEXTS), max_size=3).map("".join),
    st.text(
        alphabet=st.characters(
            min_codepoint=0x300, max_codepoint=0x1FAFF, exclude_categories=["Cs"]
        ),
        max_size=20,
    ),
)
cuts = st.lists(st.integers(min_value=1, max_value=SLOTS), min_size=1, max_size=8)


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[TokenChunk]:
    """Cut `ids` into chunks whose sizes repeat `sizes`, as the decoder loop would send them."""
    made: list[TokenChunk] = []
    start = 0
    while start < len(ids) or not made:
        end = min(start + sizes[len(made) % len(sizes)], len(ids))
        last = end == len(ids)
        made.append(
            TokenChunk(
                stream_id=1,
                index=len(made),
                last=last,
                finish_reason=FinishReason.STOP if last else FinishReason.NONE,
                num_input_tokens=1,
                num_output_tokens=end,
                window=list(ids[max(0, start - WINDOW) : start]),
                token_ids=list(ids[start:end]),
            )
        )
        start = end
    return made


def streamed(table: TokenTable, ids: Sequence[int], sizes: Sequence[int]) -> str:
    """The text that a client puts together from all chunks."""
    return "".join(decode_chunk(table, chunk) for chunk in chunks(ids, sizes))


class Case:
    """A tokenizer and its tables, loaded once."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.skipping = load_token_bytes(path, skip_special_tokens=True)
        self.keeping = load_token_bytes(path, skip_special_tokens=False)

    def check(self, ids: Sequence[int], sizes: Sequence[int], *, skip: bool = True) -> None:
        """Streamed text == decode(ids)."""
        table = self.skipping if skip else self.keeping
        expected = self.tokenizer.decode(list(ids), skip_special_tokens=skip)

        assert streamed(table, ids, sizes) == expected


@pytest.fixture(scope="module")
def bytes_case(byte_level: Path) -> Case:
    return Case(byte_level)


@pytest.fixture(scope="module")
def metaspace_case(metaspace: Path) -> Case:
    return Case(metaspace)


@STREAMS
@given(text=texts, sizes=cuts, cut=st.integers(min_value=0, max_value=6))
def test_byte_level_text(bytes_case: Case, text: str, sizes: list[int], cut: int) -> None:
    """Any text, also cut off in the middle of a character."""
    ids = bytes_case.tokenizer.encode(text).ids
    bytes_case.check(ids[: len(ids) - min(cut, len(ids))], sizes)


@STREAMS
@given(data=st.data(), sizes=cuts, skip=st.booleans())
def test_byte_level_random_ids(
    bytes_case: Case, data: st.DataObject, sizes: list[int], skip: bool
) -> None:
    """Any ids, special and unknown ones included: malformed bytes replaced as the library does."""
    ordinary = st.integers(min_value=3, max_value=bytes_case.tokenizer.get_vocab_size() - 1)
    special_after = st.sampled_from([None, None, None, 0, 1, 2, 60_000])
    pairs = data.draw(st.lists(st.tuples(ordinary, special_after), max_size=40))
    ids = [token for pair in pairs for token in pair if token is not None]
    bytes_case.check(ids, sizes, skip=skip)


@STREAMS
@given(raw=st.binary(max_size=30), sizes=cuts)
def test_byte_level_random_bytes(bytes_case: Case, raw: bytes, sizes: list[int]) -> None:
    """One id per byte, no valid UTF-8 needed."""
    single = {byte_level_bytes(token): number for token, number in _vocabulary(bytes_case)}
    bytes_case.check([single[bytes([byte])] for byte in raw], sizes)


@STREAMS
@given(data=st.data(), sizes=cuts)
def test_metaspace_random_ids(metaspace_case: Case, data: st.DataObject, sizes: list[int]) -> None:
    """Any ids: Metaspace works on whole characters, only the first token is different."""
    size = metaspace_case.tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(min_value=0, max_value=size - 1), max_size=30))
    # 7 skipped ids before the first text: the one case that a window of 7 cannot tell.
    assume(len(ids) <= WINDOW or not all(token in (1, 2, 3) for token in ids[:WINDOW]))
    metaspace_case.check(ids, sizes)


def _vocabulary(case: Case) -> list[tuple[str, int]]:
    return [
        (token, number)
        for token, number in case.tokenizer.get_vocab(with_added_tokens=False).items()
        if number > 2
    ]


def test_long_streams_one_id_at_a_time(bytes_case: Case) -> None:
    """1,000 streams of 30 ids, two thirds of them single bytes, in chunks of 1 to 16."""
    random_source = random.Random(20261121)  # noqa: S311 - test data
    single = [number for token, number in _vocabulary(bytes_case) if len(token) == 1]
    everything = [number for _, number in _vocabulary(bytes_case)]
    for _ in range(1000):
        pool = random_source.choices([single, everything], [2, 1], k=30)
        ids = [random_source.choice(numbers) for numbers in pool]
        bytes_case.check(ids, [random_source.choice([1, 1, 2, 3, SLOTS])])


@pytest.mark.parametrize("text", ["<tool>", "a<tool>b", "x spaced y", "七千七"])
def test_added_tokens_keep_their_text(bytes_case: Case, text: str) -> None:
    """Added tokens that are not special are text; the library decodes them the same way."""
    bytes_case.check(bytes_case.tokenizer.encode(text).ids, [1])


def test_four_special_tokens_inside_a_character(bytes_case: Case) -> None:
    """The documented reach of the window: 3 withheld bytes and 4 skipped ids."""
    emoji = [byte_level_bytes(token) for token in "ðŁĺĢ"]
    single = {byte_level_bytes(token): number for token, number in _vocabulary(bytes_case)}
    first, *rest = [single[byte] for byte in emoji]
    bytes_case.check([first, 0, 1, 2, 0, *rest], [1])


def test_incomplete_character_is_withheld_until_the_end(bytes_case: Case) -> None:
    """Nothing is shown that a later id could change."""
    single = {byte_level_bytes(token): number for token, number in _vocabulary(bytes_case)}
    ids = [single[bytes([byte])] for byte in "é😀".encode()[:-1]]
    pieces = [decode_chunk(bytes_case.skipping, chunk) for chunk in chunks(ids, [1])]

    assert pieces == ["", "é", "", "", "�"]


# Ids that open a stream otherwise than they go on with it; 2 is skipped, 3 has no bytes.
TWO_WAYS = TokenBytes(
    data=[b" a", b" b", b"", b""],
    first_data=[b"a", b"b", b"", b""],
    is_visible=[True, True, False, True],
)


def in_the_middle(window: list[int], position: int, token_ids: Sequence[int] = (0, 1)) -> str:
    """What a chunk of these ids adds behind such a window."""
    reason = FinishReason.NONE
    chunk = TokenChunk(1, 1, False, reason, 1, 9, window, token_ids, position=position)
    return decode_chunk(TWO_WAYS, chunk)


@pytest.mark.parametrize(
    ("window", "position", "begun"),
    [
        ([], 0, False),
        ([2], 1, False),  # a skipped id is no text
        ([2] * 6, 6, False),
        ([2] * WINDOW, WINDOW, False),  # the window holds all there ever was
        ([2] * WINDOW, WINDOW + 1, True),  # what came before it left the window: most likely text
        ([2] * WINDOW, 1000, True),
        ([], 1, False),  # ids without text alone, which take no place
        ([], 1000, False),
        ([2] * 6, 1000, False),  # a window with room: everything with text is in it
        ([0], 1, True),
        ([2, 0], 2, True),
        ([0] + [2] * 6, WINDOW, True),
        ([1] * WINDOW, WINDOW, True),
        ([3], 1, True),  # the decoder sees it, though it has no bytes
    ],
)
def test_whether_a_stream_has_begun(window: list[int], position: int, begun: bool) -> None:
    """Only the very first id with text is decoded as one, and nothing behind it."""
    assert in_the_middle(window, position) == (" a b" if begun else "a b")
    assert in_the_middle(window, position, [2, 0]) == (" a" if begun else "a")
    assert in_the_middle(window, position, [2]) == ""


def test_the_first_id_with_text_opens_the_stream_wherever_it_is_cut() -> None:
    """Skipped ids before it, in chunks of their own or in its own, do not count."""
    for ids in ([0, 1, 0], [2, 0, 1], [2, 2, 2, 0, 1], [3, 0, 1]):
        expected = "".join(
            (TWO_WAYS.data if [t for t in ids[:at] if t != 2] else TWO_WAYS.first_data)[
                token
            ].decode()
            for at, token in enumerate(ids)
        )
        for size in range(1, len(ids) + 1):
            assert streamed(TWO_WAYS, ids, [size]) == expected


def test_negative_and_unknown_ids_decode_to_nothing(bytes_case: Case) -> None:
    """An engine may pad its vocabulary beyond the tokenizer's."""
    token = bytes_case.tokenizer.encode("a").ids[0]

    assert streamed(bytes_case.skipping, [token, 10**6, -5, token], [1]) == "aa"


def test_a_chain_without_its_text_is_refused(byte_fallback: Path) -> None:
    """A chunk of an older engine is not decoded almost right."""
    table = load_token_bytes(byte_fallback, skip_special_tokens=True)
    with pytest.raises(RequestError, match=r"token_chunk has no text.* render the repository"):
        decode_chunk(table, chunks([5], [1])[0])


def test_bytes_of_lone_tokens(byte_level: Path, byte_fallback: Path, bpe_suffix: Path) -> None:
    """Together they are the text, but for its first space, also where a character takes several."""
    text = "naïve 日本 😀 x"
    for file in (byte_level, byte_fallback):
        known = bytes_per_id(load_token_bytes(file, skip_special_tokens=True))
        assert known is not None
        ids = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
        assert b"".join(known[token] for token in ids).decode().lstrip() == text
    assert bytes_per_id(load_token_bytes(bpe_suffix, skip_special_tokens=True)) is None


def test_an_unknown_decoder_is_refused(byte_level: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a later release of the library may bring is named."""
    monkeypatch.setattr(
        "textlib.tokens.token_bytes.SUPPORTED_STEPS", SUPPORTED_STEPS - {"ByteLevel"}
    )
    with pytest.raises(
        ModelConfigurationError, match="unknown decoder ByteLevel, expected BPEDecoder"
    ):
        load_token_bytes(byte_level, skip_special_tokens=True)


def test_builders_refuse_what_cannot_be_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read the same kinds, before anything is built."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "builders" / "shared"))
    checkpoint = importlib.import_module("buildlib.checkpoint")
    assert set(checkpoint.DECODERS) == SUPPORTED_STEPS


def test_marks_of_tool_calls_are_text(byte_level: Path, tmp_path: Path) -> None:
    """Special or not: without them a call could not be told from text. Others add none."""
    tokenizer = Tokenizer.from_file(str(byte_level))
    marks = ["[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁calls▁begin｜>"]
    tokenizer.add_special_tokens([*marks, "<|other|>"])
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    table = load_token_bytes(file, skip_special_tokens=True)
    text = f"a{marks[0]}b<|other|>{marks[1]}{marks[2]}c"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    said = "".join(decode_chunk(table, chunk) for chunk in chunks(ids, [1]))
    assert said == text.replace("<|other|>", "")
