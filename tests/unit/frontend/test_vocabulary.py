# SPDX-License-Identifier: Apache-2.0
"""Bytes of tokens, against the library that decodes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.vocabulary import Vocabulary

SHIPPED = Path(__file__).parents[3] / "examples" / "number-speller" / "checkpoint"


def test_byte_level() -> None:
    """Every id of the shipped tokenizer, as the library decodes it; halves of characters, too."""
    file = SHIPPED / "tokenizer.json"
    library, ours = Tokenizer.from_file(str(file)), Vocabulary(file)
    for text in (" seven thousand", "七千", "7️⃣", "Ünïcödé \u0000", "שלום"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert b"".join(ours.data(each) for each in ids).decode() == library.decode(ids)
    for number in range(library.get_vocab_size()):
        assert ours.data(number).decode("utf-8", "replace") == library.decode([number])
    assert ours.data(10**6) == b""


def test_pieces(tmp_path: Path) -> None:
    """SentencePiece's: a leading space goes from the first token, bytes that have no piece."""
    vocab = {"<unk>": 0, "▁seven": 1, "ty": 2, "<0xE4>": 3, "<0xB8>": 4, "<0x83>": 5, "▁": 6}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(["<tool_call>"])
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    ours = Vocabulary(file)
    ids = [1, 2, 1, 3, 4, 5, 6, *tokenizer.encode("<tool_call></s>").ids]
    data = [ours.data(each, first=place == 0) for place, each in enumerate(ids)]
    assert b"".join(data).decode() == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {}}, "decoder": {"type": "CTC"}}',
    ],
)
def test_what_has_no_vocabulary(content: str, tmp_path: Path) -> None:
    """Broken files, and decoders that look at neighbours."""
    file = tmp_path / "tokenizer.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError):
        Vocabulary(file)


def test_unigram(tmp_path: Path) -> None:
    """Its vocabulary is a list of pairs."""
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    content = {"model": {"vocab": [["<unk>", 0.0], ["▁a", -1.0]]}, "decoder": decoder}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    assert Vocabulary(file).data(1) == b" a"
    assert Vocabulary(file).data(1, first=True) == b"a"
