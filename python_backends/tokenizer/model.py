# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: prompts and conversations to token ids."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from textlib.chat_files import has_chat_template
from textlib.chat_renderer import ChatRenderer
from textlib.errors import RequestError, TextPathError
from textlib.neutral_tensors import check_neutral
from textlib.prompt_encoder import Encoded, PromptEncoder
from textlib.step_metrics import StepMetrics
from textlib.token_chunk import PADDING
from textlib.triton_edge import (
    answer_each,
    existing,
    limit_tokenizer_threads,
    loading,
    read_arrays,
    tensor,
    version_folder,
)

_EITHER = "Give the request a prompt in text_input or a conversation in messages"
_TEXT, _MESSAGES = "text_input", "messages"
_NO_TEMPLATE = RequestError("messages: the checkpoint has no chat template. Send text_input.")


class TritonPythonModel:
    """text_input or messages STRING[n, 1] to input_ids INT32[n, longest], input_lengths INT32[n, 1]
    and acknowledged BOOL[n, 1]."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/tokenizer: tokenizer.json and, if the checkpoint brings one, the template."""
        limit_tokenizer_threads()
        folder = version_folder(args) / "tokenizer"
        with loading(args) as parameters:
            self._encoder = PromptEncoder(
                existing(folder / "tokenizer.json"),
                max_input_len=parameters.integer("max_input_len"),
                add_special_tokens=parameters.boolean("add_special_tokens"),
            )
            self._chat = ChatRenderer(folder) if has_chat_template(folder) else None
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode the prompts of all requests in one call for each kind."""
        asked = [_asked(request) for request in requests]
        texts = iter(self._encoder.encode(_all(_TEXT, asked)))
        chats = iter(self._encode_chats(_all(_MESSAGES, asked)))
        rows = iter([_rows(prompts, {_TEXT: texts, _MESSAGES: chats}) for prompts in asked])
        return answer_each(requests, lambda _: _tensors(next(rows)), self._metrics.failed)

    def finalize(self) -> None:
        """End the template's process and the metrics."""
        self._metrics.close()
        if self._chat is not None:
            self._chat.close()

    def _encode_chats(self, conversations: list[bytes]) -> list[Encoded | TextPathError]:
        rendered = [self._render(raw) for raw in conversations]
        good = [prompt for prompt in rendered if isinstance(prompt, bytes)]
        ids = iter(self._encoder.encode_rendered(good))
        return [next(ids) if isinstance(prompt, bytes) else prompt for prompt in rendered]

    def _render(self, raw: bytes) -> bytes | TextPathError:
        return _NO_TEMPLATE if self._chat is None else self._chat.render(raw)


_Asked = tuple[str, list[bytes]] | RequestError


def _asked(request: Any) -> _Asked:
    """The tensor that the request uses, and its elements."""
    given = read_arrays(request)
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


def _rows(
    asked: _Asked, encoded: Mapping[str, Iterator[Encoded | TextPathError]]
) -> list[Encoded | TextPathError]:
    if isinstance(asked, RequestError):
        return [asked]
    name, items = asked
    return [next(encoded[name]) for _ in items]


def _tensors(rows: Sequence[Encoded | TextPathError]) -> list[Any]:
    ids = []
    for row in rows:
        if isinstance(row, TextPathError):
            raise row
        ids.append(row)
    padded = np.full((len(ids), max(map(len, ids))), PADDING, dtype=np.int32)
    for target, row in zip(padded, ids, strict=True):
        target[: len(row)] = row
    lengths = np.array([[len(row)] for row in ids], dtype=np.int32)
    # Only an ensemble passes this on: it tells the engine that its answers are acknowledged.
    acknowledged = np.ones((len(ids), 1), dtype=np.bool_)
    return [
        tensor("input_ids", padded),
        tensor("input_lengths", lengths),
        tensor("acknowledged", acknowledged),
    ]
