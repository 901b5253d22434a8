# SPDX-License-Identifier: Apache-2.0
"""Encode requests with the public tensors to token ids: texts and conversations, many at once.

Prompts of token ids are only checked.

Used by the tokenizer step, and by an engine that does its work (`fused`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from textlib.chat.files import has_chat_template
from textlib.chat.renderer import ChatRenderer
from textlib.errors import RequestError, TextPathError
from textlib.tokens.prompt_encoder import EncodedPrompt, PromptEncoder
from textlib.triton.parameters import ModelParameters
from textlib.triton.unused_tensors import check_neutral

_EITHER = "Give the request a prompt in text_input or a conversation in messages"
_TEXT, _MESSAGES, _IDS = "text_input", "messages", "prompt_ids"
_NO_TEMPLATE = RequestError("messages: the checkpoint has no chat template. Send text_input.")

Inputs = Mapping[str, NDArray[Any]]
PromptResult = EncodedPrompt | TextPathError


class RequestEncoder:
    """Encodes the prompts of requests with a checkpoint's tokenizer folder.

    Reads tokenizer.json and the chat template, if there is one. Raises ModelConfigurationError.
    """

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._encoder = PromptEncoder(
            folder / "tokenizer.json",
            max_input_len=parameters.integer("max_input_len"),
            add_special_tokens=parameters.boolean("add_special_tokens"),
        )
        self._chat = ChatRenderer(folder) if has_chat_template(folder) else None

    def encode(self, requests: Sequence[Inputs]) -> list[list[PromptResult]]:
        """Return INT32[n] ids or an error for each prompt of each request."""
        prompts_by_request = [_read_prompts(inputs) for inputs in requests]
        texts: Iterator[PromptResult] = iter(
            self._encoder.encode(_elements_of(_TEXT, prompts_by_request))
        )
        chats: Iterator[PromptResult] = iter(
            self._encode_chats(_elements_of(_MESSAGES, prompts_by_request))
        )
        ids: Iterator[PromptResult] = iter(
            self._encoder.check_ids(_elements_of(_IDS, prompts_by_request))
        )
        return [
            _request_results(prompts, {_TEXT: texts, _MESSAGES: chats, _IDS: ids})
            for prompts in prompts_by_request
        ]

    def close(self) -> None:
        """Stop the template's process."""
        if self._chat is not None:
            self._chat.close()

    def _encode_chats(self, conversations: list[bytes]) -> list[PromptResult]:
        rendered = [self._render(raw) for raw in conversations]
        valid = [prompt for prompt in rendered if isinstance(prompt, bytes)]
        ids = iter(self._encoder.encode_rendered(valid))
        return [next(ids) if isinstance(prompt, bytes) else prompt for prompt in rendered]

    def _render(self, raw: bytes) -> bytes | TextPathError:
        return _NO_TEMPLATE if self._chat is None else self._chat.render(raw)


# The tensor's name and its elements: bytes, or INT32[n] of prompt_ids.
_RequestPrompts = tuple[str, list[Any]] | RequestError


def _read_prompts(inputs: Inputs) -> _RequestPrompts:
    """Return the tensor that the request uses and its elements, or an error."""
    arrays = {name: inputs[name] for name in (_TEXT, _MESSAGES, _IDS) if name in inputs}
    if len(arrays) > 1:
        first, second, *_ = arrays
        return RequestError(f"{first} and {second} are both present. {_EITHER}, not both.")
    try:
        check_neutral(inputs)
    except RequestError as error:
        return error
    if _IDS in arrays:
        return _IDS, list(arrays[_IDS].reshape(len(arrays[_IDS]), -1))
    for name, array in arrays.items():
        if array.size:
            return name, [bytes(item) for item in array.reshape(-1)]
    return RequestError(f"text_input is missing, and so is messages. {_EITHER}.")


def _elements_of(tensor: str, prompts_by_request: Sequence[_RequestPrompts]) -> list[Any]:
    """Return the elements of every request that uses this tensor."""
    used = (prompts for prompts in prompts_by_request if not isinstance(prompts, RequestError))
    return [item for name, items in used if name == tensor for item in items]


def _request_results(
    request_prompts: _RequestPrompts, encoded: Mapping[str, Iterator[PromptResult]]
) -> list[PromptResult]:
    if isinstance(request_prompts, RequestError):
        return [request_prompts]
    name, items = request_prompts
    return [next(encoded[name]) for _ in items]
