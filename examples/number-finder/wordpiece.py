# SPDX-License-Identifier: Apache-2.0
"""The tokenizer: WordPiece as BERT has it, with a vocabulary of number words.

Nothing is learnt here: a piece is a word, a digit or a place, so that every writing of a number
takes about as many tokens as it has parts.
"""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from writings import LIMIT, WRITINGS, write

PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = [PAD, UNKNOWN, CLS, SEP, MASK]
MAX_TOKENS = 128
PROMPT_WORDS = ("query", "document")
# Numbers that show every word of a language with spaces.
SHOWING = (*range(101), 1000)
THAI_PIECES = "ศูนย์ หนึ่ง สอง สาม สี่ ห้า หก เจ็ด แปด เก้า เอ็ด ยี่ สิบ ร้อย พัน".split()
ROUND_TO = 64


def _words(writing: str) -> Iterator[str]:
    for number in SHOWING:
        yield from write(number, writing).replace("-", " ").split()


def _letters(writing: str) -> Iterator[str]:
    for number in SHOWING:
        yield from write(number, writing).replace(" ", "")


def _inner(pieces: Iterable[str]) -> Iterator[str]:
    """Every piece at the beginning of a word, and within one."""
    for piece in pieces:
        yield from (piece, f"##{piece}")


def _pieces() -> Iterator[str]:
    yield from SPECIAL_TOKENS
    yield from (chr(code) for code in range(0x21, 0x7F) if not chr(code).isalnum())
    yield from _inner("0123456789abcdefghijklmnopqrstuvwxyz")
    yield from PROMPT_WORDS
    yield from _words("English")
    yield from _words("Hindi")
    yield from _letters("Chinese")  # each is a word of its own to BERT
    yield from _inner(_letters("Korean"))
    yield from _inner(THAI_PIECES)
    yield from _inner(write(digit, "Emoji") for digit in range(10))


def _vocabulary() -> dict[str, int]:
    """Map pieces to ids, filled up to a multiple of 64 with BERT's unused ones."""
    pieces = dict.fromkeys(_pieces())
    spare = -len(pieces) % ROUND_TO
    return {piece: i for i, piece in enumerate([*pieces, *(f"[unused{n}]" for n in range(spare))])}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make the tokenizer and wrap it for transformers."""
    vocabulary = _vocabulary()
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    # Accents stay: in Thai and Hindi they are vowels.
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, vocabulary[token]) for token in (CLS, SEP)],
    )
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def check_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Fail if a number has an unknown token; return the mean tokens of a number by writing."""
    numbers = range(17, LIMIT, 49)
    means = {}
    for writing in WRITINGS:
        rows = [tokenizer.encode(write(n, writing), add_special_tokens=False) for n in numbers]
        if any(tokenizer.unk_token_id in row for row in rows):
            raise AssertionError(f"{writing} has characters that the tokenizer does not know")
        if max(map(len, rows)) + 8 > MAX_TOKENS:
            raise AssertionError(f"a number in {writing} does not fit into {MAX_TOKENS} tokens")
        means[writing] = sum(map(len, rows)) / len(rows)
    return means
