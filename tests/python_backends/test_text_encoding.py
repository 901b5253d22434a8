# SPDX-License-Identifier: Apache-2.0
"""Texts to an encoder's inputs: equal to the library, bounded for long texts, a bad item alone."""

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tasklib.item_errors import ItemError
from tasklib.task_file import TextSettings
from tasklib.text_encoding import EncodedText, TextEncoder, TextItem, pad_rows, padding_values
from textlib.errors import ModelConfigurationError
from tokenizers import Tokenizer, normalizers, processors

from tests import sample_tokenizers

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WORDS = [word for text in sample_tokenizers.TEXTS for word in text.split()]


def bert(folder: Path) -> Path:
    """A WordPiece tokenizer with [CLS] and [SEP] around one text or two."""
    file = sample_tokenizers.word_piece(folder)
    tokenizer = Tokenizer.from_file(str(file))
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.enable_padding(length=99)  # what a checkpoint has there must not matter
    tokenizer.enable_truncation(3)
    return sample_tokenizers.save(tokenizer, folder)


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a tokenizer."""
    return bert(tmp_path_factory.mktemp("bert")).parent


def settings(max_seq_len: int = 32, **others: object) -> TextSettings:
    """Of a BERT."""
    return TextSettings(max_seq_len, 0, INPUTS, **others)  # type: ignore[arg-type]


def rows(encoder: TextEncoder, *items: TextItem) -> list[EncodedText]:
    """Of good items."""
    encoded = encoder.encode(items)
    errors = [str(one) for one in encoded if isinstance(one, ItemError)]
    assert not errors, errors
    return [one for one in encoded if isinstance(one, EncodedText)]


def problem(encoder: TextEncoder, item: TextItem) -> str:
    """Of a bad item."""
    [error] = encoder.encode([item])
    assert isinstance(error, ItemError), error
    return str(error)


def library(folder: Path, max_seq_len: int, side: str = "right") -> Tokenizer:
    """The tokenizer as transformers sets it up for `truncation="longest_first"`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_seq_len, strategy="longest_first", direction=side)
    return tokenizer


@pytest.mark.parametrize("length", [len(sample_tokenizers.PANIC), 5_000])
def test_a_panic_of_the_library_fails_alone(tmp_path: Path, length: int) -> None:
    """Also of a text so long that the tokens of a part are counted first."""
    encoder = TextEncoder(sample_tokenizers.panicking(tmp_path).parent, settings())
    bad = TextItem(sample_tokenizers.PANIC[0] * length)
    encoded = encoder.encode([TextItem("good"), bad, TextItem("good")])
    assert [isinstance(item, ItemError) for item in encoded] == [False, True, False]
    assert "text_input cannot be tokenised: " in str(encoded[1])


@pytest.mark.parametrize("side", ["right", "left"])
def test_equal_to_the_library(bert_folder: Path, side: str) -> None:
    """Texts and pairs of every length around the limit, cut at either end."""
    choices = random.Random(19).choices  # noqa: S311 - the same texts each time
    reference = library(bert_folder, 16, side)
    encoder = TextEncoder(bert_folder, settings(16, truncation_side=side))
    texts = [" ".join(choices(WORDS, k=count)) for count in range(0, 40, 3)]
    pairs = [(a, b) for a in texts for b in texts]
    expected = [reference.encode(text) for text in texts]
    expected += [reference.encode(*pair) for pair in pairs]

    encoded = rows(encoder, *map(TextItem, texts), *(TextItem(*pair) for pair in pairs))

    for row, wanted in zip(encoded, expected, strict=True):
        assert row.ids.tolist() == wanted.ids
        assert row.type_ids is not None
        assert row.type_ids.tolist() == wanted.type_ids
        assert row.num_input_tokens == len(wanted.ids) <= 16
        assert row.truncated == bool(wanted.overflowing)


@pytest.mark.parametrize(
    "made",
    [
        bert,
        sample_tokenizers.byte_level,
        sample_tokenizers.byte_fallback,
        sample_tokenizers.unigram,
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("joined", [" ", "", "\n \n"])
def test_beginning_of_a_long_text_is_enough(
    made: Callable[[Path], Path], side: str, joined: str, tmp_path: Path
) -> None:
    """It gives the ids of the whole, also where the text is one word."""
    choices = random.Random(7).choices  # noqa: S311 - the same texts each time
    folder = made(tmp_path).parent
    reference = library(folder, 20, side)
    encoder = TextEncoder(folder, settings(20, truncation_side=side))
    for count in (150, 400, 1200):
        text = joined.join(choices(WORDS, k=count))
        [row] = rows(encoder, TextItem(text))
        expected = reference.encode(text)
        assert row.ids.tolist() == expected.ids
        assert row.truncated == bool(expected.overflowing)


@pytest.mark.parametrize("repeated", ["playing ", "x", " ", "漢", "e\u0301"])
def test_ten_megabytes_cost_little(bert_folder: Path, repeated: str) -> None:
    """They are truncated, or refused where too little of them holds tokens."""
    encoder = TextEncoder(bert_folder, settings(512))
    text = repeated * (10_000_000 // len(repeated))
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    [row] = encoder.encode([TextItem(text.encode())])

    assert time.process_time() - begin < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000
    if isinstance(row, ItemError):
        assert "text_input has 10000000 characters, and 1000000 of them hold only" in str(row)
    else:
        assert row.truncated
        assert row.num_input_tokens == 512


def test_too_long_is_refused_with_the_counts(bert_folder: Path) -> None:
    """Only where truncate is false."""
    encoder = TextEncoder(bert_folder, settings(8))

    assert not rows(encoder, TextItem("play play play play play play", truncate=False))[0].truncated
    assert problem(encoder, TextItem("play " * 7, truncate=False)) == (
        "text_input has 9 tokens, the model reads 8 (max_seq_len), and truncate is false. "
        "Shorten the text, or set truncate to true."
    )
    assert "text_input and text_pair have 11 tokens" in problem(
        encoder, TextItem("play " * 4, "play " * 4, truncate=False)
    )
    assert "has more than" in problem(encoder, TextItem("play " * 5000, truncate=False))


def test_bad_items_fail_alone(bert_folder: Path) -> None:
    """Each with its reason, and with its index where the caller says it."""
    encoder = TextEncoder(bert_folder, settings(pair=True), names=("query", "text_input"))
    answers = encoder.encode(
        [
            TextItem(b"play", b"play"),
            TextItem(b"bad \xff byte", b"play"),
            TextItem(b"play", b"\xc3"),
            TextItem(b"play"),
            TextItem(b"play", b"play", prompt_name="query"),
            TextItem(b"", b""),
            TextItem(b"\x00", b"\x00 play"),
        ]
    )

    errors = [str(one) if isinstance(one, ItemError) else None for one in answers]
    assert errors == [
        None,
        "query is not valid UTF-8: byte 0xff at offset 4 (invalid start byte).",
        "text_input is not valid UTF-8: byte 0xc3 at offset 0 (unexpected end of data).",
        "text_input is missing: this model reads two texts.",
        "prompt_name is `query`, expected no prompt.",
        None,
        None,
    ]
    assert isinstance(answers[1], ItemError)
    assert str(answers[1].with_index(3)).startswith("query[3] is not valid UTF-8")


def test_a_text_without_tokens_is_refused(byte_level: Path) -> None:
    """A tokenizer without special tokens has none for an empty text; a graph takes no empty row."""
    encoder = TextEncoder(byte_level.parent, settings())

    assert "text_input has no token" in problem(encoder, TextItem(""))


def test_prompts(bert_folder: Path) -> None:
    """By name, by default, or none; their tokens are counted as sentence-transformers does."""
    known = {"query": "find : ", "document": "", "closed": "play [SEP]"}
    encoder = TextEncoder(bert_folder, settings(prompts=known, default_prompt="query"))
    reference = library(bert_folder, 32)
    with_prompt = reference.encode("find : player").ids
    alone = reference.encode("player").ids

    encoded = rows(
        encoder,
        TextItem("player"),
        TextItem("player", prompt_name="query"),
        TextItem("player", prompt_name="document"),
        TextItem("player", prompt_name=""),
        TextItem("player", prompt_name="closed"),
    )

    assert [row.ids.tolist() for row in encoded[:4]] == [with_prompt, with_prompt, alone, alone]
    tokens = len(reference.encode("find : ").ids) - 1  # without [SEP]
    assert [row.prompt_tokens for row in encoded[:4]] == [tokens, tokens, 0, 0]
    assert encoded[4].prompt_tokens == len(reference.encode("play [SEP]").ids) - 1
    assert "expected one of closed, document, query" in problem(
        encoder, TextItem("x", prompt_name="passage")
    )


def test_lower_case_comes_before_the_tokenizers_own_normalizer(bert_folder: Path) -> None:
    """As sentence-transformers does with do_lower_case."""
    reference = library(bert_folder, 32)
    reference.normalizer = normalizers.Lowercase()
    encoder = TextEncoder(bert_folder, settings(lower_case=True))

    [row] = rows(encoder, TextItem("PLAYER Plays İ"))

    assert row.ids.tolist() == reference.encode("PLAYER Plays İ").ids


def test_offsets_are_characters(bert_folder: Path) -> None:
    """Of the text as it was sent, behind characters of several bytes too."""
    encoder = TextEncoder(bert_folder, settings(), offsets=True)
    text = "👍🏽 日本 player ."

    [row] = rows(encoder, TextItem(text))

    assert row.offsets is not None
    assert row.offsets[0].tolist() == row.offsets[-1].tolist() == [-1, -1]
    spans = [text[start:end] for start, end in row.offsets[1:-1].tolist()]
    assert spans[-1] == "."
    assert "".join(spans) == text.replace(" ", "")


def test_rows_are_padded_on_the_right(bert_folder: Path) -> None:
    """Only the graph's inputs, to the longest row or to a given length."""
    encoder = TextEncoder(bert_folder, settings())
    encoded = rows(encoder, TextItem("play"), TextItem("play", "play play"))
    short, long = (row.ids.tolist() for row in encoded)

    arrays = pad_rows(encoded, TextSettings(32, 7, ("input_ids", "attention_mask")))

    fill = len(long) - len(short)
    assert arrays["input_ids"].tolist() == [short + [7] * fill, long]
    assert arrays["attention_mask"].tolist() == [[1] * len(short) + [0] * fill, [1] * len(long)]
    assert arrays.keys() == {"input_ids", "attention_mask"}
    types = pad_rows(encoded, settings(), length=9)["token_type_ids"]
    assert types.shape == (2, 9)
    assert types.dtype == np.int64
    assert types[1].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_prompt_is_left_out_of_the_pooling_mask(bert_folder: Path) -> None:
    """Where the checkpoint says so; the graph then reads a second mask."""
    known = settings(prompts={"query": "play play "}, include_prompt=False)
    encoder = TextEncoder(bert_folder, known)

    arrays = pad_rows(rows(encoder, TextItem("play", prompt_name="query"), TextItem("play")), known)

    assert arrays["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert arrays["pooling_mask"].tolist() == [[0, 0, 0, 1, 1], [1, 1, 1, 0, 0]]
    assert padding_values(known) == dict.fromkeys(arrays, 0)


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    """At load."""
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")

    with pytest.raises(ModelConfigurationError, match=r"tokenizer\.json cannot be read"):
        TextEncoder(tmp_path, settings())
