# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of several kinds, trained offline in a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and then it does so once more.",
    "def main(argv: list[str]) -> int:\n    return 0\n",
    "seven thousand three hundred forty-two = 7342 = 七千三百四十二 = 7️⃣3️⃣4️⃣2️⃣",
    "東京都は日本の首都です。 中华人民共和国 한국어 ภาษาไทย हिन्दी",
    "👩‍👩‍👧‍👦 🇩🇪 🇫🇷 👍🏽 é ñ שלום עולם مرحبا بالعالم",
]
ENGLISH = [
    "Isn't it ? I don't , they've said : do not ! We're late . It's Tom ' s , I'm sure ...",
    "un believable unbelievably playing played player players",
]
UNKNOWN = "<unk>"
# More backtracking than Oniguruma allows for a pattern of nested repetitions.
PANIC = "x" * 40
SPECIAL = ["<s>", "</s>", "<pad>"]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Tokens that WordPiece's clean-up changes, and some that it must leave alone.
CLEANED = [
    ".",
    "?",
    "!",
    ",",
    "n't",
    "'m",
    "'s",
    "'ve",
    "'re",
    "do not",
    "##.",
    "##'s",
    "' '",
    " '",
]


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write tokenizer.json into `folder`."""
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def panicking(folder: Path) -> Path:
    """Words, split by a regular expression with which the Rust library panics on PANIC."""
    tokenizer = Tokenizer(models.WordLevel({UNKNOWN: 0, "good": 1}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    return save(tokenizer, folder)


def byte_level(folder: Path) -> Path:
    """A byte-level BPE (GPT-2, Llama 3, Qwen) with special and ordinary added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken(" spaced "), AddedToken("七千")])
    return save(tokenizer, folder)


def byte_fallback(folder: Path) -> Path:
    """A BPE in the style of Llama 2: Prepend, byte tokens, Strip of one space."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True))
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[UNKNOWN, *SPECIAL, *byte_tokens], show_progress=False
    )
    trained.train_from_iterator(TEXTS[:2], trainer)
    return _with_plain_tokens(save(trained, folder), byte_tokens)


def _with_plain_tokens(path: Path, tokens: list[str]) -> Path:
    """Take `tokens` out of the special added tokens: the trainer can only add them as such."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [
        entry for entry in content["added_tokens"] if entry["content"] not in tokens
    ]
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def word_piece(folder: Path, *, cleanup: bool = True) -> Path:
    """A WordPiece tokenizer in the style of BERT, with every token that its clean-up knows."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=BERT_SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS + ENGLISH, trainer)
    tokenizer.add_tokens([AddedToken(token) for token in CLEANED])
    return save(tokenizer, folder)


def unigram(folder: Path, *, prepend_scheme: str = "always", split: bool = True) -> Path:
    """A Unigram model with Metaspace, in the style of T5 and XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme, split=split)
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=[UNKNOWN, *SPECIAL], unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return save(tokenizer, folder)


def unigram_bytes(folder: Path) -> Path:
    """A Unigram model with Metaspace and byte tokens, as converted SentencePiece models have."""
    content = json.loads(unigram(folder).read_text(encoding="utf-8"))
    pieces = content["model"]["vocab"]
    pieces += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    content["model"]["byte_fallback"] = True
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [{"type": "ByteFallback"}, content["decoder"]],
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def bpe_suffix(folder: Path) -> Path:
    """A BPE whose words end in </w>, in the style of the first GPT."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[UNKNOWN, *SPECIAL],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return save(tokenizer, folder)


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "word_piece": word_piece,
    "unigram": unigram,
    "unigram_bytes": unigram_bytes,
    "bpe_suffix": bpe_suffix,
}
