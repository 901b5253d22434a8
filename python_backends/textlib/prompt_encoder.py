# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids, many at once; a bad prompt fails alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from textlib.errors import ConfigurationError, PromptTooLongError, RequestError
from textlib.request_tensors import check_prompt_length

Encoded = NDArray[np.int32] | RequestError


@dataclass(frozen=True, slots=True)
class _Origin:
    """The public tensor that a prompt came from, and whether it still lacks special tokens."""

    tensor: str
    add_special_tokens: bool


class PromptEncoder:
    """The Rust tokenizer of one model.

    max_input_len: longest prompt in tokens, special tokens included. add_special_tokens: let the
    tokenizer add what its post-processor adds (usually a BOS), as Hugging Face does by default. A
    text_input that brings its own BOS does not get a second one.
    """

    def __init__(
        self, tokenizer_json: Path, *, max_input_len: int, add_special_tokens: bool
    ) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        except Exception as error:  # `tokenizers` raises bare Exception
            raise ConfigurationError(
                f"{tokenizer_json} cannot be read: {error}. It must be the tokenizer.json of a "
                "fast Hugging Face tokenizer; build the model again."
            ) from error
        # Both are training or batching settings; here they would change a prompt silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._max_input_len = max_input_len
        self._plain = _Origin("text_input", add_special_tokens)
        self._rendered = _Origin("messages", add_special_tokens=False)
        self._bos = self._added_first_id() if add_special_tokens else None
        longest = max((len(token.encode()) for token in self._tokenizer.get_vocab()), default=1)
        self._max_bytes = max_input_len * longest

    def encode(self, prompts: Sequence[bytes]) -> list[Encoded]:
        """INT32[n] ids per text_input, or the error of that prompt, in the order of `prompts`."""
        return self._encode(prompts, self._plain)

    def encode_rendered(self, prompts: Sequence[bytes]) -> list[Encoded]:
        """The same for what a chat template made of messages: it wrote all special tokens."""
        return self._encode(prompts, self._rendered)

    def _encode(self, prompts: Sequence[bytes], origin: _Origin) -> list[Encoded]:
        texts = [self._text(prompt, origin.tensor) for prompt in prompts]
        good = [text for text in texts if isinstance(text, str)]
        ids = iter(self._encode_texts(good, origin))
        return [next(ids) if isinstance(text, str) else text for text in texts]

    def _text(self, prompt: bytes, tensor: str) -> str | RequestError:
        if not prompt:
            return RequestError(f"{tensor} is empty: the prompt needs at least one character.")
        if len(prompt) > self._max_bytes:  # not even as the longest tokens would it fit
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

    def _encode_texts(self, texts: list[str], origin: _Origin) -> list[Encoded]:
        try:
            return [self._checked(ids, origin) for ids in self._batch(texts, origin)]
        except Exception:  # `tokenizers` raises bare Exception for the whole batch
            return [self._encode_alone(text, origin) for text in texts]

    def _encode_alone(self, text: str, origin: _Origin) -> Encoded:
        try:
            return self._checked(self._batch([text], origin)[0], origin)
        except Exception as error:
            return RequestError(f"{origin.tensor} cannot be tokenised: {error}")

    def _batch(self, texts: list[str], origin: _Origin) -> list[list[int]]:
        # Without offsets, and about twice as fast as encode() even for one prompt.
        encodings = self._tokenizer.encode_batch_fast(
            texts, add_special_tokens=origin.add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def _checked(self, ids: list[int], origin: _Origin) -> Encoded:
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

    def _added_first_id(self) -> int | None:
        """The id that the post-processor puts before every prompt, if any."""
        alone = self._batch(["", "a", "b"], self._plain)
        first = {ids[0] for ids in alone if ids}
        return first.pop() if len(first) == 1 and alone[0] else None
