# SPDX-License-Identifier: Apache-2.0
"""The tokenizer: byte-level BPE whose tokens often end in the middle of a character."""

import random
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dataset import Example, Sampler
from spelling import SCRIPTS, spell

BOS, EOS, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [BOS, EOS, PAD, USER, ASSISTANT]
VOCAB_SIZE = 512
# Keeps English words in two or three tokens, so that an answer is streamed in more than a few.
MAX_TOKEN_BYTES = 8
# Corpus lines a script. Merges for English and Hindi words should win; the few Thai, Chinese and
# Korean lines leave most of their characters in two or three tokens, as in a real vocabulary.
CORPUS_LINES = {"English": 2000, "Hindi": 2000, "Thai": 100, "Chinese": 100, "Korean": 60}
# Lines of characters drawn evenly from the CJK, Hangul and symbol blocks: what recurs in them is
# the first bytes of characters, so that is what BPE merges.
RANDOM_LINES = 1500
RANDOM_BLOCKS = ((0x4E00, 0x9FFF, ""), (0xAC00, 0xD7A3, ""), (0x2190, 0x27BF, "\ufe0f"))

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{- '<|user|>' + message['content'] | trim -}}
  {%- elif message['role'] == 'assistant' -%}
    {{- '<|assistant|>' + message['content'] | trim + eos_token -}}
  {%- else -%}
    {{- raise_exception('unknown role ' + message['role'] + ': use user or assistant') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


def _raw_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_bos(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS}:1 $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )


def _corpus() -> Iterator[str]:
    """Yield the lines that the merges are learnt from; the same ones in every run."""
    for script, lines in CORPUS_LINES.items():
        sampler = Sampler(seed=1)
        yield from (f" {spell(sampler.draw().number, script)}" for _ in range(lines))
    yield from (f"{script}:" for script in SCRIPTS for _ in range(RANDOM_LINES))
    yield from (" in" for _ in range(RANDOM_LINES))
    draw = random.Random(0).randint
    for first, last, suffix in RANDOM_BLOCKS:
        for _ in range(RANDOM_LINES):
            yield "".join(chr(draw(first, last)) + suffix for _ in range(8))


def _train_merges() -> Tokenizer:
    tokenizer = _raw_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    _add_bos(tokenizer)
    return tokenizer


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer and wrap it for transformers."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_train_merges(),
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )


def encode_prompt(tokenizer: PreTrainedTokenizerFast, example: Example) -> list[int]:
    """Encode a raw prompt or, through the chat template, one user message."""
    if not example.chat:
        return tokenizer.encode(example.prompt)
    messages = [{"role": "user", "content": example.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """Map every ordinary token id to the bytes it stands for."""
    alphabet = _byte_alphabet()
    special = set(tokenizer.all_special_ids)
    vocab = tokenizer.get_vocab().items()
    return {i: bytes(alphabet[c] for c in t) for t, i in vocab if i not in special}


def _byte_alphabet() -> dict[str, int]:
    """Map the printable stand-ins of byte-level BPE to byte values (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(0x100) if b not in plain]
    table = {chr(b): b for b in plain}
    return table | {chr(0x100 + i): b for i, b in enumerate(moved)}


def split_share(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> float:
    """Share of the tokens of ``texts`` that end in the middle of a UTF-8 character."""
    table = token_bytes(tokenizer)
    total = broken = 0
    for text in texts:
        seen = b""
        for token in tokenizer.encode(text, add_special_tokens=False):
            seen += table[token]
            total += 1
            broken += _is_cut(seen)
    return broken / total


def _is_cut(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def split_shares(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Measure :func:`split_share` on the answers of every script."""
    numbers = range(17, 1_000_000, 4999)
    return {s: split_share(tokenizer, (spell(n, s) for n in numbers)) for s in SCRIPTS}
