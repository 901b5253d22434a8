# SPDX-License-Identifier: Apache-2.0
"""Encode texts and pairs of texts as sentence-transformers and transformers do.

An invalid item fails only itself. Of a text far longer than the model reads, only the relevant part
is tokenised, so that time and memory depend on what the model reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, normalizers

from tasklib.entities import SPECIAL
from tasklib.item_errors import ItemError
from tasklib.task_file import TRUNCATE_LEFT, TextSettings
from textlib.errors import ModelConfigurationError
from textlib.panics import panics_as_errors

IDS, MASK, TYPES, POOLING_MASK = "input_ids", "attention_mask", "token_type_ids", "pooling_mask"
_NO_PROMPT = ""
# Up to this many characters per token of the model's limit, the whole text is tokenised.
_CHARACTERS_PER_TOKEN = 32
# A part of a longer text must have twice the tokens that the model reads: the cut changes only
# tokens near it.
_SPARE = 2
_GROWTH = 4
# A part with too few tokens grows up to this size. Tokenising it takes at most 0.3 GB.
_MAX_CHARACTERS = 1_000_000
# Up to this size both texts of a pair are tokenised whole: the longer one gets an odd token.
_FULL_PAIR_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class TextItem:
    """One item to encode."""

    text: bytes | str
    pair: bytes | str | None = None  # the second text
    prompt_name: str | None = None  # None: the default; "": no prompt
    truncate: bool = True  # False: reject a text that is too long


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A row for the graph, without padding."""

    ids: NDArray[np.int64]  # [n]
    type_ids: NDArray[np.int64] | None  # [n]; None if the graph does not read them
    num_input_tokens: int  # n
    truncated: bool
    # INT32[n, 2]: start and end in characters, SPECIAL for special tokens; None if not requested.
    offsets: NDArray[np.int32] | None = None
    prompt_tokens: int = 0  # leading tokens of the prompt


@dataclass(frozen=True, slots=True)
class _TokenizerInput:
    """The texts of one item for the tokenizer."""

    texts: tuple[str, ...]
    prompt: str
    truncate: bool
    cut_tokens: int = 0  # tokens of a text that was cut before tokenising, else 0
    skipped: int = 0  # leading characters cut off the first text

    @property
    def input(self) -> str | tuple[str, ...]:
        return self.texts[0] if len(self.texts) == 1 else self.texts


class TextEncoder:
    """The tokenizer of one model. names: public tensors of an item's texts, for errors."""

    def __init__(
        self,
        tokenizer_folder: Path,
        settings: TextSettings,
        *,
        names: tuple[str, str] = ("text_input", "text_pair"),
        offsets: bool = False,
    ) -> None:
        """Raises ModelConfigurationError for a tokenizer.json that cannot be read."""
        self._settings = settings
        self._names = names
        self._offsets = offsets
        self._tokenizer = _load_tokenizer(tokenizer_folder / "tokenizer.json", settings.lower_case)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id_ for id_, token in added.items() if token.special}
        self._enable_truncation()
        self._prompt_tokens = {
            prompt: self._prompt_token_count(prompt)
            for prompt in settings.prompts.values()
            if prompt
        }

    def encode(self, items: Sequence[TextItem]) -> list[EncodedText | ItemError]:
        """Return the row or the error of each item, in order."""
        prepared = [self._prepare(item) for item in items]
        valid = [item_input for item_input in prepared if isinstance(item_input, _TokenizerInput)]
        encoded = iter(self._encode(valid))
        return [
            item_input if isinstance(item_input, ItemError) else next(encoded)
            for item_input in prepared
        ]

    def _prepare(self, item: TextItem) -> _TokenizerInput | ItemError:
        try:
            texts = [self._decode_text(0, item.text)]
            if item.pair is not None:
                texts.append(self._decode_text(1, item.pair))
            elif self._settings.pair:
                raise ItemError(self._names[1], "is missing: this model reads two texts.")
            prompt = self._prompt(item.prompt_name)
            texts[0] = prompt + texts[0]
            cut_tokens, full_length = 0, len(texts[0])
            for index, text in enumerate(texts):
                texts[index], tokens = self._cut_text(index, text, paired=len(texts) > 1)
                cut_tokens = max(cut_tokens, tokens)
        except ItemError as error:
            return error
        except Exception as error:  # `tokenizers` raises bare Exception
            return self._tokenising_error(error)
        skipped = full_length - len(texts[0]) if self._cuts_left else 0
        return _TokenizerInput(tuple(texts), prompt, item.truncate, cut_tokens, skipped)

    def _decode_text(self, index: int, value: bytes | str) -> str:
        if isinstance(value, str):
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ItemError(
                self._names[index],
                f"is not valid UTF-8: byte 0x{value[error.start]:02x} at offset {error.start} "
                f"({error.reason}).",
            ) from None

    def _prompt(self, name: str | None) -> str:
        prompts = self._settings.prompts
        chosen = self._settings.default_prompt if name is None else name
        if not chosen:
            return _NO_PROMPT
        if chosen not in prompts:
            names = f"one of {', '.join(sorted(prompts))}" if prompts else "no prompt"
            raise ItemError("prompt_name", f"is `{chosen[:80]}`, expected {names}.")
        return prompts[chosen]

    def _cut_text(self, index: int, text: str, *, paired: bool) -> tuple[str, int]:
        """Return the part of a text that the model may read, and its tokens if it is cut."""
        size = _CHARACTERS_PER_TOKEN * self._settings.max_seq_len
        size = max(size, _FULL_PAIR_CHARACTERS) if paired else size
        while size < len(text):
            part = _trailing_part(text, size) if self._cuts_left else _leading_part(text, size)
            tokens = self._token_count(part)
            if tokens >= _SPARE * self._settings.max_seq_len:
                return part, tokens
            if size >= _MAX_CHARACTERS:
                raise ItemError(
                    self._names[index],
                    f"has {len(text)} characters, and {size} of them hold only {tokens} "
                    "tokens. Remove characters that the tokenizer drops.",
                )
            size = min(size * _GROWTH, _MAX_CHARACTERS)
        return text, 0

    @property
    def _cuts_left(self) -> bool:
        return self._settings.truncation_side == TRUNCATE_LEFT

    def _encode(self, items: Sequence[_TokenizerInput]) -> list[EncodedText | ItemError]:
        try:
            encodings = self._batch([item.input for item in items])
        except Exception as error:  # `tokenizers` raises bare Exception for the whole batch
            if len(items) == 1:
                return [self._tokenising_error(error)]
            return [answer for item in items for answer in self._encode([item])]
        return [self._encoded_text(*each) for each in zip(items, encodings, strict=True)]

    def _tokenising_error(self, error: Exception) -> ItemError:
        return ItemError(self._names[0], f"cannot be tokenised: {error}")

    def _batch(self, inputs: list[str | tuple[str, ...]]) -> list[Encoding]:
        with panics_as_errors():
            if self._offsets:
                return self._tokenizer.encode_batch(inputs)
            return self._tokenizer.encode_batch_fast(inputs)  # without offsets, twice as fast

    def _encoded_text(self, item: _TokenizerInput, encoding: Encoding) -> EncodedText | ItemError:
        ids = np.array(encoding.ids, dtype=np.int64)
        if not len(ids):
            return ItemError(self._names[0], "has no token: the tokenizer drops all of its text.")
        truncated = bool(item.cut_tokens or encoding.overflowing)
        if truncated and not item.truncate:
            return self._length_error(item)
        types = TYPES in self._settings.inputs
        return EncodedText(
            ids,
            np.array(encoding.type_ids, dtype=np.int64) if types else None,
            len(ids),
            truncated,
            _offsets(encoding, item.skipped) if self._offsets else None,
            min(self._prompt_tokens.get(item.prompt, 0), len(ids)),
        )

    def _length_error(self, item: _TokenizerInput) -> ItemError:
        tokens = self._token_count(item.input)
        subject = " and ".join(self._names) if len(item.texts) > 1 else self._names[0]
        have = (
            f"{'have' if len(item.texts) > 1 else 'has'}{' more than' if item.cut_tokens else ''}"
        )
        limit = self._settings.max_seq_len
        return ItemError(
            subject,
            f"{have} {tokens} tokens, the model reads {limit} (max_seq_len), and truncate is "
            "false. Shorten the text, or set truncate to true.",
        )

    def _token_count(self, text: str | tuple[str, ...]) -> int:
        """Return the tokens of a text without truncation, special tokens included."""
        self._tokenizer.no_truncation()
        try:
            with panics_as_errors():
                [encoding] = self._tokenizer.encode_batch_fast([text])
        finally:
            self._enable_truncation()
        return len(encoding)

    def _enable_truncation(self) -> None:
        self._tokenizer.enable_truncation(
            self._settings.max_seq_len,
            strategy="longest_first",
            direction=self._settings.truncation_side,
        )

    def _prompt_token_count(self, prompt: str) -> int:
        """Count as sentence-transformers does: without a trailing special token."""
        [encoding] = self._tokenizer.encode_batch_fast([prompt])
        ids = encoding.ids
        return len(ids) - 1 if ids and ids[-1] in self._special else len(ids)


def pad_rows(
    rows: Sequence[EncodedText], settings: TextSettings, length: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the graph's inputs INT64[rows, length], padded on the right.

    length: default the longest row. With `include_prompt: false` they include POOLING_MASK, which
    is 0 for the prompts.
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


def padding_values(settings: TextSettings) -> Mapping[str, int]:
    """Return the pad value of each input of the graph."""
    return {name: settings.pad_id if name == IDS else 0 for name in graph_inputs(settings)}


def graph_inputs(settings: TextSettings) -> list[str]:
    """Return the names of the graph's inputs in order."""
    return [*settings.inputs, *([] if settings.include_prompt else [POOLING_MASK])]


def _load_tokenizer(file: Path, lower_case: bool) -> Tokenizer:
    try:
        with panics_as_errors():
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelConfigurationError(
            f"{file} cannot be read: {error}. It must be the tokenizer.json of a fast Hugging "
            "Face tokenizer; build the model again."
        ) from error
    tokenizer.no_padding()
    if lower_case:
        existing = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])
    return tokenizer


def _offsets(encoding: Encoding, skipped: int) -> NDArray[np.int32]:
    offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) + np.int32(skipped)
    offsets[np.array(encoding.special_tokens_mask, dtype=bool)] = SPECIAL
    return offsets


def _leading_part(text: str, size: int) -> str:
    """Return about `size` leading characters, preferably up to the end of a word."""
    part = text[:size]
    end = max(part.rfind(" "), part.rfind("\n"))
    return part[:end] if end > size // 2 else part


def _trailing_part(text: str, size: int) -> str:
    part = text[-size:]
    starts = [position for space in " \n" if (position := part.find(space)) >= 0]
    return part[min(starts) :] if starts and min(starts) < size // 2 else part
