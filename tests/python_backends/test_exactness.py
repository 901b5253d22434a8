# SPDX-License-Identifier: Apache-2.0
"""More than 10,000 streams: text equals `tokenizer.decode(all ids)` for every decoder.

The ids go the way they go in a server: cut by `Stream.take`, packed, unpacked, decoded alone.
"""

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from textlib.errors import ModelConfigurationError
from textlib.scheduling.decoder_stream import DecoderStream
from textlib.tokens.decoder_chain import DecoderChain
from textlib.tokens.detokenize import decode_chunk
from textlib.tokens.token_bytes import TokenTable, load_token_bytes
from textlib.tokens.token_chunk import SLOTS, FinishReason, pack, unpack
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams
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


def pieces(table: TokenTable, ids: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    """The text of every response."""
    stream = DecoderStream(1, REQUEST, NO_SINK, table=table)
    start = turn = 0
    while stream.outcome is None:
        size = sizes[turn % len(sizes)]
        stream.pending = list(ids[start : start + size])
        start, turn = start + size, turn + 1
        stream.outcome = FinishReason.STOP if start >= len(ids) else None
        chunk = stream.next_response().chunk
        assert chunk is not None
        received = unpack(pack(chunk))
        assert received == chunk  # so an engine that decodes it itself makes the same text
        yield decode_chunk(table, received)


def streamed(table: TokenTable, ids: Sequence[int], sizes: Sequence[int]) -> str:
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
        self.has_bytes = "ByteFallback" in str(self.tokenizer.decoder)
        self.size = max(self.tokenizer.get_vocab().values()) + 1

    def expected(self, ids: Sequence[int], *, skip: bool) -> str:
        """The library's own decode of everything, but for what `settled` says."""
        special = self.special if skip else []
        known = [self.tokenizer.id_to_token(number) for number in ids if number not in special]
        tokens = [token for token in known if token is not None]
        decoder = self.tokenizer.decoder
        if decoder is None:
            return " ".join(tokens)
        text: str = decoder.decode(settled(tokens) if self.has_bytes else tokens)
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
    """One of the kinds, made once."""
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
    ids = ids[: len(ids) - min(cut, len(ids))]
    kind(name).check(kind(name).with_special(ids, places), sizes)


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
@STREAMS
@given(data=st.data(), sizes=cuts, places=positions)
def test_random_ids(
    name: str, data: st.DataObject, sizes: list[int], places: list[tuple[int, int]]
) -> None:
    """Any ids, unknown ones included."""
    beyond = kind(name).size + 1
    ids = kind(name).with_special(
        data.draw(st.lists(st.integers(min_value=0, max_value=beyond), max_size=30)), places
    )
    kind(name).check(ids, sizes)


def settled(tokens: Sequence[str]) -> list[str]:
    """What the library would have to be given to keep what a stream has shown.

    It makes every byte of a malformed run U+FFFD; a stream has shown the characters before.
    """
    given: list[str] = []
    for is_byte, group in groupby(tokens, key=lambda token: token.startswith("<0x")):
        run = list(group)
        kept = _sound(bytes(int(token[3:5], 16) for token in run)) if is_byte else len(run)
        given += run[:kept] + ["\ufffd"] * (len(run) - kept)
    return given


def _sound(data: bytes) -> int:
    """How many bytes are complete characters, up to the first that is not."""
    try:
        return codecs.utf_8_decode(data, "strict", False)[1]
    except UnicodeDecodeError as error:
        return error.start


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
    "none": lambda: None,
    "CTC": lambda: decoders.CTC("<pad>", "▁"),
    "CTC raw, Metaspace": lambda: decoders.Sequence(
        [decoders.CTC("a", "|", cleanup=False), decoders.Metaspace()]
    ),
    "Fuse, Strip 2": lambda: decoders.Sequence([decoders.Fuse(), decoders.Strip("▁", 2, 0)]),
    "Fuse, Replace": lambda: decoders.Sequence([decoders.Fuse(), decoders.Replace("▁t", "T")]),
    "Fuse, regex": lambda: decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("▁+"), " ")]),
    "Fuse, WordPiece": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.WordPiece()]
    ),
    "Metaspace, WordPiece": lambda: decoders.Sequence([decoders.Metaspace(), decoders.WordPiece()]),
    "Metaspace, Fuse, Strip": lambda: decoders.Sequence(
        [decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "BPEDecoder, Fuse, Replace": lambda: decoders.Sequence(
        [decoders.BPEDecoder(), decoders.Fuse(), decoders.Replace("  ", " ")]
    ),
    "ByteLevel, Metaspace": lambda: decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]),
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


# Tokens that meet every rule of every decoder, in any order.
TOKENS = [
    *("a", "aa", "b", "▁", "▁a", "_", " ", "", "é", "##", "##.", "'s", "n't", "do not", "."),
    *("</w>", "b</w>", "<pad>", "|", "Ġ", "ä¸ĥ", "ä", "¸", "<0", "x61>"),
    *("<0x61>", "<0x20>", "<0xE4>", "<0xB8>", "<0x83>", "<0xE2>", "<0x96>", "<0x81>", "<0xFF>"),
]
SPACES_AND_LETTERS = st.sampled_from(["▁", "a", "aa", "aba", " "])
STEPS = st.one_of(
    st.just(decoders.ByteLevel()),
    st.just(decoders.ByteFallback()),
    st.just(decoders.Fuse()),
    st.builds(decoders.WordPiece, st.sampled_from(["##", "▁", ""]), st.booleans()),
    st.builds(
        decoders.CTC, st.sampled_from(["<pad>", "a", ""]), st.sampled_from("|a"), st.booleans()
    ),
    st.builds(decoders.BPEDecoder, st.sampled_from(["</w>", "aa", ""])),
    st.builds(
        decoders.Metaspace, st.sampled_from("▁_"), st.sampled_from(["always", "first", "never"])
    ),
    st.builds(decoders.Replace, SPACES_AND_LETTERS, st.sampled_from(["", " ", "b"])),
    st.builds(decoders.Replace, st.sampled_from([Regex("a+"), Regex(r"\s+$")]), st.just("<0x61>")),
    st.builds(decoders.Strip, st.sampled_from(" a"), st.integers(0, 2), st.just(0)),
)


@examples(1000)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=4),
    tokens=st.lists(st.sampled_from(TOKENS), max_size=12),
)
def test_any_sequence_of_decoders(steps: list[Any], tokens: list[str]) -> None:
    """Each prefix ends as the library decodes it, and nothing that was shown is taken back."""
    decoder = decoders.Sequence(steps)
    flat = json.loads(decoder.__getstate__())["decoders"]
    kinds = [step["type"] for step in flat]
    given_to = settled if kinds[0] == "ByteFallback" else list
    whole = decoder.decode(given_to(tokens))
    for count in range(len(tokens) + 1):
        expected = decoder.decode(given_to(tokens[:count]))
        assume("ByteFallback" not in kinds[1:] or "\ufffd" not in expected + whole)
        chain = DecoderChain(flat)
        shown = "".join([chain.feed(token) for token in tokens[:count]])
        assert whole.startswith(shown)
        assert shown + chain.finish() == expected


@pytest.mark.parametrize(
    ("decoder", "tokens", "shown"),
    [
        (decoders.ByteFallback(), ["<0xE4>", "<0xB8>", "<0x83>", "<0xE4>"], ["", "", "七", ""]),
        (decoders.ByteFallback(), ["<0x61>", "<0xFF>", "<0x61>"], ["a", "\ufffd", "\ufffd"]),
        (decoders.ByteFallback(), ["<0xE4>", "<0xB8>", "b"], ["", "", "\ufffd\ufffdb"]),
        (decoders.BPEDecoder(), ["a</w>", "b", "c</w>"], ["a", " b", "c"]),
        (decoders.CTC(), ["a", "a", "<pad>", "ab"], ["a", "", "", "ab"]),
        (decoders.Strip(" ", 1, 1), [" a ", " b"], ["a", "b"]),
        (decoders.Replace("aa", "b"), ["a", "aa"], ["a", "b"]),
    ],
)
def test_only_what_may_change_is_held_back(
    decoder: Any, tokens: list[str], shown: list[str]
) -> None:
    """By decoder."""
    step = json.loads(decoder.__getstate__())
    chain = DecoderChain([step])
    assert [chain.feed(token) for token in tokens] == shown


def test_behind_fuse_only_what_may_match_is_held_back() -> None:
    """Replacements, Strip and clean-up of all text, too."""
    joined = decoders.Sequence(
        [decoders.Fuse(), decoders.Replace("ab", "x"), decoders.Strip(" ", 1, 1)]
    )
    chain = DecoderChain(json.loads(joined.__getstate__())["decoders"])
    assert [chain.feed(token) for token in [" a", "b", "a ", "b "]] == ["", "x", "a", " b"]
    assert chain.finish() == ""


def test_unreadable_tokenizer(tmp_path: Path) -> None:
    """A broken file is named."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": 1}), encoding="utf-8")
    with pytest.raises(ModelConfigurationError, match=r"tokenizer\.json cannot be read"):
        load_token_bytes(path, skip_special_tokens=True)
