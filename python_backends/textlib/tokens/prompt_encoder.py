# SPDX-License-Identifier: Apache-2.0
"""Encode many prompts to token ids at once; an invalid prompt fails only itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from textlib.errors import ModelConfigurationError, PromptTooLongError, RequestError
from textlib.panics import panics_as_errors
from textlib.triton.request_tensors import check_prompt_length

EncodedPrompt = NDArray[np.int32] | RequestError


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a prompt comes from."""

    tensor: str  # name of the public tensor
    add_special_tokens: bool  # the tokenizer adds them; a rendered chat already has them


class PromptEncoder:
    """The Rust tokenizer of one model.

    max_input_len: maximum prompt length in tokens, special tokens included. add_special_tokens: let
    the tokenizer's post-processor add its tokens (usually a BOS), as Hugging Face does by default.
    A text_input that already starts with a BOS does not get a second one.
    """

    def __init__(
        self, tokenizer_json: Path, *, max_input_len: int, add_special_tokens: bool
    ) -> None:
        try:
            with panics_as_errors():
                self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        except Exception as error:  # `tokenizers` raises bare Exception
            raise ModelConfigurationError(
                f"{tokenizer_json} cannot be read: {error}. It must be the tokenizer.json of a "
                "fast Hugging Face tokenizer; build the model again."
            ) from error
        # Both are settings for training or batching; here they would silently change a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._max_input_len = max_input_len
        self._text_input = _Origin("text_input", add_special_tokens)
        self._messages = _Origin("messages", add_special_tokens=False)
        self._bos = self._leading_special_id() if add_special_tokens else None
        vocabulary = self._tokenizer.get_vocab()
        self._max_id = max(vocabulary.values(), default=-1)
        max_token_bytes = max((len(token.encode()) for token in vocabulary), default=1)
        self._max_prompt_bytes = max_input_len * max_token_bytes

    def encode(self, prompts: Sequence[bytes]) -> list[EncodedPrompt]:
        """Return INT32[n] ids or an error for each text_input, in the order of `prompts`."""
        return self._encode(prompts, self._text_input)

    def encode_rendered(self, prompts: Sequence[bytes]) -> list[EncodedPrompt]:
        """Encode chats rendered by a template, which wrote all special tokens."""
        return self._encode(prompts, self._messages)

    def check_ids(self, prompts: Sequence[NDArray[np.int32]]) -> list[EncodedPrompt]:
        """Return each prompt_ids INT32[n] as it is, or an error."""
        return [self._check_prompt_ids(ids) for ids in prompts]

    def _check_prompt_ids(self, ids: NDArray[np.int32]) -> EncodedPrompt:
        if not ids.size:
            return RequestError("prompt_ids is empty: the prompt needs at least one id.")
        outside = ids[(ids < 0) | (ids > self._max_id)]
        if outside.size:
            return RequestError(
                f"prompt_ids has the id {outside[0]}, expected ids from 0 to {self._max_id}."
            )
        try:
            check_prompt_length(len(ids), self._max_input_len, "prompt_ids")
        except RequestError as error:
            return error
        return ids

    def _encode(self, prompts: Sequence[bytes], origin: _Origin) -> list[EncodedPrompt]:
        texts = [self._decode_prompt(prompt, origin.tensor) for prompt in prompts]
        valid_texts = [text for text in texts if isinstance(text, str)]
        ids = iter(self._encode_texts(valid_texts, origin))
        return [next(ids) if isinstance(text, str) else text for text in texts]

    def _decode_prompt(self, prompt: bytes, tensor: str) -> str | RequestError:
        if not prompt:
            return RequestError(f"{tensor} is empty: the prompt needs at least one character.")
        if len(prompt) > self._max_prompt_bytes:  # too long even if every token is the longest one
            return PromptTooLongError(
                f"{tensor} has {len(prompt)} bytes, which is more than {self._max_input_len} "
                "tokens (max_input_len). Shorten the prompt."
            )
        try:
            return prompt.decode("utf-8")
        except UnicodeDecodeError as error:
            return RequestError(
                f"{tensor} is not valid UTF-8: byte 0x{prompt[error.start]:02x} at offset "
                f"{error.start} ({error.reason}). Send the prompt as UTF-8."
            )

    def _encode_texts(self, texts: list[str], origin: _Origin) -> list[EncodedPrompt]:
        try:
            return [self._check_ids(ids, origin) for ids in self._batch(texts, origin)]
        except Exception:  # `tokenizers` raises bare Exception for the whole batch
            return [self._encode_single(text, origin) for text in texts]

    def _encode_single(self, text: str, origin: _Origin) -> EncodedPrompt:
        try:
            return self._check_ids(self._batch([text], origin)[0], origin)
        except Exception as error:
            return RequestError(f"{origin.tensor} cannot be tokenised: {error}")

    def _batch(self, texts: list[str], origin: _Origin) -> list[list[int]]:
        # Without offsets, and about twice as fast as encode() even for one prompt.
        with panics_as_errors():
            encodings = self._tokenizer.encode_batch_fast(
                texts, add_special_tokens=origin.add_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    def _check_ids(self, ids: list[int], origin: _Origin) -> EncodedPrompt:
        if origin.add_special_tokens and self._bos is not None and ids[:2] == [self._bos] * 2:
            ids = ids[1:]
        if not ids:
            return RequestError(
                f"{origin.tensor} has no token: the tokenizer drops all of its text."
            )
        try:
            check_prompt_length(len(ids), self._max_input_len, origin.tensor)
        except RequestError as error:
            return error
        return np.array(ids, dtype=np.int32)

    def _leading_special_id(self) -> int | None:
        """Return the id that the post-processor puts before every prompt, if any."""
        encodings = self._batch(["", "a", "b"], self._text_input)
        first = {ids[0] for ids in encodings if ids}
        return first.pop() if len(first) == 1 and encodings[0] else None
