# SPDX-License-Identifier: Apache-2.0
"""Requests with the public tensors to token ids: texts and conversations, many at once.

For the tokenizer step, and for an engine that does its work (`fused`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from textlib.chat_files import has_chat_template
from textlib.chat_renderer import ChatRenderer
from textlib.errors import RequestError, TextPathError
from textlib.neutral_tensors import check_neutral
from textlib.parameters import ModelParameters
from textlib.prompt_encoder import Encoded, PromptEncoder

_EITHER = "Give the request a prompt in text_input or a conversation in messages"
_TEXT, _MESSAGES = "text_input", "messages"
_NO_TEMPLATE = RequestError("messages: the checkpoint has no chat template. Send text_input.")

Inputs = Mapping[str, NDArray[Any]]
Row = Encoded | TextPathError


class Prompts:
    """What a checkpoint's tokenizer folder makes of prompts; `close` ends the template's process.

    Reads tokenizer.json and, if the checkpoint brings one, the chat template. Raises
    ConfigurationError.
    """

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._encoder = PromptEncoder(
            folder / "tokenizer.json",
            max_input_len=parameters.integer("max_input_len"),
            add_special_tokens=parameters.boolean("add_special_tokens"),
        )
        self._chat = ChatRenderer(folder) if has_chat_template(folder) else None

    def encode(self, requests: Sequence[Inputs]) -> list[list[Row]]:
        """INT32[n] ids, or an error, per prompt of each request; one call for each kind."""
        asked = [_asked(inputs) for inputs in requests]
        texts: Iterator[Row] = iter(self._encoder.encode(_all(_TEXT, asked)))
        chats: Iterator[Row] = iter(self._encode_chats(_all(_MESSAGES, asked)))
        return [_rows(prompts, {_TEXT: texts, _MESSAGES: chats}) for prompts in asked]

    def close(self) -> None:
        """End the template's process."""
        if self._chat is not None:
            self._chat.close()

    def _encode_chats(self, conversations: list[bytes]) -> list[Row]:
        rendered = [self._render(raw) for raw in conversations]
        good = [prompt for prompt in rendered if isinstance(prompt, bytes)]
        ids = iter(self._encoder.encode_rendered(good))
        return [next(ids) if isinstance(prompt, bytes) else prompt for prompt in rendered]

    def _render(self, raw: bytes) -> bytes | TextPathError:
        return _NO_TEMPLATE if self._chat is None else self._chat.render(raw)


_Asked = tuple[str, list[bytes]] | RequestError


def _asked(given: Inputs) -> _Asked:
    """The tensor that the request uses, and its elements."""
    arrays = {name: given[name] for name in (_TEXT, _MESSAGES) if name in given}
    if len(arrays) > 1:
        return RequestError(f"text_input and messages are both given. {_EITHER}, not both.")
    try:
        check_neutral(given)
    except RequestError as error:
        return error
    for name, array in arrays.items():
        if array.size:
            return name, [bytes(item) for item in array.reshape(-1)]
    return RequestError(f"text_input is missing, and so is messages. {_EITHER}.")


def _all(tensor: str, asked: Sequence[_Asked]) -> list[bytes]:
    """The elements of every request that uses this tensor."""
    used = (prompts for prompts in asked if not isinstance(prompts, RequestError))
    return [item for name, items in used if name == tensor for item in items]


def _rows(asked: _Asked, encoded: Mapping[str, Iterator[Row]]) -> list[Row]:
    if isinstance(asked, RequestError):
        return [asked]
    name, items = asked
    return [next(encoded[name]) for _ in items]
