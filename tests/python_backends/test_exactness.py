# SPDX-License-Identifier: Apache-2.0
"""More than 10,000 streams: text equals `tokenizer.decode(all ids)` for four kinds of tokenizer.

The ids go the way they go in a server: cut by `Stream.take`, packed, unpacked, decoded alone.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textlib.decoder_stream import Stream
from textlib.detokenize import decode_chunk
from textlib.errors import ConfigurationError
from textlib.request_tensors import GenerationRequest
from textlib.sampling import SamplingParams
from textlib.token_bytes import TokenBytes, load_token_bytes
from textlib.token_chunk import SLOTS, FinishReason, pack, unpack
from tokenizers import Regex, Tokenizer, decoders

from tests import sample_tokenizers
from tests.examples import examples

EXAMPLES = 230
STREAMS_PER_EXAMPLE = 6  # three chunkings, special tokens skipped or kept
STREAMS = examples(EXAMPLES)
PIECES = [
    *sample_tokenizers.TEXTS,
    *sample_tokenizers.ENGLISH,
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈👍🏽🇩🇪🇫🇷",
    "e\u0301\u0323n\u0303",
    "ก็กำ हिन्दी",
    "שלום \u202eمرحبا\u202c",
    "  ",
    "\n\t",
    "▁ ##x </w>",
    "𝒜\u0000\ufeff\ufffd",
]
texts = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=12), st.sampled_from([" ", ".", "'s"])),
    max_size=4,
).map("".join)
cuts = st.lists(st.integers(min_value=1, max_value=SLOTS), min_size=1, max_size=4)
positions = st.lists(
    st.tuples(st.integers(min_value=0, max_value=60), st.integers(min_value=1, max_value=12)),
    max_size=4,
)


NO_SINK: Any = None  # take() sends nothing
REQUEST = GenerationRequest(np.array([1], dtype=np.int32), SamplingParams(1), streaming=True)


def pieces(table: TokenBytes, ids: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    """The text of every response."""
    stream = Stream(1, REQUEST, NO_SINK, has_text=table.has_text)
    start = turn = 0
    while stream.outcome is None:
        size = sizes[turn % len(sizes)]
        stream.pending = list(ids[start : start + size])
        start, turn = start + size, turn + 1
        stream.outcome = FinishReason.STOP if start >= len(ids) else None
        chunk = stream.take().chunk
        assert chunk is not None
        received = unpack(pack(chunk))
        assert received == chunk  # so an engine that decodes it itself makes the same text
        yield decode_chunk(table, received)


def streamed(table: TokenBytes, ids: Sequence[int], sizes: Sequence[int]) -> str:
    """What a client puts together."""
    return "".join(pieces(table, ids, sizes))


class Kind:
    """A tokenizer, its tables and its special ids."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tables = {
            skip: load_token_bytes(path, skip_special_tokens=skip) for skip in (True, False)
        }
        added = self.tokenizer.get_added_tokens_decoder()
        self.special = sorted(number for number, token in added.items() if token.special)
        self.size = max(self.tokenizer.get_vocab().values()) + 1

    def expected(self, ids: Sequence[int], *, skip: bool) -> str:
        """The library's own decode of everything.

        A special token that is kept inside a character makes a run of byte tokens malformed.
        """
        if not skip and self.tokenizer.token_to_id("<0x00>") is not None:
            return replaced_run_by_run(self.tokenizer, ids, skip=skip)
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip)
        return text

    def check(self, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """STREAMS_PER_EXAMPLE streams, each equal to decode(ids)."""
        for skip, table in self.tables.items():
            expected = self.expected(ids, skip=skip)
            for chunking in ([1], [SLOTS], sizes):
                assert streamed(table, ids, chunking) == expected

    def with_special(self, ids: list[int], places: Sequence[tuple[int, int]]) -> list[int]:
        """Runs of special tokens put anywhere."""
        for place, count in places:
            run = [self.special[(place + n) % len(self.special)] for n in range(count)]
            ids = ids[: place % (len(ids) + 1)] + run + ids[place % (len(ids) + 1) :]
        return ids


@cache
def kind(name: str) -> Kind:
    """One of the four kinds, made once."""
    return Kind(sample_tokenizers.KINDS[name](Path(mkdtemp(prefix=f"tritonctl-{name}-"))))


def test_number_of_streams() -> None:
    """The default run has at least 10,000 streams."""
    assert 2 * len(sample_tokenizers.KINDS) * EXAMPLES * STREAMS_PER_EXAMPLE >= 10_000


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
@STREAMS
@given(text=texts, sizes=cuts, places=positions, cut=st.integers(min_value=0, max_value=5))
def test_text(
    name: str, text: str, sizes: list[int], places: list[tuple[int, int]], cut: int
) -> None:
    """Any text, cut off anywhere, with runs of special tokens anywhere, in any chunks."""
    ids = kind(name).tokenizer.encode(text, add_special_tokens=False).ids
    if name != "byte_fallback":  # a truncated run of byte tokens is malformed: tested below
        ids = ids[: len(ids) - min(cut, len(ids))]
    kind(name).check(kind(name).with_special(ids, places), sizes)


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
@STREAMS
@given(data=st.data(), sizes=cuts, places=positions)
def test_random_ids(
    name: str, data: st.DataObject, sizes: list[int], places: list[tuple[int, int]]
) -> None:
    """Any ids, unknown ones included; the only freedom is malformed byte fallback."""
    beyond = kind(name).size + 1
    ids = kind(name).with_special(
        data.draw(st.lists(st.integers(min_value=0, max_value=beyond), max_size=30)), places
    )
    if name != "byte_fallback":
        kind(name).check(ids, sizes)
        return
    for skip, table in kind(name).tables.items():
        expected = replaced_run_by_run(kind(name).tokenizer, ids, skip=skip)
        for chunking in ([1], [SLOTS], sizes):
            assert streamed(table, ids, chunking) == expected


def replaced_run_by_run(tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool) -> str:
    """Like decode(ids), but U+FFFD only for the bad bytes of a run of byte tokens."""
    special = {n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    seen = [token for token in ids if not (skip and token in special)]
    tokens = [token for token in map(tokenizer.id_to_token, seen) if token is not None]
    text = ""
    for is_byte, run in groupby(tokens, key=lambda token: token.startswith("<0x")):
        if is_byte:
            text += bytes(int(token[3:5], 16) for token in run).decode("utf-8", "replace")
        else:
            text += "".join(run).replace("▁", " ")
    return text.removeprefix(" ")


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_the_tokenizers_are_worth_testing(name: str) -> None:
    """Several tokens per word, and special tokens to put between them."""
    encoding = kind(name).tokenizer.encode("unbelievable lazy dog 東京")
    assert len(encoding.ids) > 3
    assert len(kind(name).special) >= 3


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_many_special_tokens_first(name: str) -> None:
    """40 skipped tokens take no place in the window: the first text still knows it is first."""
    ids = kind(name).tokenizer.encode(" the lazy dog", add_special_tokens=False).ids
    special = kind(name).special[0]
    kind(name).check([special] * 40 + ids, [1])
    kind(name).check([special] * 40 + ids[:1] + [special] * 40 + ids[1:], [3])


def test_text_is_not_withheld_without_need() -> None:
    """A WordPiece token is shown when it comes: nothing that follows can change it."""
    ids = kind("word_piece").tokenizer.encode("playing players .").ids
    table = kind("word_piece").tables[True]
    shown = list(pieces(table, ids, [1]))
    assert all(shown)
    assert "".join(shown).endswith(".")


def test_word_piece_cleans_up() -> None:
    """The fixture does exercise the clean-up, or its tests would prove nothing."""
    vocabulary = kind("word_piece").tokenizer.get_vocab()
    ids = [vocabulary[token] for token in ("do not", "do not", "n't", "'s", "?", "##.")]
    table = kind("word_piece").tables[True]
    assert streamed(table, ids, [1]) == "do not don'tn't's?."


Decoder = Callable[[], Any]
VARIANTS: dict[str, Decoder] = {
    **{
        f"Metaspace {scheme} {split}": partial(
            decoders.Metaspace, prepend_scheme=scheme, split=split
        )
        for scheme in ("always", "first", "never")
        for split in (True, False)
    },
    "Metaspace _": lambda: decoders.Metaspace(replacement="_"),
    "WordPiece raw": lambda: decoders.WordPiece(cleanup=False),
    "WordPiece no prefix": lambda: decoders.WordPiece(prefix="▁"),
    "BPEDecoder": decoders.BPEDecoder,
    "Replace, BPEDecoder": lambda: decoders.Sequence(
        [decoders.Replace("▁", "</w>"), decoders.BPEDecoder()]
    ),
    "Metaspace, Fuse": lambda: decoders.Sequence([decoders.Metaspace(), decoders.Fuse()]),
    "Replace, Fuse, Strip": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "regex, Strip, WordPiece": lambda: decoders.Sequence(
        [
            decoders.Replace(Regex("▁+"), " "),
            decoders.Strip("t", 2, 0),
            decoders.WordPiece(),
        ]
    ),
    "Fuse": decoders.Fuse,
}


@pytest.mark.parametrize("variant", VARIANTS)
@examples(40)
@given(data=st.data(), sizes=cuts, places=positions)
def test_other_decoders(
    variant: str, data: st.DataObject, sizes: list[int], places: list[tuple[int, int]]
) -> None:
    """Every setting of the supported decoders, over random ids."""
    case = _variant(variant)
    ids = data.draw(st.lists(st.integers(min_value=0, max_value=case.size + 1), max_size=20))
    case.check(case.with_special(ids, places), sizes)


@cache
def _variant(name: str) -> Kind:
    folder = Path(mkdtemp(prefix="tritonctl-variant-"))
    tokenizer = Tokenizer.from_file(str(sample_tokenizers.unigram(folder)))
    tokenizer.decoder = VARIANTS[name]()
    tokenizer.add_tokens(["word</w>", "a</w>b", "x</w></w> y", "</w>", "##ing", "_a_", "é</w>é"])
    return Kind(sample_tokenizers.save(tokenizer, folder))


REFUSED: dict[str, Decoder] = {
    "CTC": decoders.CTC,
    "Strip": lambda: decoders.Strip(" ", 0, 1),
    "Fuse + Strip": lambda: decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    "Fuse + Replace": lambda: decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
    "Metaspace + WordPiece": lambda: decoders.Sequence(
        [decoders.Metaspace(), decoders.WordPiece()]
    ),
    "Metaspace + Fuse + Strip": lambda: decoders.Sequence(
        [decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "ByteFallback + Metaspace": lambda: decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace()]
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    """What looks at neighbours or at the fused text is refused by name, with what would do."""
    tokenizer = Tokenizer.from_file(str(sample_tokenizers.unigram(tmp_path)))
    tokenizer.decoder = REFUSED[name]()
    path = sample_tokenizers.save(tokenizer, tmp_path)
    with pytest.raises(ConfigurationError) as error:
        load_token_bytes(path, skip_special_tokens=True)
    assert f"the decoder {name} is not supported" in str(error.value)
    assert "WordPiece" in str(error.value)


def test_unreadable_tokenizer(tmp_path: Path) -> None:
    """A broken file is named."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": 1}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json cannot be read"):
        load_token_bytes(path, skip_special_tokens=True)
