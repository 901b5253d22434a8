# SPDX-License-Identifier: Apache-2.0
"""Texts and pairs of texts to the inputs of an encoder, as sentence-transformers and transformers
do it. A bad item fails alone.

A text that is far longer than the model reads is not tokenised to its end: its beginning does, and
a text costs time and memory by what the model reads of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, normalizers

from tasklib.entities import SPECIAL
from tasklib.item_errors import ItemError
from tasklib.task_file import LEFT, TextSettings
from textlib.errors import ConfigurationError

IDS, MASK, TYPES, POOLING_MASK = "input_ids", "attention_mask", "token_type_ids", "pooling_mask"
_NO_PROMPT = ""
# Up to so many characters a token a text is tokenised whole.
_WHOLE = 32
# Of the beginning of a longer one twice the tokens that the model reads: where a text is cut can
# change only the tokens near the cut.
_SPARE = 2
_GROWTH = 4
# A beginning that holds too few tokens grows up to this. Tokenising it takes 0.3 GB at most.
_MOST_CHARACTERS = 1_000_000
# Which of two long texts has more tokens decides who gets an odd token; no matter beyond this.
_WHOLE_PAIR = 100_000


@dataclass(frozen=True, slots=True)
class TextItem:
    """One item. pair: its second text. prompt_name: None for the default, "" for no prompt.

    truncate false: a text that is too long is refused.
    """

    text: bytes | str
    pair: bytes | str | None = None
    prompt_name: str | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A row for the graph, not padded: ids INT64[n], type_ids INT64[n] where the graph reads them.

    num_input_tokens: n. offsets: INT32[n, 2], where each token is in the text, in characters,
    SPECIAL for special tokens; None where nobody asked. prompt_tokens: tokens at the beginning that
    are the prompt's.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None
    num_input_tokens: int
    truncated: bool
    offsets: NDArray[np.int32] | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What goes into the tokenizer. beyond: tokens of a text that is already cut, else 0.

    skipped: characters of the first text that are cut off in front.
    """

    texts: tuple[str, ...]
    prompt: str
    truncate: bool
    beyond: int = 0
    skipped: int = 0

    @property
    def input(self) -> str | tuple[str, ...]:
        return self.texts[0] if len(self.texts) == 1 else self.texts


class TextEncoder:
    """The tokenizer of one model. names: the public tensors of an item's texts, for errors."""

    def __init__(
        self,
        tokenizer_folder: Path,
        settings: TextSettings,
        *,
        names: tuple[str, str] = ("text_input", "text_pair"),
        offsets: bool = False,
    ) -> None:
        """Raises ConfigurationError for a tokenizer.json that cannot be read."""
        self._settings = settings
        self._names = names
        self._offsets = offsets
        self._tokenizer = _tokenizer(tokenizer_folder / "tokenizer.json", settings.lower_case)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id_ for id_, token in added.items() if token.special}
        self._truncate()
        self._prompt_tokens = {
            prompt: self._length_of_prompt(prompt) for prompt in settings.prompts.values() if prompt
        }

    def encode(self, items: Sequence[TextItem]) -> list[EncodedText | ItemError]:
        """Each item's row, or why it has none, in the order of `items`."""
        prepared = [self._prepared(item) for item in items]
        good = [one for one in prepared if isinstance(one, _Prepared)]
        encoded = iter(self._encode(good))
        return [one if isinstance(one, ItemError) else next(encoded) for one in prepared]

    def _prepared(self, item: TextItem) -> _Prepared | ItemError:
        try:
            texts = [self._text(0, item.text)]
            if item.pair is not None:
                texts.append(self._text(1, item.pair))
            elif self._settings.pair:
                raise ItemError(self._names[1], "is missing: this model reads two texts.")
            prompt = self._prompt(item.prompt_name)
            texts[0] = prompt + texts[0]
            beyond, first = 0, len(texts[0])
            for index, text in enumerate(texts):
                texts[index], more = self._cut(index, text, paired=len(texts) > 1)
                beyond = max(beyond, more)
        except ItemError as error:
            return error
        skipped = first - len(texts[0]) if self._cuts_left else 0
        return _Prepared(tuple(texts), prompt, item.truncate, beyond, skipped)

    def _text(self, index: int, given: bytes | str) -> str:
        if isinstance(given, str):
            return given
        try:
            return given.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ItemError(
                self._names[index],
                f"is not valid UTF-8: byte 0x{given[error.start]:02x} at offset {error.start} "
                f"({error.reason}).",
            ) from None

    def _prompt(self, name: str | None) -> str:
        known = self._settings.prompts
        chosen = self._settings.default_prompt if name is None else name
        if not chosen:
            return _NO_PROMPT
        if chosen not in known:
            names = f"one of {', '.join(sorted(known))}" if known else "none: the model has none"
            raise ItemError("prompt_name", f"is `{chosen[:80]}`, expected {names}.")
        return known[chosen]

    def _cut(self, index: int, text: str, *, paired: bool) -> tuple[str, int]:
        """The part of a text that the model may read, and its tokens if that is not the whole."""
        size = _WHOLE * self._settings.max_seq_len
        size = max(size, _WHOLE_PAIR) if paired else size
        while size < len(text):
            part = _end_of(text, size) if self._cuts_left else _beginning_of(text, size)
            tokens = self._length(part)
            if tokens >= _SPARE * self._settings.max_seq_len:
                return part, tokens
            if size >= _MOST_CHARACTERS:
                raise ItemError(
                    self._names[index],
                    f"has {len(text)} characters, and {size} of them hold only {tokens} "
                    "tokens. Send the text without what the tokenizer drops.",
                )
            size = min(size * _GROWTH, _MOST_CHARACTERS)
        return text, 0

    @property
    def _cuts_left(self) -> bool:
        return self._settings.truncation_side == LEFT

    def _encode(self, items: Sequence[_Prepared]) -> list[EncodedText | ItemError]:
        try:
            encodings = self._batch([item.input for item in items])
        except Exception as error:  # `tokenizers` raises bare Exception for the whole batch
            if len(items) == 1:
                return [ItemError(self._names[0], f"cannot be tokenised: {error}")]
            return [answer for item in items for answer in self._encode([item])]
        return [self._row(*each) for each in zip(items, encodings, strict=True)]

    def _batch(self, inputs: list[str | tuple[str, ...]]) -> list[Encoding]:
        if self._offsets:
            return self._tokenizer.encode_batch(inputs)
        return self._tokenizer.encode_batch_fast(inputs)  # without offsets, twice as fast

    def _row(self, item: _Prepared, encoding: Encoding) -> EncodedText | ItemError:
        ids = np.array(encoding.ids, dtype=np.int64)
        if not len(ids):
            return ItemError(self._names[0], "has no token: the tokenizer drops all of its text.")
        truncated = bool(item.beyond or encoding.overflowing)
        if truncated and not item.truncate:
            return self._too_long(item)
        types = TYPES in self._settings.inputs
        return EncodedText(
            ids,
            np.array(encoding.type_ids, dtype=np.int64) if types else None,
            len(ids),
            truncated,
            _offsets(encoding, item.skipped) if self._offsets else None,
            min(self._prompt_tokens.get(item.prompt, 0), len(ids)),
        )

    def _too_long(self, item: _Prepared) -> ItemError:
        tokens = self._length(item.input)
        subject = " and ".join(self._names) if len(item.texts) > 1 else self._names[0]
        have = f"{'have' if len(item.texts) > 1 else 'has'}{' more than' if item.beyond else ''}"
        most = self._settings.max_seq_len
        return ItemError(
            subject,
            f"{have} {tokens} tokens, the model reads {most} (max_seq_len), and truncate is "
            "false. Shorten the text, or leave truncate out.",
        )

    def _length(self, text: str | tuple[str, ...]) -> int:
        """Tokens of a text that is not truncated, special tokens included."""
        self._tokenizer.no_truncation()
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text])
        finally:
            self._truncate()
        return len(encoding)

    def _truncate(self) -> None:
        self._tokenizer.enable_truncation(
            self._settings.max_seq_len,
            strategy="longest_first",
            direction=self._settings.truncation_side,
        )

    def _length_of_prompt(self, prompt: str) -> int:
        """As sentence-transformers counts: without a special token at the end."""
        [encoding] = self._tokenizer.encode_batch_fast([prompt])
        ids = encoding.ids
        return len(ids) - 1 if ids and ids[-1] in self._special else len(ids)


def padded(
    rows: Sequence[EncodedText], settings: TextSettings, length: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """The graph's inputs INT64[rows, longest], padded on the right; `length`: to this many tokens.

    With `include_prompt: false` the mask POOLING_MASK is among them: it leaves out the prompts.
    """
    shape = (len(rows), max(row.num_input_tokens for row in rows) if length is None else length)
    arrays = {
        IDS: np.full(shape, settings.pad_id, dtype=np.int64),
        MASK: np.zeros(shape, dtype=np.int64),
        TYPES: np.zeros(shape, dtype=np.int64),
        POOLING_MASK: np.zeros(shape, dtype=np.int64),
    }
    for index, row in enumerate(rows):
        end = row.num_input_tokens
        arrays[IDS][index, :end] = row.ids
        arrays[MASK][index, :end] = 1
        arrays[POOLING_MASK][index, row.prompt_tokens : end] = 1
        if row.type_ids is not None:
            arrays[TYPES][index, :end] = row.type_ids
    return {name: arrays[name] for name in graph_inputs(settings)}


def padding_of(settings: TextSettings) -> Mapping[str, int]:
    """What fills up a short row, by input of the graph."""
    return {name: settings.pad_id if name == IDS else 0 for name in graph_inputs(settings)}


def graph_inputs(settings: TextSettings) -> list[str]:
    """The graph's inputs, in their order."""
    return [*settings.inputs, *([] if settings.include_prompt else [POOLING_MASK])]


def _tokenizer(file: Path, lower_case: bool) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ConfigurationError(
            f"{file} cannot be read: {error}. It must be the tokenizer.json of a fast Hugging "
            "Face tokenizer; build the model again."
        ) from error
    tokenizer.no_padding()
    if lower_case:
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer


def _offsets(encoding: Encoding, skipped: int) -> NDArray[np.int32]:
    offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) + np.int32(skipped)
    offsets[np.array(encoding.special_tokens_mask, dtype=bool)] = SPECIAL
    return offsets


def _beginning_of(text: str, size: int) -> str:
    """About `size` characters, up to the end of a word where there is one."""
    part = text[:size]
    end = max(part.rfind(" "), part.rfind("\n"))
    return part[:end] if end > size // 2 else part


def _end_of(text: str, size: int) -> str:
    part = text[-size:]
    starts = [found for space in " \n" if (found := part.find(space)) >= 0]
    return part[min(starts) :] if starts and min(starts) < size // 2 else part
